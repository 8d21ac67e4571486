//! One connection: requests in, answers out.

use std::sync::Arc;

use tidegate::service::Awaits;
use tidegate::{Consumed, Flow, Mail, Outbox, Session};

use super::answer::Slot;
use super::body::{Body, Chunks};
use super::fault::{Fault, Status};
use super::head::{self, Connection, Framing, Head, Method};

/// One HTTP connection. Keeps a few dozen bytes and nothing of what it receives.
#[derive(Debug)]
pub struct HttpSession {
    slot: Arc<Slot>,
    reading: Reading,
    /// A timer runs for the request that is being read.
    timed: bool,
    /// The library was told that the rest of a request is awaited.
    awaited: bool,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum Reading {
    /// A head, of which so many bytes were seen and did not suffice.
    Head { seen: usize },
    /// The body of a request that is answered once it has been read past.
    Body { body: Body, method: Method, connection: Connection },
}

/// What one step through the input came to.
enum Step {
    /// So many bytes were used; there may be more to do.
    Used(usize),
    /// So many bytes were used, which ended a request; it was answered.
    Answered(usize, Flow),
    /// What is there is not a whole head.
    Unfinished,
}

impl HttpSession {
    pub(super) fn new(slot: Arc<Slot>) -> Self {
        Self { slot, reading: Reading::Head { seen: 0 }, timed: false, awaited: false }
    }

