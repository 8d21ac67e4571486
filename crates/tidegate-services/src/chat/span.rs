//! The end that a bridge to other nodes holds.
//!
//! A room that spans nodes gets its order from outside: what happens here waits until the bridge has put it into that
//! order ([`Span::offer`]), and is told to members, also to those here, when it comes back in its place
//! ([`Span::receive`]). Nothing here does I/O or knows what carries it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::command;
use super::counters::{SpanCounters, SpanCounts, add};
use super::far::{Happened, Residents};
use super::hall::Hall;
use super::outside::{self, Implausible, is_name};
use super::room::Fault;

/// What rooms need of the bridge: they never wait for it.
pub(super) struct Link {
    wake: Box<dyn Fn() + Send + Sync>,
    /// Whether it is cut off is among them.
    pub(super) counters: Arc<SpanCounters>,
    /// Rooms in which something waits to be passed on, or may.
    attend: Mutex<BTreeSet<Arc<str>>>,
    /// Rooms in which others live here now than the bridge was told.
    moved: Mutex<BTreeSet<Arc<str>>>,
    /// Names that are kept of members of other nodes, and one for each list of them, over all rooms.
    pub(super) far_names: AtomicUsize,
}

impl Link {
    pub(super) fn new(wake: Box<dyn Fn() + Send + Sync>) -> Self {
        Self {
            wake,
            counters: Arc::default(),
            attend: Mutex::default(),
            moved: Mutex::default(),
            far_names: AtomicUsize::new(0),
        }
    }

    /// Whether what happens can reach the others.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.counters.is_cut_off.load(Relaxed) { Err(self.refuse(Fault::CutOff)) } else { Ok(()) }
    }

    pub(super) fn refuse(&self, fault: Fault) -> Fault {
        match fault {
            Fault::CutOff => add(&self.counters.refused_cut_off),
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
        lock(&self.moved).insert(room.clone()); // the bridge looks now and then
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things that happened in a room one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of the first.
    pub first: u64,
    /// What happened.
    pub all: Vec<Happened>,
}

/// Whose a batch is, and what it comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batched {
    /// It was offered here and is the one that waits.
    Here,
    /// As `Here`, and its numbers begin again.
    HereAnew,
    /// Another node offered it.
    Elsewhere,
    /// As `Elsewhere`, and whatever carries the order kept nothing of this room when it came: numbers may begin again.
    Anew,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Received {
    /// Members were told.
    Told,
    /// It does not come after what happened last: it was told before, or lost its place to another. Nobody was told.
    Void,
    /// The queue of members is full after so many; to be called again with this number soon.
    Full(usize),
    /// There are as many rooms as there may be, and somebody is in each; so nobody here is in this one.
    NoRoom,
}

/// The handle of a bridge. It is to be called from one thread. Dropping it [cuts the node off](Self::cut_off) for good:
/// nobody carries anything any more.
pub struct Span {
    hall: Arc<Hall>,
    link: Arc<Link>,
    /// Whether what was received last found a full queue.
    waits: Cell<bool>,
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.cut_off();
    }
}

impl Span {
    pub(super) fn new(hall: Arc<Hall>, link: Arc<Link>) -> Self {
        Self { hall, link, waits: Cell::new(false) }
    }

