//! Mail: a thread sends values to a session.

// ANCHOR: prices
use std::fmt::Write;
use std::sync::mpsc::Sender;

use tidegate::{
    Consumed, Flow, Mail, Mailbox, Outbox, Peer, Recipient, Refusal, Service, ServiceOptions, Session,
};

/// Shows prices, which another thread sends to the mailboxes it is given.
#[derive(Clone)]
pub struct Prices {
    pub watchers: Sender<Mailbox<Price>>,
}

/// What a session gets as mail.
pub struct Price {
    pub cents: u32,
}

impl Recipient for Prices {
    type Message = Price;
}

impl Service for Prices {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true)
    }
}

impl Session for Prices {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let is_taken = self.watchers.send(Self::mailbox(out)).is_ok();
        if is_taken { Flow::Continue } else { Flow::Close } // there are no prices any more
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Message(_) if out.is_full() => return Flow::Abort, // reads slower than prices arrive
            Mail::Message(message) => {
                let Price { cents } = Self::unpack(message);
                let _ = writeln!(out, "{}.{:02}", cents / 100, cents % 100);
            }
            _ => {}
        }
        Flow::Continue
    }
}
// ANCHOR_END: prices
