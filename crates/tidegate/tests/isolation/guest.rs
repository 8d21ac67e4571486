//! The service under test: sessions that follow the plan of their connection, and believe nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use tidegate::{
    CloseReason, Consumed, Flow, Mail, Outbox, Peer, Recipient, Refusal, Service, ServiceOptions, Session,
};

use crate::known::Known;
use crate::tape::{Side, Tape, WORD, place};
use crate::world::World;

/// Makes a session for each connection but those that are to be refused.
pub struct Host {
    pub world: Arc<World>,
}

impl Service for Host {
    type Session = Guest;

    fn open(&self, peer: &Peer) -> Result<Guest, Refusal> {
        if self.world.is_refused(peer.addr) {
            self.world.refused.fetch_add(1, SeqCst);
            return Err(Refusal);
        }
        Ok(Guest { world: self.world.clone(), greeting: None, known: None })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(self.world.greets).peer_addr(self.world.refuses)
    }
}

/// A session; it learns from the first word whose it is.
pub struct Guest {
    world: Arc<World>,
    greeting: Option<Tape>,
    known: Option<Known>,
}

impl Session for Guest {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.world.opened.fetch_add(1, SeqCst);
        if self.world.greets {
            let number = self.world.greetings.fetch_add(1, SeqCst);
            let greeting = Tape::new(self.world.seed, number, Side::Greeting);
            out.write(&greeting.bytes(0..WORD as u64));
            self.greeting = Some(greeting);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let skipped = match self.learn(input, out) {
            Ok(Some(skipped)) => skipped,
            Ok(None) => return Consumed::bytes(0),
            Err(wrong) => {
                self.world.wrong(wrong);
                return Consumed::all(input).then(Flow::Abort);
            }
        };
        let Some(known) = &mut self.known else { return Consumed::bytes(0) };
        let (used, flow) = known.take(&input[skipped..], out);
        Consumed::bytes(skipped + used).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.known.as_mut().map_or(Flow::Continue, |known| known.advance(out))
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Some(known) = &mut self.known else { return Flow::Close };
        known.peer_ended(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let outcome = match &mut self.known {
            Some(known) => known.mail(mail, out.now()),
            None => Err(format!("a session that has no number yet got {mail:?}")),
        };
        match (outcome, &mut self.known) {
            (Ok(()), Some(known)) => known.advance(out),
            (outcome, _) => {
                self.world.wrong(outcome.err().unwrap_or_default());
                Flow::Abort
            }
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        let number = self.known.as_ref().map(|known| known.number);
        self.world.closed(number, why);
        if let Some(known) = self.known.take() {
            known.leave();
        }
    }
}

impl Guest {
    /// Looks at the first bytes: what comes back of the greeting, and the name. Says how many of `input` are not of
    /// the tape.
    fn learn(&mut self, input: &[u8], out: &Outbox<'_>) -> Result<Option<usize>, String> {
        if self.known.is_some() {
            return Ok(Some(0));
        }
        let before = if self.greeting.is_some() { WORD } else { 0 };
        let Some(name) = input.get(before..before + WORD) else { return Ok(None) };
        if let Some(greeting) = &self.greeting {
            greeting.check(0, &input[..WORD]).map_err(|e| format!("what a caller was greeted with: {e}"))?;
        }
        let name = place(self.world.seed, name.try_into().unwrap_or_default());
        let number = match name {
            Some(name) if name.side == Side::Up && name.at == 0 => name.number,
            other => return Err(format!("a new session was shown bytes that are no name: {other:?}")),
        };
        self.world.claim(number)?;
        self.world.remember(number, Known::mailbox(out));
        self.known = Some(Known::new(self.world.clone(), number, Known::mailbox(out)));
        Ok(Some(before))
    }
}
