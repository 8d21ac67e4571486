//! Headers of every kind.

use std::net::Ipv6Addr;

use crate::wire::SOCKET;

pub const CLIENT4: &str = "192.0.2.7:4660";
pub const CLIENT6: &str = "[2001:db8::7]:4660";

/// A header of version 2: command and version, family and protocol, and what follows the length.
pub fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family], &length, rest].concat()
}

/// A header of each kind, and the address of the client that a service is to see.
pub fn headers() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let ports = [0x12, 0x34, 0, 80];
    let ipv4 = [&[192, 0, 2, 7, 127, 0, 0, 1][..], &ports].concat();
    let source: Ipv6Addr = "2001:db8::7".parse().unwrap();
    let ipv6 = [&source.octets()[..], &[0; 16], &ports].concat();
    let tlvs = [&ipv4[..], &[4, 0, 3, 1, 2, 3], &[2, 0, 1, b'a']].concat();
    vec![
        (b"PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\n".to_vec(), Some(CLIENT4)),
        (b"PROXY TCP6 2001:db8::7 ::1 4660 80\r\n".to_vec(), Some(CLIENT6)),
        (b"PROXY UNKNOWN\r\n".to_vec(), Some(SOCKET)),
        (b"PROXY UNKNOWN whatever this may be\r\n".to_vec(), Some(SOCKET)),
        (v2(0x21, 0x11, &ipv4), Some(CLIENT4)),
        (v2(0x21, 0x11, &tlvs), Some(CLIENT4)),
        (v2(0x21, 0x21, &ipv6), Some(CLIENT6)),
        (v2(0x21, 0x31, &[b'/'; 216]), None),
        (v2(0x21, 0x00, &[]), Some(SOCKET)),
        (v2(0x20, 0x00, &[]), Some(SOCKET)),
        (v2(0x20, 0x11, &ipv4), Some(SOCKET)),
    ]
}
