//! Echo (RFC 862): everything received is sent back, byte for byte.

use tidegate::{Consumed, Flow, Outbox, Peer, Refusal, Service, Session};

/// The echo service. A peer that finishes sending gets the rest of its bytes, then the end of the stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Echo;

/// One echo connection; has no state.
#[derive(Debug)]
pub struct EchoSession;

impl Service for Echo {
    type Session = EchoSession;

    fn open(&self, _: &Peer) -> Result<EchoSession, Refusal> {
        Ok(EchoSession)
    }
}

impl Session for EchoSession {
    #[inline]
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }
}
