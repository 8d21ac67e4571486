//! Sockets that are being closed: their connections are gone, and the kernel still works on them.
//!
//! The kernel may look up late what a slot or a descriptor number names: a shutdown waits for one of its threads, for
//! one. So a number is free only when everything that was asked for under it has come back; else that would be done to
//! the next socket with the number.

use std::collections::HashMap;

use super::Close;
use crate::proto::Token;

/// What is in flight on a socket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InFlight {
    pub(super) receives: usize,
    /// Sends, or the dial.
    pub(super) sends: usize,
    pub(super) finishing: bool,
    /// Requests to stop, or to reset.
    pub(super) stops: u32,
    /// What these have found.
    pub(super) found: u32,
    /// They may have found something that came back since, and nothing else.
    pub(super) doubtful: bool,
}

impl InFlight {
    pub(super) fn is_nothing(self) -> bool {
        self.stoppable() == 0 && !self.finishing && self.stops == 0
    }

    /// A request to stop was carried out.
    pub(super) fn was_stopped(&mut self, found: u32) {
        self.stops = self.stops.saturating_sub(1);
        self.found = self.found.saturating_add(found);
    }

    /// Whether something is left that no request to stop has found: what is just being worked on is not
    /// (io_uring_prep_cancel(3)), and goes on.
    fn was_missed(self) -> bool {
        let left = self.stoppable();
        self.stops == 0 && left > 0 && (self.found < left || self.doubtful)
    }

    fn stoppable(self) -> u32 {
        (self.receives + self.sends) as u32
    }

    /// How the socket would be closed now.
    pub(super) fn close(self) -> Close {
        let (receiving, busy) = (self.receives > 0, self.sends > 0);
        Close { reset: false, receiving, busy, finishing: self.finishing }
    }
}

/// The sockets that wait for what is in flight on them, under the tokens of their connections.
pub(super) struct Leaving<S> {
    sockets: HashMap<Token, (S, InFlight)>,
    /// Those that were asked to stop, and that something may have missed.
    missed: Vec<Token>,
}

impl<S> Default for Leaving<S> {
    fn default() -> Self {
        Self { sockets: HashMap::new(), missed: Vec::new() }
    }
}

impl<S> Leaving<S> {
    pub(super) fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    pub(super) fn insert(&mut self, token: Token, socket: S, in_flight: InFlight) {
        self.sockets.insert(token, (socket, in_flight));
    }

    /// Something has come back. The socket, if it was the last.
    pub(super) fn came_back(&mut self, token: Token, note: impl FnOnce(&mut InFlight)) -> Option<S> {
        let (_, in_flight) = self.sockets.get_mut(&token)?;
        let before = *in_flight;
        note(in_flight);
        in_flight.doubtful |= before.finishing && !in_flight.finishing;
        in_flight.doubtful |= before.stops > 0 && in_flight.stoppable() < before.stoppable();
        if !in_flight.is_nothing() {
            if in_flight.was_missed() {
                self.missed.push(token);
            }
            return None;
        }
        let socket = self.sockets.remove(&token).map(|(socket, _)| socket);
        if self.sockets.is_empty() {
            self.sockets = HashMap::new(); // a crowd that left at once leaves no memory behind
        }
        socket
    }

    /// Stops once more what has not come back after all; `stop` says how many requests that took.
    pub(super) fn stop_again(&mut self, mut stop: impl FnMut(Token, &S, Close) -> u32) {
        for token in std::mem::take(&mut self.missed) {
            if let Some((socket, in_flight)) = self.sockets.get_mut(&token)
                && in_flight.stops == 0
                && in_flight.stoppable() > 0
            {
                (in_flight.found, in_flight.doubtful) = (0, false);
                in_flight.stops = stop(token, socket, in_flight.close());
            }
        }
    }
}
