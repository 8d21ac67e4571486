//! One connection: its first bytes say whether it speaks HTTP, and so WebSocket, or lines.

use std::sync::Arc;

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use super::hall::Hall;
use super::lines::LineMember;
use super::member::{Member, Speaks};
use super::web::WebMembers;
use crate::websocket::WebSocketSession;

/// One connection to the messenger.
pub struct ChatSession(State);

enum State {
    /// It has said too little to know.
    New {
        hall: Arc<Hall>,
        web: Arc<WebMembers>,
        peer: Peer,
    },
    Lines(LineMember),
    Web(WebSocketSession<WebMembers>),
}

/// What a request begins with. All methods are known here, so that a browser that is made to send something elsewhere with POST
/// does not get to speak lines with its body.
const METHODS: [&[u8]; 9] =
    [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

/// What the first bytes look like; `None` if there are too few of them.
fn is_request(input: &[u8]) -> Option<bool> {
    if METHODS.iter().any(|method| input.starts_with(method)) {
        return Some(true);
    }
    if METHODS.iter().any(|method| method.starts_with(input)) { None } else { Some(false) }
}

impl ChatSession {
    pub(super) fn new(hall: Arc<Hall>, web: Arc<WebMembers>, peer: Peer) -> Self {
        Self(State::New { hall, web, peer })
    }

    /// Finds out what it speaks; `false` if that can not be known yet.
    fn decide(&mut self, input: &[u8], out: &mut Outbox<'_>) -> bool {
        let State::New { hall, web, peer } = &self.0 else { return true };
        let Some(is_request) = is_request(input) else { return false };
        let limits = hall.limits;
        self.0 = if is_request {
            let mut session = WebSocketSession::new(web.clone(), limits.websocket(), *peer);
            session.on_open(out); // it goes on in any case: nothing has been said yet
            State::Web(session)
        } else {
            let member = Member::new(hall.clone(), Speaks::Lines);
            State::Lines(LineMember { member, line_bytes: limits.line_bytes })
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
            State::New { .. } => Consumed::bytes(0),
            State::Lines(lines) => lines.on_bytes(input, out),
            State::Web(web) => web.on_bytes(input, out),
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            State::New { .. } => Flow::Continue,
            State::Lines(lines) => lines.on_mail(mail, out),
            State::Web(web) => web.on_mail(mail, out),
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        match &mut self.0 {
            State::New { .. } => {}
            State::Lines(lines) => lines.member.tell("= the server goes away; come again", out),
            State::Web(web) => web.on_leave(out),
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        match &mut self.0 {
            State::New { .. } => {}
            State::Lines(lines) => lines.member.leave(),
            State::Web(web) => web.on_close(why),
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
            (b"GETTING ", Some(false)),
            (b"G\n", Some(false)),
            (b"/join", Some(false)),
            (b"get /", Some(false)),
        ] {
            assert_eq!(is_request(input), expected, "{input:?}");
        }
    }
}
