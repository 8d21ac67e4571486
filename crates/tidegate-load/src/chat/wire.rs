//! How members speak: lines, or text messages over WebSocket (RFC 6455), as far as a messenger sends them.

use serde::{Deserialize, Serialize};

/// What members speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speech {
    /// Lines that end with a line feed.
    Lines,
    /// Text messages.
    WebSocket,
}

/// Something whole at the front of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard<'a> {
    /// Not whole yet.
    Part,
    /// The answer to the handshake: from now on there are frames.
    Welcome(usize),
    /// A line of so many bytes with what belongs to it.
    RoomEvent(usize, &'a [u8]),
    /// The server has closed the WebSocket, or speaks otherwise than it should.
    Wrong(String),
}

/// The key of every handshake, and what accepts it (RFC 6455, section 1.3).
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// What a client says first, if anything but lines.
pub(super) fn hello(speech: Speech, host: &str) -> String {
    match speech {
        Speech::Lines => String::new(),
        Speech::WebSocket => format!(
            "GET /chat HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {KEY}\r\n\r\n"
        ),
    }
}

/// Puts a line into the form it is sent in.
pub(super) fn say(speech: Speech, line: &str, into: &mut Vec<u8>) {
    match speech {
        Speech::Lines => {
            into.extend_from_slice(line.as_bytes());
            into.push(b'\n');
        }
        Speech::WebSocket => {
            into.push(0x81);
            match line.len() {
                n @ 0..=125 => into.push(0x80 | n as u8),
                n => {
                    into.push(0x80 | 126);
                    into.extend_from_slice(&(n as u16).to_be_bytes()); // the plan bounds it
                }
            }
            // The server unmasks with any key; this one leaves the text as it is.
            into.extend_from_slice(&[0; 4]);
            into.extend_from_slice(line.as_bytes());
        }
    }
}

/// What is at the front of the input; `greeted` is whether the handshake is over.
pub(super) fn hear(speech: Speech, greeted: bool, input: &[u8]) -> Heard<'_> {
    match speech {
        Speech::WebSocket if !greeted => welcome(input),
        Speech::WebSocket => frame(input),
        Speech::Lines => match memchr::memchr(b'\n', input) {
            Some(end) => Heard::RoomEvent(end + 1, &input[..end]),
            None => Heard::Part,
        },
    }
}

fn welcome(input: &[u8]) -> Heard<'_> {
    let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") else { return Heard::Part };
    let head = &input[..end];
    if head.starts_with(b"HTTP/1.1 101 ") && memchr::memmem::find(head, ACCEPT).is_some() {
        return Heard::Welcome(end + 4);
    }
    let status = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    Heard::Wrong(format!("the handshake was answered with {:?}", String::from_utf8_lossy(status)))
}

fn frame(input: &[u8]) -> Heard<'_> {
    let (head, length) = match *input {
        [0x81, n @ 0..=125, ..] => (2, usize::from(n)),
        [0x81, 126, a, b, ..] => (4, usize::from(u16::from_be_bytes([a, b]))),
        [] | [0x81] | [0x81, 126, ..] => return Heard::Part,
        [0x88, 2..=125, a, b, ..] => {
            let code = u16::from_be_bytes([a, b]); // RFC 6455, section 7.4.1
            return Heard::Wrong(format!("the server has closed the WebSocket with {code}"));
        }
        [0x88] | [0x88, 2..=125, ..] => return Heard::Part,
        [0x88, ..] => return Heard::Wrong("the server has closed the WebSocket".into()),
        [byte, ..] => {
            return Heard::Wrong(format!("a frame began with {byte:#x}; it has to be a whole text"));
        }
    };
    match input.get(head..head + length) {
        Some(text) => Heard::RoomEvent(head + length, text),
        None => Heard::Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_and_frames_are_heard() {
        assert_eq!(hear(Speech::Lines, true, b"ab\ncd"), Heard::RoomEvent(3, b"ab"));
        assert_eq!(hear(Speech::Lines, true, b"ab"), Heard::Part);
        let hear = |input| hear(Speech::WebSocket, true, input);
        assert_eq!(hear(b"\x81\x02abc"), Heard::RoomEvent(4, b"ab"));
        for part in [&b""[..], b"\x81", b"\x81\x02a", b"\x81\x7e\x00", b"\x81\x7e\x00\x02a"] {
            assert_eq!(hear(part), Heard::Part);
        }
        assert_eq!(hear(b"\x81\x7e\x00\x02ab"), Heard::RoomEvent(6, b"ab"));
        assert_eq!(hear(b"\x88\x02\x03"), Heard::Part);
        assert!(matches!(hear(b"\x88\x02\x03\xe9"), Heard::Wrong(why) if why.ends_with("with 1001")));
        assert!(matches!(hear(b"\x88\x00"), Heard::Wrong(_)) && matches!(hear(b"\x01"), Heard::Wrong(_)));
    }

    #[test]
    fn only_the_right_handshake_is_welcome() {
        let hear = |input| hear(Speech::WebSocket, false, input);
        let right = b"HTTP/1.1 101 x\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        assert_eq!(hear(right), Heard::Welcome(right.len()));
        assert_eq!(hear(&right[..right.len() - 1]), Heard::Part);
        assert!(matches!(hear(b"HTTP/1.1 404 Not Found\r\n\r\n"), Heard::Wrong(why) if why.contains("404")));
        assert!(matches!(hear(b"HTTP/1.1 101 x\r\n\r\n"), Heard::Wrong(_)));
    }

    #[test]
    fn what_is_said_is_a_line_or_a_masked_frame() {
        let said = |speech, line| {
            let mut bytes = Vec::new();
            say(speech, line, &mut bytes);
            bytes
        };
        assert_eq!(said(Speech::Lines, "ab"), b"ab\n");
        assert_eq!(said(Speech::WebSocket, "ab"), b"\x81\x82\0\0\0\0ab");
        assert_eq!(said(Speech::WebSocket, &"x".repeat(200))[..8], *b"\x81\xfe\x00\xc8\0\0\0\0");
    }
}
