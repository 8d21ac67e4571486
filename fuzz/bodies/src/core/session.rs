//! A session that does what the input says, and checks what it is shown.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Recipient, Session};

use super::{byte_at, bytes_at};

/// What a session knows, and what the world knows of it.
#[derive(Default)]
pub(super) struct Mind {
    /// Tells its stream of bytes from those of others.
    pub(super) stream: u8,
    /// What it is to do in the calls to come; nothing special when that runs out.
    pub(super) plan: VecDeque<u8>,
    pub(super) low: usize,
    pub(super) opened: bool,
    /// The peer finished, and the session was notified.
    pub(super) ended: bool,
    /// It closed the connection itself: nothing more is to come.
    pub(super) left: bool,
    pub(super) closed: Option<CloseReason>,
    /// Bytes it used of what arrived.
    pub(super) used: usize,
    /// Bytes it was shown last and did not use.
    pub(super) unused: usize,
    /// Bytes it wrote.
    pub(super) wrote: usize,
    /// The outbox reached its high mark, and it was not called since it drained.
    pub(super) filled: bool,
    pub(super) wake: Option<Instant>,
    /// The same under keys.
    pub(super) timers: BTreeMap<u64, Instant>,
    /// Messages that came.
    pub(super) letters: Vec<u32>,
}

impl Mind {
    /// Writes, sets a timer and decides how to go on, as the plan says.
    fn act(&mut self, out: &mut Outbox<'_>) -> Flow {
        let how = self.plan.pop_front().unwrap_or(0);
        let size = usize::from(self.plan.pop_front().unwrap_or(0));
        let bytes = bytes_at(self.stream, self.wrote, size);
        self.wrote += size;
        if how & 1 == 0 {
            out.write(&bytes)
        } else {
            out.share(bytes.into())
        }
        self.filled |= out.is_full();
        match how >> 1 & 7 {
            0 => {
                out.wake_never();
                self.wake = None;
            }
            1 => {
                let at = out.now() + Duration::from_millis(size as u64 * 7);
                out.wake_at(at);
                self.wake = Some(at);
            }
            2 => {
                let (key, at) = (size as u64 % 4, out.now() + Duration::from_millis(size as u64 * 5));
                out.set_timer(key, at);
                self.timers.insert(key, at);
            }
            3 => {
                let key = size as u64 % 4;
                assert_eq!(out.cancel_timer(key), self.timers.remove(&key).is_some(), "timer {key}");
            }
            _ => {}
        }
        let flow = match how >> 4 {
            11 | 12 => Flow::Shutdown,
            13 => Flow::Close,
            14 => Flow::Linger,
            15 => Flow::Abort,
            _ => Flow::Continue,
        };
        self.left = matches!(flow, Flow::Close | Flow::Linger | Flow::Abort);
        flow
    }

    /// Whether the session may be called at all.
    fn check(&self) {
        assert!(self.opened, "called before on_open");
        assert!(!self.left, "called after it closed the connection");
        assert_eq!(self.closed, None, "called after on_close");
    }
}

/// Shares what it knows with the world.
#[derive(Clone, Default)]
pub(super) struct Probe(Arc<Mutex<Mind>>);

impl Probe {
    pub(super) fn mind(&self) -> MutexGuard<'_, Mind> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recipient for Probe {
    type Message = u32;
}

impl Session for Probe {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut mind = self.mind();
        assert!(!mind.opened, "opened twice");
        mind.opened = true;
        mind.act(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut mind = self.mind();
        mind.check();
        assert!(!mind.ended, "bytes after the end");
        assert!(!mind.filled && !out.is_full(), "bytes while the outbox is full");
        assert!(!input.is_empty(), "nothing is shown");
        assert!(input.len() > mind.unused, "shown again without anything new");
        for (place, &byte) in input.iter().enumerate() {
            assert_eq!(byte, byte_at(!mind.stream, mind.used + place), "lost, doubled or reordered");
        }
        let bytes = match mind.plan.pop_front() {
            Some(n) if n & 1 == 1 => usize::from(n >> 1).min(input.len()),
            _ => input.len(),
        };
        mind.used += bytes;
        mind.unused = input.len() - bytes;
        let flow = mind.act(out);
        Consumed::bytes(bytes).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut mind = self.mind();
        mind.check();
        assert!(mind.filled, "drained without having been full");
        assert!(out.queued() <= mind.low, "drained above the low mark");
        mind.filled = false;
        mind.unused = 0; // is shown again now, without anything new
        mind.act(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut mind = self.mind();
        mind.check();
        assert!(!mind.ended, "ended twice");
        mind.ended = true;
        mind.act(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let mut mind = self.mind();
        mind.check();
        match mail {
            Mail::Message(message) => mind.letters.push(Self::unpack(message)),
            Mail::KeyedTimer(key) => {
                let due = mind.timers.remove(&key).expect("a timer that nobody asked for");
                assert!(due <= out.now(), "a timer that is not due: {due:?}");
                assert!(mind.timers.values().all(|&other| other >= due), "timers come in order");
            }
            _ => {
                let due = mind.wake.take();
                assert!(due.is_some_and(|at| at <= out.now()), "a timer that is not due: {due:?}");
            }
        }
        mind.act(out)
    }

    fn on_leave(&mut self, _: &mut Outbox<'_>) {
        let mut mind = self.mind();
        mind.check();
        mind.left = true; // nothing but `on_close` follows
    }

    fn on_close(&mut self, why: CloseReason) {
        let mut mind = self.mind();
        assert!(mind.opened, "closed before on_open");
        assert_eq!(mind.closed.replace(why), None, "closed twice");
    }
}
