//! The settings of a load.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::{Endpoint, Model, StartError};
use tidegate_tls::{TlsError, Trust};

pub use crate::part::Part;
pub use crate::shape::{AfterResponse, HttpShape};
pub use crate::target::{Security, Target};

/// Connections of one block; they are opened together and share a rate, as in the book.
pub const BLOCK: usize = 1_000;

/// The most connections of a load: as many as 256 source addresses have ports. Each takes memory before it is opened.
pub const MOST_CONNECTIONS: usize = 1 << 24;

/// The most I/O threads of a load.
pub const MOST_THREADS: usize = 1_024;

/// The protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Messages of `size` bytes are echoed, `window` of them in flight on each connection.
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
    /// After this long; measured from when all connections are established.
    Time(Duration),
}

/// Open loop: requests start on a schedule, independently of responses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Total requests per second.
    pub requests_per_s: f64,
    /// The initial rate, and the time within which it changes linearly to `requests_per_s`.
    pub ramp: Option<(f64, Duration)>,
}

/// A load to be generated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The target.
    pub target: Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// Concurrent connections.
    pub connections: usize,
    /// When to stop.
    pub amount: Amount,
    /// Echo only: bytes per second that each block of [`BLOCK`] connections sends; `None` is unlimited.
    pub rate_bytes_per_s_per_block: Option<u64>,
    /// Messages or requests that each connection sends before it becomes idle; `None` is unlimited. Connections must be
    /// kept, and [`Amount::Requests`] must be this many for each.
    pub messages_each: Option<u64>,
    /// Echo only, with `messages_each`: each connection finishes sending (half-close) after its last message, and all
    /// responses must still arrive.
    pub half_close: bool,
    /// Open loop at this rate; `None` is a closed loop, in which each response triggers the next request.
    pub rate: Option<Rate>,
    /// Warm-up before the window, from when all connections are established. Only with [`Amount::Time`].
    pub warm_up: Duration,
    /// Connections are opened evenly over this time; zero is as fast as possible.
    pub ramp_connections: Duration,
    /// Time limit for responses at the end, and connect timeout.
    pub timeout: Duration,
    /// Number of source addresses, from 127.0.0.1 on; `None` uses as many as the ports need. Only for targets in
    /// 127.0.0.0/8.
    pub sources: Option<usize>,
    /// Source addresses to use in turn, instead of `sources`.
    pub source_range: Vec<IpAddr>,
    /// The I/O model; `None` is the best available.
    pub model: Option<Model>,
    /// I/O threads; `None` is one for each processor.
    pub threads: Option<usize>,
    /// The server's process, if it runs here: the verdict includes its CPU time.
    pub server_pid: Option<u32>,
    /// TLS settings; `None` is unencrypted.
    pub tls: Option<TlsPlan>,
    /// Which part of a load this is; `None` is all of it. Created by [`Plan::part`].
    pub part: Option<Part>,
}

/// TLS settings of a load.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// Trusted server certificates. Echo offers no protocol for ALPN, and HTTP should offer `http/1.1`.
    pub trust: Trust,
    /// Expected server name: a host name or an IP address.
    pub name: String,
    /// Handshake timeout.
    pub handshake_timeout: Duration,
}

/// Why a load cannot be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An invalid target.
    #[error(
        "bad target {target:?}: {why}; write http://HOST:PORT/PATH, https://HOST:PORT/PATH, HOST:PORT, \
         tls://HOST:PORT or unix:SOCKET:/PATH"
    )]
    Target {
        /// The target.
        target: String,
        /// The error.
        why: String,
    },
    /// The name of the target has no address.
    #[error(
        "cannot find the address of {host}: {error}; check the name and the resolver, or give an IP address"
    )]
    Name {
        /// The name, and its port.
        host: String,
        /// The error.
        error: String,
    },
    /// The settings contradict each other.
    #[error("{0}")]
    Plan(String),
    /// More connections than descriptors.
    #[error(
        "{connections} connections need {connections} descriptors and {reserve} more; the limit of this process is \
         {limit}: raise it with ulimit -n, or use fewer connections"
    )]
    Descriptors {
        /// Connections requested.
        connections: usize,
        /// Descriptors needed for other purposes.
        reserve: usize,
        /// The limit.
        limit: u64,
    },
    /// An error of the TLS configuration.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The client cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Whether this can be a rate. Beyond it one is due every nanosecond, which no clock can tell apart; below it one is
