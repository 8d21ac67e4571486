//! Completion and ownership: a buffer that is used again before the operation on it has completed.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Consumed, Flow, Mail, Mailbox, Outbox, Peer, Recipient, Refusal, Service, Session};

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "completion and ownership",
    about: "A client gets the bytes of another one. From how many clients on?",
    server: "The server at {addr} echoes messages of up to 4,096 bytes in the manner of completions: it copies a message
into the next one of its buffers, in turn, and starts a send that completes 5 ms later. It does not ask whether the
send that used the buffer before has completed.",
    task: "Find out how many clients, each with one message in flight, it serves at once without mixing up their bytes: try
numbers between 2 and 50, half way each time.
(`load echo` compares every byte.)",
    commands: &[
        "tidegate load echo {addr} -c 2 -n 1000 --size 64",
        "tidegate load echo {addr} -c 50 -n 1000 --size 64",
    ],
    question: Question::Number {
        unit: "clients",
        tolerance_percent: 0.0,
        too_low: "so many are served right, and one more, too. Try larger numbers for -c, with at least -n 1000.",
        too_high: "with so many clients bytes are mixed up; asked is the largest number for -c that fails never, with \
-n 1000 at least.",
    },
    explanation: "With completions (io_uring, IOCP, RIO) the kernel uses a buffer after the call has returned, until the
completion says that it is done. Until then the buffer belongs to the kernel; who writes to it or frees it changes what
others receive, or worse. This server has four buffers, and takes the first one again for the fifth message in flight.
The rule: a buffer is owned by the operation, and comes back with its completion. In tidegate the ring owns what it was
given (`ring::Buffer` is a value), a connection closes only when everything that was queued under it has come back, and
the simulated kernel is late on purpose.",
    page: "models/uring.md",
    start,
    measure,
};

const BUFFERS: usize = 4;
const LATE: Duration = Duration::from_millis(5);

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let (addr, running) = host::serve(Careless::of(SendCompletion::After(LATE)), host::policy(), None, at)?;
    Ok(Scene::of(addr, running))
}

fn measure() -> anyhow::Result<Measured> {
    let mut right = 0;
    while right < 2 * BUFFERS && are_served(right + 1, Careless::of)? {
        right += 1;
    }
    let evidence =
        format!("{right} messages in flight came back right; with {} some were mixed up", right + 1);
    Ok(Measured::number(right, evidence))
}

/// Whether so many clients get their bytes back when all sends complete together.
fn are_served(clients: usize, service: impl Fn(SendCompletion) -> Careless) -> anyhow::Result<bool> {
    let service = service(SendCompletion::Together(clients));
    let (addr, _running) = host::serve(service, host::policy(), None, anywhere())?;
    let mut all = (0..clients).map(|_| host::connect(addr)).collect::<anyhow::Result<Vec<_>>>()?;
    for (number, client) in (0..).zip(&mut all) {
        client.write_all(&[number; 64])?;
    }
    let mut is_right = true;
    for (number, client) in (0_u8..).zip(&mut all) {
        let mut back = [0; 64];
        client.read_exact(&mut back)?;
        is_right &= back == [number; 64];
    }
    Ok(is_right)
}

/// When a send completes.
#[derive(Clone, Copy)]
enum SendCompletion {
    /// So long after it was started.
    After(Duration),
    /// When so many were started.
    Together(usize),
}

/// Echo with buffers that are used in turn.
struct Careless {
    completion: SendCompletion,
    /// Whether a buffer is used again only after its completion. In the lesson it is not asked: that is the fault.
    asks: bool,
    sends: Arc<Mutex<SendBuffers>>,
}

/// The buffers, and what is on its way out of them.
struct SendBuffers {
    buffers: Vec<Vec<u8>>,
    /// Of each buffer, whether its send has not completed.
    is_busy: Vec<bool>,
    next: usize,
    waiting: Vec<Mailbox<()>>,
}

struct CarelessSession {
    completion: SendCompletion,
    asks: bool,
    sends: Arc<Mutex<SendBuffers>>,
    /// The buffer of its send.
    buffer: usize,
}

impl Careless {
    fn of(completion: SendCompletion) -> Self {
        let buffers = vec![Vec::new(); BUFFERS];
        let sends = SendBuffers { buffers, is_busy: vec![false; BUFFERS], next: 0, waiting: Vec::new() };
        Self { completion, asks: false, sends: Arc::new(Mutex::new(sends)) }
    }
}

impl SendBuffers {
    /// The next buffer in turn, or one that no send uses, which is made if there is none.
    fn start(&mut self, message: &[u8], asks: bool) -> usize {
        let mut buffer = self.next % BUFFERS;
        if asks {
            buffer = self.is_busy.iter().position(|is_busy| !is_busy).unwrap_or(self.buffers.len());
        }
        if buffer == self.buffers.len() {
            self.buffers.push(Vec::new());
            self.is_busy.push(true);
        }
        self.next += 1;
        self.buffers[buffer] = message.to_vec();
        self.is_busy[buffer] = true;
        buffer
    }
}

impl Service for Careless {
    type Session = CarelessSession;

    fn open(&self, _: &Peer) -> Result<CarelessSession, Refusal> {
        let (completion, asks) = (self.completion, self.asks);
        Ok(CarelessSession { completion, asks, sends: Arc::clone(&self.sends), buffer: 0 })
    }
}

impl CarelessSession {
    fn sends(&self) -> MutexGuard<'_, SendBuffers> {
        self.sends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recipient for CarelessSession {
    /// The sends of all have completed.
    type Message = ();
}

impl Session for CarelessSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut sends = self.sends();
        let buffer = sends.start(input, self.asks);
        match self.completion {
            SendCompletion::After(time) => out.wake_at(out.now() + time),
            SendCompletion::Together(all) => {
                sends.waiting.push(Self::mailbox(out));
                if sends.waiting.len() == all {
                    // One that has gone needs no answer.
                    for mailbox in sends.waiting.drain(..) {
                        let _ = mailbox.send(());
                    }
                }
            }
        }
        drop(sends);
        self.buffer = buffer;
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        let mut sends = self.sends();
        out.write(&sends.buffers[self.buffer]);
        sends.is_busy[self.buffer] = false;
        Flow::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_mixed_up_only_when_a_busy_buffer_is_used_again() {
        assert!(are_served(BUFFERS, Careless::of).unwrap());
        assert!(!are_served(BUFFERS + 1, Careless::of).unwrap());
        let mended = |completion| Careless { asks: true, ..Careless::of(completion) };
        assert!(are_served(2 * BUFFERS, mended).unwrap());
    }
}
