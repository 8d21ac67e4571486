//! Who of the I/O threads serves which connection: what they know of each other, and how places are promised.
//!
//! The accepting thread asks [`policy::accept`](crate::policy::accept) who is to serve, and hands the connection on if
//! that is another thread. A place is taken there first, so that no limit is exceeded; and a thread that is expecting
//! a connection does not end, so that none is lost.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{Command, CommandQueue};
use crate::policy::accept::{ThreadLoad, assignee, lead};
use crate::policy::pressure::LastShed;

/// Connections that may be on their way to a thread. One that does not take them in is left alone.
const MOST_EXPECTED: u64 = 1024;

/// In [`ThreadPlaces::state`]: the lower half counts places that are taken, the upper one connections on their way.
const EXPECTED: u64 = 1 << 32;
/// The thread has ended.
const ENDED: u64 = 1 << 63;

/// What the others know of one I/O thread. Each is on separate cache lines.
#[repr(align(128))]
#[derive(Default)]
pub(in crate::engine) struct ThreadPlaces {
    /// Places taken: connections that are open, on their way, or that an accept was posted for. See [`EXPECTED`] and
    /// [`ENDED`].
    state: AtomicU64,
    /// Connections it was given.
    given: AtomicU64,
    /// Places it may take, and how many may be taken when others still hand it connections.
    share: AtomicUsize,
    takes: AtomicUsize,
}

fn open(state: u64) -> u64 {
    state & (EXPECTED - 1)
}

fn expected(state: u64) -> u64 {
    (state & !ENDED) >> 32
}

impl ThreadPlaces {
    /// The thread may have this many connections open, and is given some by others while it has fewer than `takes`.
    pub(in crate::engine) fn set_share(&self, share: usize, takes: usize) {
        self.share.store(share, Relaxed);
        self.takes.store(takes, Relaxed);
    }

    /// Places that are taken.
    pub(in crate::engine) fn open(&self) -> usize {
        open(self.state.load(Acquire)) as usize
    }

    /// Connections on their way to this thread.
    pub(in crate::engine) fn expected(&self) -> usize {
        expected(self.state.load(Acquire)) as usize
    }

    /// Takes a place for a connection that is about to be accepted, unless another thread has just taken the last one
    /// of the share.
    pub(in crate::engine) fn claim(&self) -> bool {
        let share = self.share.load(Relaxed) as u64;
        self.state.fetch_update(AcqRel, Acquire, |state| (open(state) < share).then_some(state + 1)).is_ok()
    }

    /// Takes a place that nobody had claimed, whether the share allows it or not.
    pub(in crate::engine) fn claim_anyway(&self) {
        self.state.fetch_add(1, AcqRel);
    }

    /// Gives a place back: nothing came for it, or what came goes to another thread.
    pub(in crate::engine) fn release(&self) {
        self.state.fetch_sub(1, AcqRel);
    }

    /// A connection that was on its way has arrived; its place stays taken.
    pub(in crate::engine) fn arrived(&self) {
        self.state.fetch_sub(EXPECTED, AcqRel);
    }

    /// The thread is about to end, and is given nothing more. `false` while something is on its way to it.
    pub(in crate::engine) fn leave(&self) -> bool {
        let end = |state| (expected(state) == 0).then_some(state | ENDED);
        self.state.fetch_update(AcqRel, Acquire, end).is_ok()
    }

    fn load(&self) -> ThreadLoad {
        let state = self.state.load(Relaxed);
        ThreadLoad { given: self.given.load(Relaxed), open: open(state), has_room: self.has_room(state) }
    }

    /// Whether others may hand it a connection.
    fn has_room(&self, state: u64) -> bool {
        let room = self.share.load(Relaxed).min(self.takes.load(Relaxed)) as u64;
        state & ENDED == 0 && open(state) < room && expected(state) < MOST_EXPECTED
    }
}

