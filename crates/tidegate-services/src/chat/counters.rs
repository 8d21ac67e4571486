//! What the messenger counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of a messenger, written by all its I/O threads. Each is exact; one of them may be ahead of another for a moment.
#[derive(Debug, Default)]
pub struct ChatCounters {
    pub(super) members: AtomicU64,
    pub(super) rooms: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) deliveries: AtomicU64,
    pub(super) cut_off: AtomicU64,
}

/// What [`ChatCounters`] say at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatStats {
    /// Members that are in a room now.
    pub members: u64,
    /// Rooms that there are now, those with nobody in them too.
    pub rooms: u64,
    /// Messages that members said and that were taken, since the start.
    pub messages: u64,
    /// Messages and other news of a room that were put into a member's outbox, each counted for each member, since the start. A
    /// newcomer's history is not among them.
    pub deliveries: u64,
    /// Members that were cut off because too much waited for them, since the start.
    pub cut_off: u64,
}

impl ChatCounters {
    /// As they are now.
    #[must_use]
    pub fn stats(&self) -> ChatStats {
        ChatStats {
            members: self.members.load(Relaxed),
            rooms: self.rooms.load(Relaxed),
            messages: self.messages.load(Relaxed),
            deliveries: self.deliveries.load(Relaxed),
            cut_off: self.cut_off.load(Relaxed),
        }
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