    /// Most bytes of what waits in one room, each thing counted as its text and 32 bytes; so a batch is at most that.
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.hall.limits.waiting_bytes
    }

    /// Rooms in which something has begun to wait since the last call.
    #[must_use]
    pub fn to_attend(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut *lock(&self.link.attend)).into_iter().collect()
    }

    /// What waits in a room, with the numbers it has if nothing else comes in between; `None` if nothing does. It goes
    /// on waiting until it is received as [`Batched::Here`]. Numbers of a room that is not [known](Self::knows) are a
    /// guess.
    #[must_use]
    pub fn offer(&self, room: &str) -> Option<Batch> {
        self.hall.find(room)?.offer()
    }

    /// Most bytes of a batch that is received, counted as for [`waiting_bytes`](Self::waiting_bytes).
    #[must_use]
    pub fn batch_bytes(&self) -> usize {
        self.hall.limits.batch_bytes()
    }

    /// Whether a batch may have been offered by a node like this one.
    ///
    /// # Errors
    /// What is wrong with it; it must not be received then.
    pub fn check(&self, batch: &Batch) -> Result<(), Implausible> {
        outside::check(batch, &self.hall.limits)
    }

    /// Counts something that was not believed.
    pub fn reject(&self) {
        add(&self.link.counters.rejected);
    }

    /// The number of what comes next in a room; `None` if nothing of it was received before.
    #[must_use]
    pub fn next(&self, room: &str) -> Option<u64> {
        self.hall.find(room)?.next_known()
    }

    /// Whether anything of this room was received before.
    #[must_use]
    pub fn knows(&self, room: &str) -> bool {
        self.next(room).is_some()
    }

    /// The next in the order of a room. `told` is 0, or what [`Received::Full`] said about the same batch.
    pub fn receive(&self, room: &str, batch: &Batch, batched: Batched, told: usize) -> Received {
        if command::name(room).is_err() {
            return Received::Void;
        }
        let Some(room) = self.hall.find_or_make(room) else { return Received::NoRoom };
        let received = room.receive(batch, batched, told, &self.hall.limits);
        let waits = matches!(received, Received::Full(_));
        if !self.waits.replace(waits) && waits {
            add(&self.link.counters.waits);
        }
        received
    }

    /// This node is cut off from the others: tells members so, and refuses what they say from now on. What waits goes
    /// on waiting.
    pub fn cut_off(&self) {
        if !self.link.counters.is_cut_off.swap(true, Relaxed) {
            add(&self.link.counters.cut_offs);
            self.tell_all("= cut off: the other nodes cannot be reached; nothing is taken until they can");
        }
    }

    /// This node is back, and members have been told what happened meanwhile.
    pub fn is_back(&self) {
        if self.link.counters.is_cut_off.swap(false, Relaxed) {
            self.tell_all(
                "= back: the other nodes are reached again, and you have been told what was said meanwhile",
            );
        }
    }

    fn tell_all(&self, text: &str) {
        self.hall.all().iter().for_each(|room| room.tell(text));
    }

    /// Who lives here now, for the rooms in which that has changed since the last call.
    #[must_use]
    pub fn moved(&self) -> Vec<(Arc<str>, Residents)> {
        let moved = std::mem::take(&mut *lock(&self.link.moved));
        moved.into_iter().map(|name| (name.clone(), self.residents(&name))).collect()
    }

    /// Who lives here now, for all rooms in which anybody does.
    #[must_use]
    pub fn residents_of_all(&self) -> Vec<(Arc<str>, Residents)> {
        lock(&self.link.moved).clear();
        let names = self.hall.all().into_iter().map(|room| room.name().clone());
        let all = names.map(|name| (name.clone(), self.residents(&name)));
        all.filter(|(_, residents)| residents.members > 0).collect()
    }

    fn residents(&self, room: &str) -> Residents {
        self.hall.find(room).map(|room| room.residents(self.hall.limits.announced)).unwrap_or_default()
    }

    /// These live at another node, in place of those that were known before. More than a room may have are counted as
    /// a full room; of their names
    /// no more are kept than are listed here, and of all names no more than 100,000.
    ///
    /// # Errors
    /// A name is none: nothing of it is kept.
    pub fn house(&self, node: u64, room: &str, mut residents: Residents) -> Result<(), Implausible> {
        if !is_name(room) || !residents.nicks.iter().all(|nick| is_name(nick)) {
            return Err(Implausible::Name);
        }
        let limits = &self.hall.limits;
        residents.members = residents.members.min(limits.members);
        let most = limits.announced.min(residents.members);
        while residents.nicks.len() > most {
            residents.nicks.pop_last();
        }
        let place = if residents.members == 0 { self.hall.find(room) } else { self.hall.find_or_make(room) };
        if let Some(place) = place {
            place.house(node, residents);
        }
        Ok(())
    }

    /// A node is gone, and everybody who lived there with it; members are told if it was `lost`.
    pub fn forget(&self, node: u64, lost: Option<&str>) {
        for room in self.hall.all() {
            room.forget(node, lost, &self.hall.limits);
        }
    }

    /// Whether nothing waits any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.hall.all().iter().all(|room| !room.has_waiting())
    }

    /// How many times what happened.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        self.link.counters.counts()
    }
}
