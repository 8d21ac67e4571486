//! Measuring honestly: a server that pauses, and a generator that waits politely until it is over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use tidegate::{Consumed, Outbox, Peer, Refusal, Service, Session};

use super::host;
use super::question::{Measured, Question, Value};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "measuring honestly",
    about: "The report says p99 is excellent; users complain. Who is right?",
    server: "The server at {addr} echoes messages of 64 bytes at once, but now and then it pauses for all clients, as a
collection of garbage or a slow disk makes it.",
    task: "Users send 200 requests a second, whether or not the server answers. Find out p99 of the latency they see, in
milliseconds.",
    commands: &[
        "tidegate load echo {addr} -c 1 -n 2000 --size 64                # closed loop: each answer lets the next begin",
        "tidegate load echo {addr} -c 200 --rate 200 -d 10s --size 64   # open loop: 200 a second, whatever happens",
    ],
    question: Question::Number {
        unit: "ms",
        tolerance_percent: 25.0,
        too_low: "users see more. A closed loop sends nothing while the server pauses, so it meets each pause once \
(coordinated omission); users go on sending. Take p99 of the open loop (`--rate`).",
        too_high: "users see less: p99, not the maximum, at 200 requests a second. If other things ran on this machine \
meanwhile, measure again.",
    },
    explanation: "In a closed loop the generator waits with the server: of 200 requests one meets the pause, and p99 knows
nothing of it. Real users do not wait for each other: at 200 requests a second, a hundred requests fall into a pause of
half a second. Gil Tene calls this coordinated omission. Measure latency in an open loop (`--rate`), from when a request
was due, and read the `verdict`: when it says that the generator was the limit, you have measured the client, and the
figures may say nothing about the server. Give it dedicated processors (`--cpus`), or lower the rate. When it says only
that the generator woke up late, compare p99 of `latency` with p99 of `from start`: if they agree, lateness made no
difference.",
    page: "load.md",
    start,
    measure,
};

const MESSAGE: usize = 64;
/// After so many messages there is a pause.
const EVERY: u64 = 200;
const PAUSE: Duration = Duration::from_millis(500);
/// Time between two requests of all users.
const INTERVAL: Duration = Duration::from_millis(5);

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Pausing::default(), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

/// The pause before the answer to this message, the first of which is 1.
fn pause_before(message: u64) -> Duration {
    if message.is_multiple_of(EVERY) { PAUSE } else { Duration::ZERO }
}

fn measure() -> anyhow::Result<Measured> {
    let (closed, open) = (p99(closed_loop(2_000)), p99(open_loop(2_000)));
    let (closed, open) = (closed.as_secs_f64() * 1e3, open.as_secs_f64() * 1e3);
    let evidence = format!(
        "replayed in virtual time, p99 is {open:.0} ms at 200 requests a second, and {closed:.0} ms in a closed loop (25% \
         off is fine)"
    );
    Ok(Measured { value: Value::Number(open), evidence })
}

/// Latencies when each request waits for the answer before it.
fn closed_loop(requests: u64) -> Vec<Duration> {
    (1..=requests).map(pause_before).collect()
}

/// Latencies of requests on a schedule, in virtual time: nothing but the pauses costs any.
fn open_loop(requests: u64) -> Vec<Duration> {
    let (mut clock, mut due) = (Duration::ZERO, Duration::ZERO);
    let latency = |message| {
        clock = clock.max(due) + pause_before(message);
        let latency = clock.saturating_sub(due);
        due += INTERVAL;
        latency
    };
    (1..=requests).map(latency).collect()
}

fn p99(mut latencies: Vec<Duration>) -> Duration {
    latencies.sort();
    let rank = (latencies.len() * 99).div_ceil(100);
    latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Echo with pauses.
#[derive(Default)]
struct Pausing {
    messages: Arc<AtomicU64>,
}

struct PausingSession {
    messages: Arc<AtomicU64>,
}

impl Service for Pausing {
    type Session = PausingSession;

    fn open(&self, _: &Peer) -> Result<PausingSession, Refusal> {
        Ok(PausingSession { messages: Arc::clone(&self.messages) })
    }
}

impl Session for PausingSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let messages = input.chunks_exact(MESSAGE);
        let used = input.len() - messages.remainder().len();
        for message in messages {
            let number = self.messages.fetch_add(1, SeqCst) + 1;
            std::thread::sleep(pause_before(number)); // the fault: the only I/O thread sleeps
            out.write(message);
        }
        Consumed::bytes(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_hides_the_pauses_and_an_open_one_does_not() {
        assert_eq!(p99(closed_loop(2_000)), Duration::ZERO);
        let open = p99(open_loop(2_000));
        assert!(open > PAUSE * 9 / 10 && open <= PAUSE, "{open:?}");
    }
}
