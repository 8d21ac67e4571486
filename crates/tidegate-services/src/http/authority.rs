//! Host and port, as the Host field and targets have them (RFC 9110, section 7.2; RFC 3986, section 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
        let text = std::str::from_utf8(bytes).ok()?;
        let end = match text.strip_prefix('[') {
            Some(rest) => rest.find(']')? + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (host, rest) = text.split_at(end);
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            None => return None,
            Some("") => None,
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => Some(digits.parse().ok()?),
            Some(_) => return None,
        };
        is_host(host).then_some(Self { host, port })
    }

    /// The address, if the host is one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) => inner.parse().ok().map(|ip: Ipv6Addr| ip.into()),
            None => self.host.parse().ok().map(|ip: Ipv4Addr| ip.into()),
        }
    }
}

/// Checks `uri-host`: an address in brackets, or a name, which includes IPv4 addresses (RFC 3986, section 3.2.2).
fn is_host(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|inner| {
            // The standard parser accepts no zones, like the grammar.
            inner.parse::<Ipv6Addr>().is_ok() || is_future_address(inner)
        }),
        None => is_name(host.as_bytes()),
    }
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
        && address.bytes().all(|b| is_name_byte(b) || b == b':')
}

/// `reg-name`.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|&b| is_name_byte(b) || b == b'%') && has_whole_escapes(name)
}

/// Whether two digits follow each percent sign (RFC 3986, section 2.1).
pub(super) fn has_whole_escapes(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'%', bytes)
        .all(|at| bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

/// `unreserved` and `sub-delims`.
#[inline]
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte)
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
    fn addresses_are_told_from_names() {
        let ip = |text: &str| Authority::parse(text.as_bytes()).unwrap().ip().map(|ip| ip.to_string());
        assert_eq!(ip("127.0.0.1:80").as_deref(), Some("127.0.0.1"));
        assert_eq!(ip("[::1]:80").as_deref(), Some("::1"));
        for name in ["localhost", "0x7f.0.0.1", "127.1", "127.0.0.01", "[v1.a]"] {
            assert_eq!(ip(name), None, "{name}");
        }
    }
}
