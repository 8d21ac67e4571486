//! What the messenger counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counters of a messenger, written by all its I/O threads. Each is exact; one of them may be ahead of another for a
/// moment.
#[derive(Debug, Default)]
pub struct ChatCounters {
    pub(super) members: AtomicU64,
    pub(super) rooms: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) deliveries: AtomicU64,
    pub(super) cut_off: AtomicU64,
    /// For rooms that span nodes.
    pub(super) span: Option<Arc<SpanCounters>>,
}

/// Counters of what a messenger has to do with other nodes.
#[derive(Debug, Default)]
pub(super) struct SpanCounters {
    pub(super) refused_busy: AtomicU64,
    pub(super) refused_cut_off: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) cut_offs: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) is_cut_off: AtomicBool,
}

impl SpanCounters {
    pub(super) fn counts(&self) -> SpanCounts {
        SpanCounts {
            refused_busy: self.refused_busy.load(Relaxed),
            refused_cut_off: self.refused_cut_off.load(Relaxed),
            waits: self.waits.load(Relaxed),
            cut_offs: self.cut_offs.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            is_cut_off: self.is_cut_off.load(Relaxed),
        }
    }
}

/// What rooms that span nodes have to do with other nodes, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Things that members wanted to happen and that were refused, because too much waited to be passed on.
    pub refused_busy: u64,
    /// The same, because this node was cut off.
    pub refused_cut_off: u64,
    /// Times that the bridge had to wait for queues of members.
    pub waits: u64,
    /// Times that this node was cut off from the others.
    pub cut_offs: u64,
    /// Messages of the broker that no node can have sent, and that were not acted upon.
    pub rejected: u64,
    /// Whether it is now.
    pub is_cut_off: bool,
}

impl SpanCounts {
    /// Refused for either reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused_busy + self.refused_cut_off
    }
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
    /// Messages and other news of a room that were put into a member's outbox, each counted for each member, since the
    /// start. A newcomer's history is not among them.
    pub deliveries: u64,
    /// Members that were cut off because too much waited for them, since the start.
    pub cut_off: u64,
    /// `None` of a messenger that is alone.
    pub span: Option<SpanCounts>,
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
            span: self.span.as_ref().map(|span| span.counts()),
        }
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
