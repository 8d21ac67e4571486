//! Members over WebSocket, and the page they use.

use std::sync::Arc;

use bytes::Bytes;
use tidegate::{CloseReason, Mail, Outbox, Peer, Refusal};

use super::member::{Member, Next, Speaks};
use super::registry::RoomRegistry;
use crate::websocket::{CloseCode, MessageFlow, MessageService, MessageSession, WebSocketMessage};

/// The built-in page.
const PAGE: &str = include_str!("page.html");

/// Makes a member for each WebSocket.
#[derive(Debug)]
pub(super) struct WebMembers {
    registry: Arc<RoomRegistry>,
    page: Bytes,
}

impl WebMembers {
    pub(super) fn new(registry: Arc<RoomRegistry>) -> Self {
        Self { registry, page: Bytes::from_static(PAGE.as_bytes()) }
    }
}

impl MessageService for WebMembers {
    type Session = WebMember;

    fn open(&self, _: &Peer, path: &str) -> Result<WebMember, Refusal> {
        match without_query(path) {
            "/chat" => Ok(WebMember(Member::new(self.registry.clone(), Speaks::Frames))),
            _ => Err(Refusal),
        }
    }

    fn page(&self, path: &str) -> Option<Bytes> {
        (without_query(path) == "/").then(|| self.page.clone())
    }
}

fn without_query(path: &str) -> &str {
    path.split('?').next().unwrap_or_default()
}

/// A member over WebSocket: each text message is a line.
pub struct WebMember(Member);

impl MessageSession for WebMember {
    fn on_message(&mut self, message: WebSocketMessage<'_>, out: &mut Outbox<'_>) -> MessageFlow {
        match message {
            WebSocketMessage::Text(line) => flow(self.0.hear(line, out)),
            WebSocketMessage::Binary(_) => MessageFlow::Close(CloseCode::Unsupported, "text messages only"),
        }
    }

    fn takes_more(&self) -> bool {
        self.0.takes_more()
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> MessageFlow {
        flow(self.0.on_mail(mail, out))
    }

    fn on_close(&mut self, _: CloseReason) {
        self.0.leave();
    }
}

fn flow(next: Next) -> MessageFlow {
    match next {
        Next::Stays => MessageFlow::Continue,
        Next::Quits => MessageFlow::Close(CloseCode::Normal, "goodbye"),
        Next::TooSlow => MessageFlow::Abort,
    }
}
