//! One connection: a request, then messages.

use std::sync::Arc;

use bytes::Bytes;
use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use super::channel::{ChannelStep, WebSocketChannel};
use super::request::{self, Wants};
use super::{CloseCode, HEAD_BYTES, MessageFlow, MessageService, MessageSession, WebSocketShared};
use crate::http::answer::{date_now, refusal};
use crate::http::fault::{RequestError, Status};
use crate::http::head::{self, Head, Persistence, ResponseForm, Scan, Spoken};

/// One connection that begins with a WebSocket request.
pub struct WebSocketSession<S: MessageService>(WebSocketState<S>);

impl<S: MessageService> std::fmt::Debug for WebSocketSession<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocketSession").finish_non_exhaustive()
    }
}

enum WebSocketState<S: MessageService> {
    /// Waiting for the request.
    Asking(Asking<S>),
    /// Established.
    Open { session: S::Session, channel: WebSocketChannel },
    /// Answered, closed or failed.
    Over,
}

/// An incomplete request.
struct Asking<S> {
    front: Arc<WebSocketShared<S>>,
    peer: Peer,
    scan: Scan,
}

/// The result of a request.
enum Reply<M> {
    /// A WebSocket: its session, and the head of the answer.
    Open(M, String),
    /// A page, and the head of the answer.
    Page(String, Bytes),
    /// The head alone.
    PageHead(String),
}

impl<S: MessageService> Asking<S> {
    /// Responds to a complete request.
    fn reply(&self, head: &Head, spoken: Spoken<'_>) -> Result<Reply<S::Session>, RequestError> {
        let WebSocketShared { service, access, .. } = &*self.front;
        access.check_host(spoken.authority)?;
        let path = spoken.target;
        let page = || service.page(path).ok_or_else(not_found);
        Ok(match request::wants(head, spoken)? {
            Wants::WebSocket(accept) => {
                access.check_origin(request::only(spoken.fields, "origin")?, spoken.authority)?;
                let session = service.open(&self.peer, path).map_err(|_| not_found())?;
                Reply::Open(session, request::switch(&accept))
            }
            Wants::Page => {
                let page = page()?;
                Reply::Page(request::page(page.len()), page)
            }
            Wants::PageHead => Reply::PageHead(request::page(page()?.len())),
        })
    }
}

#[cold]
fn not_found() -> RequestError {
    RequestError { status: Status::NotFound, why: "there is nothing at this path".into() }
}

impl<S: MessageService> WebSocketSession<S> {
    pub(crate) fn new(front: Arc<WebSocketShared<S>>, peer: Peer) -> Self {
        Self(WebSocketState::Asking(Asking { front, peer, scan: Scan::new() }))
    }

    /// Handles an incomplete request.
    fn on_request(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = 0;
        let (bytes, reply) = loop {
            let WebSocketState::Asking(asking) = &mut self.0 else { return Consumed::all(input) };
            let rest = input.get(used..).unwrap_or_default();
            let mut scan = asking.scan;
            let read = |head: Head, spoken: Spoken<'_>| (head.bytes, asking.reply(&head, spoken));
            match head::parse(&mut scan, rest, HEAD_BYTES, read) {
                Ok(head::Front::Whole((bytes, Ok(reply)))) => break (used + bytes, reply),
                Ok(head::Front::Whole((_, Err(fault)))) | Err(fault) => {
                    let head_only = rest.starts_with(b"HEAD ");
                    let form = ResponseForm { head_only, connection: Persistence::Closes };
                    out.share(refusal(&fault, &date_now(), form));
                    return self.end(input);
                }
                Ok(head::Front::Empty(bytes)) => used += bytes,
                Ok(head::Front::Part) => {
                    asking.scan = scan;
                    return Consumed::bytes(used);
                }
            }
        };
        match reply {
            Reply::Open(session, answer) => return self.open(session, &answer, out, input, bytes),
            Reply::Page(head, page) => {
                out.write(head.as_bytes());
                out.share(page);
            }
            Reply::PageHead(head) => out.write(head.as_bytes()),
        }
        self.end(input)
    }

    fn end(&mut self, input: &[u8]) -> Consumed {
        self.0 = WebSocketState::Over;
        Consumed::all(input).then(Flow::Linger)
    }

    /// Responds to the request of `head` bytes and passes on what follows it.
    fn open(
        &mut self,
        mut session: S::Session,
        answer: &str,
        out: &mut Outbox<'_>,
        input: &[u8],
        head: usize,
    ) -> Consumed {
        let WebSocketState::Asking(Asking { front, .. }) = &self.0 else { return Consumed::all(input) };
        let mut channel = WebSocketChannel::new(front.limits.message_bytes);
        out.wake_never();
        out.write(answer.as_bytes());
        let flow = session.on_open(out);
        let flow = follow(flow, &mut channel, out);
        self.0 = WebSocketState::Open { session, channel };
        if flow != Flow::Continue {
            return Consumed::all(input).then(flow);
        }
        self.on_frames(input.get(head..).unwrap_or_default(), out).plus(head)
    }

    /// Handles complete frames while the outbox has room for the responses, and the session accepts more.
    fn on_frames(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let WebSocketState::Open { session, channel } = &mut self.0 else { return Consumed::all(input) };
        let mut used = 0;
        while !out.is_full() && session.takes_more() {
            match channel.step(input.get(used..).unwrap_or_default(), out) {
                ChannelStep::Part => break,
                ChannelStep::Passed(bytes) => used += bytes,
                ChannelStep::Message(bytes, content) => {
                    used += bytes;
                    let flow = session.on_message(content.message(), out);
                    let flow = follow(flow, channel, out);
                    if flow != Flow::Continue {
                        return Consumed::all(input).then(flow);
                    }
                }
                ChannelStep::Over => return Consumed::all(input).then(Flow::Linger),
            }
        }
        hold_input(session, out);
        Consumed::bytes(used)
    }
}

/// Unconsumed input is passed again when it accepts more.
fn hold_input(session: &impl MessageSession, out: &mut Outbox<'_>) {
    out.set_activity(if session.takes_more() { Activity::Nothing } else { Activity::Work });
}

/// Carries out what a session returned.
fn follow(flow: MessageFlow, channel: &mut WebSocketChannel, out: &mut Outbox<'_>) -> Flow {
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
        if let WebSocketState::Asking(asking) = &self.0
            && let Some(due) =
                asking.front.limits.request_timeout.and_then(|limit| out.now().checked_add(limit))
        {
            out.wake_at(due);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match &self.0 {
            WebSocketState::Open { .. } => self.on_frames(input, out),
            WebSocketState::Asking(_) => self.on_request(input, out),
            WebSocketState::Over => Consumed::all(input),
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match (&mut self.0, mail) {
            (WebSocketState::Open { session, channel }, mail) => {
                let flow = session.on_mail(mail, out);
                hold_input(session, out);
                follow(flow, channel, out)
            }
            (WebSocketState::Asking(_), Mail::Timer) => Flow::Abort,
            _ => Flow::Continue,
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        if let WebSocketState::Open { channel, .. } = &mut self.0 {
            channel.close(CloseCode::Away, "the server is stopping", out);
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        if let WebSocketState::Open { session, .. } = &mut self.0 {
            session.on_close(why);
        }
    }
}
