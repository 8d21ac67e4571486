//! The places that connections of one thread share: for sends that are outstanding, and for those that may receive.

use std::collections::VecDeque;
use std::time::Instant;

use super::WorkerContext;
use crate::policy::sends::WINDOW_QUANTUM;
use crate::proto::{FairSemaphore, PermitState, Token};

/// The places that connections of one thread share.
pub(super) struct Permits {
    /// For sends that the kernel has not finished with.
    pub(super) sends: FairSemaphore,
    /// For connections that may receive.
    pub(super) receives: FairSemaphore,
    /// Who has a place to receive, and since when.
    pub(super) inside: VecDeque<(Token, Instant)>,
    pub(super) now: Instant,
}

/// The places that one connection has.
#[derive(Debug, Default)]
pub(super) struct ConnectionPermits {
    pub(super) send: PermitState,
    pub(super) receive: PermitState,
    /// It has received something since it got its place.
    pub(super) served: bool,
}

impl Permits {
    pub(super) fn new(worker: &WorkerContext, now: Instant) -> Self {
        Self {
            sends: FairSemaphore::new(
                worker.policy.outstanding_sends.map(|n| worker.share_of(n.get() as usize)),
            ),
            receives: FairSemaphore::new(worker.policy.window.map(|n| worker.share_of(n.get()))),
            inside: VecDeque::new(),
            now,
        }
    }

    /// Whether the connection may have a send outstanding; if not, it is told when it may.
    #[inline]
    pub(super) fn may_send(&mut self, token: Token, seats: &mut ConnectionPermits) -> bool {
        self.sends.enter(token, &mut seats.send)
    }

    /// Whether it may begin a send that the kernel might not finish with at once.
    #[inline]
    pub(super) fn could_send(&self, seats: &ConnectionPermits) -> bool {
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
    pub(super) fn sent(&mut self, seats: &mut ConnectionPermits) {
        self.sends.leave(&mut seats.send);
    }

    /// Whether the connection may receive; if not, it is told when it may.
    #[inline]
    pub(super) fn may_receive(&mut self, token: Token, seats: &mut ConnectionPermits) -> bool {
        let was = seats.receive;
        let may = self.receives.enter(token, &mut seats.receive);
        if seats.receive != was && may {
            self.seat(token, seats);
        }
        may
    }

    pub(super) fn seat(&mut self, token: Token, seats: &mut ConnectionPermits) {
        seats.served = false;
        self.inside.push_back((token, self.now));
    }

    /// The connection is gone.
    #[inline]
    pub(super) fn leave(&mut self, seats: &mut ConnectionPermits) {
        self.sends.leave(&mut seats.send);
        self.receives.leave(&mut seats.receive);
    }

    /// When somebody may have to make room for somebody who waits.
    pub(super) fn rotation(&self) -> Option<Instant> {
        let longest = self.inside.front().filter(|_| self.receives.is_wanted());
        longest.map(|(_, since)| *since + WINDOW_QUANTUM)
    }
}
