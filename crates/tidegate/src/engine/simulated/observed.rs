//! Around a service, whosever it is: notes what its sessions are shown and say, and holds the loop against it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::script::Acts;
use super::socket::id_of;
use super::world::{World, with};
use crate::policy::{Policy, PolicyError};
use crate::proto::dial::DialRequest;
use crate::proto::erased::ErasedService;
use crate::service::{
    CloseReason, Consumed, Dial, Flow, Mail, Outbox, Peer, Refusal, Service, ServiceOptions, Session,
};

/// How exact deadlines are.
pub(super) const TICK: Duration = Duration::from_millis(1);

/// A service, and what its sessions are held against.
struct Observed<S> {
    service: S,
    options: ServiceOptions,
}

/// Puts observers around the sessions of a service, and around those of connections that they dial.
pub(super) fn observe(service: impl Service) -> Arc<dyn ErasedService> {
    Arc::new(Observed { options: service.options(), service })
}

impl<S: Service> ErasedService for Observed<S> {
    fn open_erased(&self, peer: &Peer) -> Result<Box<dyn Session>, Refusal> {
        let id = id_of(peer.addr.ok_or(Refusal)?);
        let addr = peer.addr.filter(|_| self.options.peer_addr);
        let session = Box::new(self.service.open(&peer.clone().with_addr(addr))?);
        with(|world| world.expected.sessions += 1);
        Ok(Box::new(ObservedSession { id, session }))
    }

    /// The address says which connection it is.
    fn options(&self) -> ServiceOptions {
        self.options.peer_addr(true)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.service.check_limits(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        with(|world| world.expected.dial_failures += 1);
        self.service.dial_failed(dial, error);
    }

    fn observe_dial(&self, request: DialRequest) -> DialRequest {
        request.wrap_session(|asker, dial, session| {
            let id = with(|world| world.take_dial(asker, dial));
            Box::new(ObservedSession { id, session })
        })
    }
}

/// A session, and the number of its connection.
struct ObservedSession {
    id: usize,
    session: Box<dyn Session>,
}

impl Session for ObservedSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            let now = world.now;
            world.count_open(self.id);
            let log = &mut world.sockets[self.id].log;
            log.token = Some(out.address().token);
            (log.moved, log.took) = (Some(now), Some(now));
            if log.opened.replace(now).is_some() {
                world.fail(|| format!("session {} is opened twice", self.id));
            }
        });
        self.call("on_open", out, |session, out| session.on_open(out))
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let id = self.id;
        let mut consumed = Consumed::bytes(0);
        with(|world| world.sockets[id].log.wants_look = false);
        self.call("on_bytes", out, |session, out| {
            with(|world| world.check_input(id, input));
            consumed = session.on_bytes(input, out);
            consumed.bytes = consumed.bytes.min(input.len());
            with(|world| {
                let log = &mut world.sockets[id].log;
                log.consumed += consumed.bytes as u64;
                log.lingers = consumed.flow == Flow::Close && consumed.bytes < input.len();
            });
            consumed.flow
        });
        consumed
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            if out.queued() > world.policy.outbox.low && !world.switched {
                world.fail(|| "on_drained above the low mark".into());
            }
            world.sockets[self.id].log.filled = false;
        });
        self.call("on_drained", out, |session, out| session.on_drained(out))
    }

    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.call("on_input_limit", out, |session, out| match session.on_input_limit(out) {
            Flow::Close | Flow::Linger => Flow::Linger,
            _ => Flow::Abort,
        })
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| world.check_end_of_input(self.id));
        self.call("on_end", out, |session, out| session.on_end(out))
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            world.mail_shown += usize::from(!matches!(mail, Mail::Timer | Mail::KeyedTimer(_)));
            world.moved = true;
        });
        self.call("on_mail", out, |session, out| session.on_mail(mail, out))
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        with(|world| {
            let stops = world.drained_at.is_some() && out.is_draining();
            let before = std::mem::replace(&mut world.sockets[self.id].log.drained, true);
            if before || !stops {
                world.fail(|| format!("session {} is notified of a stop twice, or without one", self.id));
            }
        });
        self.call("on_drain", out, |session, out| session.on_drain(out))
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        self.call("on_leave", out, |session, out| {
            session.on_leave(out);
            Flow::Continue
        });
        with(|world| {
            let log = &mut world.sockets[self.id].log;
            if !std::mem::replace(&mut log.drained, true) || std::mem::replace(&mut log.left, true) {
                world.fail(|| format!("session {} leaves without having been notified of a stop", self.id));
            }
        });
    }

    fn on_close(&mut self, why: CloseReason) {
        with(|world| {
            world.note(|| format!("  {} on_close {why}", self.id));
            world.moved = true;
            *world.live_of(self.id) -= 1;
            let log = &mut world.sockets[self.id].log;
            let (opened, before) = (log.opened, log.closed.replace(why));
            if opened.is_none() || before.is_some() {
                world.fail(|| format!("session {} is closed by {why}, and was by {before:?}", self.id));
            }
            world.check_reason(self.id, why);
        });
        self.session.on_close(why);
    }
}

impl Drop for ObservedSession {
    fn drop(&mut self) {
        with(|world| {
            let log = &mut world.sockets[self.id].log;
            let never_closed = log.opened.is_some() && log.closed.is_none();
            if std::mem::replace(&mut log.dropped, true) || never_closed {
                world.fail(|| format!("session {} is gone without on_close", self.id));
            }
        });
    }
}

