//! What a dialled connection and the one that has dialled it know of each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use tidegate::{Dial, Peer};

use super::{Shared, State};

/// Bytes of a dialled connection that may be unread before its receiving pauses. Its reader is in another task: without
/// them it would wait for that after each piece.
const UNREAD: usize = 64 << 10;

/// What a dialled connection has beside an accepted one.
pub(super) struct DialledBy {
    /// The accepted connection that it was dialled for, whichever connection has dialled it.
    parent: Arc<Shared>,
    /// The whole of it, or the halves, that somebody has.
    owners: AtomicU8,
}

/// An answer that a dialled connection owed and that nobody need wait for any more: the one that has dialled it learns
/// that when this is settled, after the wake of who reads the answer.
#[must_use]
pub(crate) struct ArrivedAnswer(bool);

impl Shared {
    /// A connection that `by` dials. Nobody has it yet.
    pub(crate) fn dialled(dial: &Dial, by: &Arc<Self>) -> Self {
        let parent = by.dialled.as_ref().map_or(by, |of| &of.parent).clone();
        let peer = Peer::dialled(dial.tag).with_addr(dial.to.addr()).with_thread(parent.peer.thread);
        let by = DialledBy { parent, owners: AtomicU8::new(0) };
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
        let mut state = self.lock();
        state.released = true;
        let answered = state.has_answer();
        self.notify(state);
        self.settle(answered);
    }

    /// Whether receiving pauses because of what nobody has read.
    pub(crate) fn holds_back(&self, state: &State) -> bool {
        state.input.len() > if self.dialled.is_some() { UNREAD } else { 0 }
    }

    /// Whether the accepted connection that it was dialled for is gone, and it owes nothing: a stop
    /// does not wait for it.
    pub(crate) fn is_left_alone(&self, state: &State) -> bool {
        !state.owes && self.dialled.as_ref().is_some_and(|by| by.parent.is_closed.load(Acquire))
    }

    /// A stop has reset it. The accepted connection, whose time is over too, must not end as if nothing were missing
    /// when its code learns that first.
    pub(crate) fn cuts_off(&self) {
        if let Some(by) = &self.dialled {
            by.parent.lock().cut_off = true;
        }
    }

    /// Bytes are written: a drain of the connection that has dialled waits for the answer, if one can come. Locks that
    /// connection under the lock of this one; nothing locks them the other way round.
    pub(super) fn expects_answer(&self, state: &mut State) {
        let Some(by) = &self.dialled else { return };
        if !state.ended && !std::mem::replace(&mut state.owes, true) {
            by.count(|awaited| awaited + 1);
        }
    }

    /// The connection that has dialled need not wait for the answer any more.
    pub(crate) fn settle(&self, ArrivedAnswer(owed): ArrivedAnswer) {
        if let Some(by) = &self.dialled
            && owed
        {
            by.count(|awaited| awaited - 1);
        }
    }
}

impl State {
    /// Something has arrived, or nothing will.
    pub(crate) fn has_answer(&mut self) -> ArrivedAnswer {
        ArrivedAnswer(std::mem::take(&mut self.owes))
    }
}

impl DialledBy {
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut parent = self.parent.lock();
        parent.awaited = change(parent.awaited);
        if parent.draining.begun {
            self.parent.notify(parent); // whether it is idle may have changed
        }
    }
}
