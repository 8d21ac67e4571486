//! More I/O threads while a server runs, for models whose threads hold few connections each.
//!
//! Each thread that `max_connections` may need has its place from the start: a command queue, counters, a share. The
//! next one is started by the accepting thread, when all that run have as many connections as they may. Threads stay.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::balance::ThreadBalance;
use super::command_queue::Command;
use super::threads::{Starting, start_all};
use crate::policy::{Policy, PolicyError, accept};
use crate::stats::Counters;

/// Starts the thread of a place, under these limits.
pub(super) type Start =
    Arc<dyn Fn(usize, &Arc<Policy>, Option<&Arc<Growth>>) -> io::Result<Starting> + Send + Sync>;

/// The threads of a server that are started as connections come.
pub(crate) struct Growth {
    balance: Arc<ThreadBalance>,
    /// Connections that one thread may have, and those that each of them may dial.
    each: usize,
    dials: usize,
    /// Places for threads, and how many of them the present limits allow.
    places: usize,
    most: AtomicUsize,
    inner: Mutex<GrowthState>,
}

struct GrowthState {
    /// `None` when the server stops.
    start: Option<Start>,
    policy: Arc<Policy>,
    handles: Vec<JoinHandle<()>>,
}

impl Growth {
    pub(super) fn new(
        start: Start,
        balance: Arc<ThreadBalance>,
        (each, dials): (usize, usize),
        places: usize,
        policy: Arc<Policy>,
    ) -> Arc<Self> {
        let growth = Self {
            balance,
            each,
            dials,
            places,
            most: AtomicUsize::new(0),
            inner: Mutex::new(GrowthState {
                start: Some(start),
                policy: policy.clone(),
                handles: Vec::new(),
            }),
        };
        growth.most.store(growth.most_under(&policy), Relaxed);
        Arc::new(growth)
    }

    /// Threads there may be under these limits.
    fn most_under(&self, policy: &Policy) -> usize {
        let needed = accept::admitted(policy.max_connections, self.dials).div_ceil(self.each);
        accept::threads(policy, needed, self.dials).clamp(self.started(), self.places)
    }