/// The I/O threads of a server or client as they see each other.
pub(crate) struct ThreadBalance {
    workers: Box<[ThreadPlaces]>,
    /// The fewest connections that a thread with room was given, when this was last looked at.
    fewest: AtomicU64,
    command_queues: Box<[Arc<CommandQueue>]>,
    /// Threads that were started, in order, and those of them that have ended.
    started: AtomicUsize,
    gone: AtomicUsize,
    /// Rarely looked at: only while memory has lacked for long.
    last_shed: Mutex<LastShed>,
}

impl ThreadBalance {
    /// For threads behind these command queues, of which the first are `started` now; none has room yet.
    pub(crate) fn new(command_queues: &[Arc<CommandQueue>], started: usize) -> Self {
        Self {
            workers: command_queues.iter().map(|_| ThreadPlaces::default()).collect(),
            fewest: AtomicU64::new(0),
            command_queues: command_queues.into(),
            started: AtomicUsize::new(started),
            gone: AtomicUsize::new(0),
            last_shed: Mutex::default(),
        }
    }

    /// Threads that were started.
    pub(in crate::engine) fn started(&self) -> usize {
        self.started.load(Acquire)
    }

    /// Of those, the ones that have not ended.
    pub(in crate::engine) fn alive(&self) -> usize {
        self.started().saturating_sub(self.gone.load(Acquire))
    }

    /// The next thread is about to start; which. It does not make up for what the others were given before.
    pub(in crate::engine) fn start_next(&self) -> usize {
        let index = self.started.fetch_add(1, AcqRel);
        self.workers[index].given.fetch_max(self.fewest.load(Relaxed), Relaxed);
        index
    }

    /// That thread could not start. Its place is the next one's, unless it was given connections.
    pub(in crate::engine) fn could_not_start(&self, index: usize) {
        if self.workers[index].state.load(Acquire) & ENDED == 0 {
            self.started.fetch_sub(1, AcqRel);
        }
    }

    /// The places of a thread.
    pub(in crate::engine) fn places(&self, thread: usize) -> &ThreadPlaces {
        &self.workers[thread]
    }

    /// The way to a thread.
    pub(in crate::engine) fn command_queue(&self, thread: usize) -> &CommandQueue {
        &self.command_queues[thread]
    }

    /// Has all other threads do something that takes no room in their queues.
    pub(in crate::engine) fn post_to_others(&self, mine: usize, command: impl Fn() -> Command) {
        let all = self.command_queues[..self.started()].iter().enumerate();
        for (_, command_queue) in all.filter(|(index, _)| *index != mine) {
            let _ = command_queue.push(command()); // a thread that has stopped has nothing to do
        }
    }

    /// Whether a thread that lacks memory may have all of them close connections now.
    pub(in crate::engine) fn claim_shed(&self, now: Instant) -> bool {
        self.last_shed.lock().unwrap_or_else(PoisonError::into_inner).claim(now)
    }

    /// Who serves a connection that `mine` has accepted and has a place for: `None` is itself, any other has taken a
    /// place for it, and expects it.
    pub(in crate::engine) fn assign(&self, mine: usize) -> Option<usize> {
        let own = self.workers[mine].load();
        if self.started() > 1 && own.given >= self.fewest.load(Relaxed) + lead(own) {
            let to = self.choose(mine, own);
            if to != mine && self.reserve(to) {
                self.workers[to].given.fetch_add(1, Relaxed);
                return Some(to);
            }
        }
        self.workers[mine].given.fetch_add(1, Relaxed);
        None
    }

    fn choose(&self, mine: usize, own: ThreadLoad) -> usize {
        let workers = &self.workers[..self.started()];
        let mut loads: Vec<_> = workers.iter().map(ThreadPlaces::load).collect();
        loads[mine] = ThreadLoad { has_room: true, ..own };
        let to = assignee(&loads, mine);
        let with_room = loads.iter().filter(|load| load.has_room);
        let fewest = with_room.map(|load| load.given).min().unwrap_or(own.given);
        self.fewest.store(fewest, Relaxed);
        for (worker, load) in workers.iter().zip(&loads) {
            if load.given < fewest {
                // It has no room: what it misses meanwhile is not made up for when it has, all at once.
                worker.given.fetch_max(fewest, Relaxed);
            }
        }
        to
    }

