//! What to do.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Endpoint, Model, StartError};
use tidegate_tls::{TlsError, Trust};

pub use crate::part::Part;
pub use crate::shape::HttpShape;
pub use crate::target::{Security, Target};

/// Connections of one block; they are opened together and share a rate, as in the source.
pub const BLOCK: usize = 1_000;

/// What is spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Messages of `size` bytes come back byte for byte, `window` of them in flight on each connection.
    Echo {
        /// Bytes of a message.
        size: usize,
        /// Messages in flight on each connection.
        window: usize,
    },
    /// HTTP/1.1 requests.
    Http(HttpShape),
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Amount {
    /// After this many requests; measured from the first dial on.
    Requests(u64),
    /// After this long; measured from when all connections stand.
    Time(Duration),
}

/// Open loop: requests begin on a schedule, whether or not the answers before them have come.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Requests a second, all connections together.
    pub requests_per_s: f64,
    /// The rate to begin with, and how long it takes to grow (or fall) evenly to `requests_per_s`.
    pub ramp: Option<(f64, Duration)>,
}

/// A load to be generated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to.
    pub target: Endpoint,
    /// What is spoken.
    pub protocol: Protocol,
    /// Connections at once.
    pub connections: usize,
    /// When to stop.
    pub amount: Amount,
    /// Echo only: bytes a second that each block of [`BLOCK`] connections sends; `None` is as fast as it goes.
    pub rate_bytes_per_s_per_block: Option<u64>,
    /// Echo only: messages that each connection sends before it rests; `None` is as many as there is time for.
    /// [`Amount::Requests`] has to be so many for each connection.
    pub messages_each: Option<u64>,
    /// Open loop at this rate; `None` is a closed loop, in which each answer makes room for the next request.
    pub rate: Option<Rate>,
    /// Load before the window that counts, from when all connections stand. Only with [`Amount::Time`].
    pub warm_up: Duration,
    /// Connections are opened evenly over this time; zero is as fast as it goes.
    pub ramp_connections: Duration,
    /// How long to wait for answers at the end, and for a connection to stand.
    pub timeout: Duration,
    /// Source addresses, from 127.0.0.1 on; `None` takes as many as the ports need. Only for targets in 127.0.0.0/8.
    pub sources: Option<usize>,
    /// Source addresses to take in turn, in place of `sources`.
    pub source_range: Vec<IpAddr>,
    /// The I/O model; `None` is the best available.
    pub model: Option<Model>,
    /// I/O threads; `None` is one for each processor.
    pub threads: Option<usize>,
    /// The server's process, if it runs here: the certificate looks at its processor time.
    pub server_pid: Option<u32>,
    /// How it is encrypted; `None` is not at all.
    pub tls: Option<TlsPlan>,
    /// Which part of a load this is; `None` is all of it. Made by [`Plan::part`].
    pub part: Option<Part>,
}

/// How a load is encrypted.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// Which certificates the server may have. Echo offers no protocol for ALPN, and HTTP should offer `http/1.1`.
    pub trust: Trust,
    /// Whom its certificate has to be for: a host name or an IP address.
    pub name: String,
    /// Time for a handshake.
    pub handshake_timeout: Duration,
}