/// due later than anybody waits, and in the end than any clock can say.
pub(crate) fn can_be_kept(per_s: f64) -> bool {
    (0.001..=1e9).contains(&per_s)
}

/// Connections per source address at full connect speed.
const PER_SOURCE: usize = 5_000;

impl Plan {
    /// A closed loop without TLS, as fast as answers come, on the best model and all processors; 10 seconds for a
    /// connect and for the last responses.
    #[must_use]
    pub fn new(target: Endpoint, protocol: Protocol, connections: usize, amount: Amount) -> Self {
        Self {
            target,
            protocol,
            connections,
            amount,
            rate_bytes_per_s_per_block: None,
            messages_each: None,
            half_close: false,
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

    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoadError::Plan`] with the remedy.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        if self.connections == 0 {
            return wrong("there must be at least one connection: raise -c");
        }
        if self.connections > MOST_CONNECTIONS {
            return Err(LoadError::Plan(format!(
                "-c {} is more than {MOST_CONNECTIONS}, the ports of 256 source addresses: lower it",
                self.connections
            )));
        }
        if self.threads.is_some_and(|threads| !(1..=MOST_THREADS).contains(&threads)) {
            return Err(LoadError::Plan(format!("--threads must be from 1 to {MOST_THREADS}")));
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
                return wrong("-r limits echo messages; it has no effect for http");
            }
            _ => {}
        }
        if self.messages_each.is_some() && self.connection_per_request() {
            return wrong("--requests-each needs connections that are kept: leave --no-keepalive out");
        }
        if self.half_close && self.messages_each.is_none() {
            return wrong("--half-close needs to know the last message of a connection: give --messages");
        }
        if self.target.is_unix() && (self.sources.is_some() || !self.source_range.is_empty()) {
            return wrong("Unix sockets have no source addresses: leave --source and --sources out");
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
                    "--sources needs a target in 127.0.0.0/8: only that network has many local addresses",
                );
            }
        }
        Ok(())
    }

    fn check_rate(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        let Some(rate) = self.rate else { return Ok(()) };
        if !can_be_kept(rate.requests_per_s) {
            return wrong("--rate must be from 0.001 to 1000000000 requests per second");
        }
        if rate.ramp.is_some_and(|(from, _)| from != 0.0 && !can_be_kept(from)) {
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

    /// Whether the window begins with the first dial, and not when all connections are established: a fixed number of
    /// requests without a schedule.
    #[must_use]
    pub fn begins_at_once(&self) -> bool {
        self.rate.is_none() && matches!(self.amount, Amount::Requests(_))
    }

    /// Whether every request has its own connection.
    pub(crate) fn connection_per_request(&self) -> bool {
        matches!(&self.protocol, Protocol::Http(shape) if !shape.keep_alive())
    }

    /// Source addresses to distribute connections over. Each has about 28,000 ports, which stay in TIME_WAIT for a
    /// while.
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
        let target = std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into();
        Plan::new(target, Protocol::Echo { size: 1, window: 1 }, 1, Amount::Requests(1))
    }

    #[test]
    fn connections_and_threads_are_bounded_before_they_take_memory() {
        let with = |connections, threads| Plan { connections, threads, ..plan() }.check();
        assert!(with(MOST_CONNECTIONS, Some(MOST_THREADS)).is_ok());
        for (connections, threads, part) in [
            (MOST_CONNECTIONS + 1, None, "-c 16777217 is more than 16777216"),
            (usize::MAX, None, "lower it"),
            (1, Some(0), "--threads must be from 1 to 1024"),
            (MOST_CONNECTIONS, Some(MOST_THREADS + 1), "--threads must be from 1 to 1024"),
        ] {
            let why = with(connections, threads).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn rates_that_cannot_be_are_refused() {
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
