//! Parses one PROXY protocol header; sections 2.1 and 2.2 of the
//! [specification](https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt).

use std::net::SocketAddr;

use proxy_header::{ParseConfig, ProxyHeader};

use super::HeaderFault;

/// What the input begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderParse {
    /// An incomplete header, or nothing yet.
    Part,
    /// A header of this many bytes, which names this client.
    Whole(usize, HeaderClient),
}

/// The client named by a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderClient {
    /// A client at the first address, which has connected to the second; `None` if they are not IP addresses (a Unix
    /// socket).
    Behind(Option<(SocketAddr, SocketAddr)>),
    /// The proxy's own (`LOCAL`: a health check), or the proxy does not know (`UNKNOWN`, `UNSPEC`): the addresses of
    /// the socket count.
    Socket,
}

/// The most bytes of a header of version 1, line end included (section 2.1).
pub(super) const V1_BYTES: usize = 107;

const V1_PREFIX: &[u8] = b"PROXY ";
const V1_UNKNOWN: &[u8] = b"PROXY UNKNOWN";

/// Bytes of a version 2 header before its addresses; the last two are the length of the rest.
const V2_FIXED_BYTES: usize = 16;

const V2_PREFIX: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Version 2 with the command `LOCAL`.
const V2_LOCAL: u8 = 0x20;

/// The family of Unix sockets, in the high bits of its byte.
const V2_UNIX: u8 = 3;

/// Parses the header at the front of `input`; one of version 2 may have at most `v2_bytes`.
pub(super) fn read(input: &[u8], v2_bytes: usize) -> Result<HeaderParse, HeaderFault> {
    if begins(input, V2_PREFIX) {
        version_2(input, v2_bytes)
    } else if begins(input, V1_PREFIX) {
        version_1(input)
    } else {
        Err(HeaderFault::Missing)
    }
}

/// Whether `input` matches `prefix`, as far as it goes.
fn begins(input: &[u8], prefix: &[u8]) -> bool {
    input.iter().zip(prefix).all(|(a, b)| a == b)
}

/// Finds the line first and parses it when it is complete, as section 2.1 requires: a partial address can look like a
/// complete one, or like a wrong one.
fn version_1(input: &[u8]) -> Result<HeaderParse, HeaderFault> {
    let window = input.get(..V1_BYTES).unwrap_or(input);
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if input.len() < V1_BYTES { Ok(HeaderParse::Part) } else { Err(HeaderFault::TooLong) };
    };
    let (line, whole) = (window.get(..end).unwrap_or_default(), window.get(..end + 2).unwrap_or_default());
    // Everything after UNKNOWN must be ignored (section 2.1), carriage returns too.
    if let Some(rest) = line.strip_prefix(V1_UNKNOWN)
        && matches!(rest, [] | [b' ', ..])
    {
        return Ok(HeaderParse::Whole(whole.len(), HeaderClient::Socket));
    }
    // The parser takes ports as Rust does, with a sign, too.
    if !line.rsplit(|&b| b == b' ').take(2).all(is_port) {
        return Err(HeaderFault::Malformed);
    }
    let ends = addresses(whole)?.ok_or(HeaderFault::Malformed)?;
    Ok(HeaderParse::Whole(whole.len(), HeaderClient::Behind(Some(ends))))
}

/// Digits without leading zeros (section 2.1); the parser checks the range.
fn is_port(word: &[u8]) -> bool {
    word.iter().all(u8::is_ascii_digit) && matches!(word, [b'0'] | [b'1'..=b'9', ..])
}

/// The length is checked first, so that an oversized header is rejected before it is buffered. TLVs are skipped.
fn version_2(input: &[u8], most: usize) -> Result<HeaderParse, HeaderFault> {
    let Some(&[.., command, family, high, low]) = input.first_chunk::<V2_FIXED_BYTES>() else {
        return Ok(HeaderParse::Part);
    };
    let length = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if length > most {
        return Err(HeaderFault::TooLong);
    }
    let Some(whole) = input.get(..length) else { return Ok(HeaderParse::Part) };
    if command == V2_LOCAL {
        return Ok(HeaderParse::Whole(length, HeaderClient::Socket)); // whatever its family says (section 2.2)
    }
    let client = match addresses(whole)? {
        Some(ends) => HeaderClient::Behind(Some(ends)),
        None if family >> 4 == V2_UNIX => HeaderClient::Behind(None),
        None => HeaderClient::Socket,
    };
    Ok(HeaderParse::Whole(length, client))
}