/// A load could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The target makes no sense.
    #[error(
        "bad target {target:?}: {why}; write http://HOST:PORT/PATH, https://HOST:PORT/PATH, HOST:PORT, tls://HOST:PORT or unix:SOCKET:/PATH"
    )]
    Target {
        /// What was given.
        target: String,
        /// What is wrong with it.
        why: String,
    },
    /// The settings contradict each other.
    #[error("{0}")]
    Plan(String),
    /// More connections than descriptors.
    #[error(
        "{connections} connections need {connections} descriptors and {reserve} more; the limit of this process is {limit}: raise it with ulimit -n, or use fewer connections"
    )]
    Descriptors {
        /// Connections asked for.
        connections: usize,
        /// Descriptors needed for other things.
        reserve: usize,
        /// The limit.
        limit: u64,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Connections that one source address carries without slowing down.
const PER_SOURCE: usize = 5_000;

impl Plan {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// [`LoadError::Plan`] with what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        if self.connections == 0 {
            return wrong("there must be at least one connection: raise -c");
        }
        match self.amount {
            Amount::Requests(0) => return wrong("-n must be at least 1"),
            Amount::Time(time) if time.is_zero() => return wrong("-d must be longer than 0"),
            _ => {}
        }
        if let Protocol::Echo { size, window } = self.protocol {
            if size == 0 || size > 16 << 20 {
                return wrong("--size must be from 1 byte to 16 MiB");
            }
            if window == 0 || window > 1024 {
                return wrong("--window must be from 1 to 1024 messages");
            }
        }
        self.check_rate()?;
        if let Protocol::Http(shape) = &self.protocol {
            shape.check()?;
        }
        if !self.warm_up.is_zero() && matches!(self.amount, Amount::Requests(_)) {
            return wrong("--warm-up needs a time to measure: give -d instead of -n");
        }
        match (&self.protocol, self.rate_bytes_per_s_per_block) {
            (_, Some(0)) => return wrong("-r must be at least 1 byte per second"),
            (Protocol::Http(_), Some(_)) => {
                return wrong("-r limits the bytes of echo messages; it means nothing for http");
            }
            _ => {}
        }
        if self.messages_each.is_some() && !matches!(self.protocol, Protocol::Echo { .. }) {
            return wrong("--messages counts echo messages; it means nothing for http");
        }
        if self.target.is_unix() && (self.sources.is_some() || !self.source_range.is_empty()) {
            return wrong(
                "connections to a Unix socket have no source address: leave --source and --sources out",
            );
        }
        let is_ipv4 = self.target.addr().is_none_or(|addr| addr.is_ipv4());
        if let Some(odd) = self.source_range.iter().find(|ip| ip.is_ipv4() != is_ipv4) {
            return Err(LoadError::Plan(format!(
                "--source {odd} cannot reach {}: one is IPv4 and the other IPv6",
                self.target
            )));
        }
        if let Some(sources) = self.sources {
            if sources == 0 || sources > 250 {
                return wrong("--sources must be from 1 to 250");
            }
            if sources > 1 && !self.is_loopback4() {
                return wrong(
                    "--sources needs a target in 127.0.0.0/8: only there this machine has many addresses",
                );
            }
        }
        Ok(())
    }

    fn check_rate(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        let Some(rate) = self.rate else { return Ok(()) };
        // Beyond this a request is due every nanosecond, which no clock can tell apart.
        let sane = |per_s: f64| (0.001..=1e9).contains(&per_s);
        if !sane(rate.requests_per_s) {
            return wrong("--rate must be from 0.001 to 1000000000 requests per second");
        }
        if rate.ramp.is_some_and(|(from, _)| from != 0.0 && !sane(from)) {
            return wrong("--ramp-rate must begin with 0 or with 0.001 to 1000000000 requests per second");
        }
        if rate.ramp.is_some_and(|(_, time)| time.is_zero()) {
            return wrong("--ramp-rate must take longer than 0 seconds");
        }
        if self.rate_bytes_per_s_per_block.is_some() {
            return wrong(
                "-r paces each block of connections and --rate all of them together: give one of the two",
            );
        }
        Ok(())
    }

    fn is_loopback4(&self) -> bool {
        self.target.addr().is_some_and(|addr| addr.is_ipv4() && addr.ip().is_loopback())
    }

    /// Whether the window begins with the first dial, and not when all connections stand: a fixed number of requests
    /// without a schedule.
    #[must_use]
    pub fn begins_at_once(&self) -> bool {
        self.rate.is_none() && matches!(self.amount, Amount::Requests(_))
    }

    /// Whether every request has a connection of its own.
    pub(crate) fn connection_per_request(&self) -> bool {
        matches!(self.protocol, Protocol::Http(HttpShape { keep_alive: false, .. }))
    }

    /// Source addresses to spread over. Each has its own 28,000 or so ports, which last a while in TIME_WAIT.
    pub(crate) fn source_addresses(&self) -> Vec<SocketAddr> {
        if !self.source_range.is_empty() {
            return self.source_range.iter().map(|&ip| SocketAddr::new(ip, 0)).collect();
        }
        let needed =
            self.connections.div_ceil(PER_SOURCE).max(if self.connection_per_request() { 8 } else { 1 });
        let count = self.sources.unwrap_or(if self.is_loopback4() { needed.min(250) } else { 1 });
        if count == 1 {
            return Vec::new(); // the system picks
        }
        (1..=count as u8).map(|last| SocketAddr::from(([127, 0, 0, last], 0))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A plan like any other.
    pub(crate) fn plan() -> Plan {
        Plan {
            target: std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into(),
            protocol: Protocol::Echo { size: 1, window: 1 },
            connections: 1,
            amount: Amount::Requests(1),
            rate_bytes_per_s_per_block: None,
            messages_each: None,
            rate: None,
            warm_up: Duration::ZERO,
            ramp_connections: Duration::ZERO,
            timeout: Duration::from_secs(10),
            sources: None,
            source_range: Vec::new(),
            model: None,
            threads: None,
            server_pid: None,
            tls: None,
            part: None,
        }
    }

    #[test]
    fn rates_that_can_not_be_are_refused() {
        let with =
            |requests_per_s, ramp| Plan { rate: Some(Rate { requests_per_s, ramp }), ..plan() }.check();
        assert!(with(1000.0, Some((0.0, Duration::from_secs(1)))).is_ok());
        for (per_s, ramp) in [
            (0.0, None),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
            (1.0, Some((-1.0, Duration::from_secs(1)))),
            (1.0, Some((1.0, Duration::ZERO))),
        ] {
            let why = with(per_s, ramp).unwrap_err().to_string();
            assert!(why.contains("-rate must"), "{why}");
        }
    }
}
