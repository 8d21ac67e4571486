//! The PROXY protocol, versions 1 and 2: a proxy sends the client's address at the start of each connection
//! ([specification](https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt)).
//!
//! [`ProxyProtocol`] wraps a service. The session inside is opened when the header is complete, with the client's
//! address in [`Peer::addr`], and the one it has connected to in [`Peer::local_addr`]; what follows the header is shown
//! to it in the same call, from where it lies.
//!
//! The header is *required*: a connection without one is reset. Accepting both would let every client claim an address
//! (section 2). For the same reason only the proxy may be able to reach the port.
//!
//! `LOCAL`, `UNKNOWN` and `UNSPEC` leave the addresses of the socket. TLVs are skipped, checksums among them.

mod header;
mod session;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tidegate::policy::{Limit, Limited};
use tidegate::{Dial, Origin, Peer, Policy, PolicyError, Refusal, Service, ServiceOptions};

pub use session::ProxyHeaderSession;

tidegate::limits! {
/// Limits of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProxyLimits, as "proxy_protocol." of ProxyLimits, at |limits| Some(limits);
    parts {}

    /// The minimum is the fixed part and the longest addresses, those of Unix sockets.
    header_bytes: usize = 4096 => {
        what: "Largest PROXY header of version 2, with its TLVs (one of version 1 has at most 107 bytes); more is reset",
        cost: "input for each connection that holds a partial header",
        option: "proxy-header-bytes",
        unit: Bytes,
        range: Within(16 + 216, 1 << 20),
        change: Fixed,
        on: BY_THE_SERVICE,
        default_note: Some("4KiB, at most input-bytes"),
        relation: Some(Relation {
            holds: AtMost,
            other: "input_bytes",
            remedy: "an unfinished header is unconsumed input; lower `proxy_protocol.header_bytes` or raise `input_bytes`",
        }),
        with: Some("proxy_protocol"),
    }
    /// From the first byte of a header to its last. `None` waits forever. The time limit of the first byte is
    /// [`Policy::first_byte_timeout`](tidegate::Policy::first_byte_timeout).
    header_timeout: Option<Duration> = Some(Duration::from_secs(5)) => {
        what: "Time limit of an incomplete PROXY header, or none; then the connection is reset",
        cost: "below 3s one lost packet can exceed it (section 2 of the protocol)",
        option: "proxy-header-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: BY_THE_SERVICE,
        with: Some("proxy_protocol"),
    }
}

impl Limited for ProxyLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl ProxyLimits {
    /// Checks the limits, also against the policy of the service; `bind` does the same.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.check_under(policy)
    }
}

/// Why a connection had no usable header. It was reset, and counts as [`Aborted`](tidegate::CloseReason::Aborted); a
/// truncated one was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderFault {
    /// It began with other data.
    Missing,
    /// The header was malformed.
    Malformed,
    /// It was longer than the limit.
    TooLong,
    /// It took too long to arrive.
    TooLate,
    /// The peer finished sending in the middle of it. (Finishing before it is not an error: port checks do that.)
    Truncated,
}

impl HeaderFault {
    /// All faults, in the order of their counters.
    pub const ALL: &'static [Self] =
        &[Self::Missing, Self::Malformed, Self::TooLong, Self::TooLate, Self::Truncated];

    /// A short name, as used in counters and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::TooLong => "too-long",
            Self::TooLate => "too-late",
            Self::Truncated => "truncated",
        }
    }
}

impl fmt::Display for HeaderFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Connections without a usable header, by [`HeaderFault`]. Each is also logged, at level `debug`.
#[derive(Debug, Default)]
pub struct HeaderFaults([AtomicU64; HeaderFault::ALL.len()]);

impl HeaderFaults {
    /// Connections with this fault.
    #[must_use]
    pub fn of(&self, fault: HeaderFault) -> u64 {
        self.0[fault as usize].load(Relaxed)
    }

    fn count(&self, fault: HeaderFault) {
        self.0[fault as usize].fetch_add(1, Relaxed);
    }
}

/// State shared by all connections of one service.
#[derive(Debug)]
struct ProxyProtocolShared<S> {
    service: S,
    limits: ProxyLimits,
    faults: Arc<HeaderFaults>,
}

/// A service behind a proxy that sends PROXY headers.
///
/// ```
/// use tidegate_services::{Echo, layers::{ProxyLimits, ProxyProtocol}};
///
/// let limits = ProxyLimits::default();
/// let service = ProxyProtocol::new(Echo, limits);
/// let faults = service.faults();
/// # let _ = (tidegate::Server::new(service), faults);
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Debug)]
pub struct ProxyProtocol<S>(Arc<ProxyProtocolShared<S>>);

impl<S: Service> ProxyProtocol<S> {
    /// Requires a header within `limits` in front of each connection to `service`.
    #[must_use]
    pub fn new(service: S, limits: ProxyLimits) -> Self {
        Self(Arc::new(ProxyProtocolShared { service, limits, faults: Arc::default() }))
    }

    /// The error counters; valid while the service runs.
    #[must_use]
    pub fn faults(&self) -> Arc<HeaderFaults> {
        self.0.faults.clone()
    }
}

impl<S: Service> Service for ProxyProtocol<S> {
    type Session = ProxyHeaderSession<S>;

    /// Dialled connections have no header; the inner session is opened immediately.
    fn open(&self, peer: &Peer) -> Result<ProxyHeaderSession<S>, Refusal> {
        match peer.origin {
            Origin::Accepted => Ok(ProxyHeaderSession::waiting(self.0.clone(), peer.clone())),
            _ => self.0.service.open(peer).map(ProxyHeaderSession::opened),
        }
    }

    /// Those of the inner service, also the addresses, because a header may leave those of the socket in force; but the
    /// proxy's header is sent first, whatever the inner service does.
    fn options(&self) -> ServiceOptions {
        self.0.service.options().speaks_first(false)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.0.limits.check(policy)?;
        self.0.service.check_limits(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.0.service.dial_failed(dial, error);
    }
}
