//! One connection: requests in, responses out.

use std::sync::Arc;

use tidegate::service::Activity;
use tidegate::{Consumed, Flow, Mail, Outbox, Session};

use super::HttpLimits;
use super::answer::SharedPage;
use super::body::{Body, Chunks};
use super::fault::{RequestError, Status};
use super::head::{self, Framing, Front, Head, Method, Persistence, ResponseForm, Scan, Spoken};

/// Responds to the requests of one connection.
pub trait Responder: Send + 'static {
    /// The limits of requests.
    fn limits(&self) -> &HttpLimits;
    /// Responds to GET or HEAD.
    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered;
    /// Responds with an error.
    fn refuse(&mut self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>);
    /// Continues a response: the outbox has room.
    fn go_on(&mut self, out: &mut Outbox<'_>) -> Answered {
        let _ = out;
        Answered::Whole
    }
    /// Continues a response: its job has finished.
    fn done(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Answered {
        let _ = (mail, out);
        Answered::Whole
    }
}

/// A request to respond to.
pub struct Request<'a> {
    pub(crate) form: ResponseForm,
    pub(crate) spoken: Spoken<'a>,
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// The progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Complete.
    Whole,
    /// Continued when the outbox has room, or a job has finished.
    UnderWay,
    /// Complete, and the last one of this connection.
    Final,
}

/// One connection of the service with one page.
pub type HttpSession = Conversation<Arc<SharedPage>>;

impl Responder for Arc<SharedPage> {
    #[inline]
    fn limits(&self) -> &HttpLimits {
        &self.limits
    }

    #[inline]
    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        SharedPage::answer(self, request.form, out);
        Answered::Whole
    }

    fn refuse(&mut self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>) {
        SharedPage::refuse(self, fault, form, out);
    }
}

/// One HTTP connection. Keeps a few dozen bytes, and none of its input.
#[derive(Debug)]
pub struct Conversation<R> {
    responder: R,
    reading: ReadState,
    /// A timer runs for the request being received.
    timed: bool,
    /// The connection is marked as waiting for the rest of a request.
    awaited: bool,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum ReadState {
    /// A head.
    Head(Scan),
    /// The body of a request; the response follows when it has been skipped.
    Body { body: Body, method: Method, connection: Persistence, kept: Option<Box<[u8]>> },
    /// The next request, once the current response is complete; and the state after it.
    Answer(Flow),
}

/// The result of one step through the input.
enum InputStep {
    /// This many bytes were consumed; there may be more to do.
    Used(usize),
    /// This many bytes were consumed, which completed a request; it was answered.
    Answered(usize, Flow),
    /// The head is incomplete.
    Unfinished,
}

/// A complete head; the response follows now or after its body.
enum RequestStart {
    Answered(InputStep),
    Body(Head),
}

impl<R: Responder> Conversation<R> {
    pub(crate) fn new(responder: R) -> Self {
        Self { responder, reading: ReadState::Head(Scan::new()), timed: false, awaited: false }
    }

