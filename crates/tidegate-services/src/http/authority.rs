//! Host and port, as the Host field and targets have them (RFC 9110, section 7.2; RFC 3986, section 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::scan::{NAME_OF_HOST, PERCENT, class_of};

/// A host and an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authority<'a> {
    /// IP addresses in brackets keep them.
    pub(crate) host: &'a str,
    pub(crate) port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Parses `uri-host [ ":" port ]`. The host may be empty, and so may the port after its colon; userinfo is not
    /// allowed.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (host, port) = split(bytes)?;
        Some(Self { host: std::str::from_utf8(host).ok()?, port })
    }

    /// The address, if the host is one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse().ok().map(|ip: Ipv6Addr| ip.into()),
            None => self.host.parse().ok().map(|ip: Ipv4Addr| ip.into()),
        }
    }
}

/// Checks an [authority](Authority::parse), and returns its host and port.
#[inline]
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let end = match bytes.first() {
        Some(b'[') => end_of_address(bytes)?,
        _ => end_of_name(bytes)?,
    };
    let (host, rest) = bytes.split_at_checked(end)?;
    match rest {
        [] | [b':'] => Some((host, None)),
        [b':', digits @ ..] => Some((host, Some(port(digits)?))),
        _ => None,
    }
}

/// Its digits, of which there may be any number, with zeros in front (RFC 3986, section 3.2.3).
#[inline]
fn port(digits: &[u8]) -> Option<u16> {
    /// No port needs more.
    const MOST_DIGITS: usize = 5;
    let (digits, zeros_end) = match digits.len().checked_sub(MOST_DIGITS) {
        None | Some(0) => (digits, true),
        Some(more) => after_zeros(digits, more),
    };
    let (port, are_digits) = digits.iter().fold((0, zeros_end), |(port, are_digits), digit| {
        let value = u32::from(digit.wrapping_sub(b'0'));
        (port * 10 + value, are_digits & (value < 10))
    });
    are_digits.then_some(port)?.try_into().ok()
}

/// The rest after so many bytes, and whether these are zeros.
#[cold]
fn after_zeros(digits: &[u8], zeros: usize) -> (&[u8], bool) {
    let (zeros, rest) = digits.split_at(zeros);
    (rest, zeros.iter().all(|&digit| digit == b'0'))
}

/// The end of a name at the front, which includes IPv4 addresses (`reg-name`, RFC 3986, section 3.2.2).
#[inline]
fn end_of_name(bytes: &[u8]) -> Option<usize> {
    match bytes.iter().position(|&b| class_of(b) & NAME_OF_HOST == 0) {
        None => Some(bytes.len()),
        Some(end) if bytes.get(end) == Some(&b'%') => end_of_escaped_name(bytes),
        end => end,
    }
}

#[cold]
fn end_of_escaped_name(bytes: &[u8]) -> Option<usize> {
    let ends = |&b: &u8| class_of(b) & (NAME_OF_HOST | PERCENT) == 0;
    let end = bytes.iter().position(ends).unwrap_or(bytes.len());
    has_whole_escapes(bytes.get(..end)?).then_some(end)
}

/// The end of an address in brackets at the front (`IP-literal`, RFC 3986, section 3.2.2).
#[cold]
fn end_of_address(bytes: &[u8]) -> Option<usize> {
    let end = memchr::memchr(b']', bytes)?;
    let inner = std::str::from_utf8(bytes.get(1..end)?).ok()?;
    // The standard parser accepts no zones, like the grammar.
    (inner.parse::<Ipv6Addr>().is_ok() || is_future_address(inner)).then_some(end + 1)
}

/// `IPvFuture`.
fn is_future_address(inner: &str) -> bool {
    let Some((version, address)) = inner.strip_prefix(['v', 'V']).and_then(|rest| rest.split_once('.'))
    else {
        return false;
    };
    !version.is_empty()
        && version.bytes().all(|b| b.is_ascii_hexdigit())
        && !address.is_empty()
        && address.bytes().all(|b| class_of(b) & NAME_OF_HOST != 0 || b == b':')
}

/// Whether two digits follow each percent sign (RFC 3986, section 2.1).
#[cold]
pub(super) fn has_whole_escapes(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'%', bytes)
        .all(|at| bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_decides() {
        for (text, host, port) in [
            ("", "", None),
            ("a", "a", None),
            ("a.b-c_d", "a.b-c_d", None),
            ("a:", "a", None),
            ("a:80", "a", Some(80)),
            ("a:0", "a", Some(0)),
            ("a:65535", "a", Some(65_535)),
            ("a:000000065535", "a", Some(65_535)),
            (":80", "", Some(80)),
            ("127.0.0.1:8080", "127.0.0.1", Some(8080)),
            ("[::1]", "[::1]", None),
            ("[::1]:80", "[::1]", Some(80)),
            ("[2001:db8::7]:443", "[2001:db8::7]", Some(443)),
            ("[::ffff:192.0.2.7]", "[::ffff:192.0.2.7]", None),
            ("[v1.a:b]", "[v1.a:b]", None),
            ("%61%C3%bc.de", "%61%C3%bc.de", None),
            ("a,b;c=d", "a,b;c=d", None),
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), Some(Authority { host, port }), "{text}");
        }
        for text in [
            "x:80:90",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]80",
            "%zz",
            "%4",
            "%",
            "a/b",
            "a b",
            "a?b",
            "a#b",
            "u@a",
            "a\\b",
            "a:+80",
            "a:-1",
            "a:8x",
            "a:65536",
            "a:99999",
            "a:000065536",
            "a:0x0080",
            "a:1000080",
            "a:\u{ff}80",
            "a:99999999999999999999",
            "a: 80",
            "[]",
            "[a]",
            "[::1%25eth0]",
            "[127.0.0.1]",
            "[v.a]",
            "[vg.a]",
            "[v1.]",
            "[:::]",
            "a[",
            "a]",
            "\u{fc}",
            "a\"",
            "<a>",
            "a\t",
            "a^",
            "a|",
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Authority::parse(b"\xff"), None);
    }

    #[test]
    fn addresses_are_distinguished_from_names() {
        let ip = |text: &str| Authority::parse(text.as_bytes()).unwrap().ip().map(|ip| ip.to_string());
        assert_eq!(ip("127.0.0.1:80").as_deref(), Some("127.0.0.1"));
        assert_eq!(ip("[::1]:80").as_deref(), Some("::1"));
        for name in ["localhost", "0x7f.0.0.1", "127.1", "127.0.0.01", "[v1.a]"] {
            assert_eq!(ip(name), None, "{name}");
        }
    }
}
