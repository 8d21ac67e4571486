//! Counters of the messenger.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counters of a messenger, written by all its I/O threads. Each is exact; they are not read as one snapshot.
#[derive(Debug, Default)]
pub struct ChatCounters {
    pub(super) members: AtomicU64,
    pub(super) rooms: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) deliveries: AtomicU64,
    pub(super) cut_off: AtomicU64,
    /// For federated rooms.
    pub(super) federation: Option<Arc<FederationCounters>>,
}

/// Counters of federation with other nodes.
#[derive(Debug, Default)]
pub(super) struct FederationCounters {
    pub(super) refused_busy: AtomicU64,
    pub(super) refused_cut_off: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) cut_offs: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) is_cut_off: AtomicBool,
}

impl FederationCounters {
    pub(super) fn counts(&self) -> FederationCounts {
        FederationCounts {
            refused_busy: self.refused_busy.load(Relaxed),
            refused_cut_off: self.refused_cut_off.load(Relaxed),
            waits: self.waits.load(Relaxed),
            cut_offs: self.cut_offs.load(Relaxed),
            rejected: self.rejected.load(Relaxed),
            is_cut_off: self.is_cut_off.load(Relaxed),
        }
    }
}

/// Federation counters, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FederationCounts {
    /// Actions of members refused because the queue to the other nodes was full.
    pub refused_busy: u64,
    /// Actions refused because this node was cut off.
    pub refused_cut_off: u64,
    /// Times the bridge waited for full member queues.
    pub waits: u64,
    /// Times that this node was cut off from the others.
    pub cut_offs: u64,
    /// Broker messages that no valid node can have sent; they were ignored.
    pub rejected: u64,
    /// Whether it is cut off now.
    pub is_cut_off: bool,
}

impl FederationCounts {
    /// Actions refused for either reason.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused_busy + self.refused_cut_off
    }
}

/// A snapshot of [`ChatCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatStats {
    /// Members in a room now.
    pub members: u64,
    /// Rooms now, including empty ones.
    pub rooms: u64,
    /// Messages accepted from members, since the start.
    pub messages: u64,
    /// Messages and notices delivered to members' outboxes, counted for each member, since the start. History shown to
    /// new members is not included.
    pub deliveries: u64,
    /// Members disconnected because too much output was queued for them, since the start.
    pub cut_off: u64,
    /// `None` for a messenger without federation.
    pub federation: Option<FederationCounts>,
}

impl ChatCounters {
    /// The current values.
    #[must_use]
    pub fn stats(&self) -> ChatStats {
        ChatStats {
            members: self.members.load(Relaxed),
            rooms: self.rooms.load(Relaxed),
            messages: self.messages.load(Relaxed),
            deliveries: self.deliveries.load(Relaxed),
            cut_off: self.cut_off.load(Relaxed),
            federation: self.federation.as_ref().map(|federation| federation.counts()),
        }
    }
}

pub(super) fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
