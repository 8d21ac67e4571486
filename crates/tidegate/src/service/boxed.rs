//! A service whose type is not known when the program is compiled.

use std::io;

use super::{CloseReason, Consumed, Dial, Flow, Mail, Outbox, Peer, Refusal, Service, Session};

/// A service of any type, for programs that choose services and layers when they run: engines and layers are then compiled for this
/// one type, and not for each combination. Costs an allocation for each connection, and an indirect call for each event.
pub struct BoxedService(Box<dyn Opens>);

/// What of a [`Service`] does not name its type of session.
trait Opens: Send + Sync + 'static {
    fn open(&self, peer: &Peer) -> Result<BoxedSession, Refusal>;
    fn speaks_first(&self) -> bool;
    fn needs_peer_addr(&self) -> bool;
    fn dial_failed(&self, dial: &Dial, error: &io::Error);
}

impl<S: Service> Opens for S {
    fn open(&self, peer: &Peer) -> Result<BoxedSession, Refusal> {
        Ok(BoxedSession(Box::new(Service::open(self, peer)?)))
    }

    fn speaks_first(&self) -> bool {
        Service::speaks_first(self)
    }

    fn needs_peer_addr(&self) -> bool {
        Service::needs_peer_addr(self)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        Service::dial_failed(self, dial, error);
    }
}

impl BoxedService {
    /// This one.
    #[must_use]
    pub fn new(service: impl Service) -> Self {
        Self(Box::new(service))
    }
}

impl Service for BoxedService {
    type Session = BoxedSession;

    fn open(&self, peer: &Peer) -> Result<BoxedSession, Refusal> {
        self.0.open(peer)
    }

    fn speaks_first(&self) -> bool {
        self.0.speaks_first()
    }

    fn needs_peer_addr(&self) -> bool {
        self.0.needs_peer_addr()
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.0.dial_failed(dial, error);
    }
}

/// A session of an [`BoxedService`].
pub struct BoxedSession(Box<dyn Session>);

impl Session for BoxedSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.0.on_bytes(input, out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.0.on_mail(mail, out)
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        self.0.on_leave(out);
    }

    fn on_close(&mut self, why: CloseReason) {
        self.0.on_close(why);
    }
}