impl ObservedSession {
    /// What holds before and after each call.
    fn call(
        &mut self,
        name: &str,
        out: &mut Outbox<'_>,
        f: impl FnOnce(&mut dyn Session, &mut Outbox<'_>) -> Flow,
    ) -> Flow {
        let id = self.id;
        let (queued, now) = (out.queued() as u64, out.now());
        let was_empty = with(|world| {
            let queued_by_now = |world: &World| world.sockets[id].log.written - world.sockets[id].confirmed;
            while queued != queued_by_now(world) && world.take_next().is_some() {}
            let socket = &world.sockets[id];
            let log = &socket.log;
            let open = log.opened.is_some() && log.closed.is_none();
            let going = matches!(log.flow, Flow::Continue | Flow::Shutdown) && !log.left;
            if !open || !going {
                let flow = log.flow;
                world.fail(|| format!("session {id}: {name} after {flow:?}"));
                return true;
            }
            let expected = log.written - socket.confirmed;
            if queued != expected || now != world.now {
                world.fail(|| format!("session {id}: {queued} bytes are queued, and {expected} should be"));
            }
            expected == 0
        });
        let flow = f(&mut *self.session, out);
        with(|world| {
            let now = world.now;
            world.note(|| format!("  {id} {name}: {flow:?}, {} queued", out.queued()));
            let socket = &mut world.sockets[id];
            if socket.given.is_some() {
                socket.log.written = socket.confirmed + out.queued() as u64;
            }
            let log = &mut socket.log;
            log.filled |= out.is_full();
            if was_empty {
                log.took = Some(now);
            }
            if log.flow != Flow::Shutdown || flow != Flow::Continue {
                log.flow = flow;
            }
            if flow == Flow::Linger || log.lingers {
                log.moved = Some(now);
            }
        });
        flow
    }
}

impl World {
    fn check_input(&mut self, id: usize, input: &[u8]) {
        let end = self.sockets[id].log.consumed + input.len() as u64;
        while self.sockets[id].delivered < end && self.take_next().is_some() {}
        let socket = &self.sockets[id];
        let (from, known) = (socket.log.consumed, socket.delivered);
        let right = socket.is_said(from, input);
        if !right || from + input.len() as u64 != known || input.is_empty() {
            let to = from + input.len() as u64;
            self.fail(|| format!("session {id}: was shown {from}..{to}, and {known} came in"));
        }
        self.sockets[id].log.shown = known;
        let policy = &self.policy;
        // What was left, and what the kernel could have received before the loop stopped it.
        let most = policy.input_bytes + (policy.buffers.next_power_of_two() + 1) * policy.buffer_bytes;
        if input.len() > most && !self.switched {
            self.fail(|| format!("shown {} of at most {most} bytes", input.len()));
        }
    }

    fn check_end_of_input(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        let (arrived, shown, consumed) = (socket.arrived, socket.log.shown, socket.log.consumed);
        let twice = std::mem::replace(&mut socket.log.ended, true);
        // What it left for the time of its work, it has to be shown before.
        let too_early = matches!(socket.part.acts, Acts::Works { .. }) && consumed != shown;
        if twice
            || !socket.end_seen
            || arrived != shown
            || too_early
            || socket.broken_before_its_end().is_some()
        {
            self.fail(|| format!("session {id}: on_end after {consumed} of {shown} of {arrived} bytes"));
        }
    }

    /// Whether a connection may be closed for this reason now, and is not too late.
    fn check_reason(&mut self, id: usize, why: CloseReason) {
        let (now, policy) = (self.now, self.policy.clone());
        let is_empty = |world: &Self| world.sockets[id].log.written == world.sockets[id].confirmed;
        while why == CloseReason::Finished && !is_empty(self) && self.take_next().is_some() {}
        let socket = &self.sockets[id];
        let log = &socket.log;
        let timed = |since: Option<Instant>, after: Option<Duration>| {
            // Who was kept waiting for memory is given the whole time anew once it has some.
            let in_time = |limit| socket.starved.is_some() || now <= limit + TICK + self.slack;
            since.zip(after).is_some_and(|(since, after)| now >= since + after && in_time(since + after))
        };
        let lingers = log.flow == Flow::Linger || log.lingers;
        let empty = is_empty(self);
        let both_ended = socket.finished && socket.end_seen;
        let right = match why {
            CloseReason::FirstByteTimeout => !log.has_received && timed(log.moved, policy.first_byte_timeout),
            CloseReason::IdleTimeout => timed(log.moved, policy.idle_timeout),
            // Who has to wait for a place to send is given the whole time once it has one.
            CloseReason::SendTimeout if policy.outstanding_sends.is_some() => {
                !empty && log.took.zip(policy.send_timeout).is_some_and(|(took, after)| now >= took + after)
            }
            CloseReason::SendTimeout => !empty && timed(log.took, policy.send_timeout),
            CloseReason::MinRate => policy
                .min_rate
                .is_some_and(|rate| log.opened.is_some_and(|opened| now >= opened + rate.grace)),
            CloseReason::Finished if lingers => {
                empty && (both_ended || timed(log.moved, Some(policy.linger_timeout)))
            }
            CloseReason::Finished => {
                let leaving = self.drained_at.is_some();
                empty && (log.flow == Flow::Close || both_ended || leaving)
            }
            CloseReason::Aborted => log.flow == Flow::Abort,
            CloseReason::Panicked => matches!(socket.part.acts, Acts::Panics { .. }),
            CloseReason::InputLimit if socket.given.is_some() => true, // a layer may keep some of it
            CloseReason::InputLimit => socket.delivered - log.consumed > policy.input_bytes as u64,
            CloseReason::Stopped => self.drained_at.is_some_and(|at| now >= at + policy.drain_timeout),
            CloseReason::NoMemory => self.may_shed(),
            CloseReason::Reset | CloseReason::Error => socket.broken.is_some() || log.unwatched,
        };
        if !right && !self.switched {
            let text = format!("session {id} is closed by {why}, without cause or too late: {log:?}");
            self.fail(|| text);
        }
    }
}
