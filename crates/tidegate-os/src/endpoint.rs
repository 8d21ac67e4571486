//! Where a stream socket listens, or connects to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr};

/// Where a stream socket listens, or connects to. Cheap to clone.
///
/// As text: `127.0.0.1:80`, `mptcp:127.0.0.1:80`, `unix:/run/app.sock`, `unix:@name`. Host names are not looked up.
///
/// Socket addresses, pairs of an IP address and a port, and paths (of Unix sockets) convert into it; text by
/// [`TryFrom`] or `parse`.
///
/// ```
/// # use tidegate_os::endpoint::Endpoint;
/// let endpoint: Endpoint = "unix:/run/app.sock".parse()?;
/// assert_eq!(endpoint, Endpoint::unix("/run/app.sock"));
/// assert_eq!(endpoint.to_string(), "unix:/run/app.sock");
/// assert_eq!(Endpoint::from(([127, 0, 0, 1], 80)), Endpoint::try_from("127.0.0.1:80")?);
/// # Ok::<(), tidegate_os::endpoint::ParseEndpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// Multipath TCP (RFC 8684): several paths for one connection where both ends have it, else plain TCP. Linux only.
    Mptcp(SocketAddr),
    /// A Unix stream socket with a file.
    Unix(Arc<Path>),
    /// A Unix stream socket with a name that is no file (`unix(7)`, abstract). Everybody on the machine, in the same
    /// network namespace, may connect to it. Linux only.
    Abstract(Arc<[u8]>),
}

