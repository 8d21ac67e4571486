//! What the loops of `readiness` and `completion` have in common: time, deadlines, commands, and
//! the state of accepting and stopping.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate_sys::socket::is_exhaustion;

use super::{Command, Lane};
use crate::core::mail::PostOffice;
use crate::core::{Connection, Context, Event, Place, Timers, Token, Window};
use crate::policy::accept::{Admission, EXHAUSTION_PAUSE, Fullness, admission};
use crate::policy::sends::WINDOW_TURN;
use crate::policy::{Policy, stale, wait};
use crate::service::{Dial, Origin, Peer, Service};

/// The part of an event loop that is the same whatever it waits with.
pub(super) struct Desk<S: Service> {
    pub(super) lane: Lane<S>,
    /// The time of the batch of events that is being worked on.
    pub(super) now: Instant,
    pub(super) commands: VecDeque<Command>,
    pub(super) fired: Vec<u32>,
    timers: Timers,
    /// A deadline that counts from now on is not due before this tick of the timers.
    soonest: u64,
    office: Arc<dyn PostOffice>,
    /// Connections that this thread has open, or is making.
    open: usize,
    pub(super) windows: Windows,
    /// When there was last something to do.
    active: Instant,
    /// Accepting rests until then: the process ran out of descriptors or memory.
    rest_until: Option<Instant>,
    /// When connections that are still there are reset; set once the thread is told to stop.
    pub(super) stop_at: Option<Instant>,
}

impl<S: Service> Desk<S> {
    pub(super) fn new(lane: Lane<S>, now: Instant) -> Self {
        Self {
            office: lane.gate.clone(),
            windows: Windows::new(&lane, now),
            active: now,
            lane,
            now,
            commands: VecDeque::new(),
            fired: Vec::new(),
            timers: Timers::new(now),
            soonest: 0,
            open: 0,
            rest_until: None,
            stop_at: None,
        }
    }

