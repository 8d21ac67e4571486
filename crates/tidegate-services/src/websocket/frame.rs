//! Writes messages as unmasked frames (RFC 6455, section 5.1), each in one frame.

use bytes::{BufMut, Bytes, BytesMut};
use tidegate::Outbox;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Data, OpCode};

/// Sends a text message to one peer.
pub fn send_text(out: &mut Outbox<'_>, text: &str) {
    send(out, Data::Text, text.as_bytes());
}

/// Sends a binary message to one peer.
pub fn send_binary(out: &mut Outbox<'_>, bytes: &[u8]) {
    send(out, Data::Binary, bytes);
}

/// A text for any number of peers, in memory once: as a text message, and as a line for the line protocol.
#[derive(Clone, Debug)]
pub struct SharedText {
    /// The frame header, the text, a line feed.
    bytes: Bytes,
    head: usize,
}

impl SharedText {
    /// Copies the text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let head = head(Data::Text, text.len());
        let mut bytes = BytesMut::with_capacity(head.as_slice().len() + text.len() + 1);
        bytes.put_slice(head.as_slice());
        bytes.put_slice(text.as_bytes());
        bytes.put_u8(b'\n');
        Self { bytes: bytes.freeze(), head: head.as_slice().len() }
    }

    /// The message, for [`Outbox::share`].
    #[must_use]
    pub fn frame(&self) -> Bytes {
        self.bytes.slice(..self.bytes.len() - 1)
    }

    /// The text and a line feed, for [`Outbox::share`].
    #[must_use]
    pub fn line(&self) -> Bytes {
        self.bytes.slice(self.head..)
    }

    /// Its size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

fn send(out: &mut Outbox<'_>, kind: Data, payload: &[u8]) {
    out.write(head(kind, payload.len()).as_slice());
    out.write(payload);
}

/// The header of a frame that is a whole message.
fn head(kind: Data, length: usize) -> FrameHead {
    let header =
        FrameHeader { is_final: true, opcode: OpCode::Data(kind), mask: None, ..FrameHeader::default() };
    let mut head = FrameHead { bytes: [0; 10], length: 0 };
    let mut room = &mut head.bytes[..];
    // An unmasked header has at most 10 bytes (RFC 6455, section 5.2), so it fits.
    let written = header.format(length as u64, &mut room);
    debug_assert!(written.is_ok(), "a head fits");
    head.length = 10 - room.len();
    head
}

struct FrameHead {
    bytes: [u8; 10],
    length: usize,
}

impl FrameHead {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_of_a_frame_has_its_length_in_the_shortest_form() {
        for (length, expected) in [
            (0, &[0x81, 0][..]),
            (125, &[0x81, 125]),
            (126, &[0x81, 126, 0, 126]),
            (65_535, &[0x81, 126, 255, 255]),
            (65_536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            assert_eq!(head(Data::Text, length).as_slice(), expected);
        }
        assert_eq!(head(Data::Binary, 1).as_slice(), [0x82, 1]);
    }

    #[test]
    fn a_shared_text_is_a_frame_and_a_line() {
        let shared = SharedText::new("grüße");
        assert_eq!(shared.frame(), [&[0x81, 7], "grüße".as_bytes()].concat());
        assert_eq!(shared.line(), "grüße\n");
    }
}
