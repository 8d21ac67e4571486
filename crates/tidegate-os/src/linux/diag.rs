//! What the kernel knows of one TCP socket of this network namespace (`sock_diag(7)`): the only answer to *whose is
//! the other end?* that needs neither the socket nor its lock, which its owner could hold for as long as he likes.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

const NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_HEADER: usize = 16;
/// `inet_diag_req_v2` and the part of `inet_diag_msg` that is read here (`linux/inet_diag.h`).
const REQUEST: usize = 56;
const STATE_AT: usize = NLMSG_HEADER + 1;
const USER_AT: usize = NLMSG_HEADER + 64;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// `INET_DIAG_NOCOOKIE`: whichever socket it is.
const ANY: u64 = u64::MAX;

/// A TCP socket that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// It is connected both ways.
    pub is_established: bool,
    /// It listens.
    pub listens: bool,
    /// The user who made it.
    pub user: u32,
}

/// The number that no other socket has had since the machine was started (`SO_COOKIE`). Waits for nobody, whatever
/// the socket is.
///
/// # Errors
/// It is no socket.
pub fn cookie(socket: &impl AsFd) -> io::Result<u64> {
    SockRef::from(socket).cookie()
}

/// The TCP socket at `local` that is connected to `remote`; if there is none, the one that listens for such a
/// connection. With a `cookie` only the socket that has it. Nothing waits.
///
/// # Errors
/// The kernel has no `inet_diag`, or does not let this process ask.
pub fn find(local: SocketAddr, remote: SocketAddr, cookie: Option<u64>) -> io::Result<Option<SocketInfo>> {
    let socket =
        Socket::new(Domain::from(NETLINK), Type::RAW.nonblocking(), Some(Protocol::from(NETLINK_SOCK_DIAG)))?;
    let Some(request) = request(local, remote, cookie.unwrap_or(ANY)) else { return Ok(None) };
    socket.send(&request)?;
    let mut answer = [0; 4096];
    let n = (&socket).read(&mut answer)?;
    parse(&answer[..n])
}

/// `None` if no connection can be between two such addresses.
fn request(local: SocketAddr, remote: SocketAddr, cookie: u64) -> Option<Vec<u8>> {
    let family = match (local.ip().to_canonical(), remote.ip().to_canonical()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => libc::AF_INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => libc::AF_INET6,
        _ => return None,
    };
    let mut m = Vec::with_capacity(NLMSG_HEADER + REQUEST);
    m.extend(((NLMSG_HEADER + REQUEST) as u32).to_ne_bytes());
    m.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    m.extend(NLM_F_REQUEST.to_ne_bytes());
    m.extend([0; 8]); // sequence and port id
    m.extend([family as u8, TCP, 0, 0]);
    m.extend(u32::MAX.to_ne_bytes()); // states
    m.extend(local.port().to_be_bytes());
    m.extend(remote.port().to_be_bytes());
    for addr in [local, remote] {
        let mut bytes = [0; 16];
        match addr.ip().to_canonical() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        m.extend(bytes);
    }
    m.extend(scope(local).max(scope(remote)).to_ne_bytes());
    m.extend((cookie as u32).to_ne_bytes());
    m.extend(((cookie >> 32) as u32).to_ne_bytes());
    Some(m)
}

/// The interface that a link-local address belongs to.
fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(addr) => addr.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

fn parse(answer: &[u8]) -> io::Result<Option<SocketInfo>> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let short = || io::Error::new(io::ErrorKind::InvalidData, "an answer of sock_diag that is too short");
    let kind = answer.get(4..6).map(|kind| u16::from_ne_bytes([kind[0], kind[1]])).ok_or_else(short)?;
    if kind == NLMSG_ERROR {
        let code = word(NLMSG_HEADER).ok_or_else(short)?.cast_signed().wrapping_neg();
        return match code {
            libc::ENOENT | libc::ESTALE => Ok(None),
            _ => Err(io::Error::from_raw_os_error(code)),
        };
    }
    let (state, user) = (*answer.get(STATE_AT).ok_or_else(short)?, word(USER_AT).ok_or_else(short)?);
    Ok(Some(SocketInfo { is_established: state == ESTABLISHED, listens: state == LISTEN, user }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abstract_socket::own_user;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_are_found_and_distinguished() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let to = listener.local_addr().unwrap();
            let near = TcpStream::connect(to).unwrap();
            let (far, from) = listener.accept().unwrap();
            let found = SocketInfo { is_established: true, listens: false, user: own_user() };
            assert_eq!(find(from, to, None).unwrap(), Some(found));
            assert_eq!(find(from, to, Some(cookie(&near).unwrap())).unwrap(), Some(found));
            assert_eq!(find(to, from, Some(cookie(&far).unwrap())).unwrap(), Some(found));
            assert_eq!(find(from, to, Some(cookie(&far).unwrap())).unwrap(), None, "the other end");
            assert_eq!(find(from, to, Some(cookie(&listener).unwrap())).unwrap(), None);
        }
    }

    #[test]
    fn who_listens_is_found_also_at_all_addresses() {
        for (at, to) in [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.2"), ("[::]:0", "127.0.0.1")] {
            let listener = TcpListener::bind(at).unwrap();
            let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().unwrap().port());
            let from = "127.0.0.1:1".parse().unwrap();
            let found = SocketInfo { is_established: false, listens: true, user: own_user() };
            assert_eq!(find(to, from, None).unwrap(), Some(found), "{at}");
            drop(listener);
            assert_eq!(find(to, from, None).unwrap(), None, "{at}");
        }
    }

    #[test]
    fn nothing_is_between_addresses_of_two_families_and_no_file_is_a_socket() {
        let (v4, v6) = ("127.0.0.1:1".parse().unwrap(), "[::1]:1".parse().unwrap());
        assert_eq!(find(v4, v6, None).unwrap(), None);
        assert!(cookie(&std::fs::File::open("/dev/null").unwrap()).is_err());
        for answer in [&[][..], &[0; 20], &[2; 18]] {
            assert!(parse(answer).is_err());
        }
    }
}
