//! One connection: a request, then messages.

use std::sync::Arc;

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use super::channel::{Channel, Step};
use super::request::{self, Fault, Wants};
use super::{CloseCode, MessageFlow, MessageService, MessageSession, WebSocketLimits};

/// One connection that begins with a request for a WebSocket.
pub struct WebSocketSession<S: MessageService>(State<S>);

enum State<S: MessageService> {
    /// At the request.
    Asking { service: Arc<S>, limits: WebSocketLimits, peer: Peer },
    /// Behind it.
    Open { session: S::Session, channel: Channel },
    /// Answered, closed or failed.
    Over,
}

impl<S: MessageService> WebSocketSession<S> {
    pub(crate) fn new(service: Arc<S>, limits: WebSocketLimits, peer: Peer) -> Self {
        Self(State::Asking { service, limits, peer })
    }

    /// The request is not complete, or it was not until now.
    fn on_request(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let State::Asking { service, limits, peer } = &self.0 else { return Consumed::all(input) };
        let answer = match request::parse(input) {
            Ok(None) => return Consumed::bytes(0),
            Err(fault) => fault.answer(),
            Ok(Some(request)) => match (request.wants, service.page(request.path)) {
                (Wants::WebSocket(accept), _) => match service.open(peer, request.path) {
                    Ok(session) => {
                        let channel = Channel::new(limits.message_bytes);
                        return self.open(
                            session,
                            channel,
                            &request::switch(&accept),
                            out,
                            input,
                            request.bytes,
                        );
                    }
                    Err(_) => Fault::NOT_FOUND.answer(),
                },
                (_, None) => Fault::NOT_FOUND.answer(),
                (Wants::PageHead, Some(page)) => request::page(page.len()),
                (Wants::Page, Some(page)) => {
                    out.write(request::page(page.len()).as_bytes());
                    out.share(page);
                    return self.end(input);
                }
            },
        };
        out.write(answer.as_bytes());
        self.end(input)
    }

    fn end(&mut self, input: &[u8]) -> Consumed {
        self.0 = State::Over;
        Consumed::all(input).then(Flow::Linger)
    }

    /// Answers the request of `head` bytes and shows the session what follows it.
    fn open(
        &mut self,
        mut session: S::Session,
        mut channel: Channel,
        answer: &str,
        out: &mut Outbox<'_>,
        input: &[u8],
        head: usize,
    ) -> Consumed {
        out.wake_never();
        out.write(answer.as_bytes());
        let flow = session.on_open(out);
        let flow = follow(flow, &mut channel, out);
        self.0 = State::Open { session, channel };
        if flow != Flow::Continue {
            return Consumed::all(input).then(flow);
        }
        let then = self.on_frames(input.get(head..).unwrap_or_default(), out);
        Consumed { bytes: head + then.bytes, ..then }
    }

    /// Takes in whole frames while the outbox has room for what they bring about.
    fn on_frames(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let State::Open { session, channel } = &mut self.0 else { return Consumed::all(input) };
        let mut used = 0;
        while !out.is_full() {
            match channel.step(input.get(used..).unwrap_or_default(), out) {
                Step::Part => break,
                Step::Passed(bytes) => used += bytes,
                Step::Message(bytes, message) => {
                    used += bytes;
                    let flow = session.on_message(message, out);
                    let flow = follow(flow, channel, out);
                    if flow != Flow::Continue {
                        return Consumed::all(input).then(flow);
                    }
                }
                Step::Over => return Consumed::all(input).then(Flow::Linger),
            }
        }
        Consumed::bytes(used)
    }
}

/// Does what a session wants of its WebSocket.
fn follow(flow: MessageFlow, channel: &mut Channel, out: &mut Outbox<'_>) -> Flow {
    match flow {
        MessageFlow::Continue => Flow::Continue,
        MessageFlow::Close(code, reason) => {
            channel.close(code, reason, out);
            Flow::Linger
        }
        MessageFlow::Abort => Flow::Abort,
    }
}

impl<S: MessageService> Session for WebSocketSession<S> {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let State::Asking { limits: WebSocketLimits { request_timeout: Some(limit), .. }, .. } = &self.0
            && let Some(due) = out.now().checked_add(*limit)
        {
            out.wake_at(due);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match &self.0 {
            State::Open { .. } => self.on_frames(input, out),
            State::Asking { .. } => self.on_request(input, out),
            State::Over => Consumed::all(input),
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match (&mut self.0, mail) {
            (State::Open { session, channel }, mail) => {
                let flow = session.on_mail(mail, out);
                follow(flow, channel, out)
            }
            (State::Asking { .. }, Mail::Timer) => Flow::Abort,
            _ => Flow::Continue,
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        if let State::Open { channel, .. } = &mut self.0 {
            channel.close(CloseCode::Away, "the server goes away", out);
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        if let State::Open { session, .. } = &mut self.0 {
            session.on_close(why);
        }
    }
}