    /// What a connection needs to know during one event.
    #[inline]
    pub(super) fn context(&self, token: Token) -> Context<'_> {
        Context {
            now: self.now,
            policy: &self.lane.policy,
            counters: &self.lane.counters,
            office: &self.office,
            workers: &*self.lane.crew,
            token,
        }
    }

    /// Makes sure that the loop wakes up for the connection's next deadline. Follows every event, and so costs next
    /// to nothing while something that fires early enough is armed anyway.
    #[inline]
    pub(super) fn arm(&mut self, token: Token, connection: &Connection<S::Session>) {
        if !connection.has_own_deadline() && self.timers.fires_by(token.index, self.soonest) {
            return;
        }
        if let Some(at) = connection.deadline(&self.lane.policy) {
            self.timers.arm_no_later(token.index, at);
        }
    }

    pub(super) fn disarm(&mut self, token: Token) {
        self.timers.disarm(token.index);
    }

    /// Makes the session of a connection that stands, or counts the refusal.
    pub(super) fn admit(
        &mut self,
        addr: Option<std::net::SocketAddr>,
        origin: Origin,
    ) -> Option<Connection<S::Session>> {
        let peer = Peer { addr, origin, thread: self.lane.index };
        let session = open_session(&*self.lane.service, &peer);
        if session.is_none() {
            self.lane.counters.refused.add(1);
        }
        session.map(|session| Connection::new(session, origin, self.now))
    }

    /// How long the thread may wait for the next event. After this it must [wake up](Self::woke).
    pub(super) fn rest(&self, has_more_to_do: bool) -> Option<Duration> {
        let spins = || wait::spins(self.lane.policy.wait, self.active, self.now);
        if has_more_to_do || spins() || !self.lane.gate.prepare_sleep() {
            return Some(Duration::ZERO);
        }
        self.sleep()
    }

    /// How long the thread may sleep; `None` is for ever.
    fn sleep(&self) -> Option<Duration> {
        // Once it has passed, all were told to stop: what is left is on its way back, and asking does not make it faster.
        let stop = self.stop_at.filter(|&at| at > self.now);
        let deadline = [self.rest_until, stop, self.windows.rotation()].into_iter().flatten().min();
        let deadline = deadline.map(|at| at.saturating_duration_since(self.now));
        match (deadline, self.timers.sleep(self.now)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The thread has woken up: a new batch of events, and a new time.
    pub(super) fn woke(&mut self, now: Instant) {
        self.now = now;
        self.windows.now = self.now;
        self.look_ahead();
        self.rest_until = self.rest_until.filter(|&at| at > self.now);
        self.lane.gate.woken();
        self.lane.counters.wake_ups.add(1);
    }

    /// Reckons how early a deadline that begins to count now could be.
    fn look_ahead(&mut self) {
        let soonest = self.now.checked_add(stale::soonest(&self.lane.policy));
        self.soonest = soonest.map_or(u64::MAX, |at| self.timers.tick_of(at));
    }

    /// Notes how many events the wake-up brought.
    pub(super) fn batch(&mut self, events: usize) {
        if events == 0 {
            return;
        }
        self.active = self.now;
        let counters = &self.lane.counters;
        counters.events.add(events as u64);
        counters.largest_batch.at_least(events as u64);
    }

    /// Fills `fired` with the places whose deadline may have come.
    pub(super) fn fire_timers(&mut self) {
        self.timers.advance(self.now, &mut self.fired);
    }

    /// Fills `commands`.
    pub(super) fn take_commands(&mut self) {
        self.lane.gate.take(&mut self.commands);
    }

    /// Whether accepting rests, because the process ran out of something.
    pub(super) fn is_resting(&self) -> bool {
        self.rest_until.is_some_and(|at| at > self.now)
    }

    /// May the next connection come in now?
    pub(super) fn admission(&self) -> Admission {
        if !self.lane.listens || self.stop_at.is_some() || self.is_resting() {
            return Admission::Wait;
        }
        let fullness = Fullness {
            open: self.open,
            share: self.lane.share,
            total: self.lane.total.load(Relaxed),
            most: self.lane.policy.max_connections,
        };
        admission(fullness, self.lane.policy.when_full)
    }

    /// Whether a connection that came in nevertheless is one too many.
    pub(super) fn is_full(&self) -> bool {
        self.lane.total.load(Relaxed) >= self.lane.policy.max_connections
    }

    /// Connections for which this thread has room.
    pub(super) fn room(&self) -> usize {
        self.lane.share.saturating_sub(self.open)
    }

    /// A connection takes its place among those that are open.
    pub(super) fn opened(&mut self) {
        self.open += 1;
        self.lane.total.fetch_add(1, Relaxed);
    }

    /// Counts a failed accept and, if the process ran out of something, lets accepting rest.
    pub(super) fn accept_failed(&mut self, e: &io::Error) {
        self.lane.counters.attempted.add(1);
        if is_exhaustion(e) {
            self.exhausted(e);
            self.rest_until = Some(self.now + EXHAUSTION_PAUSE);
        } else if !tidegate_sys::socket::is_lost_connection(e) {
            tracing::warn!(error = %e, "accept failed; trying again shortly");
            self.rest_until = Some(self.now + EXHAUSTION_PAUSE);
        }
    }

    /// Counts an exhaustion by kind.
    pub(super) fn exhausted(&self, e: &io::Error) {
        if tidegate_sys::socket::is_out_of_descriptors(e) {
            self.lane.counters.no_descriptors.add(1);
        } else {
            self.lane.counters.no_buffers.add(1);
        }
    }

    /// A connection is gone: what accepting rested for may be there again.
    pub(super) fn closed(&mut self, token: Token) {
        self.disarm(token);
        self.open -= 1;
        self.lane.total.fetch_sub(1, Relaxed);
        self.rest_until = None;
    }

    /// Counts a failed dial and tells the service.
    pub(super) fn dial_failed(&mut self, dial: Dial, e: &io::Error) {
        self.lane.counters.dial_failed.add(1);
        self.lane.service.dial_failed(&dial, e);
    }

    /// The loop has ended: whoever asked for a connection meanwhile is told that there will be none.
    pub(super) fn shut(&mut self) {
        self.lane.gate.close(&mut self.commands);
        while let Some(command) = self.commands.pop_front() {
            if let Command::Dial(dial) = command {
                self.lane.counters.attempted.add(1);
                self.dial_failed(dial, &io::Error::other("the client has stopped"));
            }
        }
    }

    /// Goes on with other limits. All places are free then: connections have to ask for them again.
    fn set_policy(&mut self, policy: Arc<Policy>) {
        self.lane.set_policy(policy);
        self.windows = Windows::new(&self.lane, self.now);
        self.soonest = 0; // deadlines that began to count under longer limits may be due any time: arm each anew
    }

    /// Notes the order to stop.
    pub(super) fn drain(&mut self) {
        self.stop_at.get_or_insert(self.now + self.lane.policy.drain_timeout);
    }

    /// Whether the time to let connections finish is over.
    pub(super) fn out_of_patience(&self) -> bool {
        self.stop_at.is_some_and(|at| at <= self.now)
    }
}

/// The places that connections of one thread share.
pub(super) struct Windows {
    /// For sends that the kernel has not finished with.
    sends: Window,
    /// For connections that may receive.
    receives: Window,
    /// Who has a place to receive, and since when.
    inside: VecDeque<(Token, Instant)>,
    now: Instant,
}

/// The places that one connection has.
#[derive(Debug, Default)]
pub(super) struct Seats {
    send: Place,
    receive: Place,
    /// It has received something since it got its place.
    pub(super) served: bool,
}

impl Windows {
    fn new<S: Service>(lane: &Lane<S>, now: Instant) -> Self {
        Self {
            sends: Window::new(lane.policy.outstanding_sends.map(|n| lane.share_of(n.get() as usize))),
            receives: Window::new(lane.policy.window.map(|n| lane.share_of(n.get()))),
            inside: VecDeque::new(),
            now,
        }
    }

    /// Whether the connection may have a send outstanding; if not, it is told when it may.
    #[inline]
    pub(super) fn may_send(&mut self, token: Token, seats: &mut Seats) -> bool {
        self.sends.enter(token, &mut seats.send)
    }

    /// Whether it may begin a send that the kernel might not finish with at once.
    #[inline]
    pub(super) fn could_send(&self, seats: &Seats) -> bool {
        self.sends.has_room_for(seats.send)
    }

    /// The time of this batch.
    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Whether there is a bound on anything.
    #[inline]
    pub(super) fn are_bounded(&self) -> bool {
        self.sends.is_bounded() || self.receives.is_bounded()
    }

    /// Its send is no longer outstanding.
    #[inline]
    pub(super) fn sent(&mut self, seats: &mut Seats) {
        self.sends.leave(&mut seats.send);
    }

    /// Whether the connection may receive; if not, it is told when it may.
    #[inline]
    pub(super) fn may_receive(&mut self, token: Token, seats: &mut Seats) -> bool {
        let was = seats.receive;
        let may = self.receives.enter(token, &mut seats.receive);
        if seats.receive != was && may {
            self.seat(token, seats);
        }
        may
    }

    fn seat(&mut self, token: Token, seats: &mut Seats) {
        seats.served = false;
        self.inside.push_back((token, self.now));
    }

    /// The connection is gone.
    #[inline]
    pub(super) fn leave(&mut self, seats: &mut Seats) {
        self.sends.leave(&mut seats.send);
        self.receives.leave(&mut seats.receive);
    }

    /// When somebody may have to make room for somebody who waits.
    fn rotation(&self) -> Option<Instant> {
        let longest = self.inside.front().filter(|_| self.receives.is_wanted());
        longest.map(|(_, since)| *since + WINDOW_TURN)
    }
}

/// Asks the service for a session. A service that panics refuses the connection, and does no more harm.
pub(super) fn open_session<S: Service>(service: &S, peer: &Peer) -> Option<S::Session> {
    catch_unwind(AssertUnwindSafe(|| service.open(peer))).ok()?.ok()
}

/// What an event loop does between its events, the same whatever it waits with.
pub(super) trait Rounds<S: Service> {
    fn desk(&mut self) -> &mut Desk<S>;
    /// The token of a place in the table that is taken.
    fn token_at(&self, index: u32) -> Option<Token>;
    /// All connections, and those that are being made.
    fn tokens(&self) -> Vec<Token>;
    /// Tells a connection something, and does what follows.
    fn tell(&mut self, token: Token, event: Event<'_>);
    /// Tells every connection; dials that are under way are given up.
    fn tell_all(&mut self, event: fn() -> Event<'static>);
    /// A connection's places, and whether it is between two messages.
    fn seats(&mut self, token: Token) -> Option<(&mut Desk<S>, &mut Seats, bool)>;
    /// A connection got a place it has waited for.
    fn resume(&mut self, token: Token);
    /// A connection has to wait before it may receive again.
    fn step_back(&mut self, token: Token);
    /// Begins to make a connection.
    fn begin_dial(&mut self, dial: Dial) -> io::Result<()>;

    /// Gives places that have become free to those who wait for them.
    fn give_places(&mut self) {
        while let Some(token) = self.desk().windows.sends.pop_next() {
            if let Some((desk, seats, _)) = self.seats(token)
                && desk.windows.sends.admit(&mut seats.send)
            {
                self.resume(token);
            }
        }
        if self.desk().windows.receives.is_wanted() {
            self.rotate();
        }
        while let Some(token) = self.desk().windows.receives.pop_next() {
            if let Some((desk, seats, _)) = self.seats(token)
                && desk.windows.receives.admit(&mut seats.receive)
            {
                desk.windows.seat(token, seats);
                self.resume(token);
            }
        }
    }

    /// Has those step back who are between two messages and have had their turn.
    fn rotate(&mut self) {
        for _ in 0..self.desk().windows.inside.len() {
            let Some((token, since)) = self.desk().windows.inside.pop_front() else { return };
            let Some((desk, seats, rests)) = self.seats(token) else { continue };
            if seats.receive != Place::Inside {
                continue;
            }
            let over = since + WINDOW_TURN <= desk.now;
            if rests && (seats.served || over) {
                desk.windows.receives.leave(&mut seats.receive);
                desk.windows.receives.enter(token, &mut seats.receive); // at the end of the queue
                self.step_back(token);
            } else {
                let since = if over { desk.now } else { since };
                desk.windows.inside.push_back((token, since));
            }
        }
    }

    /// Carries out what other threads have asked for.
    fn look_at_commands(&mut self) {
        self.desk().take_commands();
        while let Some(command) = self.desk().commands.pop_front() {
            match command {
                Command::Mail(token, mail) => self.tell(token, Event::Mail(mail)),
                Command::Dial(dial) => self.dial(dial),
                Command::Policy(policy) => self.change_policy(policy),
                Command::Drain => {
                    self.desk().drain();
                    self.tell_all(|| Event::Drain);
                }
            }
        }
    }

    /// Goes on with other limits; every connection looks at them, and queues for its places anew.
    fn change_policy(&mut self, policy: Arc<Policy>) {
        self.desk().set_policy(policy);
        for token in self.tokens() {
            if let Some((_, seats, _)) = self.seats(token) {
                *seats = Seats::default();
            }
            self.tell(token, Event::Deadline);
            self.step_back(token);
            self.resume(token);
        }
    }

    /// Tells connections whose deadline may have come; and all of them when the time to finish is over.
    fn look_at_timers(&mut self) {
        self.desk().fire_timers();
        while let Some(index) = self.desk().fired.pop() {
            if let Some(token) = self.token_at(index) {
                self.tell(token, Event::Deadline);
            }
        }
        if self.desk().out_of_patience() {
            self.tell_all(|| Event::Stop);
        }
    }

    /// Makes a connection, or says why not.
    fn dial(&mut self, dial: Dial) {
        let desk = self.desk();
        desk.lane.counters.attempted.add(1);
        let begun = match desk.stop_at.is_some() || desk.room() == 0 {
            true => Err(io::Error::other("max_connections are open, or the client is stopping")),
            false => self.begin_dial(dial),
        };
        if let Err(e) = begun {
            if is_exhaustion(&e) {
                self.desk().exhausted(&e);
            }
            self.desk().dial_failed(dial, &e);
        }
    }
}

/// What the simulation looks at between turns: what a connection wants, and what was done about it.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct View {
    pub(super) deadline: Option<Instant>,
    /// `None` while it is being made.
    pub(super) action: Option<crate::core::Action>,
    /// It will be looked at again without a cause from outside.
    pub(super) listed: bool,
    /// An operation is in flight, or may be done as soon as the socket is ready.
    pub(super) receives: bool,
    pub(super) sends: bool,
    pub(super) finishes: bool,
    pub(super) receive_place: Place,
    pub(super) send_place: Place,
}

#[cfg(test)]
impl View {
    pub(super) fn new<S: crate::service::Session>(
        connection: Option<&Connection<S>>,
        seats: &Seats,
        policy: &crate::policy::Policy,
    ) -> Self {
        Self {
            deadline: connection.and_then(|connection| connection.deadline(policy)),
            action: connection.map(Connection::action),
            listed: false,
            receives: false,
            sends: false,
            finishes: false,
            receive_place: seats.receive,
            send_place: seats.send,
        }
    }
}