    /// Threads there may be.
    pub(super) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }

    /// Threads there are.
    pub(crate) fn started(&self) -> usize {
        self.balance.started()
    }

    /// Of `total` connections, those that a thread may have: each is filled before the next is started.
    pub(super) fn share(&self, total: usize, index: usize) -> usize {
        accept::filled(total, index, self.each)
    }

    /// A connection was accepted; `open` says how many all threads have. Starts the next thread if they are full. Where
    /// that fails, the server is full until a connection closes, and the next one accepted tries again.
    pub(super) fn accepted(self: &Arc<Self>, open: impl Fn() -> usize, counters: &Counters) {
        if !self.is_due(open()) {
            return;
        }
        let mut inner = self.lock();
        if !self.is_due(open()) {
            return; // another thread has started it
        }
        let Some(start) = inner.start.clone() else { return };
        let index = self.balance.start_next();
        let started = start_all([start(index, &inner.policy, Some(self))], || {});
        match started {
            Ok(handles) => inner.handles.extend(handles),
            Err(e) => {
                self.balance.could_not_start(index);
                counters.no_threads.add(1);
                let threads = self.started();
                tracing::warn!(error = %e, threads, "no further I/O thread can be started: connections wait");
            }
        }
    }

    fn is_due(&self, open: usize) -> bool {
        open >= self.balance.alive().saturating_mul(self.each) && self.started() < self.most()
    }

    /// The server stops: no thread is started any more, and the listener is no longer held.
    pub(super) fn end(&self) {
        self.lock().start = None;
    }

    /// Has all threads go on with other limits, and those that are started later.
    ///
    /// # Errors
    /// There are more threads than permits.
    pub(crate) fn set_policy(&self, policy: &Arc<Policy>) -> Result<(), PolicyError> {
        let mut inner = self.lock();
        policy.check_permits(self.started())?;
        self.most.store(self.most_under(policy), Relaxed);
        inner.policy = policy.clone();
        for thread in 0..self.started() {
            // A thread that has stopped needs no limits.
            let _ = self.balance.command_queue(thread).push(Command::Policy(policy.clone()));
        }
        Ok(())
    }

    /// The threads that were started as connections came.
    pub(crate) fn take_handles(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.lock().handles)
    }

    /// Whether one of those has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().handles.iter().any(JoinHandle::is_finished)
    }

    fn lock(&self) -> MutexGuard<'_, GrowthState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner) // nothing under the lock leaves it half-done
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::atomic::AtomicBool;

    use super::super::command_queue::CommandQueue;
    use super::super::threads::STACK_BYTES;
    use super::*;
    use crate::stats::Writers;

    const EACH: usize = 10;

    /// Two threads run, and there are places for five; whether one more can serve is said by the flag.
    fn growth(policy: Policy, can: Arc<AtomicBool>) -> Arc<Growth> {
        let queues: Vec<_> = (0..5).map(|_| Arc::new(CommandQueue::new(1, || {}))).collect();
        let start: Start = Arc::new(move |_, _, _| {
            let outcome = if can.load(Relaxed) { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) };
            Starting::spawn("tidegate-test".into(), STACK_BYTES, move |ready| _ = ready.report(outcome))
        });
        Growth::new(start, Arc::new(ThreadBalance::new(&queues, 2)), (EACH, 0), 5, Arc::new(policy))
    }

    fn accepted(growth: &Arc<Growth>, open: usize) -> usize {
        growth.accepted(|| open, &Counters::new(Writers::One));
        growth.started()
    }

    #[test]
    fn a_thread_is_started_when_those_there_are_full_and_no_more_than_there_are_places() {
        let growth = growth(Policy::default(), Arc::new(true.into()));
        let started = [1, 19, 20, 21, 29, 30, 30, 40, 50, 60].map(|open| accepted(&growth, open));
        assert_eq!(started, [2, 2, 3, 3, 3, 4, 4, 5, 5, 5]);
        assert_eq!(growth.take_handles().len(), 3);
    }

    #[test]
    fn the_connections_of_a_thread_that_is_gone_go_to_one_that_is_started() {
        let growth = growth(Policy::default(), Arc::new(true.into()));
        growth.balance.is_gone(0);
        assert_eq!(accepted(&growth, 10), 3);
    }

    #[test]
    fn a_thread_that_cannot_start_is_tried_again_with_the_next_connection() {
        let can = Arc::new(AtomicBool::new(false));
        let growth = growth(Policy::default(), can.clone());
        assert_eq!([20, 20].map(|open| accepted(&growth, open)), [2, 2]);
        can.store(true, Relaxed);
        assert_eq!(accepted(&growth, 20), 3);
    }

    #[test]
    fn limits_bound_the_threads_and_are_those_of_later_ones() {
        let sends = |n| Policy { outstanding_sends: NonZeroU32::new(n), ..Policy::default() };
        let growth = growth(sends(3), Arc::new(true.into()));
        assert_eq!([20, 30, 40].map(|open| accepted(&growth, open)), [3, 3, 3]);
        let text = growth.set_policy(&Arc::new(sends(2))).unwrap_err().to_string();
        assert!(text.contains("at least 3"), "{text}");
        growth.set_policy(&Arc::new(sends(4))).unwrap();
        assert_eq!(growth.lock().policy.outstanding_sends, NonZeroU32::new(4));
        assert_eq!([40, 50].map(|open| accepted(&growth, open)), [4, 4]);
    }

    #[test]
    fn who_stops_starts_no_more_threads() {
        let growth = growth(Policy::default(), Arc::new(true.into()));
        growth.end();
        assert_eq!(accepted(&growth, 20), 2);
    }
}
