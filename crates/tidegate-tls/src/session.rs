//! One connection: the handshake, then the inner session.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::Error;
use tidegate::policy::{Limit, Limited};
use tidegate::{
    Activity, CloseReason, Consumed, Dial, Endpoint, Flow, LayerBuffer, Mail, Origin, Outbox, Peer, Policy,
    PolicyError, Service, Session,
};

use crate::channel::{Channel, TlsSide};
use crate::fault::{Fault, TlsCounters};

/// Maximum size of a record: a header of five bytes, and 2^14 bytes with 2,048 of protection (RFC 5246, section 6.2.3).
/// The minimum [`Policy::input_bytes`] for TLS.
pub const RECORD_BYTES: usize = 5 + (1 << 14) + 2048;

tidegate::limits! {
/// Limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsLimits, as "tls." of TlsLimits, at |limits| Some(limits);
    parts {}

    /// From when the connection is established. `None` waits forever.
    handshake_timeout: Option<Duration> = Some(Duration::from_secs(10)) => {
        what: "Time limit of a TLS handshake, or none; then the connection is reset",
        cost: "slow clients are disconnected",
        option: "tls-handshake-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: BY_THE_SERVICE,
        with: Some("tls_cert"),
    }
}

impl Limited for TlsLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl TlsLimits {
    /// Checks the limits, also against the policy of the service; `bind` does the same.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        if policy.input_bytes < RECORD_BYTES {
            let must = format!("at least {RECORD_BYTES}: an incomplete TLS record is unconsumed input");
            return Err(PolicyError::Range {
                name: "input_bytes",
                value: policy.input_bytes.to_string(),
                must,
            });
        }
        self.check_under(policy)
    }
}

/// State shared by all connections of one service.
pub(crate) struct TlsShared<S> {
    pub(crate) service: Arc<S>,
    pub(crate) limits: TlsLimits,
    pub(crate) counters: Arc<TlsCounters>,
    /// The destination of dialled connections, used to report failed ones.
    pub(crate) target: Option<Endpoint>,
}

impl<S> TlsShared<S> {
    pub(crate) fn new(service: S, target: Option<Endpoint>) -> Self {
        Self { service: Arc::new(service), limits: TlsLimits::default(), counters: Arc::default(), target }
    }
}

/// For a setter while connections share it, which keep theirs.
impl<S> Clone for TlsShared<S> {
    fn clone(&self) -> Self {
        let (service, counters) = (self.service.clone(), self.counters.clone());
        Self { service, limits: self.limits, counters, target: self.target.clone() }
    }
}

/// One connection that is encrypted.
pub struct TlsSession<S: Service, C> {
    channel: Channel<C>,
    inside: Inside<S>,
    shared: Arc<TlsShared<S>>,
    /// Input left by the inner session. Owns no memory while empty.
    plain: Vec<u8>,
    /// The inner session was notified of the peer's end.
    reported_end: bool,
    /// The peer's stream broke off, or was changed: to the inner session it did not end in order.
    broken: bool,
    /// Output of the inner session that did not fit the outbox, and the flow that follows it.
    plaintext: LayerBuffer,
    next: Flow,
}

impl<S: Service, C> std::fmt::Debug for TlsSession<S, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSession").finish_non_exhaustive()
    }
}

enum Inside<S: Service> {
    /// In the handshake.
    Waiting(Peer),
    /// Established.
    Open(S::Session),
    /// The inner session was not created, and will not be.
    Over,
}

fn goes_on(flow: Flow) -> bool {
    matches!(flow, Flow::Continue | Flow::Shutdown)
}

/// Combines the results of two calls.
fn then(first: Flow, second: Flow) -> Flow {
    if second == Flow::Continue { first } else { second }
}

impl<S: Service, C: TlsSide> TlsSession<S, C> {
    pub(crate) fn new(connection: C, peer: Peer, shared: Arc<TlsShared<S>>) -> Self {
        let (channel, inside) = (Channel::new(connection), Inside::Waiting(peer));
        Self {
            channel,
            inside,
            shared,
            plain: Vec::new(),
            reported_end: false,
            broken: false,
            plaintext: LayerBuffer::default(),
            next: Flow::Continue,
        }
    }

    /// Handles received bytes and delivers the plaintext to the inner session.
    fn receive(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Flow {
        let left = self.plain.len();
        let outcome = self.channel.receive(input, &mut self.plain, out);
        let flow = match outcome {
            Err(e) => self.fail(&e, out),
            Ok(()) if !self.channel.established => {
                out.set_activity(if input.is_empty() { Activity::Nothing } else { Activity::Input });
                Flow::Continue
            }
            Ok(()) => self.open(out),
        };
        self.deliver(left, flow, out)
    }

    /// The handshake is complete: opens the inner session, unless it is open.
    fn open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let Inside::Waiting(peer) = &self.inside else { return Flow::Continue };
        out.wake_never();
        out.set_activity(Activity::Nothing);
        self.shared.counters.count_handshake(self.channel.is_resumed());
        let peer = peer.clone().with_tls(Arc::new(self.channel.agreed()));
        let Ok(session) = self.shared.service.open(&peer) else {
            self.inside = Inside::Over;
            self.channel.end(out);
            return Flow::Close;
        };
        self.inside = Inside::Open(session);
        let flow = self.call(out, |session, out| session.on_open(out));
        if goes_on(flow) && out.is_draining() {
            return then(flow, self.call(out, |session, out| session.on_drain(out))); // it missed the call
        }
        flow
    }

