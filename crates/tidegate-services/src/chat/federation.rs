//! The interface between a messenger and a bridge to other nodes.
//!
//! A federated room gets its order from outside: local events wait until the bridge has put them into that order
//! ([`Federation::offer`]), and are delivered to all members, including the local ones, when they come back
//! ([`Federation::receive`]). Nothing here does I/O or depends on the transport.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::command;
use super::counters::{FederationCounters, FederationCounts, add};
use super::outside::{self, Implausible, is_name};
use super::registry::RoomRegistry;
use super::remote::{Happened, Residents};
use super::room::RoomFault;

/// What rooms need of the bridge; they never wait for it.
pub(super) struct BridgeLink {
    wake: Box<dyn Fn() + Send + Sync>,
    /// Includes whether the node is cut off.
    pub(super) counters: Arc<FederationCounters>,
    /// Rooms in which events wait, or may wait, to be passed on.
    attend: Mutex<BTreeSet<Arc<str>>>,
    /// Rooms whose local members changed since the bridge was notified.
    moved: Mutex<BTreeSet<Arc<str>>>,
    /// Number of stored names of remote members, plus one for each list of them, over all rooms.
    pub(super) remote_names: AtomicUsize,
}

impl BridgeLink {
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            wake,
            counters: Arc::default(),
            attend: Mutex::default(),
            moved: Mutex::default(),
            remote_names: AtomicUsize::new(0),
        }
    }

    /// Whether events can reach the other nodes.
    pub(super) fn check(&self) -> Result<(), RoomFault> {
        if self.counters.is_cut_off.load(Relaxed) { Err(self.refuse(RoomFault::CutOff)) } else { Ok(()) }
    }

    pub(super) fn refuse(&self, fault: RoomFault) -> RoomFault {
        match fault {
            RoomFault::CutOff => add(&self.counters.refused_cut_off),
            _ => add(&self.counters.refused_busy),
        }
        fault
    }

    pub(super) fn attend(&self, room: &Arc<str>) {
        if lock(&self.attend).insert(room.clone()) {
            (self.wake)();
        }
    }

    pub(super) fn moved(&self, room: &Arc<str>) {
        lock(&self.moved).insert(room.clone()); // the bridge polls it
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Consecutive events of a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of the first.
    pub first: u64,
    /// What happened.
    pub all: Vec<Happened>,
}

/// The origin of a batch, and its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batched {
    /// Offered here; it is the one that waits.
    Here,
    /// As `Here`, and its numbering starts again.
    HereAnew,
    /// Offered by another node.
    Elsewhere,
    /// As `Elsewhere`, and the broker held nothing of this room when it arrived: numbering may start again.
    Anew,
}

/// The result of receiving a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Received {
    /// It was delivered.
    Delivered,
    /// Out of order: it was delivered before, or lost its place to another batch. Nothing was delivered.
    Void,
    /// A member queue is full after this many events; call again soon with this number.
    Full(usize),
    /// The room limit is reached and no room is empty; so no local member is in this one.
    NoRoom,
}

/// The handle of a bridge, to be called from one thread. Dropping it permanently [cuts the node off](Self::cut_off).
pub struct Federation {
    registry: Arc<RoomRegistry>,
    link: Arc<BridgeLink>,
    /// Whether the last receive found a full queue.
    waits: Cell<bool>,
}

impl fmt::Debug for Federation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Federation").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        self.cut_off();
    }
}

impl Federation {
    pub(super) fn new(registry: Arc<RoomRegistry>, link: Arc<BridgeLink>) -> Self {
        Self { registry, link, waits: Cell::new(false) }
    }

