//! The places that connections of one thread share: for sends that are outstanding, and for those that may receive.

use std::collections::VecDeque;
use std::time::Instant;

use super::WorkerContext;
use crate::policy::sends::RECEIVE_QUANTUM;
use crate::proto::{FairSemaphore, PermitState, Token};

/// Connections without a permit that may be in the list of those who have one, at least.
const GONE: usize = 64;

/// The places that connections of one thread share.
pub(in crate::engine) struct Permits {
    /// For sends that the kernel has not finished with.
    pub(in crate::engine) sends: FairSemaphore,
    /// For connections that may receive.
    pub(in crate::engine) receives: FairSemaphore,
    /// Who has a place to receive, and since when; and some who have none any more.
    pub(in crate::engine) inside: VecDeque<(Token, Instant)>,
    /// The time of this batch.
    pub(in crate::engine) now: Instant,
}

/// The places that one connection has.
#[derive(Debug, Default)]
pub(in crate::engine) struct ConnectionPermits {
    pub(in crate::engine) send: PermitState,
    /// Permits for further sends beside the one in flight.
    more_sends: u8,
    pub(in crate::engine) receive: PermitState,
    /// It has its place to receive because there is something, and has not looked for that yet.
    pub(in crate::engine) due: bool,
}

impl ConnectionPermits {
    /// Sends it has permits for.
    #[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
    pub(in crate::engine) fn sends(&self) -> usize {
        usize::from(self.send == PermitState::Inside) + usize::from(self.more_sends)
    }
}

impl Permits {
    pub(in crate::engine) fn new(worker: &WorkerContext, now: Instant) -> Self {
        Self {
            sends: FairSemaphore::new(
                worker.policy.outstanding_sends.map(|n| worker.share_of(n.get() as usize)),
            ),
            receives: FairSemaphore::new(worker.policy.max_receiving.map(|n| worker.share_of(n.get()))),
            inside: VecDeque::new(),
            now,
        }
    }

    /// Whether the connection may have a send outstanding; if not, it is queued for a permit.
    #[inline]
    pub(in crate::engine) fn may_send(&mut self, token: Token, own: &mut ConnectionPermits) -> bool {
        self.sends.enter(token, &mut own.send)
    }

    /// Whether it may begin a send that the kernel might not finish with at once.
    #[inline]
    pub(in crate::engine) fn could_send(&self, own: &ConnectionPermits) -> bool {
        self.sends.has_room_for(own.send)
    }

    /// Whether there is a bound on anything.
    #[inline]
    pub(in crate::engine) fn are_bounded(&self) -> bool {
        self.sends.is_bounded() || self.receives.is_bounded()
    }

    /// Whether the connection, which has a send outstanding, may have another one now.
    #[inline]
    pub(in crate::engine) fn may_send_more(&mut self, own: &mut ConnectionPermits) -> bool {
        if !self.sends.is_bounded() {
            return true;
        }
        let may = self.sends.enter_again();
        own.more_sends += u8::from(may);
        may
    }

    /// One of its sends is no longer outstanding.
    #[inline]
    pub(in crate::engine) fn sent(&mut self, own: &mut ConnectionPermits) {
        if own.more_sends > 0 {
            own.more_sends -= 1;
            return self.sends.leave_again();
        }
        self.sends.leave(&mut own.send);
    }

    /// Whether the connection, for which there is something, may receive; if not, it is queued for a permit.
    #[inline]
    pub(in crate::engine) fn may_receive(&mut self, token: Token, own: &mut ConnectionPermits) -> bool {
        let was = own.receive;
        let may = self.receives.enter(token, &mut own.receive);
        if own.receive != was && may {
            self.grant(token, own);
        }
        may
    }

    /// Whether the connection may wait with a receive for what comes: only with a permit that nobody else needs now.
    #[inline]
    pub(in crate::engine) fn may_await(&mut self, token: Token, own: &mut ConnectionPermits) -> bool {
        let (has, may) = (own.receive == PermitState::Inside, self.receives.has_room_for(own.receive));
        if may && !has {
            self.may_receive(token, own);
            own.due = false;
        }
        may
    }

    /// Whether somebody who has a permit to receive is to make room, if anybody can; or the list of them is to be
    /// looked through because most of them are gone.
    #[inline]
    pub(in crate::engine) fn need_rotation(&self) -> bool {
        self.receives.is_wanted() || self.inside.len() > 2 * self.receives.taken() + GONE
    }

    pub(in crate::engine) fn grant(&mut self, token: Token, own: &mut ConnectionPermits) {
        own.due = true;
        self.inside.push_back((token, self.now));
    }

    /// The connection is gone.
    #[inline]
    pub(in crate::engine) fn leave(&mut self, own: &mut ConnectionPermits) {
        (0..std::mem::take(&mut own.more_sends)).for_each(|_| self.sends.leave_again());
        self.sends.leave(&mut own.send);
        self.receives.leave(&mut own.receive);
    }

    /// When somebody may have to make room for somebody who waits.
    pub(in crate::engine) fn rotation(&self) -> Option<Instant> {
        let longest = self.inside.front().filter(|_| self.receives.is_wanted());
        longest.map(|(_, since)| *since + RECEIVE_QUANTUM)
    }
}
