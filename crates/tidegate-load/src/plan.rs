//! What to do.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tidegate::{Model, StartError};

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
    /// GET requests.
    Http {
        /// The path asked for, with its query.
        path: String,
        /// The Host field.
        host: String,
        /// Keep connections; else each request has one of its own.
        keep_alive: bool,
    },
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// After this many requests; measured from the first dial on.
    Requests(u64),
    /// After this long; measured from when all connections stand.
    Time(Duration),
}

/// A load to be generated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where to.
    pub target: SocketAddr,
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
    /// How long to wait for answers at the end, and for a connection to stand.
    pub timeout: Duration,
    /// Source addresses, from 127.0.0.1 on; `None` takes as many as the ports need. Only for targets in 127.0.0.0/8.
    pub sources: Option<usize>,
    /// The I/O model; `None` is the best available.
    pub model: Option<Model>,
    /// I/O threads; `None` is one for each processor.
    pub threads: Option<usize>,
}

/// A load could not be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The target makes no sense.
    #[error("bad target {target:?}: {why}; write http://HOST:PORT/PATH, tcp://HOST:PORT or HOST:PORT")]
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
    /// The client could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Where a load goes, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub addr: SocketAddr,
    /// Host and port as written, for the Host field.
    pub host: String,
    /// The path with its query; `/` if none is given.
    pub path: String,
}

impl Target {
    /// Takes `http://HOST[:PORT][/PATH]`, `tcp://HOST:PORT` or `HOST:PORT` apart and looks the host up.
    ///
    /// # Errors
    /// [`LoadError::Target`], with what is wrong.
    pub fn parse(text: &str) -> Result<Self, LoadError> {
        let bad = |why: &str| LoadError::Target { target: text.into(), why: why.into() };
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        if !matches!(scheme, "" | "http" | "tcp") {
            return Err(bad("only http and tcp are spoken here"));
        }
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) if rest[at..].starts_with('/') => (&rest[..at], rest[at..].to_owned()),
            Some(at) => (&rest[..at], format!("/{}", &rest[at..])),
            None => (rest, "/".to_owned()),
        };
        let path = path.split('#').next().unwrap_or("/").to_owned();
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(bad("the path has a space or a control character: encode it with %"));
        }
        let with_port = match (scheme, authority.rsplit_once(':')) {
            (_, Some((host, port))) if !host.is_empty() && !port.ends_with(']') => {
                port.parse::<u16>().map_err(|_| bad("the port is not a number from 1 to 65535"))?;
                authority.to_owned()
            }
            ("http", _) if !authority.is_empty() => format!("{authority}:80"),
            _ => return Err(bad("there is no HOST:PORT in it")),
        };
        let addr = with_port
            .to_socket_addrs()
            .map_err(|e| bad(&format!("the host can not be looked up: {e}")))?
            .min_by_key(|addr| u8::from(addr.is_ipv6()))
            .ok_or_else(|| bad("the host has no address"))?;
        if addr.port() == 0 {
            return Err(bad("port 0 can be listened on, but not connected to"));
        }
        Ok(Self { addr, host: authority.to_owned(), path })
    }
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
        match (&self.protocol, self.rate_bytes_per_s_per_block) {
            (_, Some(0)) => return wrong("-r must be at least 1 byte per second"),
            (Protocol::Http { .. }, Some(_)) => {
                return wrong("-r limits the bytes of echo messages; it means nothing for http");
            }
            _ => {}
        }
        if self.messages_each.is_some() && !matches!(self.protocol, Protocol::Echo { .. }) {
            return wrong("--messages counts echo messages; it means nothing for http");
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

    fn is_loopback4(&self) -> bool {
        matches!(self.target.ip(), IpAddr::V4(ip) if ip.is_loopback())
    }

    /// Whether every request has a connection of its own.
    pub(crate) fn connection_per_request(&self) -> bool {
        matches!(self.protocol, Protocol::Http { keep_alive: false, .. })
    }

    /// Source addresses to spread over. Each has its own 28,000 or so ports, which last a while in TIME_WAIT.
    pub(crate) fn source_addresses(&self) -> Vec<SocketAddr> {
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
mod tests {
    use super::*;

    #[test]
    fn targets_are_taken_apart() {
        let t = Target::parse("http://127.0.0.1:8080/a/b?c=d#e").unwrap();
        assert_eq!(
            (t.addr, t.host.as_str(), t.path.as_str()),
            (([127, 0, 0, 1], 8080).into(), "127.0.0.1:8080", "/a/b?c=d")
        );
        assert_eq!(Target::parse("http://127.0.0.1").unwrap().addr.port(), 80);
        assert_eq!(Target::parse("127.0.0.1:7?q").unwrap().path, "/?q");
        assert_eq!(Target::parse("tcp://[::1]:9").unwrap().addr.port(), 9);
    }

    #[test]
    fn a_bad_target_says_what_is_wrong() {
        for (text, part) in [
            ("https://127.0.0.1/", "only http and tcp"),
            ("127.0.0.1", "no HOST:PORT"),
            ("127.0.0.1:99999", "port is not a number"),
            ("127.0.0.1:0", "port 0"),
            ("http://127.0.0.1:80/a b", "space"),
            ("", "no HOST:PORT"),
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
