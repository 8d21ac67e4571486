//! A client's frames, and a server's.
#![allow(dead_code, reason = "not every user uses all of it")]

pub const TEXT: u8 = 1;
pub const BINARY: u8 = 2;
pub const CLOSE: u8 = 8;
pub const PING: u8 = 9;
pub const PONG: u8 = 10;
/// The last fragment of a message.
pub const FIN: u8 = 0x80;

pub const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A masked frame.
pub fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let payload = payload.as_ref();
    let mut bytes = head(first, payload.len(), 0x80);
    bytes.extend_from_slice(&MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

/// A whole text message.
pub fn text(text: &str) -> Vec<u8> {
    frame(FIN | TEXT, text)
}

pub fn head(first: u8, length: usize, masked: u8) -> Vec<u8> {
    let mut bytes = vec![first];
    match length {
        0..=125 => bytes.push(masked | length as u8),
        126..=0xffff => {
            bytes.push(masked | 126);
            bytes.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(masked | 127);
            bytes.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    bytes
}

/// A server's frame at the front: its first byte, its payload, and what follows. `None` if it is not whole.
pub fn server_frame(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        n @ 0..=125 => (usize::from(n), rest),
        126 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        127 => {
            let (length, rest) = rest.split_first_chunk()?;
            (usize::try_from(u64::from_be_bytes(*length)).ok()?, rest)
        }
        _ => panic!("a server masks nothing"),
    };
    let (payload, rest) = rest.split_at_checked(length)?;
    Some((*first, payload, rest))
}

/// All frames of a server, behind its answer to the handshake.
pub fn server_frames(output: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer to the handshake");
    assert!(output.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(output));
    let mut rest = &output[end + 4..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let (first, payload, after) = server_frame(rest).expect("whole frames");
        frames.push((first, payload.to_vec()));
        rest = after;
    }
    frames
}