    /// Maximum bytes waiting in one room, each event counted as its text and 32 bytes; so also the maximum of a batch.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.registry.limits.waiting_bytes
    }

    /// Rooms in which events have begun to wait since the last call.
    #[must_use]
    pub fn to_attend(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut *lock(&self.link.attend)).into_iter().collect()
    }

    /// The events waiting in a room, with the numbers they have if no other batch comes first; `None` if there are
    /// none. They remain queued until received as [`Batched::Here`]. For a room that is not [known](Self::knows) the
    /// numbers are provisional.
    #[must_use]
    pub fn offer(&self, room: &str) -> Option<Batch> {
        self.registry.find(room)?.offer()
    }

    /// Maximum bytes of a received batch, counted as for [`waiting_bytes`](Self::waiting_bytes).
    #[must_use]
    pub fn batch_bytes(&self) -> usize {
        self.registry.limits.batch_bytes()
    }

    /// Checks that a batch could have been offered by a valid node.
    ///
    /// # Errors
    /// Why it is invalid; it must not be received then.
    pub fn check(&self, batch: &Batch) -> Result<(), Implausible> {
        outside::check(batch, &self.registry.limits)
    }

    /// Counts an invalid message.
    pub fn reject(&self) {
        add(&self.link.counters.rejected);
    }

    /// The next number in a room; `None` if nothing was received yet.
    #[must_use]
    pub fn next(&self, room: &str) -> Option<u64> {
        self.registry.find(room)?.next_known()
    }

    /// Whether anything of this room was received.
    #[must_use]
    pub fn knows(&self, room: &str) -> bool {
        self.next(room).is_some()
    }

    /// Receives the next batch of a room. `delivered` is 0, or the number in [`Received::Full`] for the same batch.
    pub fn receive(&self, room: &str, batch: &Batch, batched: Batched, delivered: usize) -> Received {
        if command::name(room).is_err() {
            return Received::Void;
        }
        let Some(room) = self.registry.find_or_make(room) else { return Received::NoRoom };
        let received = room.receive(batch, batched, delivered, &self.registry.limits);
        let waits = matches!(received, Received::Full(_));
        if !self.waits.replace(waits) && waits {
            add(&self.link.counters.waits);
        }
        received
    }

    /// This node is cut off from the others: notifies members, and refuses their messages from now on. Waiting events
    /// remain queued.
    pub fn cut_off(&self) {
        if !self.link.counters.is_cut_off.swap(true, Relaxed) {
            add(&self.link.counters.cut_offs);
            self.broadcast(
                "= cut off: the other nodes cannot be reached; messages are refused until they can",
            );
        }
    }

    /// This node is connected again, and members have received what happened meanwhile.
    pub fn is_back(&self) {
        if self.link.counters.is_cut_off.swap(false, Relaxed) {
            self.broadcast(
                "= back: the other nodes are reachable again, and missed messages have been delivered",
            );
        }
    }

    fn broadcast(&self, text: &str) {
        self.registry.all().iter().for_each(|room| room.broadcast(text));
    }

    /// The local members of rooms in which they changed since the last call.
    #[must_use]
    pub fn moved(&self) -> Vec<(Arc<str>, Residents)> {
        let moved = std::mem::take(&mut *lock(&self.link.moved));
        moved.into_iter().map(|name| (name.clone(), self.residents(&name))).collect()
    }

    /// The local members of all rooms that have any.
    #[must_use]
    pub fn residents_of_all(&self) -> Vec<(Arc<str>, Residents)> {
        lock(&self.link.moved).clear();
        let names = self.registry.all().into_iter().map(|room| room.name().clone());
        let all = names.map(|name| (name.clone(), self.residents(&name)));
        all.filter(|(_, residents)| residents.members > 0).collect()
    }

    fn residents(&self, room: &str) -> Residents {
        self.registry
            .find(room)
            .map(|room| room.residents(self.registry.limits.announced))
            .unwrap_or_default()
    }

    /// Replaces the known members of another node. Their number is limited to the room limit; of their names only as
    /// many are kept as a listing shows, and at most 100,000 over all rooms.
    ///
    /// # Errors
    /// A name is invalid: nothing is stored.
    pub fn set_residents(&self, node: u64, room: &str, mut residents: Residents) -> Result<(), Implausible> {
        if !is_name(room) || !residents.nicks.iter().all(|nick| is_name(nick)) {
            return Err(Implausible::Name);
        }
        let limits = &self.registry.limits;
        residents.members = residents.members.min(limits.members);
        let most = limits.announced.min(residents.members);
        while residents.nicks.len() > most {
            residents.nicks.pop_last();
        }
        let place =
            if residents.members == 0 { self.registry.find(room) } else { self.registry.find_or_make(room) };
        if let Some(place) = place {
            place.set_residents(node, residents);
        }
        Ok(())
    }

    /// Removes a node and all its members; members are notified if it was `lost`.
    pub fn forget(&self, node: u64, lost: Option<&str>) {
        for room in self.registry.all() {
            room.forget(node, lost, &self.registry.limits);
        }
    }

    /// Whether no events wait.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.registry.all().iter().all(|room| !room.has_waiting())
    }

    /// The number of events.
    #[must_use]
    pub fn counts(&self) -> FederationCounts {
        self.link.counters.counts()
    }
}
