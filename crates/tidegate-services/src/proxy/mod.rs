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

use tidegate::policy::{Limit, Limited, PolicyError};
use tidegate::{Endpoint, Origin, Peer, Refusal, Service, ServiceOptions};

pub use session::ProxySession;
pub use upstreams::{UpstreamStats, Upstreams};

/// Maximum upstreams tried for one client.
pub const ATTEMPTS: usize = 3;

/// How the upstream for a client is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The one with the fewest connections; among equals, in turn.
    LeastConnections,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Limits of attempts and of what is buffered.
    pub limits: UpstreamLimits,
    /// Tell upstreams the client's address, and the one it has connected to, by the PROXY protocol. Default `None`: no
    /// header is sent.
    pub header: Option<HeaderVersion>,
}

tidegate::limits! {
/// Limits of a proxy and its upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamLimits, as "" of UpstreamLimits, at |limits| Some(limits);
    parts {}

    connect_timeout: Duration = Duration::from_secs(5) => {
        what: "Connect timeout of one attempt; then another upstream is tried, three in all",
        cost: "longer: a client waits longer for the next attempt",
        option: "connect-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// If all are skipped, they are tried nevertheless.
    retry_after: Duration = Duration::from_secs(5) => {
        what: "How long an upstream is skipped after a failed connect, before one client tries it again",
        cost: "longer: an upstream that is back is used later",
        option: "retry-after",
        unit: Time,
        range: TIME_OR_ZERO,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    link_bytes: usize = 128 * 1024 => {
        what: "Bytes buffered between client and upstream, in each direction, besides the outbox",
        cost: "memory for each connection whose other end is slower",
        option: "link-bytes",
        unit: Bytes,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
    }
}

impl Limited for UpstreamLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self { balance: Balance::RoundRobin, limits: UpstreamLimits::default(), header: None }
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
    /// A limit is out of range.
    #[error(transparent)]
    Limits(#[from] PolicyError),
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
        options.limits.check_alone()?;
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

    /// The upstream may speak first; a header needs both addresses.
    fn options(&self) -> ServiceOptions {
        let header = self.0.options.header.is_some();
        ServiceOptions::default().speaks_first(true).peer_addr(header).local_addr(header).dials(1)
    }
}
