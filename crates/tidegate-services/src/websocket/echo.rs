//! Echo of messages, as used by WebSocket test suites.

use tidegate::{Outbox, Peer, Refusal};

use super::{MessageFlow, MessageService, MessageSession, WebSocketMessage, frame};

/// Sends every message back, text as text.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoMessages;

/// One WebSocket of [`EchoMessages`]; has no state.
#[derive(Debug)]
pub struct EchoMessagesSession;

impl MessageService for EchoMessages {
    type Session = EchoMessagesSession;

    fn open(&self, _: &Peer, _: &str) -> Result<EchoMessagesSession, Refusal> {
        Ok(EchoMessagesSession)
    }
}

impl MessageSession for EchoMessagesSession {
    fn on_message(&mut self, message: WebSocketMessage<'_>, out: &mut Outbox<'_>) -> MessageFlow {
        match message {
            WebSocketMessage::Text(text) => frame::send_text(out, text),
            WebSocketMessage::Binary(bytes) => frame::send_binary(out, bytes),
        }
        MessageFlow::Continue
    }
}
