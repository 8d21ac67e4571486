//! A TCP proxy: each connection is [linked](tidegate::link) to one that is dialled to an upstream server.
//!
//! ```no_run
//! use tidegate_services::{Proxy, ProxyOptions};
//!
//! let upstreams = vec!["127.0.0.1:9001".parse()?, "127.0.0.1:9002".parse()?];
//! let proxy = Proxy::new(upstreams, ProxyOptions::default())?;
//! let running = tidegate::Server::new(proxy).bind("127.0.0.1:8080")?.start()?;
//! # drop(running);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Bytes, back-pressure, half-close and reset pass in both directions. If an upstream cannot be reached, another one is
//! tried, at most [`ATTEMPTS`] in all; then the client is reset. Data the client has sent meanwhile is buffered and
//! passed on.

mod header;
mod session;
mod upstreams;

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Endpoint, Origin, Peer, Refusal, Service};

pub use session::ProxySession;
pub use upstreams::{UpstreamStats, Upstreams};

/// Maximum upstreams tried for one client.
pub const ATTEMPTS: usize = 3;

/// How the upstream for a client is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The one with the fewest connections; among equals, in turn.
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

/// Options of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyOptions {
    /// How upstreams are selected. Default [`Balance::RoundRobin`].
    pub balance: Balance,
    /// Connect timeout of one attempt. Default 5 s.
    pub connect_timeout: Duration,
    /// How long an upstream is skipped after a failed connect; then one client tries it again. If all are skipped, they
    /// are tried nevertheless. Default 5 s.
    pub retry_after: Duration,
    /// Bytes buffered between the two connections, in each direction, in addition to the
    /// [outbox](tidegate::Policy::outbox). Default 128 KiB.
    pub link_bytes: usize,
    /// Tell upstreams the client's address, and the one it has connected to, by the PROXY protocol. Default `None`: no
    /// header is sent.
    pub header: Option<HeaderVersion>,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            balance: Balance::RoundRobin,
            connect_timeout: Duration::from_secs(5),
            retry_after: Duration::from_secs(5),
            link_bytes: 128 * 1024,
            header: None,
        }
    }
}

/// Invalid options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyOptionsError {
    /// The list of upstreams is empty.
    #[error("no upstream; give at least one")]
    NoUpstream,
    /// The same upstream twice: it would get twice the connections and be tried twice.
    #[error("the upstream {0} is given twice; give each once")]
    Twice(Endpoint),
    /// Not a valid destination.
    #[error("the upstream {0} has port 0; give the port that it listens on")]
    NoPort(Endpoint),
    /// Every attempt would time out.
    #[error("connect_timeout is zero; it must be longer than zero")]
    NoTime,
    /// Nothing could be passed on.
    #[error("link_bytes is 0; it must be at least 1")]
    NoBytes,
}

/// State shared by all connections of a proxy.
#[derive(Debug)]
struct ProxyShared {
    options: ProxyOptions,
    upstreams: Arc<Upstreams>,
}

/// The proxy service; see the [module](self).
#[derive(Debug)]
pub struct Proxy(Arc<ProxyShared>);

impl Proxy {
    /// Creates a proxy to these servers.
    ///
    /// # Errors
    /// Invalid upstreams or options.
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
        Ok(Self(Arc::new(ProxyShared { options, upstreams })))
    }

    /// The upstream servers and their counters; valid while the service runs, and after.
    #[must_use]
    pub fn upstreams(&self) -> Arc<Upstreams> {
        self.0.upstreams.clone()
    }
}

impl Service for Proxy {
    type Session = ProxySession;

    fn open(&self, peer: &Peer) -> Result<ProxySession, Refusal> {
        match peer.origin {
            Origin::Accepted => Ok(ProxySession::new(self.0.clone(), peer)),
            _ => Err(Refusal), // it is dialled by sessions, which bring their own
        }
    }

    /// The upstream may.
    fn speaks_first(&self) -> bool {
        true
    }

    fn needs_peer_addr(&self) -> bool {
        self.0.options.header.is_some()
    }

    fn needs_local_addr(&self) -> bool {
        self.0.options.header.is_some()
    }

    fn dials(&self) -> usize {
        1
    }
}
