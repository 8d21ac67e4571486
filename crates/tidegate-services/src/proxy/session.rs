//! The two sessions of a pair: the client's, which dials, and the upstream's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::link::{self, Link};
use tidegate::{CloseReason, Consumed, Dial, Flow, Mail, Outbox, Peer, Session, Spliced, system};

use super::upstreams::Lease;
use super::{ATTEMPTS, ProxyShared, header};

/// Retry interval when this process lacks a resource for a dial.
const PAUSE: Duration = Duration::from_millis(50);

/// The session of a client.
#[derive(Debug)]
pub struct ProxySession {
    shared: Arc<ProxyShared>,
    client: Option<SocketAddr>,
    /// Where the client has connected to.
    destination: Option<SocketAddr>,
    link: Link,
    /// Upstreams tried, including the current one.
    tried: Vec<usize>,
    /// Until when an attempt that failed locally is retried.
    patient_until: Option<Instant>,
}

impl ProxySession {
    pub(super) fn new(shared: Arc<ProxyShared>, peer: &Peer) -> Self {
        let (link, _) = link::pair(shared.options.limits.link_bytes);
        Self {
            shared,
            client: peer.addr,
            destination: peer.local_addr,
            link,
            tried: Vec::new(),
            patient_until: None,
        }
    }

    /// Dials the next upstream.
    fn dial(&mut self, out: &mut Outbox<'_>) -> Flow {
        let may = self.tried.len() < ATTEMPTS;
        let Some(lease) = may.then(|| self.shared.upstreams.pick(&self.tried, out.now())).flatten() else {
            return self.give_up();
        };
        self.tried.push(lease.index());
        let options = &self.shared.options;
        let dial = Dial::to(lease.at().clone());
        let header = options.header.map(|version| header::bytes(version, self.client, self.destination));
        let upstream = UpstreamSession { link: self.link.other(), lease, header };
        match out.dial(dial, options.limits.connect_timeout, upstream) {
            Ok(()) => Flow::Continue,
            Err(e) => {
                tracing::debug!(error = %e, "cannot dial an upstream");
                self.give_up()
            }
        }
    }

    fn give_up(&self) -> Flow {
        self.shared.upstreams.gave_up();
        Flow::Abort
    }

    /// An attempt has failed: tries another upstream, unless this process lacked a permit or descriptor.
    fn failed(&mut self, error: &io::Error, out: &mut Outbox<'_>) -> Flow {
        let Some(&index) = self.tried.last() else { return Flow::Continue };
        tracing::debug!(error = %error, upstream = index, "cannot connect to an upstream");
        if !is_of_this_end(error) {
            self.shared.upstreams.failed(index, out.now());
            return self.dial(out);
        }
        let until = *self.patient_until.get_or_insert(out.now() + self.shared.options.limits.connect_timeout);
        if out.now() >= until {
            return self.give_up();
        }
        self.tried.pop();
        out.wake_at(out.now() + PAUSE);
        Flow::Continue
    }
}

/// Whether a dial failed because this process lacks a resource: a permit, a descriptor, a port.
fn is_of_this_end(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::QuotaExceeded | io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory
    ) || system::file::is_exhausted(error)
}

impl Session for ProxySession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        match self.dial(out) {
            Flow::Continue => self.link.on_open(out),
            flow => flow,
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

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Dialled(dialled) => match dialled.result {
                Ok(()) => Flow::Continue,
                Err(e) => self.failed(&e, out),
            },
            Mail::Timer => self.dial(out),
            mail => self.link.on_mail(mail, out),
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        self.link.on_close(why);
    }
}

/// The session of a connection to an upstream.
struct UpstreamSession {
    link: Link,
    lease: Lease,
    header: Option<Vec<u8>>,
}

impl Session for UpstreamSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.lease.connected();
        if let Some(header) = self.header.take() {
            out.write(&header);
        }
        self.link.on_open(out)
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

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.link.on_mail(mail, out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.link.on_close(why);
    }
}
