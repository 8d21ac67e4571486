//! The messages between dialler and listener before the shared memory is in use.

use std::net::SocketAddr;

/// Maximum message length.
pub const HELLO_BYTES: usize = 160;

/// The canonical form of an address: IPv4-mapped IPv6 addresses become IPv4, and the scope is removed.
#[must_use]
pub fn same(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The abstract socket name for a listener's address.
#[must_use]
pub fn name(addr: SocketAddr) -> String {
    format!("tidegate-fast-path:{addr}")
}

/// The message sent with the memory and the dialler's TCP socket, which is bound and not yet connected.
#[must_use]
pub fn hello(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    format!("tidegate-fast-path 2 {} {}", same(from), same(to)).into_bytes()
}

/// Parses both addresses of such a message, the dialler's first; `None` if it is invalid.
#[must_use]
pub fn parse(message: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = std::str::from_utf8(message).ok()?.strip_prefix("tidegate-fast-path 2 ")?.split(' ');
    let pair = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let pair = ("127.0.0.1:1".parse().unwrap(), "[::1]:65535".parse().unwrap());
        assert_eq!(parse(&hello(pair.0, pair.1)), Some(pair));
        let longest = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap();
        assert!(hello(longest, longest).len() <= HELLO_BYTES);
        assert_eq!(same("[::ffff:10.0.0.1]:7".parse().unwrap()), "10.0.0.1:7".parse().unwrap());
        for wrong in [&b""[..], b"tidegate-fast-path 2 127.0.0.1:1", b"tidegate-fast-path 2 a b", &[0xff; 40]]
        {
            assert_eq!(parse(wrong), None);
        }
    }
}
