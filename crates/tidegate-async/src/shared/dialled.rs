//! What a dialled connection and the one that has dialled it know of each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::AcqRel, Ordering::Relaxed};

use tidegate::{Dial, Peer};

use super::{Shared, State};

/// Bytes of a dialled connection that may be unread before its receiving pauses. Its reader is in another task: without
/// them it would wait for that after each piece.
const UNREAD: usize = 64 << 10;

/// What a dialled connection has beside an accepted one.
pub(super) struct DialledBy {
    parent: Arc<Shared>,
    /// The whole of it, or the halves, that somebody has.
    owners: AtomicU8,
    /// Something was written to it, and nothing has arrived since. Changes under the lock of the parent.
    owes: AtomicBool,
}

impl Shared {
    /// A connection that `parent` dials. Nobody has it yet.
    pub(crate) fn dialled(dial: &Dial, parent: Arc<Self>) -> Self {
        let peer = Peer::dialled(dial.tag).with_addr(dial.to.addr()).with_thread(parent.peer.thread);
        let by = DialledBy { parent, owners: AtomicU8::new(0), owes: AtomicBool::new(false) };
        Self { dialled: Some(Box::new(by)), ..Self::new(Arc::default(), peer) }
    }

    /// Somebody has it, or a half of it.
    pub(crate) fn own(&self) {
        if let Some(by) = &self.dialled {
            by.owners.fetch_add(1, Relaxed);
        }
    }

    /// Somebody has let go of it, or of a half. When all have, a dialled connection ends.
    pub(crate) fn disown(&self) {
        let Some(by) = &self.dialled else { return };
        if by.owners.fetch_sub(1, AcqRel) > 1 {
            return;
        }
        self.has_answer();
        let mut state = self.lock();
        state.released = true;
        self.notify(state);
    }

    /// Whether receiving pauses because of what nobody has read.
    pub(crate) fn holds_back(&self, state: &State) -> bool {
        state.input.len() > if self.dialled.is_some() { UNREAD } else { 0 }
    }

    /// Something is written: a drain of the connection that has dialled waits for the answer.
    pub(super) fn expects_answer(&self) {
        if self.dialled.as_ref().is_some_and(|by| !by.owes.load(Relaxed)) && !self.is_closed.load(Relaxed) {
            self.set_owes(true);
        }
    }

    /// Something has arrived, or nothing will.
    pub(crate) fn has_answer(&self) {
        if self.dialled.as_ref().is_some_and(|by| by.owes.load(Relaxed)) {
            self.set_owes(false);
        }
    }

    fn set_owes(&self, owes: bool) {
        let Some(by) = &self.dialled else { return };
        let mut parent = by.parent.lock();
        if by.owes.swap(owes, Relaxed) == owes {
            return;
        }
        parent.awaited = if owes { parent.awaited + 1 } else { parent.awaited - 1 };
        if parent.draining.begun {
            by.parent.notify(parent); // whether it is idle may have changed
        }
    }
}