/// Source and destination in a header that is whole; `None` if they are not IP addresses.
fn addresses(whole: &[u8]) -> Result<Option<(SocketAddr, SocketAddr)>, HeaderFault> {
    let parsed = ProxyHeader::parse(whole, ParseConfig::default());
    let (header, _) = parsed.map_err(|_| HeaderFault::Malformed)?;
    Ok(header.proxied_address().map(|ends| (ends.source, ends.destination)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2_PREFIX, &[command, family], &length, rest].concat()
    }

    fn behind(addr: &str, to: &str) -> HeaderClient {
        HeaderClient::Behind(Some((addr.parse().unwrap(), to.parse().unwrap())))
    }

    /// Addresses as version 2 has them: source, destination, source port 4660, destination port 80.
    fn ipv4() -> Vec<u8> {
        [&[192, 0, 2, 7][..], &[127, 0, 0, 1], &[0x12, 0x34], &[0, 80]].concat()
    }

    fn ipv6() -> Vec<u8> {
        let source: std::net::Ipv6Addr = "2001:db8::7".parse().unwrap();
        [&source.octets()[..], &[0; 16], &[0x12, 0x34], &[0, 80]].concat()
    }

    #[test]
    fn every_kind_of_header_names_its_client_wherever_it_is_cut() {
        let tlv = [ipv4(), vec![4, 0, 3, b'a', b'b', b'c']].concat();
        let cases = [
            (
                b"PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\n".to_vec(),
                behind("192.0.2.7:4660", "127.0.0.1:80"),
            ),
            (b"PROXY TCP6 2001:db8::7 ::1 4660 80\r\n".to_vec(), behind("[2001:db8::7]:4660", "[::1]:80")),
            (b"PROXY UNKNOWN\r\n".to_vec(), HeaderClient::Socket),
            (b"PROXY UNKNOWN a b c d e f g h \r i \n\r\n".to_vec(), HeaderClient::Socket),
            (v2(0x21, 0x11, &ipv4()), behind("192.0.2.7:4660", "127.0.0.1:80")),
            (v2(0x21, 0x12, &ipv4()), behind("192.0.2.7:4660", "127.0.0.1:80")),
            (v2(0x21, 0x11, &tlv), behind("192.0.2.7:4660", "127.0.0.1:80")),
            (v2(0x21, 0x21, &ipv6()), behind("[2001:db8::7]:4660", "[::]:80")),
            (v2(0x21, 0x31, &[b'/'; 216]), HeaderClient::Behind(None)),
            (v2(0x21, 0x00, &[]), HeaderClient::Socket),
            (v2(0x21, 0x00, b"to be ignored"), HeaderClient::Socket),
            (v2(0x20, 0x00, &[]), HeaderClient::Socket),
            (v2(0x20, 0x11, &[]), HeaderClient::Socket),
            (v2(0x20, 0x77, b"to be ignored"), HeaderClient::Socket),
        ];
        for (header, client) in cases {
            for cut in 0..header.len() {
                assert_eq!(read(&header[..cut], 512), Ok(HeaderParse::Part), "{cut} bytes of {header:?}");
            }
            let whole = Ok(HeaderParse::Whole(header.len(), client));
            assert_eq!(read(&header, 512), whole, "{header:?}");
            assert_eq!(read(&[&header[..], b"GET / \r\n"].concat(), 512), whole, "{header:?} and more");
        }
    }

    #[test]
    fn what_is_no_header_is_known_by_its_first_wrong_byte() {
        for input in
            [&b"G"[..], b"PROXy", b"PROXYTCP4", b"\n", b"\r\n\r\n\0\r\nQUIT\r", b"\r\n\r\nx", b"proxy TCP4"]
        {
            assert_eq!(read(input, 512), Err(HeaderFault::Missing), "{input:?}");
        }
    }

    #[test]
    fn nonsense_in_a_header_is_malformed() {
        let lines = [
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP5 192.0.2.7 127.0.0.1 4660 80\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 \r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 80 \r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 04660 80\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 65536 80\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 +4660 80\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 +1\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 -1 80\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 080\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 00\r\n",
            "PROXY TCP4  192.0.2.7 127.0.0.1 4660 80\r\n",
            "PROXY TCP4 192.0.2.007 127.0.0.1 4660 80\r\n",
            "PROXY TCP4 +192.0.2.7 127.0.0.1 4660 80\r\n",
            "PROXY tcp4 192.0.2.7 127.0.0.1 4660 80\r\n",
            "PROXY TCP4 ::1 ::1 4660 80\r\n",
            "PROXY TCP6 192.0.2.7 127.0.0.1 4660 80\r\n",
            "PROXY TCP4 192.0.2.7\r127.0.0.1 4660 80\r\n",
            "PROXY TCP4 192.0.2.7 127.0.0.1 4660 \u{e9}\r\n",
        ];
        for line in lines {
            assert_eq!(read(line.as_bytes(), 512), Err(HeaderFault::Malformed), "{line:?}");
        }
        for binary in [
            v2(0x11, 0x11, &ipv4()),
            v2(0x22, 0x11, &ipv4()),
            v2(0x21, 0x41, &ipv4()),
            v2(0x21, 0x13, &ipv4()),
            v2(0x21, 0x21, &ipv4()),
        ] {
            assert_eq!(read(&binary, 512), Err(HeaderFault::Malformed), "{binary:?}");
        }
    }

    #[test]
    fn headers_have_a_bound_which_is_known_before_they_are_whole() {
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES - 16));
        assert_eq!(read(longest.as_bytes(), 512), Ok(HeaderParse::Whole(107, HeaderClient::Socket)));
        let longer = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES - 15));
        assert_eq!(read(&longer.as_bytes()[..106], 512), Ok(HeaderParse::Part));
        assert_eq!(read(&longer.as_bytes()[..107], 512), Err(HeaderFault::TooLong));
        assert_eq!(read(longer.as_bytes(), 512), Err(HeaderFault::TooLong));

        let full = v2(0x21, 0x11, &[ipv4(), vec![0; 512 - 16 - 12]].concat());
        assert_eq!(read(&full, 512), Ok(HeaderParse::Whole(512, behind("192.0.2.7:4660", "127.0.0.1:80"))));
        assert_eq!(read(&full[..16], 511), Err(HeaderFault::TooLong));
        let local = v2(0x20, 0, &[0; 65_535]);
        assert_eq!(read(&local[..16], 512), Err(HeaderFault::TooLong));
    }
}
