//! Half-close: numbers, one a line, until the client finishes sending; then their sum.

// ANCHOR: sum
use std::fmt::Write;

use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

/// Adds up the numbers that a client sends, one a line.
#[derive(Default)]
pub struct Sum {
    sum: u64,
}

impl Service for Sum {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self::default())
    }
}

impl Session for Sum {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
            return Consumed::bytes(0); // the line is not complete: shown again with more
        };
        let number = std::str::from_utf8(&input[..end]).ok().and_then(|line| line.trim().parse::<u64>().ok());
        match number.and_then(|number| self.sum.checked_add(number)) {
            Some(sum) => {
                self.sum = sum;
                Consumed::bytes(end + 1).again() // one line a call; called at once for the next
            }
            None => {
                out.write(b"not a number, or too large\n");
                Consumed::bytes(end + 1).then(Flow::Linger) // the client may still be sending
            }
        }
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = writeln!(out, "{}", self.sum); // an outbox takes everything
        Flow::Close
    }
}
// ANCHOR_END: sum
