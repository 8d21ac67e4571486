//! The kernel has no memory for a send or a receive: how often, and what the loop has to make of it.

use std::io;

use rustix::io::Errno;

use super::observed::TICK;
use super::script::time;
use super::world::World;
use crate::engine::worker::view::View;
use crate::policy::pressure::{FIRST_PAUSE, LONGEST_PAUSE, pause};
use crate::proto::Direction;

/// Of the failures, one in so many is the beginning of a time in which everything fails.
const FAMINES: u8 = 16;

impl World {
    /// An operation fails for lack of memory, if it does.
    pub(super) fn memory_error(&mut self, id: usize) -> Option<io::Error> {
        let famine = self.famine.is_some_and(|until| until > self.now);
        if !famine && !self.chance(self.moods.starves) {
            return None;
        }
        if !famine && self.rng.u8(..FAMINES) == 0 {
            self.famine = Some(self.now + time(&mut self.rng, 600));
        }
        self.note(|| format!("  no memory for {id}"));
        // ENOBUFS of a receive on a ring is about its buffers.
        Some(Errno::NOMEM.into())
    }

    /// The loop is notified.
    pub(super) fn is_short(&mut self, id: usize, direction: Direction) {
        let now = self.now;
        self.expected.no_memory += 1;
        self.unaccepted = None; // accepting pauses
        self.moved = true;
        self.short_since.get_or_insert(now);
        self.last_short = Some(now);
        let socket = &mut self.sockets[id];
        (socket.starved, socket.failures) = (Some(now), socket.failures + 1);
        socket.short[direction as usize] = Some(now);
        socket.pauses_until[direction as usize] = Some(now + pause(socket.failures));
    }

    /// Something has moved. If all that failed was tried again, memory is there. If not, but no pause lasts any longer,
    /// the connection takes it for the end of the shortage if it has noticed that: then its later success says nothing.
    pub(super) fn recovers(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        let pauses = socket.pauses_until.into_iter().flatten().any(|at| self.now + TICK < at);
        let is_retried = socket.short == [None; 2];
        if socket.failures == 0 || socket.log.closed.is_some() || (pauses && !is_retried) {
            return;
        }
        (socket.failures, socket.pauses_until) = (0, [None; 2]);
        if is_retried {
            self.short_since = None;
        }
    }

    /// The loop tries again.
    pub(super) fn tries_again(&mut self, id: usize, direction: Direction) {
        let now = self.now;
        let Some(at) = self.sockets[id].short[direction as usize].take() else { return };
        if now < at + FIRST_PAUSE {
            self.fail(|| {
                format!("{id}: tried again {:?} after there was no memory to {direction:?}", now - at)
            });
        }
    }

    /// Who was refused memory tries again in time.
    pub(super) fn check_shortage(&mut self, id: usize, view: &View) {
        let socket = &self.sockets[id];
        let last = socket.short.into_iter().flatten().max();
        let right = match (view.retry_at, last) {
            (None, _) => true, // then it must ask for all that it wants, which is looked at elsewhere
            (Some(_), None) => false,
            (Some(at), Some(last)) => {
                at <= last + LONGEST_PAUSE && view.deadline.is_some_and(|deadline| deadline <= at)
            }
        };
        let asks = view.sends || view.send_place == crate::proto::PermitState::Waiting;
        if !right {
            self.fail(|| format!("{id} pauses for lack of memory, since {last:?}: {view:?}"));
        } else if view.holds && view.retry_at.is_none() && !asks {
            self.fail(|| format!("{id} has what there was no memory to send, and nobody will: {view:?}"));
        }
    }

    /// Whether a connection may be closed because memory has lacked for so long.
    pub(super) fn may_shed(&self) -> bool {
        let since = self.short_since;
        self.policy.shed_after.is_some_and(|after| since.is_some_and(|at| self.now + TICK >= at + after))
    }
}
