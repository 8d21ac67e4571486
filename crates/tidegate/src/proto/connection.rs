//! One connection: events in, actions out. The only place that calls a [`Session`].
//!
//! An engine passes in what the kernel reported ([`Event`]) and gets what the connection wants now ([`Action`]). The
//! action is a level, not an edge: whatever an engine has not done yet is wanted again next time, so nothing is lost if
//! an engine defers it.

mod ending;
mod event;
mod input;
mod shortage;
mod splicing;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Instant;

use super::outbox::{Outbox, SessionState};
use super::panics::{Contained, contain};
use super::queue::{FileSending, Pieces, SendQueue, TakeLimits};
use super::rare::RareState;
use super::timers::Resolution;
use super::timestamp::Timestamp;
use crate::policy::Policy;
use crate::policy::sends::FILE_QUANTUM;
use crate::policy::timeouts;
use crate::proto::session::{Mail, Session};
use crate::stats::Counters;
use crate::types::{Activity, CloseReason, Flow, Origin};
pub use event::{Action, Context, Direction, Event, NextStep, Receive};
pub(super) use shortage::Shortage;

/// The state of a connection. (`Accepting` is the engine's: there is no session yet.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    /// Open: the session receives input.
    Open,
    /// Closed by the session: the outbox is still sent, input is discarded.
    Draining { lingering: bool },
    /// The engine must close it; the session has received `on_close`.
    Closing(CloseMode),
}

/// How the engine closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseMode {
    Graceful,
    /// With a reset, so that the peer does not take a truncated answer for a complete one.
    Reset,
}

/// The sending side of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendSide {
    Open,
    /// To be shut down when the outbox is empty.
    Finishing,
    Finished,
}

/// The receiving side of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveSide {
    Open,
    /// The peer has finished; the session has not been notified yet, because input is held back.
    Ending,
    Ended,
}

/// One connection and its session.
pub struct Connection {
    session: Contained<Box<dyn Session>>,
    queue: SendQueue,
    state: ConnectionState,
    send_side: SendSide,
    receive_side: ReceiveSide,
    /// The outbox reached its high watermark and has not fallen to the low one since.
    full: bool,
    /// Accepted, and nothing was received yet.
    silent: bool,
    /// Sending is delayed by the engine, not by the peer.
    held_back: bool,
    /// Something was received after the drain began: the peer has sent its last request.
    spoke: bool,
    moved: Timestamp,
    taken: Timestamp,
    state_of_session: SessionState,
}

