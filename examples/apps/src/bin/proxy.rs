//! A TCP proxy: every connection is linked to one that is dialled on the same I/O thread.
//!
//! `cargo run --release --bin proxy -- --to 127.0.0.1:9000 --listen 127.0.0.1:8080`. What `tidegate serve proxy` does
//! besides (several upstreams, health, PROXY protocol) is in `tidegate_services::proxy`.

use std::time::Duration;

use anyhow::Context;
use tidegate::link::{self, Link};
use tidegate::{CloseReason, Consumed, Dial, Endpoint, Flow, Mail, Outbox, Peer, Refusal, Service, ServiceOptions, Session};

/// Bytes that may wait between the two connections, in each direction.
const LINK_BYTES: usize = 128 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

struct Proxy {
    to: Endpoint,
}

impl Service for Proxy {
    type Session = Client;

    fn open(&self, _: &Peer) -> Result<Client, Refusal> {
        let (near, far) = link::pair(LINK_BYTES);
        Ok(Client { half: Half(near), upstream: Some((Dial::to(self.to.clone()), Half(far))) })
    }

    /// The upstream may speak first. Each connection dials one: places for both are set aside.
    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

/// One end of a link: whatever happens to its connection is the link's business.
struct Half(Link);

impl Session for Half {
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
        self.0.on_mail(&mail, out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.0.on_close(why);
    }
}

/// The accepted end, which dials the other one.
struct Client {
    half: Half,
    upstream: Option<(Dial, Half)>,
}

impl Session for Client {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.upstream.take().map(|(dial, half)| out.dial(dial, CONNECT_TIMEOUT, half)) {
            Some(Ok(())) => self.half.on_open(out),
            _ => Flow::Abort, // the server stops
        }
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.half.on_bytes(input, out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.half.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.half.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            // Nobody to talk to: the client is to see that as an error.
            Mail::Dialled(dialled) if dialled.result.is_err() => Flow::Abort,
            mail => self.half.on_mail(mail, out),
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        self.half.on_close(why);
    }
}

/// Its own options, in front of those of every program here.
fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args();
    let program = arguments.next().into_iter();
    let (flag, to) = (arguments.next(), arguments.next());
    let usage = "say where to pass connections on, first: proxy --to ADDR:PORT [--listen ADDR:PORT ...]";
    let to = to.filter(|_| flag.as_deref() == Some("--to")).context(usage)?;
    let to = to.parse().with_context(|| format!("--to {to}"))?;
    tidegate_apps::serve_with(Proxy { to }, program.chain(arguments))
}
