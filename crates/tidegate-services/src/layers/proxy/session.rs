//! One connection: a header, then the inner session.

use std::sync::Arc;

use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Peer, Service, Session, Spliced};

use super::header::{self, HeaderClient, HeaderParse};
use super::{HeaderFault, ProxyProtocolShared};

/// One connection that begins with a header. Keeps none of its input.
pub struct ProxyHeaderSession<S: Service>(ProxyHeaderState<S>);

impl<S: Service> std::fmt::Debug for ProxyHeaderSession<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyHeaderSession").finish_non_exhaustive()
    }
}

enum ProxyHeaderState<S: Service> {
    /// Waiting for the header.
    Waiting(Waiting<S>),
    /// After the header: all input goes to the session.
    Open(S::Session),
    /// The inner session was not created, and will not be.
    Over,
}

/// The header is not complete.
struct Waiting<S> {
    shared: Arc<ProxyProtocolShared<S>>,
    peer: Peer,
    /// The header has begun, and its timer runs.
    begun: bool,
}

impl<S: Service> ProxyHeaderSession<S> {
    pub(super) fn waiting(shared: Arc<ProxyProtocolShared<S>>, peer: Peer) -> Self {
        Self(ProxyHeaderState::Waiting(Waiting { shared, peer, begun: false }))
    }

    pub(super) fn opened(session: S::Session) -> Self {
        Self(ProxyHeaderState::Open(session))
    }

    #[cold]
    fn fail(&mut self, fault: HeaderFault) {
        if let ProxyHeaderState::Waiting(waiting) = &self.0 {
            waiting.shared.faults.count(fault);
            tracing::debug!(peer = ?waiting.peer.addr, %fault, "no usable PROXY protocol header");
        }
        self.0 = ProxyHeaderState::Over;
    }

    /// The connection ended before its header was complete.
    #[cold]
    fn on_header(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let ProxyHeaderState::Waiting(waiting) = &mut self.0 else { return Consumed::all(input) };
        match header::read(input, waiting.shared.limits.header_bytes) {
            Ok(HeaderParse::Part) => {
                waiting.begin(out);
                Consumed::bytes(0)
            }
            Ok(HeaderParse::Whole(bytes, client)) => self.open(client, bytes, input, out),
            Err(fault) => {
                self.fail(fault);
                Consumed::all(input).then(Flow::Abort)
            }
        }
    }

    /// Opens the inner session and passes it what follows the `header` bytes at the front of `input`.
    fn open(&mut self, client: HeaderClient, header: usize, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let ProxyHeaderState::Waiting(waiting) = &mut self.0 else { return Consumed::all(input) };
        if waiting.begun {
            out.wake_never();
        }
        let peer = match client {
            HeaderClient::Behind(ends) => {
                let (addr, local_addr) = ends.unzip();
                waiting.peer.clone().with_addr(addr).with_local_addr(local_addr)
            }
            HeaderClient::Socket => waiting.peer.clone(),
        };
        tracing::debug!(client = ?peer.addr, proxy = ?waiting.peer.addr, "a connection through a proxy");
        let Ok(mut session) = waiting.shared.service.open(&peer) else {
            self.0 = ProxyHeaderState::Over;
            return Consumed::all(input).then(Flow::Close);
        };
        let mut flow = session.on_open(out);
        if goes_on(flow) && out.is_draining() {
            flow = then(flow, session.on_drain(out)); // it missed the call
        }
        let rest = input.get(header..).unwrap_or_default();
        // Input held back because the outbox is full is passed when it has drained, as without a layer.
        let looks = goes_on(flow) && !rest.is_empty() && !out.holds_input();
        let used = if looks { session.on_bytes(rest, out) } else { Consumed::bytes(0) };
        self.0 = ProxyHeaderState::Open(session);
        used.plus(header).then(then(flow, used.flow))
    }
}

fn goes_on(flow: Flow) -> bool {
    matches!(flow, Flow::Continue | Flow::Shutdown)
}

/// Combines the results of two calls.
fn then(first: Flow, second: Flow) -> Flow {
    if second == Flow::Continue { first } else { second }
}

impl<S: Service> Waiting<S> {
    /// The header is incomplete: starts its timer.
    fn begin(&mut self, out: &mut Outbox<'_>) {
        let due = self.shared.limits.header_timeout.and_then(|limit| out.now().checked_add(limit));
        if let Some(due) = due.filter(|_| !self.begun) {
            out.wake_at(due);
        }
        self.begun = true;
    }
}

impl<S: Service> Session for ProxyHeaderSession<S> {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_open(out), // a connection this end dialled
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => Flow::Continue,
        }
    }

    #[inline]
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_bytes(input, out),
            _ => self.on_header(input, out),
        }
    }

    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_spliced(bytes, out),
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => Err(bytes),
        }
    }

    #[inline]
    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_drained(out),
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => Flow::Continue,
        }
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => return session.on_end(out),
            ProxyHeaderState::Waiting(waiting) if waiting.begun => self.fail(HeaderFault::Truncated),
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => {}
        }
        Flow::Close
    }

    #[inline]
    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match (&mut self.0, mail) {
            (ProxyHeaderState::Open(session), mail) => session.on_mail(mail, out),
            (ProxyHeaderState::Waiting(waiting), Mail::Timer) if waiting.begun => {
                self.fail(HeaderFault::TooLate);
                Flow::Abort
            }
            _ => Flow::Continue,
        }
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_input_limit(out),
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => Flow::Abort,
        }
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        match &mut self.0 {
            ProxyHeaderState::Open(session) => session.on_drain(out),
            ProxyHeaderState::Waiting(_) | ProxyHeaderState::Over => Flow::Continue,
        }
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        if let ProxyHeaderState::Open(session) = &mut self.0 {
            session.on_leave(out);
        }
    }

    fn on_close(&mut self, why: CloseReason) {
        if let ProxyHeaderState::Open(session) = &mut self.0 {
            session.on_close(why);
        }
    }
}