    #[inline]
    fn step(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Result<InputStep, RequestError> {
        match &mut self.reading {
            ReadState::Head(scan) => {
                let mut scan = *scan;
                let limit = self.responder.limits().head_bytes;
                let front = head::parse(&mut scan, input, limit, |head, spoken| {
                    if head.framing != Framing::Length(0) {
                        return RequestStart::Body(head);
                    }
                    let (used, flow) = self.answer_repeats(&head, spoken, input, out);
                    RequestStart::Answered(InputStep::Answered(used, flow))
                })?;
                match front {
                    Front::Whole(RequestStart::Answered(step)) => Ok(step),
                    Front::Whole(RequestStart::Body(head)) => self.begin_body(&head, input, out),
                    Front::Empty(bytes) => Ok(InputStep::Used(bytes)),
                    Front::Part => {
                        self.reading = ReadState::Head(scan);
                        Ok(InputStep::Unfinished)
                    }
                }
            }
            ReadState::Body { body, .. } => {
                let progress = body.advance(input, self.responder.limits())?;
                if progress.ended {
                    let is_last = progress.used == input.len();
                    Ok(InputStep::Answered(progress.used, self.answer_body(is_last, out)?))
                } else {
                    Ok(InputStep::Used(progress.used))
                }
            }
            ReadState::Answer(_) => Ok(InputStep::Unfinished),
        }
    }

    /// Responds to a request without a body, and to those directly behind it that are the same bytes: a pipelining
    /// client mostly repeats itself, and a head means the same each time. Returns the bytes of all of them.
    #[inline]
    fn answer_repeats(
        &mut self,
        head: &Head,
        spoken: Spoken<'_>,
        input: &[u8],
        out: &mut Outbox<'_>,
    ) -> (usize, Flow) {
        let (first, mut rest) = input.split_at_checked(head.bytes).unwrap_or((input, &[]));
        loop {
            let flow = self.answer(head.method, head.connection, spoken, rest.is_empty(), out);
            let goes_on =
                flow == Flow::Continue && matches!(self.reading, ReadState::Head(_)) && !out.is_full();
            match rest.strip_prefix(first) {
                Some(after) if goes_on => rest = after,
                _ => return (input.len() - rest.len(), flow),
            }
        }
    }

    /// A head is complete, and its body follows.
    fn begin_body(
        &mut self,
        head: &Head,
        input: &[u8],
        out: &mut Outbox<'_>,
    ) -> Result<InputStep, RequestError> {
        let most = self.responder.limits().body_bytes;
        let body = match head.framing {
            Framing::Length(length) if length > most => return Err(RequestError::body_too_large(most)),
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunked(Chunks::new()),
        };
        if head.expects_continue {
            out.write(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        // A body has no meaning for GET (RFC 9110, section 9.3.1), but the target is in the head.
        let reads = matches!(head.method, Method::Get | Method::Head);
        let kept = input.get(..head.bytes).filter(|_| reads).map(Box::from);
        self.reading = ReadState::Body { body, method: head.method, connection: head.connection, kept };
        Ok(InputStep::Used(head.bytes))
    }

    /// Responds to a request whose body was skipped.
    fn answer_body(&mut self, is_last: bool, out: &mut Outbox<'_>) -> Result<Flow, RequestError> {
        let ReadState::Body { method, connection, kept, .. } =
            std::mem::replace(&mut self.reading, ReadState::Head(Scan::new()))
        else {
            return Ok(Flow::Continue);
        };
        let Some(kept) = kept else {
            return Ok(self.answer(method, connection, Spoken::NOTHING, is_last, out));
        };
        let front = head::parse(&mut Scan::new(), &kept, kept.len(), |head, spoken| {
            self.answer(head.method, head.connection, spoken, is_last, out)
        })?;
        Ok(if let Front::Whole(flow) = front { flow } else { Flow::default() })
    }

    /// Responds to a complete request.
    #[inline]
    fn answer(
        &mut self,
        method: Method,
        connection: Persistence,
        spoken: Spoken<'_>,
        is_last: bool,
        out: &mut Outbox<'_>,
    ) -> Flow {
        self.reading = ReadState::Head(Scan::new());
        self.untime(out);
        // A stopping server announces it with its last response (RFC 9112, section 9.6). The client did not request the
        // close and may be sending already, so it could miss the response.
        let leaves = is_last && connection != Persistence::Closes && out.is_draining();
        let connection = if leaves { Persistence::Closes } else { connection };
        let flow = match connection {
            Persistence::Closes if leaves => Flow::Linger,
            Persistence::Closes => Flow::Close,
            _ => Flow::Continue,
        };
        let answered = match method {
            Method::Get | Method::Head => {
                let form = ResponseForm { head_only: method == Method::Head, connection };
                self.responder.answer(&Request { form, spoken }, out)
            }
            other => return self.decline(other, connection, flow, out),
        };
        self.follow(answered, flow, out)
    }

    /// The flow after a response: `flow` once it is complete.
    #[inline]
    fn follow(&mut self, answered: Answered, flow: Flow, out: &mut Outbox<'_>) -> Flow {
        match answered {
            Answered::Whole => flow,
            Answered::Final => Flow::Close,
            Answered::UnderWay => {
                self.reading = ReadState::Answer(flow);
                self.awaited = true;
                out.set_activity(Activity::Work);
                Flow::Continue
            }
        }
    }

    /// Continues a response.
    fn resume(
        &mut self,
        out: &mut Outbox<'_>,
        with: impl FnOnce(&mut R, &mut Outbox<'_>) -> Answered,
    ) -> Flow {
        let ReadState::Answer(flow) = self.reading else { return Flow::Continue };
        let answered = with(&mut self.responder, out);
        if answered == Answered::Whole {
            self.reading = ReadState::Head(Scan::new());
            self.untime(out);
        }
        self.follow(answered, flow, out)
    }

    /// Responds to a method that is not allowed here.
    #[cold]
    fn decline(&mut self, method: Method, connection: Persistence, flow: Flow, out: &mut Outbox<'_>) -> Flow {
        let fault = match method {
            Method::Connect => RequestError {
                status: Status::MethodNotAllowed,
                why: "this server is not a proxy; it answers GET and HEAD".into(),
            },
            Method::Unknown => RequestError::method_unknown(),
            _ => RequestError::method_not_allowed(),
        };
        // The client may have begun to send through the tunnel: that must not be parsed as requests.
        let tunnels = method == Method::Connect;
        let connection = if tunnels { Persistence::Closes } else { connection };
        let form = ResponseForm { head_only: false, connection };
        self.responder.refuse(&fault, form, out);
        if tunnels { Flow::Linger } else { flow }
    }

    /// The last response of this connection. The peer may still be sending: linger, so that it can be read.
    #[cold]
    fn fail(&mut self, fault: &RequestError, input: &[u8], out: &mut Outbox<'_>) -> Flow {
        let head_only = match self.reading {
            ReadState::Head(_) => input.starts_with(b"HEAD "),
            ReadState::Body { method, .. } => method == Method::Head,
            ReadState::Answer(_) => false,
        };
        let form = ResponseForm { head_only, connection: Persistence::Closes };
        self.responder.refuse(fault, form, out);
        out.wake_never();
        Flow::Linger
    }

    /// A request is incomplete: from now on it has a time limit and the policy's minimum rate applies; a stop waits for
    /// it.
    #[cold]
    fn time(&mut self, out: &mut Outbox<'_>) {
        out.set_activity(Activity::Input); // skipped bodies leave no input, so the library could not tell
        self.awaited = true;
        let due = self.responder.limits().request_timeout.and_then(|limit| out.now().checked_add(limit));
        if let Some(due) = due.filter(|_| !self.timed) {
            self.timed = true;
            out.wake_at(due);
        }
    }

    #[inline]
    fn untime(&mut self, out: &mut Outbox<'_>) {
        if self.awaited {
            self.awaited = false;
            out.set_activity(Activity::Nothing);
        }
        if self.timed {
            self.timed = false;
            out.wake_never();
        }
    }
}

impl<R: Responder> Session for Conversation<R> {
    #[inline]
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut rest = input;
        let mut unfinished = false;
        while !rest.is_empty() && !out.is_full() {
            let used = match self.step(rest, out) {
                Ok(InputStep::Used(used)) | Ok(InputStep::Answered(used, Flow::Continue)) => used,
                Ok(InputStep::Answered(used, flow)) => {
                    return Consumed::bytes(input.len() - rest.len() + used).then(flow);
                }
                Ok(InputStep::Unfinished) => {
                    unfinished = true;
                    break;
                }
                Err(fault) => return Consumed::all(input).then(self.fail(&fault, rest, out)),
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        match self.reading {
            ReadState::Answer(_) => {}
            ReadState::Body { .. } => self.time(out),
            ReadState::Head(_) if unfinished => self.time(out),
            ReadState::Head(_) => self.untime(out),
        }
        Consumed::bytes(input.len() - rest.len())
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.resume(out, |responder, out| responder.go_on(out))
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        match &mut self.reading {
            ReadState::Answer(flow) => {
                *flow = Flow::Close;
                Flow::Continue
            }
            _ => Flow::Close,
        }
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if matches!(mail, Mail::Done(_) | Mail::JobPanicked) {
            return self.resume(out, |responder, out| responder.done(mail, out));
        }
        if !matches!(mail, Mail::Timer) || !self.timed {
            return Flow::Continue;
        }
        self.fail(&RequestError::too_slow(), &[], out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_costs_little() {
        assert!(size_of::<HttpSession>() <= 64, "{} bytes", size_of::<HttpSession>());
    }
}
