//! One connection: detects HTTP (and so WebSocket) or the line protocol from its first bytes.

use std::sync::Arc;

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use super::lines::LineMember;
use super::member::{Member, Speaks};
use super::registry::RoomRegistry;
use super::web::WebMembers;
use crate::http::head::is_token;
use crate::websocket::{WebSocketSession, WebSocketShared};

/// One connection of the messenger.
pub struct ChatSession(ChatState);

impl std::fmt::Debug for ChatSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatSession").finish_non_exhaustive()
    }
}

enum ChatState {
    /// Too few bytes to decide.
    New {
        registry: Arc<RoomRegistry>,
        web: Arc<WebSocketShared<WebMembers>>,
        peer: Peer,
        /// Some bytes arrived; the rest of the first line has a time limit.
        timed: bool,
    },
    Lines(LineMember),
    Web(WebSocketSession<WebMembers>),
}

/// Prefixes of most requests.
const METHODS: [&[u8]; 9] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

/// Whether the input is an HTTP request, judged by its first line up to a limit; `None` if there is too little of it.
///
/// Whatever could be a request line counts as one, with any method: a browser that is made to send a request here must
/// not be able to speak the line protocol with its body. A member begins with a command, and so with a slash, which no
/// method contains.
fn is_request(input: &[u8], line_bytes: usize) -> Option<bool> {
    if METHODS.iter().any(|method| input.starts_with(method)) {
        return Some(true);
    }
    if !input.first().is_none_or(|&byte| is_token(byte)) {
        return Some(false);
    }
    let within = input.get(..line_bytes).unwrap_or(input);
    let end = memchr::memchr(b'\n', within);
    if end.is_none() && input.len() < line_bytes {
        return None;
    }
    let line = within.get(..end.unwrap_or(within.len())).unwrap_or_default();
    let version = line.trim_ascii_end().rsplit(|&byte| byte == b' ').next().unwrap_or_default();
    Some(
        version.len() < line.len()
            && version.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"HTTP/")),
    )
}

impl ChatSession {
    pub(super) fn new(
        registry: Arc<RoomRegistry>,
        web: Arc<WebSocketShared<WebMembers>>,
        peer: Peer,
    ) -> Self {
        Self(ChatState::New { registry, web, peer, timed: false })
    }

    /// Detects the protocol; `false` if that is not possible yet.
    fn decide(&mut self, input: &[u8], out: &mut Outbox<'_>) -> bool {
        let ChatState::New { registry, web, peer, timed } = &mut self.0 else { return true };
        let limits = registry.limits;
        let Some(is_request) = is_request(input, limits.line_bytes) else {
            let due = web.limits.request_timeout.and_then(|limit| out.now().checked_add(limit));
            if let Some(due) = due.filter(|_| !*timed) {
                *timed = true;
                out.wake_at(due);
            }
            return false;
        };
        if *timed {
            out.wake_never();
        }
        self.0 = if is_request {
            let mut session = WebSocketSession::new(web.clone(), peer.clone());
            session.on_open(out); // always continues: nothing was written yet
            ChatState::Web(session)
        } else {
            let member = Member::new(registry.clone(), Speaks::Lines);
            ChatState::Lines(LineMember { member, line_bytes: limits.line_bytes })
        };
        true
    }
}

impl Session for ChatSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if !self.decide(input, out) {
            return Consumed::bytes(0);
        }
        match &mut self.0 {
            ChatState::New { .. } => Consumed::bytes(0),
            ChatState::Lines(lines) => lines.on_bytes(input, out),
            ChatState::Web(web) => web.on_bytes(input, out),
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ChatState::New { timed: true, .. } if matches!(mail, Mail::Timer) => Flow::Abort,
            ChatState::New { .. } => Flow::Continue,
            ChatState::Lines(lines) => lines.on_mail(mail, out),
            ChatState::Web(web) => web.on_mail(mail, out),
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        match &mut self.0 {
            ChatState::New { .. } => {}
            ChatState::Lines(lines) => {
                lines.member.send_line("= the server is stopping; reconnect later", out)
            }
            ChatState::Web(web) => web.on_leave(out),
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        match &mut self.0 {
            ChatState::New { .. } => {}
            ChatState::Lines(lines) => lines.member.leave(),
            ChatState::Web(web) => web.on_close(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_decide() {
        for (input, expected) in [
            (&b""[..], None),
            (b"G", None),
            (b"GET", None),
            (b"GET /", Some(true)),
            (b"POST / HTTP/1.1", Some(true)),
            (b"GETTING ", None),
            (b"GETTING / HTTP/1.1\r\n", Some(true)),
            (b"SAY * http/9\n", Some(true)),
            (b"G\n", Some(false)),
            (b"HTTP/1.1\n", Some(false)),
            (b"hello there\n", Some(false)),
            (b"/", Some(false)),
            (b"/join", Some(false)),
            (b"\r\n", Some(false)),
            (b"\xff", Some(false)),
            (b"get /", None),
            (b"a line that is too long", Some(false)),
            (b"a  /a/b/c/d HTTP/1.1xx", Some(true)),
        ] {
            assert_eq!(is_request(input, 21), expected, "{input:?}");
        }
    }
}
