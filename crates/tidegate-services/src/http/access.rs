//! Host and origin checks for servers used by browsers.
//!
//! A browser lets any page connect to any server, and sends the page's origin (`Origin`; RFC 6455, section 10.2). And a
//! page whose name resolves to another address (*DNS rebinding*) is same-origin with that server for the browser; only
//! its name, in the Host field, reveals it. So a server for browsers on a loopback or private address must check both.

use std::str::FromStr;

use super::authority::Authority;
use super::fault::{RequestError, Status};

/// The accepted host names, and the origins whose pages may open a WebSocket.
///
/// IP addresses and `localhost` are always accepted, because DNS cannot redirect them. A page of the same origin may
/// always open a WebSocket, and so may clients other than browsers, which send no origin.
///
/// ```
/// use tidegate_services::http::Access;
///
/// let access = Access::default().host("chat.example")?.origin("https://www.example:8443")?;
/// # let _ = access;
/// # Ok::<(), tidegate_services::http::AccessError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    hosts: Vec<Host>,
    origins: Vec<WebOrigin>,
}

/// An invalid host or origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Not a name.
    #[error("{0:?} is not a host; write a name without a port, such as chat.example, or * for any")]
    Host(String),
    /// Not an origin.
    #[error(
        "{0:?} is not an origin; write https://NAME or https://NAME:PORT as browsers send it, null, or * for any"
    )]
    Origin(String),
}

/// An accepted host name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Any.
    Any,
    /// This one, in lower case.
    Name(String),
}

/// An accepted origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebOrigin {
    /// Any origin.
    Any,
    /// Pages without an origin, such as files and sandboxes (`null`).
    Opaque,
    /// A certain origin: scheme, host in lower case, port.
    Of(String, String, u16),
}

impl FromStr for Host {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        match Authority::parse(text.as_bytes()) {
            _ if text == "*" => Ok(Self::Any),
            Some(Authority { host, port: None }) if host == text && !host.is_empty() => {
                Ok(Self::Name(plain(host)))
            }
            _ => Err(AccessError::Host(text.into())),
        }
    }
}

impl FromStr for WebOrigin {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        match text {
            "*" => Ok(Self::Any),
            "null" => Ok(Self::Opaque),
            _ => Self::parse(text).ok_or_else(|| AccessError::Origin(text.into())),
        }
    }
}

impl WebOrigin {
    /// `scheme "://" host [ ":" port ]` (RFC 6454, section 6.2).
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let usual = match scheme.as_str() {
            "http" | "ws" => 80,
            "https" | "wss" => 443,
            _ => return None,
        };
        let Authority { host, port } = Authority::parse(authority.as_bytes())?;
        (!host.is_empty()).then(|| Self::Of(scheme, plain(host), port.unwrap_or(usual)))
    }

    /// Whether a page of this origin is from the host requested. The scheme of the request is not known, as a proxy may
    /// have terminated TLS: a missing port is the origin's default.
    fn is_same(&self, asked: &Authority<'_>) -> bool {
        let Self::Of(scheme, host, port) = self else { return false };
        let usual = if scheme == "http" { 80 } else { 443 };
        *host == plain(asked.host) && *port == asked.port.unwrap_or(usual)
    }
}

impl Access {
    /// Accepts every host and origin: for content that anyone who reaches the port may use, including through any web
    /// page.
    #[must_use]
    pub fn any() -> Self {
        Self { hosts: vec![Host::Any], origins: vec![WebOrigin::Any] }
    }

    /// Creates it with these hosts and origins.
    #[must_use]
    pub fn of(hosts: Vec<Host>, origins: Vec<WebOrigin>) -> Self {
        Self { hosts, origins }
    }

    /// Adds a host name, without a port; `*` is any.
    ///
    /// # Errors
    /// It is not a host name.
    pub fn host(mut self, name: &str) -> Result<Self, AccessError> {
        self.hosts.push(name.parse()?);
        Ok(self)
    }

    /// Adds an origin, such as `https://www.example`; `*` is any.
    ///
    /// # Errors
    /// It is not an origin.
    pub fn origin(mut self, origin: &str) -> Result<Self, AccessError> {
        self.origins.push(origin.parse()?);
        Ok(self)
    }

