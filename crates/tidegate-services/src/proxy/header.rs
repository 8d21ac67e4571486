//! Writes one PROXY protocol header; sections 2.1 and 2.2 of the
//! [specification](https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ppp::v2::{Builder, Command, Protocol, Version};

use super::HeaderVersion;

/// The header that names this client; `UNKNOWN` for one that has no IP address.
pub(super) fn bytes(version: HeaderVersion, client: Option<SocketAddr>, to: Option<SocketAddr>) -> Vec<u8> {
    let addresses = client.map(|client| of_one_family(client, to));
    match (version, addresses) {
        (HeaderVersion::V1, Some((from, to))) => {
            let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
            format!("PROXY {family} {} {} {} {}\r\n", from.ip(), to.ip(), from.port(), to.port()).into_bytes()
        }
        (HeaderVersion::V1, None) => b"PROXY UNKNOWN\r\n".to_vec(),
        (HeaderVersion::V2, Some(addresses)) => {
            let builder = Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses);
            builder.build().unwrap_or_else(|_| unknown()) // only a header of more than 64 KiB fails
        }
        (HeaderVersion::V2, None) => unknown(),
    }
}

/// Version 2, command `PROXY`, unspecified family, no addresses.
fn unknown() -> Vec<u8> {
    [ppp::v2::PROTOCOL_PREFIX, &[0x21, 0, 0, 0]].concat()
}

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
        let read = ppp::v2::Header::try_from(header.as_slice()).unwrap();
        let ppp::v2::Addresses::IPv4(ip) = read.addresses else { panic!("{read:?}") };
        assert_eq!((ip.source_address, ip.source_port), (Ipv4Addr::new(192, 0, 2, 7), 4660));
        assert_eq!((ip.destination_address, ip.destination_port), (Ipv4Addr::new(198, 51, 100, 1), 80));
        let header = bytes(HeaderVersion::V2, None, None);
        assert_eq!(
            ppp::v2::Header::try_from(header.as_slice()).unwrap().addresses,
            ppp::v2::Addresses::Unspecified
        );
    }
}
