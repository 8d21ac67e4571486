//! What the loops of `readiness` and `completion` have in common: time, deadlines, commands, and
//! the state of accepting and stopping.

#[cfg(all(test, unix, not(tidegate_loom)))]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate_os::process::exact_sleeps;
use tidegate_os::socket::More;

use super::WorkerContext;
use super::admission::{self, AcceptPause, DialRoom, Quota};
use super::balance::ThreadPlaces;
use super::coalescing::Coalescing;
use super::command_queue::{Accepted, Command};
use super::loop_driver::Pinning;
use super::permits::Permits;
use crate::policy::accept::{Admission, Fullness, admission, admitted};
use crate::policy::pressure::Relief;
use crate::policy::sends::GROUP_QUANTUM;
use crate::policy::{Policy, timeouts, wait};
use crate::proto::dial::DialRequest;
use crate::proto::mail::MailSink;
use crate::proto::panics::Contained;
use crate::proto::{Connection, Context, Resolution, Timers, Timestamp, Token};
use crate::service::{Mail, Origin};

/// The tick of a time limit that is not set.
const NEVER: u64 = u64::MAX;

/// The part of an event loop that is the same whatever it waits with.
pub(in crate::engine) struct LoopState {
    pub(in crate::engine) worker: WorkerContext,
    /// The time of the batch of events that is being worked on.
    pub(in crate::engine) now: Instant,
    timestamp: Timestamp,
    pub(in crate::engine) commands: VecDeque<Command>,
    /// Pieces of mail and dials that this batch may still bring.
    pub(in crate::engine) mail_budget: usize,
    pub(in crate::engine) fired: Vec<u32>,
    timers: Timers,
    /// A deadline that counts from now on is not due before this tick of the timers.
    soonest: u64,
    /// The same for a connection that only its idle timeout applies to.
    soonest_at_rest: u64,
    mail_sink: Arc<dyn MailSink>,
    /// Places that were taken for accepts which are posted.
    posted: usize,
    /// Connections that sessions have dialled, or are dialling. They are counted separately.
    dialled: usize,
    /// Others hand it connections while it has fewer.
    takes: usize,
    pub(in crate::engine) permits: Permits,
    /// What operations in flight may pin.
    pub(in crate::engine) pinning: Pinning,
    /// When there was last something to do.
    active: Instant,
    pause: AcceptPause,
    coalescing: Coalescing,
    /// The last look brought all that it may: there may be more, which has waited already.
    full: bool,
    /// When connections that are still there are reset; set once the thread is asked to stop.
    pub(in crate::engine) stop_at: Option<Instant>,
}

impl LoopState {
    /// The others hand it connections while it has fewer than `takes`.
    pub(in crate::engine) fn new(worker: WorkerContext, takes: usize, now: Instant) -> Self {
        worker.balance.places(worker.index).set_share(worker.share, takes);
        let mut new = Self {
            mail_sink: worker.command_queue.clone(),
            permits: Permits::new(&worker, now),
            pinning: Pinning::Usual,
            active: now,
            worker,
            now,
            timestamp: now.into(),
            commands: VecDeque::new(),
            mail_budget: GROUP_QUANTUM,
            fired: Vec::new(),
            timers: Timers::new(now),
            soonest: 0,
            soonest_at_rest: 0,
            posted: 0,
            dialled: 0,
            takes,
            pause: AcceptPause::default(),
            coalescing: Coalescing::new(Duration::ZERO, now),
            full: false,
            stop_at: None,
        };
        new.set_coalescing();
        new
    }

    fn set_coalescing(&mut self) {
        self.coalescing = Coalescing::new(self.worker.policy.coalesce, self.now);
        if self.coalescing.is_on()
            && let Err(e) = exact_sleeps()
        {
            tracing::warn!(error = %e, "pauses of `coalesce` are up to 50 us longer than asked for");
        }
    }

