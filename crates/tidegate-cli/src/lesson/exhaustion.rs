//! Exhaustion: places that are never given back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate::{Consumed, Outbox, Peer, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "exhaustion",
    about: "A server works until it does not any more. How many connections does it serve in its life?",
    server: "The server at {addr} is an echo server with a table of places, one for each connection. When no place is
free, it closes a new connection at once.",
    task: "Nobody stays connected for long, and yet after some time it refuses every client. Find out how many
connections it serves in its whole life, from the start of this lesson on. (Start the lesson again to count again.)",
    commands: &[
        "tidegate load echo {addr} -c 30 --messages 1 --size 64 --timeout 3s   # 30 clients, once each",
        "tidegate load echo {addr} -c 30 --messages 1 --size 64 --timeout 3s   # the same again, when they are gone",
        "tidegate load echo {addr} -c 1 --messages 1 --size 64 --timeout 3s    # a single client",
        "ss -tn 'sport = :{port}'   # Linux: if it lists none and one client is refused, the places are lost",
    ],
    question: Question::Number {
        unit: "connections",
        tolerance_percent: 0.0,
        too_low: "it serves more. Add up the verified connections of all loads since the lesson was started.",
        too_high: "it serves fewer. Add up only those that the reports call verified: an established connection may \
have been refused.",
    },
    explanation: "The table leaks: a place is taken when a connection opens, and not given back when it ends. Any
resource of a server can run out like that: descriptors, memory, threads, ports of a client. Tie each one to the life of
its connection (in Rust: to a value that is dropped with the session), count it, and look at the count after a load:
`--stats` of `serve` should say that nothing is open. And decide beforehand what happens when a limit is reached: wait in
the backlog or refuse (`when_full`), never a loop around an accept that fails.",
    page: "policy.md",
    start,
    measure,
};

const PLACES: usize = 40;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Leaky::new(), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let served = connections_served(Leaky::new(), 2 * PLACES)?;
    let evidence = format!("one after the other, {served} connections were served; then none any more");
    Ok(Measured::number(served, evidence))
}

/// Connects one client after the other, each gone before the next comes, until one is not served.
fn connections_served(service: Leaky, most: usize) -> anyhow::Result<usize> {
    let (addr, running) = host::serve(service, host::policy(), None, anywhere())?;
    for served in 0..most {
        let mut client = host::connect(addr)?;
        if host::exchange(&mut client, b"hello").is_err() {
            return Ok(served);
        }
        drop(client);
        host::wait_until("the connection has ended", || running.stats().open() == 0)?;
    }
    Ok(most)
}

/// Echo with a table of places.
struct Leaky {
    free: Arc<AtomicUsize>,
    /// Whether a place is given back. In the lesson it is not: that is the fault.
    gives_back: bool,
}

struct LeakySession {
    free: Arc<AtomicUsize>,
    gives_back: bool,
}

impl Leaky {
    fn new() -> Self {
        Self { free: Arc::new(AtomicUsize::new(PLACES)), gives_back: false }
    }
}

impl Service for Leaky {
    type Session = LeakySession;

    fn open(&self, _: &Peer) -> Result<LeakySession, Refusal> {
        let taken = self.free.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1));
        taken.map_err(|_| Refusal)?;
        Ok(LeakySession { free: Arc::clone(&self.free), gives_back: self.gives_back })
    }
}

impl Session for LeakySession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

impl Drop for LeakySession {
    fn drop(&mut self) {
        if self.gives_back {
            self.free.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_run_out_only_when_they_are_not_given_back() {
        assert_eq!(connections_served(Leaky::new(), 2 * PLACES).unwrap(), PLACES);
        let mended = Leaky { gives_back: true, ..Leaky::new() };
        assert_eq!(connections_served(mended, 2 * PLACES).unwrap(), 2 * PLACES);
    }
}
