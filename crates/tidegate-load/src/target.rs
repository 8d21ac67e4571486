//! Targets of loads.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};

use tidegate::Endpoint;

use crate::plan::LoadError;

/// Whether a load is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// It is not.
    Plain,
    /// By TLS.
    Tls,
}

/// A parsed target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub endpoint: Endpoint,
    /// Whether the scheme is one over TLS.
    pub security: Security,
    /// Host and port as written, for the Host field; `localhost` for a Unix socket.
    pub host: String,
    /// The path with its query; `/` if none is given.
    pub path: String,
}

/// What a target is written behind.
struct Scheme {
    security: Security,
    /// The port if none is given.
    port: Option<u16>,
}

impl Scheme {
    fn of(name: &str) -> Option<Self> {
        let (security, port) = match name {
            "" | "tcp" => (Security::Plain, None),
            "http" | "ws" => (Security::Plain, Some(80)),
            "https" | "wss" => (Security::Tls, Some(443)),
            "tls" => (Security::Tls, None),
            _ => return None,
        };
        Some(Self { security, port })
    }
}

impl Target {
    /// Parses `http://HOST[:PORT][/PATH]`, `https://…`, `tcp://HOST:PORT`, `tls://HOST:PORT`, `HOST:PORT` or, with or
    /// without one of these schemes, `unix:SOCKET[:/PATH]`, and resolves the host.
    ///
    /// # Errors
    /// [`LoadError::Target`], with the reason, or [`LoadError::Name`].
    pub fn parse(text: &str) -> Result<Self, LoadError> {
        let bad = |why: &str| LoadError::Target { target: text.into(), why: why.into() };
        let (name, rest) = text.split_once("://").filter(|(name, _)| *name != "unix").unwrap_or(("", text));
        let scheme = Scheme::of(name).ok_or_else(|| bad("the scheme must be http, https, tcp or tls"))?;
        let (authority, path) = if let Some(unix) = rest.strip_prefix("unix:") {
            // As nginx writes it (ngx_http_proxy_module, proxy_pass): a colon ends the path of the socket.
            unix.split_once(':').unwrap_or((unix, ""))
        } else {
            rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at))
        };
        let path = match path.split('#').next().unwrap_or_default() {
            path if path.starts_with('/') => path.to_owned(),
            path => format!("/{path}"),
        };
        if path.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(bad("the path has a space or a control character: percent-encode it"));
        }
        let (endpoint, host) = if rest.starts_with("unix:") {
            let endpoint = format!("unix:{authority}").parse::<Endpoint>();
            (endpoint.map_err(|e| bad(&e.to_string()))?, "localhost")
        } else {
            (look_up(&with_port(authority, &scheme).map_err(bad)?)?.into(), authority)
        };
        Ok(Self { endpoint, security: scheme.security, host: host.to_owned(), path })
    }

    /// Whether it is on another machine: neither a Unix socket nor an address of this one.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        is_remote(&self.endpoint)
    }

    /// The host alone, for the certificate of the other end.
    #[must_use]
    pub fn host_name(&self) -> &str {
        let host = match self.host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => host,
            _ => &self.host,
        };
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Whether this is on another machine.
pub(crate) fn is_remote(endpoint: &Endpoint) -> bool {
    endpoint.addr().is_some_and(|mut addr| {
        addr.set_port(0);
        let ip = addr.ip().to_canonical();
        // A socket can be bound to the addresses of its machine alone (bind(2)).
        !ip.is_loopback() && !ip.is_unspecified() && UdpSocket::bind(addr).is_err()
    })
}

/// `HOST[:PORT]` with a port.
fn with_port(authority: &str, scheme: &Scheme) -> Result<String, &'static str> {
    let port = match (scheme.port, authority.rsplit_once(':')) {
        (_, Some((host, port))) if !host.is_empty() && !port.ends_with(']') => {
            port.parse::<u16>().map_err(|_| "the port is not a number from 1 to 65535")?
        }
        (Some(port), _) if !authority.is_empty() => return Ok(format!("{authority}:{port}")),
        _ => return Err("HOST:PORT is missing"),
    };
    if port == 0 { Err("cannot connect to port 0") } else { Ok(authority.to_owned()) }
}

