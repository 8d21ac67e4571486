//! What an event loop does between its events, the same whatever it waits with: commands, timers, places.

#[cfg(all(test, unix, not(tidegate_loom)))]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::admission::Quota;
use super::command_queue::{Accepted, Command};
use super::loop_state::LoopState;
use super::permits::ConnectionPermits;
use super::threads::rest_after_failed_wait;
use crate::policy::Policy;
use crate::policy::pressure::{Candidate, Relief, victims};
use crate::policy::sends::{EVENT_QUANTUM, GROUP_QUANTUM, RECEIVE_QUANTUM};
use crate::proto::dial::DialRequest;
use crate::proto::{Connection, Event, PermitState, Table, Token};

/// A connection of a loop, or the attempt to make one.
pub(in crate::engine) enum Phase {
    Dialling(Box<DialRequest>),
    Open(Connection),
}

impl Phase {
    /// The connection, once it is established.
    pub(in crate::engine) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Open(connection) => Some(connection),
            Self::Dialling(_) => None,
        }
    }

    /// What a new connection counts for.
    pub(in crate::engine) fn quota(&self) -> Quota {
        match self {
            Self::Open(_) => Quota::Share,
            Self::Dialling(request) => Quota::of(request),
        }
    }
}

/// How much memory operations in flight may pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Pinning {
    #[default]
    Usual,
    /// As little as can be, because the kernel lacks memory.
    Least,
}

/// What every loop knows of a connection.
pub(in crate::engine) trait LoopEntry {
    fn phase(&mut self) -> &mut Phase;
    fn permits(&mut self) -> &mut ConnectionPermits;
}

/// What an event loop does between its events, the same whatever it waits with.
pub(in crate::engine) trait LoopDriver {
    type Entry: LoopEntry;
    /// What it waits for, for the log.
    const WAITS_FOR: &str;

    /// Runs it until it was asked to stop and its connections are gone.
    fn run(&mut self) {
        while !self.is_over() {
            if let Err(e) = self.turn() {
                rest_after_failed_wait(Self::WAITS_FOR, &e);
            }
        }
        self.shut();
    }
    /// Whether it was asked to stop, and its connections are gone.
    fn is_over(&self) -> bool;
    /// Waits once, and does what follows.
    fn turn(&mut self) -> io::Result<()>;
    /// What it does at its end.
    fn shut(&mut self) {
        self.loop_state().shut();
    }
    /// Other limits hold from now on: what the loop has reckoned from them is reckoned anew.
    fn limits_have_changed(&mut self) {}
    /// Its state, and all its connections.
    fn parts(&mut self) -> (&mut LoopState, &mut Table<Self::Entry>);
    /// Hands an event to a connection, and does what follows.
    fn dispatch(&mut self, token: Token, event: Event<'_>);
    /// Removes a connection; returns what it was. `None` also if it is removed only later.
    fn take(&mut self, token: Token) -> Option<Phase>;
    /// A connection got a place it has waited for.
    fn resume(&mut self, token: Token);
    /// A connection has no place to receive any more. It gets one when there is something for it, and its turn.
    fn step_back(&mut self, token: Token);
    /// Accepts the connections that the kernel has already opened, closes the listener, since later ones would not be
    /// served, and asks every connection to finish.
    fn begin_to_stop(&mut self);
    /// How much memory that which is asked of the kernel may pin.
    fn set_pinning(&mut self, pinning: Pinning) {
        let _ = pinning;
    }
    /// Begins to make a connection.
    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)>;

    /// Serves a connection that another thread has accepted.
    fn take_in(&mut self, accepted: Accepted);

    fn loop_state(&mut self) -> &mut LoopState {
        self.parts().0
    }

    /// All connections, and those that are being made.
    fn tokens(&mut self) -> Vec<Token> {
        self.parts().1.tokens()
    }

    /// Hands an event to every connection. Dials that are under way are given up, but those of sessions only by a stop.
    fn broadcast(&mut self, event: fn() -> Event<'static>) {
        for token in self.tokens() {
            match self.parts().1.get_mut(token).map(LoopEntry::phase) {
                Some(Phase::Open(_)) => self.dispatch(token, event()),
                Some(Phase::Dialling(request))
                    if !request.is_by_session() || matches!(event(), Event::Stop) =>
                {
                    self.fail_dial(token, io::Error::other("the client is stopping"));
                }
                _ => {}
            }
        }
    }

