//! Level against edge: a server that takes a part of what has arrived, and waits for news.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::{Consumed, Outbox, Peer, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "level against edge",
    about: "Small messages are answered, large ones hang. Where is the border?",
    server: "The server at {addr} is an echo server. It hears of new bytes once, when they arrive (edge-triggered). Each
time it takes as much as its buffer holds, echoes that, and waits for the next news.",
    task: "Messages up to some size are answered; one byte more, and the rest of the message is never returned. Find out
the largest size that is answered: try sizes between one that works and one that hangs, half way each time, about a
dozen in all.",
    commands: &[
        "tidegate load echo {addr} -c 1 -n 1 --size 1000 --timeout 3s",
        "tidegate load echo {addr} -c 1 -n 1 --size 8000 --timeout 3s",
    ],
    question: Question::Number {
        unit: "bytes",
        tolerance_percent: 0.0,
        too_low: "a message with one byte more is answered, too. Halve the interval: try a size between the largest \
that works and the smallest that hangs.",
        too_high: "a message of this size hangs. Halve the interval: try a size between the largest that works and the \
smallest that hangs. Of one that hangs, `received/s` times the seconds in the line `requests` is what came back.",
    },
    explanation: "A level-triggered wait (select, poll, epoll by default) reports a socket for as long as it has bytes. An
edge-triggered one (EPOLLET) reports that bytes have arrived, once: what is left then is nobody's news. So drain a socket
until it would block, or remember that it is still readable. A session of tidegate has the same contract: what it does
not consume is shown again with new input, not before; one that takes a message at a time says `Consumed::again()`. The
engine itself drains its sockets and lets the others have their turn (`drain_budget`).",
    page: "models/epoll.md",
    start,
    measure,
};

const TAKES: usize = 3_000;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Partial::default(), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let (mut works, mut hangs) = (1, 16_000);
    while hangs - works > 1 {
        let size = (works + hangs) / 2;
        *(if is_answered(size)? { &mut works } else { &mut hangs }) = size;
    }
    let evidence = format!("a message of {works} bytes came back whole, one of {hangs} bytes did not");
    Ok(Measured::number(works, evidence))
}

/// Whether nothing of a message is left when all of it has been shown to the session.
fn is_answered(size: usize) -> anyhow::Result<bool> {
    let service = Partial::default();
    let shown = Arc::clone(&service.shown);
    let (addr, _running) = host::serve(service, host::policy(), None, anywhere())?;
    let mut client = host::connect(addr)?;
    client.write_all(&vec![7; size])?;
    let shown = move || *shown.lock().unwrap_or_else(PoisonError::into_inner);
    host::wait_until("the server has seen the message", || shown().taken + shown().left == size)?;
    Ok(shown().left == 0)
}

/// What a session has been shown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Shown {
    /// Bytes it has taken, in all.
    taken: usize,
    /// Bytes it has left, the last time.
    left: usize,
}

/// Echo in parts.
#[derive(Default)]
struct Partial {
    /// Whether it asks to be shown the rest. In the lesson it does not: that is the fault.
    asks_again: bool,
    shown: Arc<Mutex<Shown>>,
}

struct PartialSession {
    asks_again: bool,
    shown: Arc<Mutex<Shown>>,
}

impl Service for Partial {
    type Session = PartialSession;

    fn open(&self, _: &Peer) -> Result<PartialSession, Refusal> {
        Ok(PartialSession { asks_again: self.asks_again, shown: Arc::clone(&self.shown) })
    }
}

impl Session for PartialSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let taken = input.len().min(TAKES);
        out.write(&input[..taken]);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Shown { taken: shown.taken + taken, left: input.len() - taken };
        let consumed = Consumed::bytes(taken);
        if self.asks_again { consumed.again() } else { consumed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_is_left_comes_back_only_with_news_or_for_the_asking() {
        assert!(is_answered(TAKES).unwrap() && !is_answered(TAKES + 1).unwrap());
        for asks_again in [false, true] {
            let service = Partial { asks_again, ..Partial::default() };
            let (addr, _running) = host::serve(service, host::policy(), None, anywhere()).unwrap();
            let mut client = host::connect(addr).unwrap();
            client.write_all(&[7; TAKES + 1]).unwrap();
            let mut back = [0; TAKES + 1];
            client.read_exact(&mut back[..TAKES]).unwrap();
            if !asks_again {
                client.write_all(&[7]).unwrap(); // news
            }
            client.read_exact(&mut back[TAKES..]).unwrap();
        }
    }
}
