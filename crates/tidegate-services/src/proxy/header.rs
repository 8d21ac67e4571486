//! Writes one PROXY protocol header; sections 2.1 and 2.2 of the
//! [specification](https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy_header::{ProxiedAddress, ProxyHeader};

use super::HeaderVersion;

/// The header that names this client; `UNKNOWN` for one that has no IP address.
pub(super) fn bytes(version: HeaderVersion, client: Option<SocketAddr>, to: Option<SocketAddr>) -> Vec<u8> {
    let mut header = Vec::new();
    let written = client.map(|client| {
        let (from, to) = of_one_family(client, to);
        let names = ProxyHeader::with_address(ProxiedAddress::stream(from, to));
        match version {
            HeaderVersion::V1 => names.encode_v1(&mut header),
            HeaderVersion::V2 => names.encode_v2(&mut header),
        }
    });
    match (version, written) {
        (_, Some(Ok(()))) => header, // what has addresses of one family cannot fail
        (HeaderVersion::V1, _) => b"PROXY UNKNOWN\r\n".to_vec(),
        (HeaderVersion::V2, _) => V2_UNKNOWN.to_vec(),
    }
}

/// Version 2, command `PROXY`, unspecified family, no addresses.
const V2_UNKNOWN: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0";

/// Both addresses in the same family, because a header has only one. An IPv4 client of an IPv6 socket counts as IPv4.
fn of_one_family(client: SocketAddr, to: Option<SocketAddr>) -> (SocketAddr, SocketAddr) {
    let plain = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
    let (client, to) = (plain(client), to.map(plain));
    let ip = match (client.ip(), to.map(|to| to.ip())) {
        (IpAddr::V4(_), Some(ip @ IpAddr::V4(_))) | (IpAddr::V6(_), Some(ip @ IpAddr::V6(_))) => ip,
        (IpAddr::V6(_), Some(IpAddr::V4(ip))) => ip.to_ipv6_mapped().into(),
        (IpAddr::V4(_), _) => Ipv4Addr::UNSPECIFIED.into(),
        (IpAddr::V6(_), None) => Ipv6Addr::UNSPECIFIED.into(),
    };
    (client, SocketAddr::new(ip, to.map_or(0, |to| to.port())))
}

#[cfg(test)]
mod tests {
    use proxy_header::ParseConfig;

    use super::*;

    fn addr(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn version_1_is_a_line() {
        let line = |client, to| String::from_utf8(bytes(HeaderVersion::V1, client, to)).unwrap();
        assert_eq!(
            line(addr("192.0.2.7:4660"), addr("198.51.100.1:80")),
            "PROXY TCP4 192.0.2.7 198.51.100.1 4660 80\r\n"
        );
        assert_eq!(
            line(addr("[::ffff:192.0.2.7]:4660"), addr("[::]:80")),
            "PROXY TCP4 192.0.2.7 0.0.0.0 4660 80\r\n"
        );
        assert_eq!(line(addr("[2001:db8::7]:9"), None), "PROXY TCP6 2001:db8::7 :: 9 0\r\n");
        assert_eq!(line(None, addr("198.51.100.1:80")), "PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_is_what_its_readers_read() {
        let header = bytes(HeaderVersion::V2, addr("192.0.2.7:4660"), addr("198.51.100.1:80"));
        assert_eq!(header[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
        let (read, length) = ProxyHeader::parse(&header, ParseConfig::default()).unwrap();
        let ends = (addr("192.0.2.7:4660").unwrap(), addr("198.51.100.1:80").unwrap());
        assert_eq!((read.proxied_address(), length), (Some(&ProxiedAddress::stream(ends.0, ends.1)), 28));
        let header = bytes(HeaderVersion::V2, None, None);
        let (read, length) = ProxyHeader::parse(&header, ParseConfig::default()).unwrap();
        assert_eq!((read.proxied_address(), length), (None, 16));
    }
}
