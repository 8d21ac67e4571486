//! Where to.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::plan::LoadError;

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