impl Endpoint {
    /// A Unix socket with this file.
    #[must_use]
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self::Unix(path.as_ref().into())
    }

    /// Address and port; Unix sockets have none.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) | Self::Mptcp(addr) => Some(*addr),
            Self::Unix(_) | Self::Abstract(_) => None,
        }
    }

    /// The file of a Unix socket.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            _ => None,
        }
    }

    /// Whether it is a Unix socket, with a file or without.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        self.addr().is_none()
    }

    /// As the system takes it.
    pub(crate) fn sock_addr(&self) -> io::Result<SockAddr> {
        match self {
            Self::Tcp(addr) | Self::Mptcp(addr) => Ok((*addr).into()),
            Self::Unix(path) => SockAddr::unix(path),
            Self::Abstract(name) => abstract_address(name),
        }
    }

    pub(crate) fn domain(&self) -> Domain {
        self.addr().map_or(Domain::UNIX, Domain::for_address)
    }

    pub(crate) fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Tcp(_) => Some(Protocol::TCP),
            #[cfg(target_os = "linux")]
            Self::Mptcp(_) => Some(Protocol::MPTCP),
            _ => None,
        }
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> io::Result<SockAddr> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let marked: Vec<u8> = std::iter::once(0).chain(name.iter().copied()).collect();
    SockAddr::unix(OsStr::from_bytes(&marked))
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_: &[u8]) -> io::Result<SockAddr> {
    let why = "names without a file are for Linux only: write unix:/path";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl From<SocketAddrV4> for Endpoint {
    fn from(addr: SocketAddrV4) -> Self {
        Self::Tcp(addr.into())
    }
}

impl From<SocketAddrV6> for Endpoint {
    fn from(addr: SocketAddrV6) -> Self {
        Self::Tcp(addr.into())
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Endpoint {
    fn from(ip_and_port: (I, u16)) -> Self {
        Self::Tcp(ip_and_port.into())
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self::unix(path)
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Self {
        Self::unix(path)
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        endpoint.clone()
    }
}

/// For `TcpStream::connect` and the like; a Unix socket has no such address.
impl ToSocketAddrs for Endpoint {
    type Iter = std::option::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        let no_address = || io::Error::new(io::ErrorKind::InvalidInput, format!("{self} has no IP address"));
        self.addr().map(|addr| Some(addr).into_iter()).ok_or_else(no_address)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Mptcp(addr) => write!(f, "mptcp:{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "unix:@{}", name.escape_ascii()),
        }
    }
}

/// A text that is no [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseEndpointError(String);

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ParseEndpointError {}

/// Bytes that the path or name of a Unix socket may have: `sun_path` of `unix(7)`, and a zero.
const PATH_BYTES: usize = 107;

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let Some(path) = text.strip_prefix("unix:") else {
            return match text.strip_prefix("mptcp:") {
                Some(rest) => ip(rest).map(Self::Mptcp),
                None => ip(text).map(Self::Tcp),
            };
        };
        let wrong = |why: String| Err(ParseEndpointError(why));
        if path.len() > PATH_BYTES {
            return wrong(format!(
                "the path of a Unix socket may have {PATH_BYTES} bytes, and {path:?} has {}",
                path.len()
            ));
        }
        match path.strip_prefix('@') {
            _ if path.contains('\0') => wrong("the path of a Unix socket has no zero byte".into()),
            Some("") => wrong("unix:@ needs a name behind it".into()),
            None if path.is_empty() => {
                wrong("unix: needs a path behind it, such as unix:/run/app.sock".into())
            }
            Some(name) => Ok(Self::Abstract(name.as_bytes().into())),
            None => Ok(Self::unix(path)),
        }
    }
}

impl TryFrom<&str> for Endpoint {
    type Error = ParseEndpointError;

    fn try_from(text: &str) -> Result<Self, ParseEndpointError> {
        text.parse()
    }
}

impl TryFrom<&String> for Endpoint {
    type Error = ParseEndpointError;

    fn try_from(text: &String) -> Result<Self, ParseEndpointError> {
        text.parse()
    }
}

impl TryFrom<String> for Endpoint {
    type Error = ParseEndpointError;

    fn try_from(text: String) -> Result<Self, ParseEndpointError> {
        text.parse()
    }
}

fn ip(text: &str) -> Result<SocketAddr, ParseEndpointError> {
    text.parse().map_err(|_| {
        let names = if has_a_name(text) {
            "; names of hosts are not looked up: do that first, and write the address found"
        } else {
            ""
        };
        ParseEndpointError(format!(
            "{text:?} is no address; write ADDR:PORT, such as 127.0.0.1:8080 or [::1]:8080, or unix:/path{names}"
        ))
    })
}

/// Whether it is written like `localhost:80`.
fn has_a_name(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    port.parse::<u16>().is_ok()
        && !host.contains(':')
        && host.starts_with(|first: char| first.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in
            ["127.0.0.1:80", "[::1]:0", "mptcp:[::1]:80", "unix:/run/a b.sock", "unix:rel", "unix:@name"]
        {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_kind_of_address_is_one() {
        let expected = "127.0.0.1:80".parse::<Endpoint>().unwrap();
        let addr = SocketAddr::from(([127, 0, 0, 1], 80));
        let SocketAddr::V4(v4) = addr else { unreachable!("it is written above") };
        for endpoint in [addr.into(), v4.into(), (addr.ip(), 80).into(), (*v4.ip(), 80).into()] {
            assert_eq!(expected, endpoint);
        }
        let owned = "127.0.0.1:80".to_owned();
        assert_eq!(Endpoint::try_from(&owned).as_ref(), Ok(&expected));
        assert_eq!(Endpoint::try_from(owned), Ok(expected));
        assert_eq!(Endpoint::from(Path::new("/a")), Endpoint::from(PathBuf::from("/a")));
        let v6: SocketAddrV6 = "[::1]:80".parse().unwrap();
        assert_eq!(Endpoint::try_from("[::1]:80"), Ok(v6.into()));
    }

    #[test]
    fn what_cannot_be_says_why() {
        let long = format!("unix:/{}", "x".repeat(107));
        for (text, part) in [
            ("8080", "write ADDR:PORT"),
            ("localhost:80", "not looked up"),
            ("unix:", "needs a path"),
            ("unix:@", "needs a name"),
            ("mptcp:unix:/a", "is no address"),
            ("unix:/a\0b", "zero byte"),
            (&long, "107 bytes"),
        ] {
            let why = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
