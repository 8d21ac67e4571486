//! By which names a server may be asked, and from whose pages.
//!
//! A browser lets any page connect to any server, and tells the server whose page it was (`Origin`; RFC 6455, section
//! 10.2). And a page whose name is pointed at another address (*DNS rebinding*) is one of that server, as far as the
//! browser knows; only its name, in the Host field, gives it away. So who serves browsers on a loopback or inner
//! address has to look at both.

use std::str::FromStr;

use super::authority::Authority;
use super::fault::{Fault, Status};

/// The names by which a server may be asked, and the origins whose pages may open a WebSocket.
///
/// Addresses and `localhost` are names of every server: nobody can point them elsewhere. A page that came from the
/// server itself may always open a WebSocket to it, and so may whatever is no browser: it names no origin.
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
    origins: Vec<Origin>,
}

/// What is no host or origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Not a name.
    #[error("{0:?} is no host; write a name without a port, such as chat.example, or * for any")]
    Host(String),
    /// Not an origin.
    #[error(
        "{0:?} is no origin; write https://NAME or https://NAME:PORT as browsers say it, null, or * for any"
    )]
    Origin(String),
}

/// A name by which a server may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Any.
    Any,
    /// This one, in lower case.
    Name(String),
}

/// Whose pages may open a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Anybody's.
    Any,
    /// Pages without an origin, such as files and sandboxes (`null`).
    Opaque,
    /// This one's: scheme, host in lower case, port.
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

impl FromStr for Origin {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        match text {
            "*" => Ok(Self::Any),
            "null" => Ok(Self::Opaque),
            _ => Self::parse(text).ok_or_else(|| AccessError::Origin(text.into())),
        }
    }
}

impl Origin {
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

    /// Whether a page of this origin came from the server that is asked as this. Whether it is asked with TLS is not
    /// known here, as a proxy may have taken it off: a port that is not said is the one that goes with the origin.
    fn is_same(&self, asked: &Authority<'_>) -> bool {
        let Self::Of(scheme, host, port) = self else { return false };
        let usual = if scheme == "http" { 80 } else { 443 };
        *host == plain(asked.host) && *port == asked.port.unwrap_or(usual)
    }
}

impl Access {
    /// Everybody, by every name: for what may be known and done by anyone who reaches the port, and by any page they
    /// look at.
    #[must_use]
    pub fn any() -> Self {
        Self { hosts: vec![Host::Any], origins: vec![Origin::Any] }
    }

    /// These names and origins.
    #[must_use]
    pub fn of(hosts: Vec<Host>, origins: Vec<Origin>) -> Self {
        Self { hosts, origins }
    }

    /// One name more, without a port; `*` is any.
    ///
    /// # Errors
    /// It is no name.
    pub fn host(mut self, name: &str) -> Result<Self, AccessError> {
        self.hosts.push(name.parse()?);
        Ok(self)
    }

    /// One origin more, such as `https://www.example`; `*` is any.
    ///
    /// # Errors
    /// It is no origin.
    pub fn origin(mut self, origin: &str) -> Result<Self, AccessError> {
        self.origins.push(origin.parse()?);
        Ok(self)
    }

    /// Refuses a request that is for another name. One that does not say (HTTP/1.0) is not a browser's.
    pub(crate) fn check_host(&self, authority: &[u8]) -> Result<(), Fault> {
        if authority.is_empty() || self.hosts.contains(&Host::Any) {
            return Ok(());
        }
        let asked = Authority::parse(authority).unwrap_or(Authority { host: "", port: None });
        let name = plain(asked.host);
        let is_local = asked.ip().is_some() || name == "localhost" || name.ends_with(".localhost");
        if is_local || self.hosts.iter().any(|host| matches!(host, Host::Name(own) if *own == name)) {
            return Ok(());
        }
        let why = format!("this server is not asked as {name:?}; if it is to be, allow this host");
        Err(Fault { status: Status::Misdirected, why: why.into() })
    }

    /// Refuses a WebSocket to a page of another origin.
    pub(crate) fn check_origin(&self, origin: Option<&[u8]>, authority: &[u8]) -> Result<(), Fault> {
        let Some(origin) = origin.filter(|_| !self.origins.contains(&Origin::Any)) else { return Ok(()) };
        let parsed: Option<Origin> = std::str::from_utf8(origin).ok().and_then(|text| text.parse().ok());
        let asked = Authority::parse(authority);
        let allowed = parsed.is_some_and(|origin| {
            // What a request says is not what an option says: it has no wildcard.
            origin != Origin::Any
                && (asked.is_some_and(|asked| origin.is_same(&asked)) || self.origins.contains(&origin))
        });
        if allowed {
            return Ok(());
        }
        let why = "pages of this origin may not connect; if they are to, allow the origin".into();
        Err(Fault { status: Status::Forbidden, why })
    }
}

/// A host as it is compared: in lower case, and without a dot at its end.
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