    #[inline]
    fn step(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Result<Step, Fault> {
        match &mut self.reading {
            Reading::Head { seen } => {
                if matches!(input.first(), Some(b'\r' | b'\n'))
                    && let Some(step) = skip_empty_line(input)?
                {
                    *seen = 0;
                    return Ok(step);
                }
                // A head that trickles in is looked at again when a line has ended, not with each byte.
                let limit = self.slot.limits.head_bytes;
                let news = input.get(*seen..).unwrap_or_default();
                if *seen > 0 && input.len() < limit && !news.contains(&b'\n') {
                    *seen = input.len();
                    return Ok(Step::Unfinished);
                }
                match head::parse(input, limit)? {
                    Some(head) => self.begin(&head, head.bytes == input.len(), out),
                    None => {
                        *seen = input.len();
                        Ok(Step::Unfinished)
                    }
                }
            }
            Reading::Body { body, method, connection } => {
                let (method, connection) = (*method, *connection);
                let progress = body.advance(input, &self.slot.limits)?;
                if progress.ended {
                    let is_last = progress.used == input.len();
                    Ok(Step::Answered(progress.used, self.answer(method, connection, is_last, out)))
                } else {
                    Ok(Step::Used(progress.used))
                }
            }
        }
    }

    /// A head is complete: answers it, or goes on to its body. `is_last` is whether nothing has come after it.
    #[inline]
    fn begin(&mut self, head: &Head, is_last: bool, out: &mut Outbox<'_>) -> Result<Step, Fault> {
        if head.framing == Framing::Length(0) {
            return Ok(Step::Answered(head.bytes, self.answer(head.method, head.connection, is_last, out)));
        }
        let body = match head.framing {
            Framing::Length(length) if length > self.slot.limits.body_bytes => {
                return Err(Fault::body_too_large(self.slot.limits.body_bytes));
            }
            Framing::Length(length) => Body::Length(length),
            Framing::Chunked => Body::Chunked(Chunks::new()),
        };
        if head.expects_continue {
            out.write(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.reading = Reading::Body { body, method: head.method, connection: head.connection };
        Ok(Step::Used(head.bytes))
    }

    /// Answers a request that has been read to its end.
    #[inline]
    fn answer(
        &mut self,
        method: Method,
        connection: Connection,
        is_last: bool,
        out: &mut Outbox<'_>,
    ) -> Flow {
        self.reading = Reading::Head { seen: 0 };
        self.untime(out);
        // A server that stops says so with the last answer it owes (RFC 9112, section 9.6). The client did not ask for the
        // end and may be sending already, so that it could miss the answer.
        let leaves = is_last && connection != Connection::Closes && out.is_draining();
        let connection = if leaves { Connection::Closes } else { connection };
        match method {
            Method::Get | Method::Head => self.slot.answer(method == Method::Head, connection, out),
            Method::Other => {
                let why = "this server answers GET and HEAD";
                self.slot.refuse(Status::MethodNotAllowed, why, false, connection, out);
            }
            Method::Connect => {
                // The client may have begun to talk through the tunnel: that must not be read as requests.
                let why = "this server is no proxy; it answers GET and HEAD";
                self.slot.refuse(Status::MethodNotAllowed, why, false, Connection::Closes, out);
                return Flow::Linger;
            }
            Method::Unknown => {
                let why = "the method is unknown; this server answers GET and HEAD";
                self.slot.refuse(Status::NotImplemented, why, false, connection, out);
            }
        }
        match connection {
            Connection::Closes if leaves => Flow::Linger,
            Connection::Closes => Flow::Close,
            _ => Flow::Continue,
        }
    }

    /// The last answer of this connection. The peer may still be sending: linger, so that it can be read.
    #[cold]
    fn fail(&mut self, fault: &Fault, input: &[u8], out: &mut Outbox<'_>) -> Flow {
        let head_only = match self.reading {
            Reading::Head { .. } => input.starts_with(b"HEAD "),
            Reading::Body { method, .. } => method == Method::Head,
        };
        self.slot.refuse(fault.status, &fault.why, head_only, Connection::Closes, out);
        out.wake_never();
        Flow::Linger
    }

    /// A request has begun and is not complete: from now on it has so much time, and has to keep up with the policy's
    /// minimum rate; a server that stops waits for it.
    #[cold]
    fn time(&mut self, out: &mut Outbox<'_>) {
        out.awaits(Awaits::Input); // of a body nothing is kept, so the library could not tell
        self.awaited = true;
        let due = self.slot.limits.request_timeout.and_then(|limit| out.now().checked_add(limit));
        if let Some(due) = due.filter(|_| !self.timed) {
            self.timed = true;
            out.wake_at(due);
        }
    }

    #[inline]
    fn untime(&mut self, out: &mut Outbox<'_>) {
        if self.awaited {
            self.awaited = false;
            out.awaits(Awaits::Nothing);
        }
        if self.timed {
            self.timed = false;
            out.wake_never();
        }
    }
}

impl Session for HttpSession {
    #[inline]
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut rest = input;
        let mut unfinished = false;
        while !rest.is_empty() && !out.is_full() {
            let used = match self.step(rest, out) {
                Ok(Step::Used(used)) | Ok(Step::Answered(used, Flow::Continue)) => used,
                Ok(Step::Answered(used, flow)) => {
                    return Consumed::bytes(input.len() - rest.len() + used).then(flow);
                }
                Ok(Step::Unfinished) => {
                    unfinished = true;
                    break;
                }
                Err(fault) => return Consumed::all(input).then(self.fail(&fault, rest, out)),
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        if unfinished || matches!(self.reading, Reading::Body { .. }) {
            self.time(out);
        } else {
            self.untime(out);
        }
        Consumed::bytes(input.len() - rest.len())
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if !matches!(mail, Mail::Timer) || !self.timed {
            return Flow::Continue;
        }
        let fault =
            Fault { status: Status::RequestTimeout, why: "the request took too long to arrive".into() };
        self.fail(&fault, &[], out)
    }
}

/// Empty lines before a request line are skipped (RFC 9112, section 2.2); they begin no request.
/// `None` if the line end is cut in two.
#[cold]
fn skip_empty_line(input: &[u8]) -> Result<Option<Step>, Fault> {
    match input {
        [b'\n', ..] => Ok(Some(Step::Used(1))),
        [b'\r', b'\n', ..] => Ok(Some(Step::Used(2))),
        [b'\r'] => Ok(None),
        _ => Err(Fault::bad("a line begins with a lone carriage return (RFC 9112, section 2.2)")),
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
