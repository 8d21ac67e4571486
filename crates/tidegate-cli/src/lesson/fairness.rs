//! Fairness: a server that takes everything one client has sent before it looks at the next.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Consumed, Outbox, Peer, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "fairness",
    about: "A busy client and a quiet one. How long is the quiet one kept waiting?",
    server: "The server at {addr} echoes messages of 16 bytes. Each one costs it 1 ms of work. It has one thread.",
    task: "A busy client keeps many messages in flight, a quiet one a single message. Find out how many messages of the
busy client the server handles for each one of the quiet client. Run both commands at the same time, and divide
requests by seconds in both reports.",
    commands: &[
        "tidegate load echo {addr} -c 1 --size 16 --window 200 -d 10s   # the busy one",
        "tidegate load echo {addr} -c 1 --size 16 -d 8s                 # the quiet one, meanwhile",
    ],
    question: Question::Number {
        unit: "messages",
        tolerance_percent: 25.0,
        too_low: "it is more. Both loads have to run at the same time; divide requests a second of the busy client by \
those of the quiet one.",
        too_high: "it is less. Both loads have to run at the same time; divide requests a second of the busy client by \
those of the quiet one.",
    },
    explanation: "The busy client decides how long all others wait: as long as it takes to handle what it has in
flight. Throughput looks perfect all the while; only the latency of the others shows it. A fair server bounds what one
connection gets in a row. The engines do so for receives and sends (`drain_budget`, 8 by default); a session whose
messages are expensive takes one at a time and returns `Consumed::again()`, which bounds its turn, or gives the work
away (`Outbox::offload`).",
    page: "policy.md",
    start,
    measure,
};

const MESSAGE: usize = 16;
const IN_FLIGHT: usize = 200;
const COST: Duration = Duration::from_millis(1);

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Greedy::default(), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let in_a_row = longest_row(Greedy::default())?;
    let evidence = format!(
        "with {IN_FLIGHT} messages of each of two clients waiting, {in_a_row} of one were handled in a row"
    );
    Ok(Measured::number(in_a_row, evidence))
}

/// Holds the server until two clients have sent all they have, and returns how many messages of one of them are then
/// handled in a row.
fn longest_row(service: Greedy) -> anyhow::Result<usize> {
    let record = Arc::new(ServedOrder::default());
    let service = Greedy { record: Some(Arc::clone(&record)), ..service };
    let (addr, _running) = host::serve(service, host::policy(), None, anywhere())?;
    let [mut first, mut one, mut other] = [host::connect(addr)?, host::connect(addr)?, host::connect(addr)?];
    let sent = first.write_all(&[0; MESSAGE]);
    let sent = sent.and_then(|()| one.write_all(&[1; MESSAGE * IN_FLIGHT]));
    let sent = sent.and_then(|()| other.write_all(&[2; MESSAGE * IN_FLIGHT]));
    record.open(); // in any case: a server that is held cannot stop
    sent?;
    for client in [&mut one, &mut other] {
        client.read_exact(&mut [0; MESSAGE * IN_FLIGHT])?;
    }
    let order = record.order.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(order.chunk_by(|a, b| a == b).map(<[usize]>::len).max().unwrap_or(0))
}

/// Which connection each message was of, from when the server was let go.
#[derive(Default)]
struct ServedOrder {
    order: Mutex<Vec<usize>>,
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl ServedOrder {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opens.notify_all();
    }

    fn handled(&self, connection: usize) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opens.wait_while(is_open, |is_open| !*is_open).unwrap_or_else(PoisonError::into_inner));
        self.order.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

/// Echo of messages that cost something.
#[derive(Default)]
struct Greedy {
    connections: AtomicUsize,
    /// Whether a session takes one message at a time. In the lesson it does not: that is the fault.
    is_fair: bool,
    /// Where it is noted what was handled, instead of the cost.
    record: Option<Arc<ServedOrder>>,
}

struct GreedySession {
    connection: usize,
    is_fair: bool,
    record: Option<Arc<ServedOrder>>,
}

impl Service for Greedy {
    type Session = GreedySession;

    fn open(&self, _: &Peer) -> Result<GreedySession, Refusal> {
        let connection = self.connections.fetch_add(1, SeqCst);
        Ok(GreedySession { connection, is_fair: self.is_fair, record: self.record.clone() })
    }
}

impl Session for GreedySession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let most = if self.is_fair { 1 } else { usize::MAX };
        let mut used = 0;
        for message in input.chunks_exact(MESSAGE).take(most) {
            match &self.record {
                Some(record) => record.handled(self.connection),
                None => std::thread::sleep(COST),
            }
            out.write(message);
            used += MESSAGE;
        }
        let consumed = Consumed::bytes(used);
        if self.is_fair { consumed.again() } else { consumed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_is_handled_to_its_end_only_by_the_server_that_takes_everything() {
        assert_eq!(longest_row(Greedy::default()).unwrap(), IN_FLIGHT);
        let fair = longest_row(Greedy { is_fair: true, ..Greedy::default() }).unwrap();
        assert!(fair < IN_FLIGHT, "{fair} in a row");
    }
}