    fn reserve(&self, to: usize) -> bool {
        let worker = &self.workers[to];
        let one_more = |state| worker.has_room(state).then_some(state + 1 + EXPECTED);
        worker.state.fetch_update(AcqRel, Acquire, one_more).is_ok()
    }

    /// A connection could not be handed on: `mine` serves it, whether it has a place or not.
    pub(in crate::engine) fn take_back(&self, mine: usize, from: usize) {
        self.workers[mine].claim_anyway();
        self.workers[mine].given.fetch_add(1, Relaxed);
        self.workers[from].given.fetch_sub(1, Relaxed);
        self.workers[from].state.fetch_sub(1 + EXPECTED, AcqRel);
    }

    /// The thread has ended, whatever is on its way to it.
    pub(in crate::engine) fn is_gone(&self, mine: usize) {
        self.workers[mine].state.fetch_or(ENDED, Release);
        self.gone.fetch_add(1, AcqRel);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    fn balance(threads: usize, share: usize) -> ThreadBalance {
        let command_queues: Vec<_> = (0..threads).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
        let balance = ThreadBalance::new(&command_queues, threads);
        (0..threads).for_each(|thread| balance.places(thread).set_share(share, usize::MAX));
        balance
    }

    #[test]
    fn the_accepting_thread_keeps_its_share_and_none_is_exceeded() {
        let balance = balance(4, 25);
        let mut handed = 0;
        while balance.places(0).claim() {
            if let Some(to) = balance.assign(0) {
                balance.places(0).release();
                balance.places(to).arrived();
                handed += 1;
            }
        }
        assert_eq!((0..4).map(|thread| balance.places(thread).open()).collect::<Vec<_>>(), [25, 24, 24, 24]);
        assert_eq!(handed, 72);
    }

    #[test]
    fn a_thread_that_expects_a_connection_does_not_end_and_one_that_has_ended_is_given_none() {
        let balance = balance(2, 10);
        assert!(balance.places(0).claim());
        assert_eq!(balance.assign(0), None);
        assert!(balance.places(0).claim());
        assert_eq!(balance.assign(0), Some(1));
        balance.places(0).release();
        assert!(!balance.places(1).leave(), "a connection is on its way");
        balance.places(1).arrived();
        assert!(balance.places(1).leave());
        assert!(balance.places(1).leave(), "twice is once");
        for _ in 0..5 {
            assert!(balance.places(0).claim());
            assert_eq!(balance.assign(0), None);
        }
    }

    #[test]
    fn what_could_not_be_handed_on_is_served_where_it_was_accepted() {
        let balance = balance(2, 10);
        assert!(balance.places(0).claim() && balance.assign(0).is_none());
        assert!(balance.places(0).claim());
        assert_eq!(balance.assign(0), Some(1));
        balance.places(0).release();
        balance.take_back(0, 1);
        assert_eq!(
            (balance.places(0).open(), balance.places(1).open(), balance.places(1).expected()),
            (2, 0, 0)
        );
        assert!(balance.places(1).leave());
    }

    #[test]
    fn a_thread_that_was_full_does_not_get_all_that_it_has_missed() {
        let balance = balance(2, 1000);
        balance.places(1).set_share(0, usize::MAX);
        for _ in 0..100 {
            assert!(balance.places(0).claim());
            assert_eq!(balance.assign(0), None);
        }
        balance.places(1).set_share(1000, usize::MAX);
        let mut in_a_row = 0;
        while balance.places(0).claim() && balance.assign(0).is_some() {
            balance.places(0).release();
            in_a_row += 1;
        }
        assert!(in_a_row <= 2, "{in_a_row}");
    }
}