    /// A connection is being made: it takes its place, and has its deadlines.
    fn begun(
        &mut self,
        request: DialRequest,
        handshake_timeout: Option<Duration>,
        entry: impl FnOnce(Phase) -> Self::Entry,
    ) -> Token {
        let (loop_state, table) = self.parts();
        let deadline = request.deadline();
        loop_state.opened(Quota::of(&request));
        let token = table.insert(entry(Phase::Dialling(Box::new(request))));
        loop_state.alarm(token, handshake_timeout.map(|timeout| loop_state.now + timeout));
        loop_state.alarm(token, deadline);
        token
    }

    /// Gives up a connection attempt.
    fn fail_dial(&mut self, token: Token, e: io::Error) {
        if let Some(Phase::Dialling(request)) = self.take(token) {
            self.loop_state().dial_failed(*request, e);
        }
    }

    /// A connection that was dialled is established.
    fn establish(&mut self, token: Token, connection: Connection) {
        let Some(entry) = self.parts().1.get_mut(token) else { return };
        let was = std::mem::replace(entry.phase(), Phase::Open(connection));
        self.dispatch(token, Event::Opened);
        if let Phase::Dialling(request) = was {
            request.connected();
        }
        self.catch_up(token);
    }

    /// A connection that is new has missed the order to stop, if that was given.
    fn catch_up(&mut self, token: Token) {
        if self.loop_state().stop_at.is_some() {
            self.dispatch(token, Event::Drain);
        }
    }

    /// Gives places that have become free to those who wait for them.
    fn give_places(&mut self) {
        while let Some(token) = self.loop_state().permits.sends.pop_next() {
            let (loop_state, table) = self.parts();
            if let Some(entry) = table.get_mut(token)
                && loop_state.permits.sends.admit(&mut entry.permits().send)
            {
                self.resume(token);
            }
        }
        if self.loop_state().permits.need_rotation() {
            self.rotate();
        }
        while let Some(token) = self.loop_state().permits.receives.pop_next() {
            let (loop_state, table) = self.parts();
            if let Some(entry) = table.get_mut(token)
                && loop_state.permits.receives.admit(&mut entry.permits().receive)
            {
                loop_state.permits.grant(token, entry.permits());
                self.resume(token);
            }
        }
    }

    /// Has as many step back as others wait: of those who can, who have had their places for longest. That is at once
    /// who is between two messages and has looked for what there was, and everybody after a time.
    fn rotate(&mut self) {
        for _ in 0..self.loop_state().permits.inside.len() {
            let (loop_state, table) = self.parts();
            let (now, permits) = (loop_state.now, &mut loop_state.permits);
            let Some((token, since)) = permits.inside.pop_front() else { return };
            let Some(entry) = table.get_mut(token) else { continue };
            let rests = entry.phase().connection().is_some_and(Connection::rests);
            let own = entry.permits();
            if own.receive != PermitState::Inside {
                continue;
            }
            let is_done = rests && !own.due || since + RECEIVE_QUANTUM <= now;
            if is_done && permits.receives.lacks_room() {
                permits.receives.leave(&mut own.receive);
                self.step_back(token);
            } else {
                permits.inside.push_back((token, since));
            }
        }
    }

    /// After each event of a batch: delivers mail that it has caused. So what one connection passes on to another is on
    /// its way before the next one receives; at the end of the batch it would all be held at once.
    #[inline]
    fn look_at_mail(&mut self) {
        if self.loop_state().has_commands() {
            self.deliver_mail();
        }
    }

    /// Delivers at most [`EVENT_QUANTUM`] pieces of what waits now; mail that they cause waits for the next event.
    /// Anything else, and mail behind it, waits for the end of the batch.
    #[inline(never)]
    fn deliver_mail(&mut self) {
        if self.loop_state().commands.is_empty() {
            self.loop_state().take_commands();
        }
        for _ in 0..EVENT_QUANTUM {
            let Some((token, mail)) = self.loop_state().next_mail() else { return };
            self.dispatch(token, Event::Mail(mail));
        }
    }

