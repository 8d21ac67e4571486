//! A TCP proxy: each connection is [linked](tidegate::link) to one that is dialled to an upstream server.
//!
//! ```no_run
//! use tidegate_services::{Proxy, ProxyOptions};
//!
//! let upstreams = vec!["127.0.0.1:9001".parse()?, "127.0.0.1:9002".parse()?];
//! let proxy = Proxy::new(upstreams, ProxyOptions::default())?;
//! let running = tidegate::Server::new(proxy).bind("127.0.0.1:8080".parse()?)?.start()?;
//! # drop(running);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bytes, back-pressure, half-close and reset pass both ways. A client whose upstream cannot be reached is given to
//! another one, at most [`ATTEMPTS`] in all, and then reset; what it has sent meanwhile is kept and passed on.

mod header;
mod session;
mod upstreams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Endpoint, Origin, Peer, Refusal, Service};

pub use session::ProxySession;
pub use upstreams::{UpstreamStats, Upstreams};

/// Upstreams that one client is offered to, at most.
pub const ATTEMPTS: usize = 3;

/// Which upstream gets the next client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in its turn.
    #[default]
    RoundRobin,
    /// The one with the fewest connections; of several, the next in turn.
    LeastConnections,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// How a proxy works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// Which upstream gets the next client. Default [`Balance::RoundRobin`].
    pub balance: Balance,
    /// How long one attempt to connect may take. Default 5 s.
    pub connect_timeout: Duration,
    /// An upstream that could not be reached is left out for so long; then one client tries it again. If all are left
    /// out, they are tried all the same. Default 5 s.
    pub retry_after: Duration,
    /// Bytes that may wait between the two connections, in each direction, besides those in the
    /// [outbox](tidegate::Policy::outbox). Default 64 KiB.
    pub link_bytes: usize,
    /// Tell upstreams the client's address by the PROXY protocol. Default `None`: no header is sent.
    pub header: Option<HeaderVersion>,
    /// The destination that the header names. Default `None`: the unspecified address.
    pub destination: Option<SocketAddr>,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            balance: Balance::RoundRobin,
            connect_timeout: Duration::from_secs(5),
            retry_after: Duration::from_secs(5),
            link_bytes: 64 * 1024,
            header: None,
            destination: None,
        }
    }
}

/// Options that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyOptionsError {
    /// Nobody to pass connections on to.
    #[error("no upstream is named; name at least one")]
    NoUpstream,
    /// The same upstream twice: it would get twice the connections and be tried twice.
    #[error("the upstream {0} is named twice; name each once")]
    Twice(Endpoint),
    /// A dial cannot go there.
    #[error("the upstream {0} has port 0; name the port that it listens on")]
    NoPort(Endpoint),
    /// No attempt is fast enough.
    #[error("connect_timeout is zero; it must be longer than zero")]
    NoTime,
    /// Nothing could ever be passed on.
    #[error("link_bytes is 0; it must be at least 1")]
    NoBytes,
}

/// What all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    options: ProxyOptions,
    upstreams: Arc<Upstreams>,
}

/// The service; see the [module](self).
#[derive(Debug)]
pub struct Proxy(Arc<Shared>);

impl Proxy {
    /// Passes connections on to these servers.
    ///
    /// # Errors
    /// Upstreams or options that cannot work.
    pub fn new(upstreams: Vec<Endpoint>, options: ProxyOptions) -> Result<Self, ProxyOptionsError> {
        if upstreams.is_empty() {
            return Err(ProxyOptionsError::NoUpstream);
        }
        for (number, upstream) in upstreams.iter().enumerate() {
            if upstreams.iter().take(number).any(|earlier| earlier == upstream) {
                return Err(ProxyOptionsError::Twice(upstream.clone()));
            }
            if upstream.addr().is_some_and(|addr| addr.port() == 0) {
                return Err(ProxyOptionsError::NoPort(upstream.clone()));
            }
        }
        if options.connect_timeout.is_zero() {
            return Err(ProxyOptionsError::NoTime);
        }
        if options.link_bytes == 0 {
            return Err(ProxyOptionsError::NoBytes);
        }
        let upstreams = Arc::new(Upstreams::new(upstreams, &options));
        Ok(Self(Arc::new(Shared { options, upstreams })))
    }

    /// The upstream servers and what is counted of them; valid while the service runs, and after.
    #[must_use]
    pub fn upstreams(&self) -> Arc<Upstreams> {
        self.0.upstreams.clone()
    }
}

impl Service for Proxy {
    type Session = ProxySession;

    fn open(&self, peer: &Peer) -> Result<ProxySession, Refusal> {
        match peer.origin {
            Origin::Accepted => Ok(ProxySession::new(self.0.clone(), peer.addr)),
            Origin::Dialled { .. } => Err(Refusal), // it is dialled by sessions, which bring their own
        }
    }

    /// The upstream may.
    fn speaks_first(&self) -> bool {
        true
    }

    fn needs_peer_addr(&self) -> bool {
        self.0.options.header.is_some()
    }

    fn dials(&self) -> usize {
        1
    }
}
