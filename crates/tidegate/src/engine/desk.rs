//! What the loops of `readiness` and `completion` have in common: time, deadlines, commands, and
//! the state of accepting and stopping.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_sys::socket::is_exhaustion;

use super::{Command, Lane};
use crate::core::mail::PostOffice;
use crate::core::{Connection, Context, Event, Timers, Token};
use crate::policy::accept::{Admission, EXHAUSTION_PAUSE, admission};
use crate::policy::stale;
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
    pub(super) open: usize,
    /// Accepting rests until then: the process ran out of descriptors or memory.
    rest_until: Option<Instant>,
    /// When connections that are still there are reset; set once the thread is told to stop.
    pub(super) stop_at: Option<Instant>,
}

impl<S: Service> Desk<S> {
    pub(super) fn new(lane: Lane<S>) -> Self {
        let now = Instant::now();
        Self {
            office: lane.gate.clone(),
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
            token,
        }
    }

    /// Makes sure that the loop wakes up for the connection's next deadline. Follows every event, and so costs next
    /// to nothing while something that fires early enough is armed anyway.
    #[inline]
    pub(super) fn arm(&mut self, token: Token, connection: &Connection<S::Session>) {
        if !connection.wakes() && self.timers.fires_by(token.index, self.soonest) {
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
        match self.lane.service.open(&peer) {
            Ok(session) => Some(Connection::new(session, origin, self.now)),
            Err(_) => {
                self.lane.counters.refused.add(1);
                None
            }
        }
    }

    /// How long the thread may sleep; `None` is for ever.
    pub(super) fn sleep(&self) -> Option<Duration> {
        let deadline = [self.rest_until, self.stop_at].into_iter().flatten().min();
        let deadline = deadline.map(|at| at.saturating_duration_since(self.now));
        match (deadline, self.timers.sleep(self.now)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The thread has woken up: a new batch of events, and a new time.
    pub(super) fn woke(&mut self) {
        self.now = Instant::now();
        let soonest = self.now.checked_add(stale::soonest(&self.lane.policy));
        self.soonest = soonest.map_or(u64::MAX, |at| self.timers.tick_of(at));
        self.rest_until = self.rest_until.filter(|&at| at > self.now);
        self.lane.gate.woken();
        self.lane.counters.wake_ups.add(1);
    }

    /// Notes how many events the wake-up brought.
    pub(super) fn batch(&self, events: usize) {
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

    /// May the next connection come in now?
    pub(super) fn admission(&self) -> Admission {
        let resting = self.rest_until.is_some_and(|at| at > self.now);
        if self.lane.listener.is_none() || self.stop_at.is_some() || resting {
            return Admission::Wait;
        }
        admission(self.open, self.lane.share, self.lane.policy.when_full)
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
        self.rest_until = None;
    }

    /// Counts a failed dial and tells the service.
    pub(super) fn dial_failed(&mut self, dial: Dial, e: &io::Error) {
        self.lane.counters.dial_failed.add(1);
        self.lane.service.dial_failed(&dial, e);
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

/// What an event loop does between its events, the same whatever it waits with.
pub(super) trait Rounds<S: Service> {
    fn desk(&mut self) -> &mut Desk<S>;
    /// The token of a place in the table that is taken.
    fn token_at(&self, index: u32) -> Option<Token>;
    /// Tells a connection something, and does what follows.
    fn tell(&mut self, token: Token, event: Event<'_>);
    /// Tells every connection; dials that are under way are given up.
    fn tell_all(&mut self, event: fn() -> Event<'static>);
    /// Begins to make a connection.
    fn begin_dial(&mut self, dial: Dial) -> io::Result<()>;

    /// Carries out what other threads have asked for.
    fn look_at_commands(&mut self) {
        self.desk().take_commands();
        while let Some(command) = self.desk().commands.pop_front() {
            match command {
                Command::Mail(token, mail) => self.tell(token, Event::Mail(mail)),
                Command::Dial(dial) => self.dial(dial),
                Command::Drain => {
                    self.desk().drain();
                    self.tell_all(|| Event::Drain);
                }
            }
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
        let begun = match desk.stop_at.is_some() || desk.open >= desk.lane.share {
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