    /// Delivers what the inner session has left, if it takes that now, and the end of the stream.
    fn go_on(&mut self, flow: Flow, out: &mut Outbox<'_>) -> Flow {
        self.deliver(self.plain.len(), flow, out)
    }

    /// Delivers plaintext, of which the inner session has seen and left so many bytes, and the end of the stream. What
    /// it has left while at work waits until that is done, and the end behind it.
    fn deliver(&mut self, left: usize, mut flow: Flow, out: &mut Outbox<'_>) -> Flow {
        let waits = |left, out: &Outbox<'_>| out.holds_input() || left > 0 && out.is_at_work();
        if goes_on(flow) && !self.plain.is_empty() && !waits(left, out) {
            flow = then(flow, self.show(out));
        }
        let all_shown = self.plain.is_empty() || !waits(self.plain.len(), out);
        if goes_on(flow) && self.channel.peer_ended && all_shown && !self.reported_end {
            self.reported_end = true;
            self.plain = Vec::new();
            flow = then(flow, self.call(out, |session, out| session.on_end(out)));
        }
        if goes_on(flow) && self.reported_end && self.channel.ended {
            flow = Flow::Close; // both ends have sent close_notify
        }
        // Each is bounded by itself: a message may end in a record that has not come whole.
        out.set_buffered(self.plain.len().max(self.channel.waiting()));
        flow
    }

    /// Delivers decrypted bytes to the inner session, repeatedly if it asks for that: at most what one receive
    /// produced.
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
            let waits = out.holds_input() || out.is_at_work();
            if !consumed.again || n == 0 || n == rest.len() || !goes_on(flow) || waits {
                break;
            }
        }
        if used < plain.len() {
            plain.drain(..used);
            self.plain = plain;
        }
        flow
    }

    /// Calls the inner session, encrypts its output, and returns the flow.
    fn call(
        &mut self,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut S::Session, &mut Outbox<'_>) -> Flow,
    ) -> Flow {
        let Inside::Open(session) = &mut self.inside else { return Flow::Continue };
        let flow = f(session, &mut out.layered(&mut self.plaintext));
        if flow == Flow::Abort {
            return flow;
        }
        self.next = then(self.next, flow);
        self.pass_on(out)
    }

    /// Encrypts the output of the inner session, as far as there is room, and returns its flow when all is encrypted.
    fn pass_on(&mut self, out: &mut Outbox<'_>) -> Flow {
        if let Err(e) = self.channel.send(&mut self.plaintext, out) {
            self.plaintext.clear();
            return self.fail(&e, out);
        }
        if !self.plaintext.is_empty() {
            return Flow::Continue; // the outbox is full; `on_drained` follows
        }
        let flow = std::mem::take(&mut self.next);
        if flow != Flow::Continue {
            self.channel.end(out);
        }
        flow
    }

    /// A TLS error: sends an alert to the peer, and closes the inner session.
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
        // Who has had everything may leave as it likes.
        (self.plain, self.broken) = (Vec::new(), fault != Fault::Truncated || !self.channel.ended);
        let Inside::Waiting(peer) = &self.inside else {
            return tracing::debug!(%fault, %why, "TLS ended");
        };
        tracing::debug!(peer = ?peer.addr, %fault, %why, "no TLS connection");
        if let (Origin::Dialled { tag }, Some(to)) = (peer.origin, &self.shared.target) {
            let dial = Dial::to(to).tag(tag).thread(peer.thread);
            self.shared.service.dial_failed(&dial, &io::Error::other(format!("no TLS connection: {why}")));
        }
        self.inside = Inside::Over;
    }
}

impl<S: Service, C: TlsSide> Session for TlsSession<S, C> {
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
        if flow == Flow::Continue && self.plaintext.is_empty() {
            flow = self.call(out, |session, out| session.on_drained(out));
        }
        self.go_on(flow, out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.channel.peer_ended {
            return self.go_on(Flow::Continue, out);
        }
        match &self.inside {
            // A port check sends nothing and is not an error.
            Inside::Waiting(Peer { origin: Origin::Accepted, .. }) if self.channel.waiting() == 0 => {}
            Inside::Waiting(_) => {
                self.note(Fault::Unfinished, &"the peer closed the connection during the handshake")
            }
            Inside::Open(_) => self.note(Fault::Truncated, &"there was no close_notify"),
            Inside::Over => {}
        }
        // What there is of an answer is sent; unless the session has said that this is all, the peer must not take it
        // so.
        self.channel.ends_silently = self.next == Flow::Continue;
        self.next = Flow::Close;
        self.pass_on(out)
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
        // Output that does not fit is dropped, and then no `close_notify` is sent.
        self.call(out, |session, out| {
            session.on_leave(out);
            Flow::Close
        });
    }

    fn on_close(&mut self, why: CloseReason) {
        match &mut self.inside {
            Inside::Open(session) if self.broken && why == CloseReason::Finished => {
                session.on_close(CloseReason::Error);
            }
            Inside::Open(session) => session.on_close(why),
            // The dialler waits for a result.
            Inside::Waiting(Peer { origin: Origin::Dialled { .. }, .. }) => {
                self.note(
                    Fault::Unfinished,
                    &format_args!("the connection closed during the handshake ({why})"),
                );
            }
            Inside::Waiting(_) | Inside::Over => {}
        }
    }
}