    /// At the end of a batch: carries out what other threads, and sessions of this one, have asked for. More mail and
    /// dials than [`GROUP_QUANTUM`], with what was delivered [after events](Self::look_at_mail), take several batches.
    fn look_at_commands(&mut self) {
        self.carry_out();
        if self.loop_state().commands.is_empty() && self.loop_state().mail_budget > 0 {
            self.loop_state().take_commands(); // what waits meanwhile counts for the bound of the queue
            self.carry_out();
        }
        self.loop_state().mail_budget = GROUP_QUANTUM;
    }

    /// Carries out the commands that were taken, as far as this batch may.
    fn carry_out(&mut self) {
        while self.loop_state().mail_budget > 0
            && let Some(command) = self.loop_state().commands.pop_front()
        {
            match command {
                Command::Group(mut group) => {
                    let budget = self.loop_state().mail_budget;
                    for (token, mail) in group.by_ref().take(budget) {
                        self.loop_state().mail_budget -= 1;
                        self.dispatch(token, Event::Mail(mail));
                    }
                    if self.loop_state().mail_budget == 0 {
                        // The rest stays in front: mail is read in the order in which it was sent.
                        self.loop_state().commands.push_front(Command::Group(group));
                    }
                }
                Command::Mail(token, mail) => {
                    self.loop_state().mail_budget -= 1;
                    self.dispatch(token, Event::Mail(mail));
                }
                Command::Dial(request) => {
                    self.loop_state().mail_budget -= 1;
                    self.dial(request);
                }
                Command::Serve(accepted) => self.take_in(accepted),
                Command::Policy(policy) => self.change_policy(policy),
                Command::Shed => self.shed(),
                Command::Drain => self.begin_to_stop(),
            }
        }
    }

    /// Goes on with other limits; every connection looks at them, and queues for its places anew.
    fn change_policy(&mut self, policy: Arc<Policy>) {
        self.loop_state().set_policy(policy);
        self.limits_have_changed();
        for token in self.tokens() {
            if let Some(entry) = self.parts().1.get_mut(token) {
                *entry.permits() = ConnectionPermits::default();
            }
            self.dispatch(token, Event::Deadline);
            self.step_back(token);
            self.resume(token);
        }
    }

    /// Asks less of the kernel while it lacks memory for sends and receives, and in the end has connections closed.
    fn relieve(&mut self) {
        match self.loop_state().look_at_pressure() {
            Relief::Nothing => {}
            Relief::Over => self.set_pinning(Pinning::Usual),
            Relief::Shrink => self.set_pinning(Pinning::Least),
            Relief::Shed => {
                let worker = &self.loop_state().worker;
                worker.balance.post_to_others(worker.index, || Command::Shed);
                self.shed();
            }
        }
    }

    /// Closes a part of the connections, because the kernel lacks memory.
    fn shed(&mut self) {
        let tokens = self.tokens();
        let candidate = |token| {
            let connection = self.parts().1.get_mut(token)?.phase().connection()?;
            Some(Candidate { which: token, rests: connection.rests(), moved: connection.moved() })
        };
        let candidates: Vec<_> = tokens.into_iter().filter_map(candidate).collect();
        for token in victims(candidates) {
            self.dispatch(token, Event::Shed);
        }
    }

    /// Notifies connections whose deadline may have passed; and all of them when the time to finish is over.
    fn look_at_timers(&mut self) {
        self.loop_state().fire_timers();
        while let Some(index) = self.loop_state().fired.pop() {
            if let Some(token) = self.parts().1.token_at(index) {
                self.dispatch(token, Event::Deadline);
            }
        }
        self.relieve();
        if self.loop_state().out_of_time() {
            self.broadcast(|| Event::Stop);
        }
    }

    /// Makes a connection, or says why not.
    fn dial(&mut self, request: DialRequest) {
        let loop_state = self.loop_state();
        #[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
        let request = loop_state.worker.service.observe_dial(request);
        loop_state.worker.counters.attempted.add(1);
        let begun = match loop_state.may_dial(&request) {
            Ok(()) => self.begin_dial(request),
            Err(e) => Err((request, e)),
        };
        if let Err((request, e)) = begun {
            self.loop_state().dial_failed(request, e);
        }
    }
}