// A thread has tens of thousands that rest. What few of them have goes into `RareState`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Connection>() <= 80);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection established at `now`. The first event must be [`Event::Opened`].
    pub fn new(session: Box<dyn Session>, origin: Origin, now: Instant) -> Self {
        let now = now.into();
        Self {
            session: Contained::new(session),
            queue: SendQueue::default(),
            state: ConnectionState::Open,
            send_side: SendSide::Open,
            receive_side: ReceiveSide::Open,
            full: false,
            silent: origin == Origin::Accepted,
            held_back: false,
            spoke: false,
            moved: now,
            taken: now,
            state_of_session: SessionState::default(),
        }
    }

    /// Handles an event and returns what the connection wants now.
    #[inline]
    pub fn handle(&mut self, event: Event<'_>, context: &Context<'_>) -> Action {
        count(&event, context.counters);
        if !matches!(self.state, ConnectionState::Closing(_)) {
            let moved = ByteCounts::by(&event);
            self.take_in(event, context);
            if self.rare().shortage.is_some() && moved.is_something() {
                self.recovers(context);
            }
            if context.policy.min_rate.is_some() || self.rare().pace.is_some() {
                self.keep_pace(moved, context);
            }
            self.settle(context);
        } else if let Event::Sent(n) = event {
            self.queue.confirm(n);
        }
        self.action()
    }

    /// The pieces to send, for engines that send without copying; see [`SendQueue::slices`].
    #[inline]
    pub fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// The same, for callers that write or [take](SendQueue::take_all) them.
    #[inline]
    pub(crate) fn queue_mut(&mut self) -> &mut SendQueue {
        &mut self.queue
    }

    /// Pieces to send that the caller owns until [`Event::Sent`]; see [`SendQueue::take`].
    #[inline]
    pub fn take_pieces(&mut self, most: TakeLimits, files: FileSending) -> Pieces {
        self.queue.take(most, files)
    }

    /// If a part of a file is next, reads some of it into memory. For engines that cannot send from files. If it fails,
    /// the caller passes [`Event::Failed`].
    ///
    /// # Errors
    /// The file cannot be read, or has become shorter.
    pub fn load_file(&mut self) -> io::Result<()> {
        self.queue.load(FILE_QUANTUM)
    }

    /// Sets whether it must wait before it may send; meanwhile the send timeout does not run.
    #[inline]
    pub fn hold_back(&mut self, held_back: bool, now: Instant) {
        if std::mem::replace(&mut self.held_back, held_back) && !held_back {
            self.taken = now.into();
        }
    }

    /// Whether it was last marked as waiting.
    #[inline]
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.held_back
    }

    /// The action the connection wants now.
    #[inline]
    #[must_use]
    pub fn action(&self) -> Action {
        let then = match self.state {
            ConnectionState::Closing(CloseMode::Graceful) => NextStep::Close,
            ConnectionState::Closing(CloseMode::Reset) => NextStep::Reset,
            ConnectionState::Draining { lingering: false } => NextStep::CloseAfterSend,
            _ if self.send_side == SendSide::Finishing
                && self.queue.is_empty()
                && !self.is_short(Direction::Send) =>
            {
                NextStep::FinishSending
            }
            _ => NextStep::Nothing,
        };
        let listens = match self.state {
            ConnectionState::Open => {
                !self.is_held_by_outbox() && !self.waits_for_work() && self.rare().again.is_none()
            }
            ConnectionState::Draining { lingering } => lingering,
            ConnectionState::Closing(_) => false,
        };
        let listens = listens && self.receive_side == ReceiveSide::Open && !self.is_short(Direction::Receive);
        let receive = if listens { Receive::Post } else { Receive::Pause };
        let sends = !matches!(self.state, ConnectionState::Closing(_)) && !self.is_short(Direction::Send);
        let send = self.queue.has_unsent() && sends;
        Action { receive, send, then }
    }

    /// When [`Event::Deadline`] is due, if ever.
    #[inline]
    #[must_use]
    pub fn deadline(&self, policy: &Policy) -> Option<Instant> {
        let limit = self.limit(policy).map(|(at, _)| at);
        match (limit, self.own_deadline()) {
            (Some(limit), Some(own)) => Some(limit.min(own)),
            (limit, own) => limit.or(own),
        }
    }

    /// The resolution of its [`deadline`](Self::deadline): the session's timers are exact to one tick.
    #[inline]
    #[must_use]
    pub fn resolution(&self, deadline: Instant) -> Resolution {
        if self.own_deadline() == Some(deadline) { Resolution::Tick } else { Resolution::Millisecond }
    }

    /// The first of the session's timers, of its next turn, and of the retry of an operation that failed for lack of
    /// memory.
    #[inline]
    fn own_deadline(&self) -> Option<Instant> {
        let timer = self.state_of_session.next_timer();
        match self.rare() {
            RareState { again: None, shortage: None, .. } => timer,
            rare => [timer, rare.again, self.retry_at()].into_iter().flatten().min(),
        }
    }

    /// Whether its next deadline may be earlier than [`timeouts::soonest`] says, and is not `armed`: the session has
    /// set a timer, it lingers, or a drain waits for its last request.
    #[must_use]
    pub(crate) fn needs_arming(&self, armed: impl FnOnce(Instant) -> bool) -> bool {
        self.is_leaving() || self.own_deadline().is_some_and(|at| !armed(at))
    }

    /// Whether its next deadline may be earlier than [`timeouts::soonest`] says, armed or not.
    #[inline]
    #[must_use]
    pub(crate) fn may_be_due_earlier(&self) -> bool {
        self.is_leaving() || self.own_deadline().is_some()
    }

    /// Whether it lingers, or a drain waits for its last request.
    #[inline]
    fn is_leaving(&self) -> bool {
        self.state_of_session.leaving || self.state == ConnectionState::Draining { lingering: true }
    }

    /// Whether no time limit but the idle timeout can apply, as long as it has no deadline that [needs
    /// arming](Self::needs_arming).
    #[inline]
    #[must_use]
    pub fn only_idles(&self) -> bool {
        !self.silent && self.queue.is_empty() && self.rare().pace.is_none()
    }

    /// Updates the minimum-rate accounting: which sides are pending, and the bytes transferred.
    #[cold]
    fn keep_pace(&mut self, moved: ByteCounts, context: &Context<'_>) {
        let Some(rate) = context.policy.min_rate else {
            self.rare_mut().pace = None; // the limit was taken out meanwhile
            return;
        };
        let in_message = match self.state_of_session.awaits {
            Activity::Nothing => self.left() > 0,
            Activity::Input => true,
            Activity::Answer | Activity::Work => false, // the delay is not the peer's
        };
        let receives = self.state == ConnectionState::Open
            && !self.is_held_by_outbox() // this end does not read
            && self.rare().again.is_none()
            && self.receive_side == ReceiveSide::Open
            && !self.is_short(Direction::Receive)
            && in_message;
        let sends = !self.queue.is_empty() && !self.held_back && !self.is_short(Direction::Send);
        if !receives && !sends {
            if self.rare().pace.is_some() {
                self.rare_mut().pace = None;
            }
            return;
        }
        let pace = self.rare_mut().pace.get_or_insert_default();
        pace.receive = receives.then(|| rate.due(pace.receive, moved.received, context.now));
        pace.send = sends.then(|| rate.due(pace.send, moved.sent, context.now));
    }

    fn limit(&self, policy: &Policy) -> Option<(Instant, CloseReason)> {
        match self.state {
            ConnectionState::Closing(_) => return None,
            ConnectionState::Draining { lingering: true } if self.queue.is_empty() => {
                return Some((self.moved() + policy.linger_timeout, CloseReason::Finished));
            }
            _ if self.retry_at().is_some() => return None, // neither end can make progress
            _ => {}
        }
        let last_word = self
            .rare()
            .last_word
            .filter(|_| self.waits_for_last_word())
            .map(|at| (at, CloseReason::Finished));
        let taken = (!self.queue.is_empty() && !self.held_back).then(|| self.taken.into());
        let pace = policy.min_rate.and(self.rare().pace.as_deref().copied()).unwrap_or_default();
        let past = timeouts::Past { silent: self.silent, moved: self.moved(), taken, pace };
        let limit = timeouts::limit(policy, past);
        [limit, last_word].into_iter().flatten().min_by_key(|&(at, _)| at)
    }

    #[inline]
    fn take_in(&mut self, event: Event<'_>, context: &Context<'_>) {
        match event {
            Event::Received(bytes) => self.received(bytes, context),
            Event::Spliced(spliced) => self.spliced(spliced, context),
            Event::Sent(n) => self.sent(n, context),
            Event::Opened => {
                context.counters.accepted.add(1);
                self.call(context, |session, out| session.on_open(out));
            }
            // Each of several receives says that the peer has ended.
            Event::PeerEnded if self.receive_side != ReceiveSide::Open => {}
            Event::PeerEnded => {
                self.receive_side = ReceiveSide::Ending;
                self.deliver_end(context);
            }
            Event::SendFinished => self.send_side = SendSide::Finished,
            // A file became shorter: the peer must not take a truncated response for a complete one.
            Event::Failed(kind @ io::ErrorKind::UnexpectedEof) => {
                self.reset(CloseReason::of(kind), context);
            }
            Event::Failed(kind) => self.close(CloseReason::of(kind), context),
            Event::OutOfMemory(direction) => self.runs_short(direction, context),
            Event::Shed if self.rests() => self.close(CloseReason::NoMemory, context),
            Event::Shed => self.reset(CloseReason::NoMemory, context),
            Event::Mail(mail) => self.mail(mail, context),
            Event::Deadline => self.expired(context),
            Event::Drain => self.begin_to_leave(context),
            // A connection that only waits for a last request is not reset.
            Event::Stop if self.rests() => self.close(CloseReason::Finished, context),
            Event::Stop => self.reset(CloseReason::Stopped, context),
        }
    }

    /// Calls the session with an outbox and applies the result.
    #[inline]
    fn call(&mut self, context: &Context<'_>, f: impl FnOnce(&mut dyn Session, &mut Outbox<'_>) -> Flow) {
        let was_empty = self.queue.is_empty();
        let mut out = Outbox {
            queue: &mut self.queue,
            ahead: 0,
            layer: 0,
            state_of_session: &mut self.state_of_session,
            context,
        };
        let Some(flow) = contain(|| f(&mut **self.session, &mut out)) else {
            return self.reset(CloseReason::Panicked, context);
        };
        if was_empty {
            self.taken = context.timestamp; // the send timeout starts when there is something to send
        }
        self.full |= self.queue.len() >= context.policy.outbox.high;
        self.follow(flow, context);
        let kept = self.kept();
        if kept > 0 {
            // Input held back by the outbox is delivered next, and counted after that.
            self.check_kept(kept, context);
        }
    }

    #[inline]
    fn follow(&mut self, flow: Flow, context: &Context<'_>) {
        match flow {
            Flow::Continue => {}
            Flow::Shutdown if self.send_side == SendSide::Open => self.send_side = SendSide::Finishing,
            Flow::Shutdown => {}
            Flow::Close => self.state = ConnectionState::Draining { lingering: false },
            Flow::Linger => self.linger(context),
            Flow::Abort => self.reset(CloseReason::Aborted, context),
        }
    }

    fn mail(&mut self, mail: Contained<Mail>, context: &Context<'_>) {
        if matches!(*mail, Mail::Done(_) | Mail::JobPanicked | Mail::Dialled(_)) {
            self.rare_mut().jobs = self.rare().jobs.saturating_sub(1);
        }
        if let (Mail::Wake, Some(waker)) = (&*mail, &self.rare().waker) {
            waker.arrived();
        }
        self.show_mail(mail, context);
    }

    fn show_mail(&mut self, mail: Contained<Mail>, context: &Context<'_>) {
        if self.state == ConnectionState::Open {
            self.call_at_work(context, |session, out| session.on_mail(mail.into_inner(), out));
        }
    }

    /// Calls the session with an event that may end its work. If it does, delivers the input held back meanwhile.
    fn call_at_work(
        &mut self,
        context: &Context<'_>,
        f: impl FnOnce(&mut dyn Session, &mut Outbox<'_>) -> Flow,
    ) {
        let waited = self.waits_for_work() || self.receive_side == ReceiveSide::Ending;
        self.call(context, f);
        if waited && self.state_of_session.awaits != Activity::Work {
            self.show_held(context);
            self.deliver_end(context);
        }
    }

    #[inline]
    fn sent(&mut self, n: usize, context: &Context<'_>) {
        self.queue.confirm(n);
        self.moved = context.timestamp;
        self.taken = self.moved;
        if self.full && self.queue.len() <= context.policy.outbox.low {
            self.drained(context);
        }
    }

    fn drained(&mut self, context: &Context<'_>) {
        self.full = false;
        if self.state == ConnectionState::Open {
            self.call(context, |session, out| session.on_drained(out));
        }
        self.show_held(context);
        self.deliver_end(context);
    }

    /// Whether it is between two messages, with nothing left to send.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.state == ConnectionState::Open && self.queue.is_empty() && !self.is_busy()
    }

    /// Time of the last traffic.
    #[must_use]
    pub fn moved(&self) -> Instant {
        self.moved.into()
    }

    /// Whether received input is discarded.
    #[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
    pub(crate) fn is_lingering(&self) -> bool {
        self.state == ConnectionState::Draining { lingering: true }
    }

    /// The outbox is full, and input is held back for that reason.
    fn is_held_by_outbox(&self) -> bool {
        self.full && !self.state_of_session.takes_input_while_full
    }

    /// The session is in the middle of something.
    fn is_busy(&self) -> bool {
        self.left() > 0 || self.state_of_session.awaits != Activity::Nothing || self.rare().jobs > 0
    }

    /// Bytes of input left unconsumed by the session, or by the session inside a layer.
    fn left(&self) -> usize {
        self.rare().input.len() + self.kept()
    }

    fn kept(&self) -> usize {
        self.rare().kept.iter().sum()
    }

    #[inline]
    fn rare(&self) -> &RareState {
        self.state_of_session.rare()
    }

    #[inline]
    fn rare_mut(&mut self) -> &mut RareState {
        self.state_of_session.rare_mut()
    }

    /// Drops the input that was kept.
    fn drop_input(&mut self) {
        if let Some(rare) = &mut self.state_of_session.rare {
            rare.input = Vec::new();
        }
    }
}

/// The number of bytes of an event.
#[derive(Clone, Copy, Default)]
struct ByteCounts {
    received: usize,
    sent: usize,
}

impl ByteCounts {
    fn is_something(self) -> bool {
        self.received + self.sent > 0
    }

    #[inline]
    fn by(event: &Event<'_>) -> Self {
        match event {
            Event::Received(bytes) => Self { received: bytes.len(), sent: 0 },
            Event::Spliced(spliced) => Self { received: spliced.len(), sent: 0 },
            Event::Sent(n) => Self { received: 0, sent: *n },
            _ => Self::default(),
        }
    }
}

/// Bytes are always counted, including those in flight when the connection ended.
#[inline]
fn count(event: &Event<'_>, counters: &Counters) {
    match event {
        Event::Received(bytes) => {
            counters.receives.add(1);
            counters.bytes_in.add(bytes.len() as u64);
        }
        Event::Spliced(spliced) => {
            counters.receives.add(1);
            counters.bytes_in.add(spliced.len() as u64);
        }
        Event::Sent(n) => {
            counters.sends.add(1);
            counters.bytes_out.add(*n as u64);
        }
        Event::OutOfMemory(_) => counters.no_memory.add(1),
        _ => {}
    }
}
