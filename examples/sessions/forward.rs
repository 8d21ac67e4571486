//! Dialling from a session: each connection is linked to one that is dialled on the same I/O thread.

// ANCHOR: forward
use std::time::Duration;

use tidegate::link::{self, Link};
use tidegate::{
    CloseReason, Consumed, Dial, Endpoint, Flow, Mail, Outbox, Peer, Refusal, Service, ServiceOptions,
    Session, Spliced,
};

/// Passes every connection on to another server.
pub struct Forward {
    pub to: Endpoint,
}

/// An accepted connection, linked to the one that it dials: the session of that is the other half of the link.
pub struct Client {
    link: Link,
    dials: Option<(Dial, Link)>,
}

impl Service for Forward {
    type Session = Client;

    fn open(&self, _: &Peer) -> Result<Client, Refusal> {
        let (near, far) = link::pair(64 << 10); // bytes that may wait in each direction
        Ok(Client { link: near, dials: Some((Dial::to(self.to.clone()), far)) })
    }

    fn options(&self) -> ServiceOptions {
        // The other server may speak first. `dials` sets a place aside for each: half of max_connections are accepted.
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

impl Session for Client {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Some((dial, far)) = self.dials.take()
            && out.dial(dial, Duration::from_secs(5), far).is_err()
        {
            return Flow::Abort;
        }
        self.link.on_open(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Dialled(dialled) if dialled.result.is_err() => Flow::Abort, // the client sees a reset
            mail => self.link.on_mail(mail, out),
        }
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.link.on_bytes(input, out)
    }

    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        self.link.on_spliced(bytes, out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_end(out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.link.on_close(why);
    }
}
// ANCHOR_END: forward
