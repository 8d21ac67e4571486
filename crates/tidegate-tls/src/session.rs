//! One connection: a handshake, then the session inside.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::Error;
use tidegate::{
    Activity, CloseReason, Consumed, Dial, Endpoint, Flow, LayerBuffer, Mail, Origin, Outbox, Peer, Policy,
    Service, Session,
};

use crate::channel::{Channel, Side};
use crate::fault::{Fault, TlsCounters, TlsError};

/// Most bytes of a record: five of header, and 2^14 with 2,048 of protection (RFC 5246, section 6.2.3). The least
/// [`Policy::input_bytes`] for TLS.
pub const RECORD_BYTES: usize = 5 + (1 << 14) + 2048;

/// Bounds on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsLimits {
    /// Time from when the connection stands until its handshake is over; then it is reset. `None` waits for ever.
    /// Default 10 s.
    pub handshake_timeout: Option<Duration>,
}

impl Default for TlsLimits {
    fn default() -> Self {
        Self { handshake_timeout: Some(Duration::from_secs(10)) }
    }
}

impl TlsLimits {
    /// Checks the limits, and against the policy the service is to run under.
    ///
    /// # Errors
    /// The first contradiction found, with what to do about it.
    pub fn check(&self, policy: &Policy) -> Result<(), TlsError> {
        if policy.input_bytes < RECORD_BYTES {
            return Err(TlsError::InputBytes(policy.input_bytes));
        }
        if self.handshake_timeout.is_some_and(|limit| limit.is_zero()) {
            return Err(TlsError::NoTime);
        }
        Ok(())
    }
}

/// What all connections of one service share.
pub(crate) struct Shared<S> {
    pub(crate) service: S,
    pub(crate) limits: TlsLimits,
    pub(crate) counters: Arc<TlsCounters>,
    /// Where dialled connections go, for those that fail.
    pub(crate) target: Option<Endpoint>,
}

/// One connection that is encrypted.
pub struct TlsSession<S: Service, C> {
    channel: Channel<C>,
    inside: Inside<S>,
    shared: Arc<Shared<S>>,
    /// What the session inside has left. Owns no memory while empty.
    plain: Vec<u8>,
    /// The session inside knows that the peer has ended.
    told_end: bool,
    /// What the session inside has said and the outbox had no room for, and what it wanted to follow.
    draft: LayerBuffer,
    next: Flow,
}

enum Inside<S: Service> {
    /// In the handshake.
    Waiting(Peer),
    /// Behind it.
    Open(S::Session),
    /// There never was a session inside, and there will be none.
    Over,
}

fn goes_on(flow: Flow) -> bool {
    matches!(flow, Flow::Continue | Flow::Shutdown)
}

/// What follows from two calls in a row.
fn then(first: Flow, second: Flow) -> Flow {
    if second == Flow::Continue { first } else { second }
}

impl<S: Service, C: Side> TlsSession<S, C> {
    pub(crate) fn new(connection: C, peer: Peer, shared: Arc<Shared<S>>) -> Self {
        let (channel, inside) = (Channel::new(connection), Inside::Waiting(peer));
        Self {
            channel,
            inside,
            shared,
            plain: Vec::new(),
            told_end: false,
            draft: LayerBuffer::default(),
            next: Flow::Continue,
        }
    }

    /// Takes received bytes in and has the session inside look at what they say.
    fn receive(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Flow {
        let outcome = self.channel.receive(input, &mut self.plain, out);
        let flow = match outcome {
            Err(e) => self.fail(&e, out),
            Ok(()) if !self.channel.established => {
                out.set_activity(if input.is_empty() { Activity::Nothing } else { Activity::Input });
                Flow::Continue
            }
            Ok(()) => self.open(out),
        };
        self.go_on(flow, out)
    }

    /// The handshake is over: the session inside begins, if it has not.
    fn open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Inside::Waiting(peer) = &self.inside else { return Flow::Continue };
        out.wake_never();
        out.set_activity(Activity::Nothing);
        self.shared.counters.count_handshake(self.channel.is_resumed());
        let Ok(session) = self.shared.service.open(peer) else {
            self.inside = Inside::Over;
            self.channel.end(out);
            return Flow::Close;
        };
        self.inside = Inside::Open(session);
        let flow = self.call(out, |session, out| session.on_open(out));
        if goes_on(flow) && out.is_draining() {
            return then(flow, self.call(out, |session, out| session.on_drain(out))); // it has missed that
        }
        flow
    }

    /// Shows the session inside what there is, and its end, as far as the outbox has room.
    fn go_on(&mut self, mut flow: Flow, out: &mut Outbox<'_>) -> Flow {
        if goes_on(flow) && !self.plain.is_empty() && !out.is_full() {
            flow = then(flow, self.show(out));
        }
        let all_shown = self.plain.is_empty() || !out.is_full();
        if goes_on(flow) && self.channel.peer_ended && all_shown && !self.told_end {
            self.told_end = true;
            self.plain = Vec::new();
            flow = then(flow, self.call(out, |session, out| session.on_end(out)));
        }
        if goes_on(flow) && self.told_end && self.channel.ended {
            flow = Flow::Close; // both have said so, whatever becomes of the stream below
        }
        out.set_buffered(self.plain.len() + self.channel.waiting());
        flow
    }