    /// Rejects a request for another host. Requests without a Host field (HTTP/1.0) do not come from browsers.
    pub(crate) fn check_host(&self, authority: &[u8]) -> Result<(), RequestError> {
        if authority.is_empty() || self.hosts.contains(&Host::Any) {
            return Ok(());
        }
        let asked = Authority::parse(authority).unwrap_or(Authority { host: "", port: None });
        let name = plain(asked.host);
        let is_local = asked.ip().is_some() || name == "localhost" || name.ends_with(".localhost");
        if is_local || self.hosts.iter().any(|host| matches!(host, Host::Name(own) if *own == name)) {
            return Ok(());
        }
        let why = format!("unknown host {name:?}; to accept it, allow this host");
        Err(RequestError { status: Status::Misdirected, why: why.into() })
    }

    /// Rejects a WebSocket from a page of another origin.
    pub(crate) fn check_origin(&self, origin: Option<&[u8]>, authority: &[u8]) -> Result<(), RequestError> {
        let Some(origin) = origin.filter(|_| !self.origins.contains(&WebOrigin::Any)) else { return Ok(()) };
        let parsed: Option<WebOrigin> = std::str::from_utf8(origin).ok().and_then(|text| text.parse().ok());
        let asked = Authority::parse(authority);
        let allowed = parsed.is_some_and(|origin| {
            // A value of a request, unlike an option's, has no wildcard.
            origin != WebOrigin::Any
                && (asked.is_some_and(|asked| origin.is_same(&asked)) || self.origins.contains(&origin))
        });
        if allowed {
            return Ok(());
        }
        let why = "pages of this origin may not connect; to accept them, allow the origin".into();
        Err(RequestError { status: Status::Forbidden, why })
    }
}

/// Normalizes a host for comparison: lower case, no trailing dot.
fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_names_of_every_server() {
        let access = Access::default().host("Chat.Example").unwrap();
        for asked in [
            "",
            "127.0.0.1",
            "192.0.2.7:8080",
            "[::1]:80",
            "localhost",
            "LOCALHOST:8080",
            "a.localhost",
            "localhost.",
            "chat.example",
            "CHAT.example.:443",
        ] {
            assert_eq!(access.check_host(asked.as_bytes()), Ok(()), "{asked}");
        }
        for asked in
            ["evil.example", "localhost.evil.example", "chat.example.evil", "0x7f.1", "127.1", "notlocalhost"]
        {
            let fault = access.check_host(asked.as_bytes()).unwrap_err();
            assert_eq!(fault.status, Status::Misdirected, "{asked}");
            assert_eq!(Access::any().check_host(asked.as_bytes()), Ok(()));
        }
    }

    #[test]
    fn pages_connect_to_where_they_came_from() {
        let access = Access::default().origin("https://www.example").unwrap();
        let check = |access: &Access, origin: &str, asked: &str| {
            access.check_origin(Some(origin.as_bytes()), asked.as_bytes()).map_err(|fault| fault.status)
        };
        for (origin, asked) in [
            ("http://a:8080", "a:8080"),
            ("HTTP://A:8080", "a:8080"),
            ("http://a", "a"),
            ("http://a", "a:80"),
            ("https://a", "a"),
            ("https://a", "a:443"),
            ("http://[::1]:80", "[::1]"),
            ("https://www.example", "a"),
            ("https://www.example:443", "a"),
        ] {
            assert_eq!(check(&access, origin, asked), Ok(()), "{origin} {asked}");
        }
        for (origin, asked) in [
            ("http://b", "a"),
            ("http://a:8080", "a"),
            ("http://a", "a:8080"),
            ("https://a", "a:80"),
            ("http://www.example", "a"),
            ("https://www.example:444", "a"),
            ("null", "a"),
            ("*", "a"),
            ("", "a"),
            ("a", "a"),
            ("http://a http://b", "a"),
            ("http://a/", "a"),
            ("http://", ""),
        ] {
            assert_eq!(check(&access, origin, asked), Err(Status::Forbidden), "{origin} {asked}");
            assert_eq!(check(&Access::any(), origin, asked), Ok(()));
        }
        assert_eq!(access.check_origin(None, b"a"), Ok(()));
        assert_eq!(check(&Access::default().origin("null").unwrap(), "null", "a"), Ok(()));
    }

    #[test]
    fn what_is_no_name_is_said_with_a_remedy() {
        for host in ["", "a:80", "a/b", "http://a", "*.a b"] {
            assert!(Access::default().host(host).unwrap_err().to_string().contains("write a name"), "{host}");
        }
        for origin in ["", "a", "a:80", "https://", "https://a/b", "ftp://a"] {
            assert!(
                Access::default().origin(origin).unwrap_err().to_string().contains("https://NAME"),
                "{origin}"
            );
        }
    }
}