/// The address of `HOST:PORT`.
fn look_up(host: &str) -> Result<SocketAddr, LoadError> {
    let unknown = |error: String| LoadError::Name { host: host.to_owned(), error };
    let mut addrs = host.to_socket_addrs().map_err(|e| unknown(e.to_string()))?;
    let first = addrs.next().ok_or_else(|| unknown("it has none".into()))?;
    Ok(std::iter::once(first).chain(addrs).min_by_key(SocketAddr::is_ipv6).unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        Target::parse(text).unwrap().endpoint.addr().unwrap()
    }

    #[test]
    fn targets_are_taken_apart() {
        let t = Target::parse("http://127.0.0.1:8080/a/b?c=d#e").unwrap();
        assert_eq!(
            (t.endpoint, t.host.as_str(), t.path.as_str()),
            (Endpoint::Tcp(([127, 0, 0, 1], 8080).into()), "127.0.0.1:8080", "/a/b?c=d")
        );
        assert_eq!(addr("http://127.0.0.1").port(), 80);
        assert_eq!(addr("https://127.0.0.1").port(), 443);
        assert_eq!(Target::parse("tls://127.0.0.1:7").unwrap().security, Security::Tls);
        assert_eq!(Target::parse("127.0.0.1:7?q").unwrap().path, "/?q");
        assert_eq!(addr("tcp://[::1]:9").port(), 9);
    }

    #[test]
    fn a_unix_socket_ends_at_a_colon() {
        for (text, socket, path) in [
            ("unix:/run/a.sock", "unix:/run/a.sock", "/"),
            ("unix:///run/a.sock", "unix:///run/a.sock", "/"),
            ("http://unix:/run/a.sock:/b?c", "unix:/run/a.sock", "/b?c"),
            ("unix:@name:/b", "unix:@name", "/b"),
            ("tcp://unix:rel/a", "unix:rel/a", "/"),
        ] {
            let target = Target::parse(text).unwrap();
            assert_eq!(
                (target.endpoint.to_string().as_str(), target.path.as_str()),
                (socket, path),
                "{text}"
            );
            assert_eq!((target.security, target.host.as_str()), (Security::Plain, "localhost"));
        }
        assert_eq!(Target::parse("https://unix:/a:/b").unwrap().security, Security::Tls);
    }

    #[test]
    fn the_name_for_the_certificate_has_no_port() {
        for (text, name) in [
            ("https://127.0.0.1:1/", "127.0.0.1"),
            ("https://[::1]/", "::1"),
            ("https://[::1]:2/", "::1"),
            ("tls://unix:/a", "localhost"),
        ] {
            assert_eq!(Target::parse(text).unwrap().host_name(), name);
        }
    }

    #[test]
    fn a_target_is_remote_unless_it_is_of_this_machine() {
        // The last three are addresses for documentation (RFC 5737, RFC 3849).
        for (text, is_remote) in [
            ("127.0.0.1:7", false),
            ("127.9.9.9:7", false),
            ("[::1]:7", false),
            ("0.0.0.0:7", false),
            ("unix:/run/a.sock", false),
            ("192.0.2.1:7", true),
            ("http://198.51.100.7/", true),
            ("[2001:db8::1]:7", true),
        ] {
            assert_eq!(Target::parse(text).unwrap().is_remote(), is_remote, "{text}");
        }
    }

    #[test]
    fn a_name_without_an_address_says_what_to_do() {
        // No label of a name is longer than 63 octets (RFC 1035, 2.3.4), so nobody is asked for it.
        let name = "x".repeat(64);
        let message = Target::parse(&format!("http://{name}/")).unwrap_err().to_string();
        assert!(message.contains(&name) && message.contains("give an IP address"), "{message}");
        assert!(!message.contains("write http://"), "it is written right: {message}");
    }

    #[test]
    fn a_bad_target_says_what_is_wrong() {
        for (text, part) in [
            ("ftp://127.0.0.1/", "must be http, https, tcp or tls"),
            ("127.0.0.1", "HOST:PORT is missing"),
            ("tls://127.0.0.1", "HOST:PORT is missing"),
            ("127.0.0.1:99999", "port is not a number"),
            ("127.0.0.1:0", "port 0"),
            ("http://127.0.0.1:80/a b", "space"),
            ("http://unix:", "needs a path"),
            ("", "HOST:PORT is missing"),
        ] {
            let message = Target::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
