//! Frames in, messages out.
//!
//! The protocol is implemented by tungstenite: its `WebSocketContext` gets a reader and a writer with each call, so
//! with a slice and an outbox it does no I/O. (The alternatives examined are asynchronous, as fastwebsockets, soketto
//! and ratchet, or handle frames only, as websocket-sans-io.) It gets one complete frame at a time; an incomplete one
//! stays unconsumed input of the connection. So nothing is buffered twice, an idle connection pins almost no memory,
//! the outbox can hold input back between any two frames, and the policy's limits on unfinished input apply as for
//! every service.

use std::io::{self, Cursor, Read, Write};

use bytes::Bytes;
use tidegate::Outbox;
use tungstenite::error::{CapacityError, Error};
use tungstenite::protocol::frame::coding::OpCode;
use tungstenite::protocol::frame::{CloseFrame, FrameHeader, Utf8Bytes};
use tungstenite::protocol::{Message as Received, Role, WebSocketConfig, WebSocketContext};

use super::{CloseCode, WebSocketMessage};

/// A WebSocket after its handshake.
pub(super) struct WebSocketChannel {
    /// Boxed: it is large, and connections may be many.
    context: Box<WebSocketContext>,
    /// Bytes of the message whose fragments are arriving.
    collected: usize,
    message_bytes: usize,
}

/// The content at the front of the input.
pub(super) enum ChannelStep {
    /// An incomplete frame.
    Part,
    /// A frame of this many bytes that the session does not see.
    Passed(usize),
    /// A frame of this many bytes that completes a message.
    Message(usize, OwnedMessage),
    /// The WebSocket is closed, and the peer was notified: linger.
    Over,
}

/// A message, in the memory in which it was collected.
pub(super) enum OwnedMessage {
    Text(Utf8Bytes),
    Binary(Bytes),
}

impl OwnedMessage {
    pub(super) fn message(&self) -> WebSocketMessage<'_> {
        match self {
            Self::Text(text) => WebSocketMessage::Text(text),
            Self::Binary(bytes) => WebSocketMessage::Binary(bytes),
        }
    }
}

impl WebSocketChannel {
    pub(super) fn new(message_bytes: usize) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(0)
            .write_buffer_size(0)
            .max_message_size(Some(message_bytes))
            .max_frame_size(Some(message_bytes.max(125)));
        let context = Box::new(WebSocketContext::new(Role::Server, Some(config)));
        Self { context, collected: 0, message_bytes }
    }

    /// Handles the frame at the front of the input.
    pub(super) fn step(&mut self, input: &[u8], out: &mut Outbox<'_>) -> ChannelStep {
        let (bytes, data) = match front(input) {
            Ok(None) => return ChannelStep::Part,
            Ok(Some((header, head, payload))) => {
                let room = self.message_bytes - self.collected;
                let data = matches!(header.opcode, OpCode::Data(_)).then_some((payload, header.is_final));
                if data.is_some_and(|(payload, _)| payload > room as u64) {
                    return self.fail(CloseCode::Size, out);
                }
                let control_limit = 125; // longer ones are rejected by their header (RFC 6455, section 5.5)
                if data.is_none() && payload > control_limit {
                    return self.fail(CloseCode::Protocol, out);
                }
                let whole = head + payload as usize; // bounded by the two checks above
                if input.len() < whole {
                    return ChannelStep::Part;
                }
                (whole, data)
            }
            Err(e) => return self.fail(code(&e), out),
        };
        if let Some((payload, last)) = data {
            self.collected = if last { 0 } else { self.collected + payload as usize };
            out.set_buffered(self.collected);
        }
        let mut pipe = WebSocketIo { input: &input[..bytes], out };
        match self.context.read(&mut pipe) {
            Ok(Received::Text(text)) => ChannelStep::Message(bytes, OwnedMessage::Text(text)),
            Ok(Received::Binary(content)) => ChannelStep::Message(bytes, OwnedMessage::Binary(content)),
            // A pong or the answer to a close is due.
            Ok(_) => match self.context.flush(&mut pipe) {
                Ok(()) => ChannelStep::Passed(bytes),
                Err(_) => ChannelStep::Over,
            },
            Err(Error::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => ChannelStep::Passed(bytes),
            Err(Error::ConnectionClosed | Error::AlreadyClosed) => ChannelStep::Over,
            Err(e) => self.fail(code(&e), out),
        }
    }

    /// Closes it with a code and reason.
    pub(super) fn close(&mut self, code: CloseCode, reason: &'static str, out: &mut Outbox<'_>) {
        let frame = CloseFrame { code: code.number().into(), reason: Utf8Bytes::from_static(reason) };
        // Writing to an outbox does not fail; a WebSocket that is already closed sends nothing.
        let _ = self.context.close(&mut WebSocketIo { input: &[], out }, Some(frame));
    }

    #[cold]
    fn fail(&mut self, code: CloseCode, out: &mut Outbox<'_>) -> ChannelStep {
        out.set_buffered(0);
        self.close(code, "", out);
        ChannelStep::Over
    }
}

/// The header of the frame at the front, its size, and that of the payload.
fn front(input: &[u8]) -> Result<Option<(FrameHeader, usize, u64)>, Error> {
    let mut cursor = Cursor::new(input);
    let parsed = FrameHeader::parse(&mut cursor)?;
    Ok(parsed.map(|(header, payload)| (header, cursor.position() as usize, payload)))
}

/// The close code for an error (RFC 6455, section 7.4.1).
fn code(e: &Error) -> CloseCode {
    match e {
        Error::Capacity(CapacityError::MessageTooLong { .. }) => CloseCode::Size,
        Error::Utf8(_) => CloseCode::Invalid,
        _ => CloseCode::Protocol,
    }
}

/// What tungstenite reads from and writes to.
struct WebSocketIo<'a, 'b> {
    input: &'a [u8],
    out: &'a mut Outbox<'b>,
}

impl Read for WebSocketIo<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.input.read(into) {
            Ok(0) => Err(io::ErrorKind::WouldBlock.into()), // not the end: the next frame comes with the next step
            read => read,
        }
    }
}

impl Write for WebSocketIo<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
