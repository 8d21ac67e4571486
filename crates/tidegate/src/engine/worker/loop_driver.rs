//! What an event loop does between its events, the same whatever it waits with: commands, timers, places.

use std::io;
use std::sync::Arc;

use super::command_queue::{Accepted, Command};
use super::loop_state::LoopState;
use super::permits::ConnectionPermits;
use crate::policy::Policy;
use crate::policy::sends::{GROUP_QUANTUM, WINDOW_QUANTUM};
use crate::proto::dial::DialRequest;
use crate::proto::{Event, PermitState, Token};

/// What an event loop does between its events, the same whatever it waits with.
pub(in crate::engine) trait LoopDriver {
    fn loop_state(&mut self) -> &mut LoopState;
    /// The token of a place in the table that is taken.
    fn token_at(&self, index: u32) -> Option<Token>;
    /// All connections, and those that are being made.
    fn tokens(&self) -> Vec<Token>;
    /// Tells a connection something, and does what follows.
    fn dispatch(&mut self, token: Token, event: Event<'_>);
    /// Tells every connection. Dials that are under way are given up, but those of sessions only by a stop.
    fn broadcast(&mut self, event: fn() -> Event<'static>);
    /// A connection's places, and whether it is between two messages.
    fn seats(&mut self, token: Token) -> Option<(&mut LoopState, &mut ConnectionPermits, bool)>;
    /// A connection got a place it has waited for.
    fn resume(&mut self, token: Token);
    /// A connection has to wait before it may receive again.
    fn step_back(&mut self, token: Token);
    /// Lets those in for whom the kernel has already opened the connection, closes the listener, since who comes later
    /// would not be served, and tells every connection to finish.
    fn begin_to_stop(&mut self);
    /// Begins to make a connection.
    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)>;

    /// Serves a connection that another thread has accepted.
    fn take_in(&mut self, accepted: Accepted);

    /// Gives places that have become free to those who wait for them.
    fn give_places(&mut self) {
        while let Some(token) = self.loop_state().permits.sends.pop_next() {
            if let Some((loop_state, seats, _)) = self.seats(token)
                && loop_state.permits.sends.admit(&mut seats.send)
            {
                self.resume(token);
            }
        }
        if self.loop_state().permits.receives.is_wanted() {
            self.rotate();
        }
        while let Some(token) = self.loop_state().permits.receives.pop_next() {
            if let Some((loop_state, seats, _)) = self.seats(token)
                && loop_state.permits.receives.admit(&mut seats.receive)
            {
                loop_state.permits.seat(token, seats);
                self.resume(token);
            }
        }
    }

    /// Has those step back who are between two messages and have had their turn.
    fn rotate(&mut self) {
        for _ in 0..self.loop_state().permits.inside.len() {
            let Some((token, since)) = self.loop_state().permits.inside.pop_front() else { return };
            let Some((loop_state, seats, rests)) = self.seats(token) else { continue };
            if seats.receive != PermitState::Inside {
                continue;
            }
            let over = since + WINDOW_QUANTUM <= loop_state.now;
            if rests && (seats.served || over) {
                loop_state.permits.receives.leave(&mut seats.receive);
                loop_state.permits.receives.enter(token, &mut seats.receive); // at the end of the queue
                self.step_back(token);
            } else {
                let since = if over { loop_state.now } else { since };
                loop_state.permits.inside.push_back((token, since));
            }
        }
    }

    /// Carries out what other threads, and sessions of this one, have asked for. More mail than [`GROUP_QUANTUM`] takes
    /// several rounds.
    fn look_at_commands(&mut self) {
        if self.loop_state().commands.is_empty() {
            self.loop_state().take_commands(); // what waits meanwhile counts for the bound of the queue
        }
        let mut turn = GROUP_QUANTUM;
        while let Some(command) = self.loop_state().commands.pop_front() {
            match command {
                Command::Group(mut group) => {
                    for (token, mail) in group.by_ref().take(turn) {
                        turn -= 1;
                        self.dispatch(token, Event::Mail(mail));
                    }
                    if turn == 0 {
                        // The rest stays in front: mail is read in the order in which it was sent.
                        return self.loop_state().commands.push_front(Command::Group(group));
                    }
                }
                Command::Mail(token, mail) => {
                    turn -= 1;
                    self.dispatch(token, Event::Mail(mail));
                    if turn == 0 {
                        return; // the others first
                    }
                }
                Command::Dial(request) => self.dial(request),
                Command::Serve(accepted) => self.take_in(accepted),
                Command::Policy(policy) => self.change_policy(policy),
                Command::Drain => self.begin_to_stop(),
            }
        }
    }

    /// Goes on with other limits; every connection looks at them, and queues for its places anew.
    fn change_policy(&mut self, policy: Arc<Policy>) {
        self.loop_state().set_policy(policy);
        for token in self.tokens() {
            if let Some((_, seats, _)) = self.seats(token) {
                *seats = ConnectionPermits::default();
            }
            self.dispatch(token, Event::Deadline);
            self.step_back(token);
            self.resume(token);
        }
    }

    /// Tells connections whose deadline may have come; and all of them when the time to finish is over.
    fn look_at_timers(&mut self) {
        self.loop_state().fire_timers();
        while let Some(index) = self.loop_state().fired.pop() {
            if let Some(token) = self.token_at(index) {
                self.dispatch(token, Event::Deadline);
            }
        }
        if self.loop_state().out_of_patience() {
            self.broadcast(|| Event::Stop);
        }
    }

    /// Makes a connection, or says why not.
    fn dial(&mut self, request: DialRequest) {
        let loop_state = self.loop_state();
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