    /// What a connection needs to know during one event.
    #[inline]
    pub(in crate::engine) fn context(&self, token: Token) -> Context<'_> {
        Context {
            now: self.now,
            timestamp: self.timestamp,
            policy: &self.worker.policy,
            counters: &self.worker.counters,
            mail_sink: &self.mail_sink,
            workers: &*self.worker.blocking_pool,
            token,
        }
    }

    /// Makes sure that the loop wakes up for the connection's next deadline. Follows every event, and so costs next
    /// to nothing while something that fires early enough is armed anyway.
    #[inline]
    pub(in crate::engine) fn arm(&mut self, token: Token, connection: &Connection) {
        let soonest = if connection.only_idles() { self.soonest_at_rest } else { self.soonest };
        let suffices = soonest == NEVER || self.timers.fires_by(token.index, soonest);
        if !suffices || connection.may_be_due_earlier() && !self.is_armed_for(token, connection) {
            self.arm_for(token, connection);
        }
    }

    /// Whether what is armed suffices for a connection that may be due earlier than others.
    #[inline(never)]
    fn is_armed_for(&self, token: Token, connection: &Connection) -> bool {
        let armed = |at| self.timers.fires_by(token.index, self.timers.tick_of(at, Resolution::Tick));
        !connection.needs_arming(armed)
    }

    /// Arms its next deadline, whatever that is.
    #[inline(never)]
    fn arm_for(&mut self, token: Token, connection: &Connection) {
        if let Some(at) = connection.deadline(&self.worker.policy) {
            self.timers.arm_no_later(token.index, at, connection.resolution(at));
        }
    }

    /// Has the loop hand a connection that is being made [`Deadline`](crate::proto::Event::Deadline) then.
    pub(in crate::engine) fn alarm(&mut self, token: Token, at: Option<Instant>) {
        if let Some(at) = at {
            self.timers.arm_no_later(token.index, at, Resolution::Millisecond);
        }
    }

    /// Counts a connection that is established and makes its session, or counts the refusal. `local` finds out the
    /// address of this end.
    pub(in crate::engine) fn admit(
        &mut self,
        addr: Option<SocketAddr>,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<Connection> {
        let WorkerContext { service, counters, index, transports, .. } = &self.worker;
        counters.attempted.add(1);
        let session = admission::open_accepted(&**service, counters, addr, local, *index)?;
        transports.count_option(Origin::Accepted, addr, counters);
        Some(Connection::new(session, Origin::Accepted, self.now))
    }

    /// Makes the connection that was dialled: with the session that was given with the dial, or one of the service.
    pub(in crate::engine) fn admit_dialled(
        &mut self,
        request: &mut DialRequest,
        local: impl FnOnce() -> Option<SocketAddr>,
    ) -> Option<Connection> {
        let WorkerContext { service, counters, index, transports, .. } = &self.worker;
        let session = admission::open_dialled(&**service, counters, request, local, *index)?;
        let origin = Origin::Dialled { tag: request.dial().tag };
        transports.count_option(origin, request.dial().to.addr(), counters);
        Some(Connection::new(session, origin, self.now))
    }

    /// How long the thread may wait for the next event. After this it must [wake up](Self::woke).
    /// `clock` is read if it sleeps: a long batch would make a deadline late.
    pub(in crate::engine) fn rest(
        &self,
        has_more_to_do: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Option<Duration> {
        let spins = || wait::spins(self.worker.policy.wait, self.active, self.now);
        let has_more_to_do = has_more_to_do || !self.commands.is_empty();
        if has_more_to_do || spins() || !self.worker.command_queue.prepare_sleep() {
            return Some(Duration::ZERO);
        }
        self.sleep(clock())
    }

    /// How bytes are sent that a close follows. To leave with the end of the stream they wait for the close, and that
    /// waits for what is in flight: where there are [pauses](Self::coalesce), they would be late by a whole one.
    #[inline]
    pub(in crate::engine) fn before_close(&self) -> More {
        if self.coalescing.is_on() { More::No } else { More::CloseFollows }
    }

    /// Whether a [pause](Self::coalesce) may come next.
    #[inline]
    pub(in crate::engine) fn is_pausing(&self) -> bool {
        self.coalescing.is_pausing()
    }

    /// How long to let events gather before the thread looks for them, if it may [rest](Self::rest) for so long.
    /// `unfinished`: a peer may be waiting for the rest of an answer that was just begun.
    #[inline]
    pub(in crate::engine) fn coalesce(
        &mut self,
        rest: Option<Duration>,
        unfinished: bool,
        clock: impl FnOnce() -> Instant,
    ) -> Duration {
        if !self.coalescing.is_on() || rest == Some(Duration::ZERO) || unfinished || self.full {
            return Duration::ZERO;
        }
        let pause = self.coalescing.pause(clock());
        let pause = rest.map_or(pause, |rest| rest.min(pause));
        let counters = &self.worker.counters;
        counters.pauses.add(u64::from(!pause.is_zero()));
        counters.paused_us.add(pause.as_micros() as u64);
        pause
    }

    /// How long the thread may sleep from `now`; `None` is for ever.
    fn sleep(&self, now: Instant) -> Option<Duration> {
        // Once it has passed, all have been ordered to stop: what is left is on its way back, and asking does not make
        // it faster.
        let stop = self.stop_at.filter(|&at| at > self.now);
        let deadline =
            [self.pause.until(self.now), stop, self.permits.rotation()].into_iter().flatten().min();
        let deadline = deadline.map(|at| at.saturating_duration_since(now));
        deadline.into_iter().chain(self.timers.sleep(now)).min()
    }

    /// The thread has woken up: a new batch of events, and a new time.
    pub(in crate::engine) fn woke(&mut self, now: Instant) {
        self.now = now;
        self.timestamp = now.into();
        self.permits.now = self.now;
        self.look_ahead();
        self.worker.command_queue.woken();
        self.worker.counters.wake_ups.add(1);
    }

    /// Reckons how early a deadline that begins to count now could be.
    fn look_ahead(&mut self) {
        let policy = &self.worker.policy;
        self.soonest = self.tick_after(timeouts::soonest(policy));
        self.soonest_at_rest = policy.idle_timeout.map_or(NEVER, |after| self.tick_after(after));
    }

    fn tick_after(&self, time: Duration) -> u64 {
        let at = self.now.checked_add(time);
        at.map_or(NEVER, |at| self.timers.tick_of(at, Resolution::Millisecond))
    }

    /// Notes how many events the wake-up brought, and of how many connections they are.
    pub(in crate::engine) fn batch(&mut self, events: usize, connections: usize) {
        self.coalescing.looked(self.now, connections);
        self.full = false;
        if events > 0 {
            self.active = self.now;
            self.looked_again(events);
        }
    }

    /// Notes how many events a look brought that was no wake-up.
    pub(in crate::engine) fn looked_again(&mut self, events: usize) {
        self.full |= events >= self.worker.policy.events_per_wait;
        let counters = &self.worker.counters;
        counters.events.add(events as u64);
        counters.largest_batch.at_least(events as u64);
    }

    /// Whether the last batch was as large as one may be, so that there may be more.
    pub(in crate::engine) fn was_full(&self) -> bool {
        self.full
    }

    /// Fills `fired` with the places whose deadline may have passed.
    pub(in crate::engine) fn fire_timers(&mut self) {
        self.timers.advance(self.now, &mut self.fired);
    }

    /// Fills `commands`.
    pub(in crate::engine) fn take_commands(&mut self) {
        self.worker.command_queue.take(&mut self.commands);
    }

    /// Whether there are commands, taken or not. Follows every event.
    #[inline]
    pub(in crate::engine) fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.worker.command_queue.is_waiting()
    }

    /// The next piece of mail, if that is the next command and the batch may still bring one.
    pub(in crate::engine) fn next_mail(&mut self) -> Option<(Token, Contained<Mail>)> {
        let is_mail = matches!(self.commands.front(), Some(Command::Mail(..)));
        let next = if is_mail && self.mail_budget > 0 { self.commands.pop_front() } else { None };
        let Some(Command::Mail(token, mail)) = next else { return None };
        self.mail_budget -= 1;
        Some((token, mail))
    }

    /// Whether accepting rests, because the process ran out of something.
    pub(in crate::engine) fn is_resting(&self) -> bool {
        self.pause.until(self.now).is_some()
    }

    /// Whether the next connection may be accepted now.
    pub(in crate::engine) fn admission(&self) -> Admission {
        if !self.worker.listens || self.stop_at.is_some() || self.is_resting() {
            return Admission::Wait;
        }
        let fullness = Fullness {
            open: self.open(),
            share: self.worker.share,
            total: self.worker.total.load(Relaxed),
            most: self.most(),
        };
        admission(fullness, self.worker.policy.when_full)
    }

    /// Whether a connection that was accepted nevertheless is one too many.
    pub(in crate::engine) fn is_full(&self) -> bool {
        self.worker.total.load(Relaxed) >= self.most()
    }

    /// Connections that all threads may have open, beside those that sessions dial.
    fn most(&self) -> usize {
        admitted(self.worker.policy.max_connections, self.worker.service.options().dials)
    }

    /// Connections for which this thread has room.
    pub(in crate::engine) fn room(&self) -> usize {
        self.worker.share.saturating_sub(self.open())
    }

    /// Connections that this thread has open, is making, or expects.
    fn open(&self) -> usize {
        self.places().open() - self.posted
    }

    /// The places of this thread.
    pub(in crate::engine) fn places(&self) -> &ThreadPlaces {
        self.worker.balance.places(self.worker.index)
    }

    /// Takes a place for an accept that is to be posted.
    pub(in crate::engine) fn claim_posted(&mut self) -> bool {
        let claimed = self.places().claim();
        self.posted += usize::from(claimed);
        claimed
    }

    /// A posted accept has completed, and its place is that of what it brought. `false` if none was claimed for it.
    pub(in crate::engine) fn unpost(&mut self) -> bool {
        let claimed = self.posted > 0;
        self.posted -= usize::from(claimed);
        claimed
    }

    /// A connection was accepted, and has a place here: counts it, and says which other thread is to serve it, if one
    /// is. That one has a place for it, and expects it; the place here is to be [released](ThreadPlaces::release).
    pub(in crate::engine) fn assign(&self) -> Option<usize> {
        self.keep();
        self.worker.balance.assign(self.worker.index)
    }

    /// Counts a connection that is served by the thread that accepted it, where none is handed on.
    pub(in crate::engine) fn keep(&self) {
        self.worker.total.fetch_add(1, Relaxed);
        self.grow();
    }

    /// A connection was counted: where all threads are full now, one more is started.
    fn grow(&self) {
        if let Some(growth) = &self.worker.growth {
            growth.accepted(|| self.worker.total.load(Relaxed), &self.worker.counters);
        }
    }

    /// Has another thread serve a connection that has a place there.
    pub(in crate::engine) fn hand_on(&self, to: usize, accepted: Accepted) {
        if self.worker.balance.command_queue(to).push(Command::Serve(accepted)).is_err() {
            self.lost(1); // the thread has panicked: its connections are gone, and so is this one
        }
    }

    /// So many connections that were counted are gone with the thread that had them.
    fn lost(&self, connections: usize) {
        if connections > 0 {
            let open = self.worker.total.fetch_sub(connections, Relaxed).saturating_sub(connections);
            self.worker.peak.closed(open);
        }
    }

    /// A connection that another thread has accepted is here.
    pub(in crate::engine) fn arrived(&self) {
        self.places().arrived();
    }

    /// A connection could not be handed on.
    pub(in crate::engine) fn take_back(&self, from: usize) {
        self.worker.balance.take_back(self.worker.index, from);
    }

    /// Whether the thread may end: nothing is on its way to it, and nothing will be.
    pub(in crate::engine) fn may_leave(&self) -> bool {
        self.places().leave()
    }

    /// Whether a connection may be dialled now.
    pub(in crate::engine) fn may_dial(&self, request: &DialRequest) -> io::Result<()> {
        let room = DialRoom {
            stopping: self.stop_at.is_some(),
            stopped: self.out_of_time(),
            has_place: self.room() > 0,
            dialled: self.dialled,
            dials: self.worker.dials,
        };
        room.admit(request)
    }

    /// A connection that is dialled takes its place.
    pub(in crate::engine) fn opened(&mut self, quota: Quota) {
        match quota {
            Quota::Dials => self.dialled += 1,
            Quota::Share => {
                self.places().claim_anyway();
                self.keep();
            }
        }
    }

    /// An accepted connection is not served: its place is free again.
    pub(in crate::engine) fn turned_away(&self) {
        self.places().release();
        self.lost(1);
    }

    /// An accept has failed: see [the table](mod@super::admission).
    pub(in crate::engine) fn accept_failed(&mut self, e: &io::Error) {
        self.pause.accept_failed(e, &self.worker.counters, self.now);
    }

    /// What to do about sends and receives that have failed for lack of memory. While they do, accepting pauses.
    pub(in crate::engine) fn look_at_pressure(&mut self) -> Relief {
        let WorkerContext { counters, policy, .. } = &self.worker;
        match self.pause.relieve(|of| of(counters), policy, self.now) {
            Relief::Shed if !self.worker.balance.claim_shed(self.now) => Relief::Shrink,
            relief => relief,
        }
    }

    /// A connection is gone: what accepting rested for may be there again.
    pub(in crate::engine) fn closed(&mut self, token: Token, quota: Quota) {
        self.timers.disarm(token.index);
        match quota {
            Quota::Dials => self.dialled -= 1,
            Quota::Share => self.turned_away(),
        }
        self.pause.end();
    }

    /// Counts a failed dial and answers its request.
    pub(in crate::engine) fn dial_failed(&mut self, request: DialRequest, e: io::Error) {
        admission::dial_failed(&*self.worker.service, &self.worker.counters, request, e);
    }

    /// The loop has ended: dials that were requested meanwhile are answered with an error.
    pub(in crate::engine) fn shut(&mut self) {
        let WorkerContext { command_queue, service, counters, .. } = &self.worker;
        admission::close(command_queue, &mut self.commands, &**service, counters);
    }

    /// Goes on with other limits. All places are free then: connections have to ask for them again.
    pub(in crate::engine) fn set_policy(&mut self, policy: Arc<Policy>) {
        let coalesce = self.worker.policy.coalesce;
        self.worker.set_policy(policy);
        if self.worker.policy.coalesce != coalesce {
            self.set_coalescing();
        }
        self.places().set_share(self.worker.share, self.takes);
        self.permits = Permits::new(&self.worker, self.now);
        // Deadlines that began to count under longer limits may be due any time: arm each anew.
        (self.soonest, self.soonest_at_rest) = (0, 0);
        self.grow(); // who is full accepts nobody that would start the next thread
    }

    /// Notes the order to stop. It came `now`, which may be a long batch after the thread woke up.
    pub(in crate::engine) fn drain(&mut self, now: Instant) {
        self.stop_at.get_or_insert(now + self.worker.policy.drain_timeout);
        if let Some(growth) = &self.worker.growth {
            growth.end();
        }
    }

    /// Whether the time to let connections finish is over.
    pub(in crate::engine) fn out_of_time(&self) -> bool {
        self.stop_at.is_some_and(|at| at <= self.now)
    }
}

impl Drop for LoopState {
    /// However the thread ends, others hand it nothing more. After a panic its connections go with it: the others must
    /// not count them for ever.
    fn drop(&mut self) {
        self.worker.balance.is_gone(self.worker.index);
        let served = self.open().saturating_sub(self.places().expected());
        self.worker.command_queue.close(&mut self.commands);
        let came = self.commands.iter().filter(|command| matches!(command, Command::Serve(_))).count();
        self.lost(served + came);
    }
}
