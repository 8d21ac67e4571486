//! Timers: one without a key, and one under a key that is set anew with each message.

// ANCHOR: timers
use std::time::Duration;

use tidegate::{Consumed, Flow, Mail, Outbox, Peer, Refusal, Service, ServiceOptions, Session};

/// Sends a line every `beat`, and closes connections that were silent for `patience`.
#[derive(Clone)]
pub struct Heartbeat {
    pub beat: Duration,
    pub patience: Duration,
}

/// The key of a timer: any number that means something to the session.
const SILENT: u64 = 1;

impl Service for Heartbeat {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }

    fn options(&self) -> ServiceOptions {
        // Or the kernel may hold a connection back until its first byte.
        ServiceOptions::default().speaks_first(true)
    }
}

impl Session for Heartbeat {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.wake_at(out.now() + self.beat);
        out.set_timer(SILENT, out.now() + self.patience);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.set_timer(SILENT, out.now() + self.patience); // replaces the one under this key
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Timer => {
                out.write(b"beat\n");
                out.wake_at(out.now() + self.beat);
                Flow::Continue
            }
            Mail::KeyedTimer(SILENT) => {
                out.write(b"bye\n");
                Flow::Close
            }
            _ => Flow::Continue,
        }
    }
}
// ANCHOR_END: timers