    /// Shows the session inside what was decrypted, again and again if it asks for that: what one receive has
    /// brought, at most.
    fn show(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut plain = std::mem::take(&mut self.plain);
        let mut used = 0;
        let mut flow = Flow::Continue;
        loop {
            let rest = plain.get(used..).unwrap_or_default();
            let mut consumed = Consumed::bytes(0);
            let next = self.call(out, |session, out| {
                consumed = session.on_bytes(rest, out);
                consumed.flow
            });
            flow = then(flow, next);
            let n = consumed.bytes.min(rest.len());
            used += n;
            if !consumed.again || n == 0 || n == rest.len() || !goes_on(flow) || out.is_full() {
                break;
            }
        }
        if used < plain.len() {
            plain.drain(..used);
            self.plain = plain;
        }
        flow
    }

    /// Calls the session inside, encrypts what it said, and says what follows.
    fn call(
        &mut self,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut S::Session, &mut Outbox<'_>) -> Flow,
    ) -> Flow {
        let Inside::Open(session) = &mut self.inside else { return Flow::Continue };
        let flow = f(session, &mut out.layered(&mut self.draft));
        if flow == Flow::Abort {
            return flow;
        }
        self.next = then(self.next, flow);
        self.pass_on(out)
    }

    /// Encrypts what the session inside has said, as far as there is room, and says what follows when that was all.
    fn pass_on(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Err(e) = self.channel.send(&mut self.draft, out) {
            self.draft.clear();
            return self.fail(&e, out);
        }
        if !self.draft.is_empty() {
            return Flow::Continue; // the outbox is full, and will say when it is not
        }
        let flow = std::mem::take(&mut self.next);
        if flow != Flow::Continue {
            self.channel.end(out);
        }
        flow
    }

    /// TLS cannot go on: the peer is told why, and the session inside that the connection has closed.
    #[cold]
    fn fail(&mut self, error: &Error, out: &mut Outbox<'_>) -> Flow {
        self.channel.alert(out);
        let fault = if self.channel.established { Fault::Record } else { Fault::Handshake };
        self.note(fault, error);
        Flow::Linger
    }

    #[cold]
    fn note(&mut self, fault: Fault, why: &dyn std::fmt::Display) {
        self.shared.counters.count(fault);
        self.plain = Vec::new();
        let Inside::Waiting(peer) = &self.inside else {
            return tracing::debug!(%fault, %why, "TLS ended");
        };
        tracing::debug!(peer = ?peer.addr, %fault, %why, "no TLS connection");
        if let (Origin::Dialled { tag }, Some(to)) = (peer.origin, &self.shared.target) {
            let dial = Dial { thread: Some(peer.thread), ..Dial::to(to).tag(tag) };
            self.shared.service.dial_failed(&dial, &io::Error::other(format!("no TLS connection: {why}")));
        }
        self.inside = Inside::Over;
    }
}

impl<S: Service, C: Side> Session for TlsSession<S, C> {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Some(due) = self.shared.limits.handshake_timeout.and_then(|limit| out.now().checked_add(limit))
        {
            out.wake_at(due);
        }
        self.receive(&[], out) // a client begins
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let flow = self.receive(input, out);
        Consumed::all(input).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut flow = self.pass_on(out);
        if flow == Flow::Continue && self.draft.is_empty() {
            flow = self.call(out, |session, out| session.on_drained(out));
        }
        self.go_on(flow, out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.channel.peer_ended {
            return self.go_on(Flow::Continue, out);
        }
        match &self.inside {
            // A check whether the port is open says nothing, and nothing wrong.
            Inside::Waiting(Peer { origin: Origin::Accepted, .. }) if self.channel.waiting() == 0 => {}
            Inside::Waiting(_) => self.note(Fault::Unfinished, &"the peer left in the handshake"),
            Inside::Open(_) => self.note(Fault::Truncated, &"there was no close_notify"),
            Inside::Over => {}
        }
        self.channel.end(out);
        Flow::Close
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        if matches!((&self.inside, &mail), (Inside::Waiting(_), Mail::Timer)) {
            self.note(Fault::TooLate, &"the handshake took too long");
            return Flow::Abort;
        }
        let flow = self.call(out, |session, out| session.on_mail(mail, out));
        self.go_on(flow, out)
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.plain = Vec::new();
        match &self.inside {
            Inside::Open(_) => self.call(out, |session, out| session.on_input_limit(out)),
            Inside::Waiting(_) | Inside::Over => Flow::Abort,
        }
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        let flow = self.call(out, |session, out| session.on_drain(out));
        self.go_on(flow, out)
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        // What does not fit any more is cut off, and then this end does not say that it ends.
        self.call(out, |session, out| {
            session.on_leave(out);
            Flow::Close
        });
    }

    fn on_close(&mut self, why: CloseReason) {
        match &mut self.inside {
            Inside::Open(session) => session.on_close(why),
            // Whoever dialled waits for an outcome.
            Inside::Waiting(Peer { origin: Origin::Dialled { .. }, .. }) => {
                self.note(Fault::Unfinished, &format_args!("the connection closed in the handshake ({why})"));
            }
            Inside::Waiting(_) | Inside::Over => {}
        }
    }
}
