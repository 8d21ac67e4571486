//! Where `pool` parks connections that have nothing to say while others wait for a worker.
//!
//! One thread sleeps in `epoll_wait` for all of them. A connection leaves the set for the queue of the workers when its
//! socket is ready, when mail comes for it, or when its deadline does; so a worker never looks at one that has nothing
//! to do, and any number of silent peers costs the others nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker as TaskWaker};
use std::time::{Duration, Instant};

use tidegate_os::epoll::{Epoll, EpollEvent};
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use super::super::worker::registry::ConnectionRegistry;
use super::super::worker::threads::rest_after_failed_wait;
use super::super::worker::transport::Transport;
use super::pool::{PooledConnection, WorkItem, WorkQueue};
use crate::proto::{Resolution, Table, Timers, Token};

/// Reports taken from the kernel at once.
const BATCH: usize = 64;

const WAKER: u64 = u64::MAX;

/// The connections that are parked.
pub(super) struct IdleSet {
    epoll: Epoll,
    waker: Waker,
    state: Mutex<IdleSetState>,
    queue: Arc<WorkQueue>,
    closed: AtomicBool,
}

struct IdleSetState {
    parked: Table<Box<PooledConnection>>,
    timers: Timers,
    fired: Vec<u32>,
    /// Until when the watching thread sleeps; `None` is for ever.
    sleeps_until: Option<Instant>,
}

/// Takes one connection out when there is mail for it.
struct UnparkWaker {
    idle_set: Weak<IdleSet>,
    token: Token,
}

impl Wake for UnparkWaker {
    fn wake(self: Arc<Self>) {
        if let Some(idle_set) = self.idle_set.upgrade() {
            idle_set.unpark(self.token);
        }
    }
}

impl IdleSet {
    pub(super) fn new(queue: Arc<WorkQueue>) -> io::Result<Arc<Self>> {
        let (epoll, waker) = (Epoll::new()?, Waker::new()?);
        epoll.add_level(&waker, WAKER)?;
        let state = IdleSetState {
            parked: Table::default(),
            timers: Timers::new(Instant::now()),
            fired: Vec::new(),
            sleeps_until: None,
        };
        Ok(Arc::new(Self { epoll, waker, state: Mutex::new(state), queue, closed: AtomicBool::new(false) }))
    }

    fn lock(&self) -> MutexGuard<'_, IdleSetState> {
        // No code of the application runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a connection until there is something to do for it.
    pub(super) fn park(self: &Arc<Self>, pooled: Box<PooledConnection>, registry: &ConnectionRegistry) {
        let policy = registry.policy();
        let (wanted, deadline) = (pooled.entry.interest(), pooled.deadline(&policy));
        let inbox = pooled.slot.inbox.clone();
        let token = self.lock().parked.insert(pooled);
        // Before it is watched: the next worker to have it says whom mail is to wake, and nobody may say so after that.
        inbox.wakes(&TaskWaker::from(Arc::new(UnparkWaker { idle_set: Arc::downgrade(self), token })));
        let mut state = self.lock();
        let IdleSetState { parked, timers, sleeps_until, .. } = &mut *state;
        let Some(pooled) = parked.get_mut(token) else {
            return; // mail has come, and a worker has it
        };
        if let Some(at) = deadline {
            timers.arm_no_later(token.index, at, Resolution::Millisecond);
            if sleeps_until.is_none_or(|until| at < until) {
                self.waker.wake();
            }
        }
        let fd = pooled.entry.stream.borrowed();
        // An epoll instance reports a reset even to who waits for nothing, again and again: nobody would look.
        let watched = wanted == Readiness::default()
            || fd.is_some_and(|fd| self.epoll.add_level_for(fd, wanted, token.to_u64()).is_ok());
        drop(state);
        // Mail, or other limits, may have come before that; and what cannot be watched must be looked at in turn.
        if !watched || inbox.has_delivery() || !Arc::ptr_eq(&policy, &registry.policy()) {
            self.unpark(token);
        }
    }

    /// Takes a connection out and gives it to the workers; nothing if it is gone already.
    fn unpark(&self, token: Token) {
        let mut state = self.lock();
        let Some(pooled) = state.parked.remove(token) else { return };
        state.timers.disarm(token.index);
        // Under the lock: the token's index, and after a close the descriptor, may be given out again at once.
        if let Some(fd) = pooled.entry.stream.borrowed() {
            let _ = self.epoll.remove(fd); // it may not have been added
        }
        drop(state);
        self.queue.push(WorkItem::Rotated(pooled));
    }

    /// Watches on the calling thread until the idle set is closed.
    pub(super) fn watch(&self) {
        self.watch_by(|reports, timeout| self.epoll.wait(reports, timeout));
    }

    fn watch_by(&self, wait: impl Fn(&mut [EpollEvent], Option<Duration>) -> io::Result<usize>) {
        let mut reports = [EpollEvent::EMPTY; BATCH];
        while !self.closed.load(Relaxed) {
            let timeout = {
                let mut state = self.lock();
                let now = Instant::now();
                let timeout = state.timers.sleep(now);
                state.sleeps_until = timeout.map(|timeout| now + timeout);
                timeout
            };
            let n = wait(&mut reports, timeout).unwrap_or_else(|e| {
                rest_after_failed_wait("parked connections", &e);
                0 // what is due is looked at all the same
            });
            for report in reports.iter().take(n) {
                match report.key() {
                    WAKER => self.waker.clear(),
                    key => self.unpark(Token::from_u64(key)),
                }
            }
            self.unpark_due();
        }
    }

    fn unpark_due(&self) {
        let mut state = self.lock();
        let IdleSetState { parked, timers, fired, .. } = &mut *state;
        timers.advance(Instant::now(), fired);
        let due: Vec<Token> = fired.drain(..).filter_map(|index| parked.token_at(index)).collect();
        drop(state);
        due.into_iter().for_each(|token| self.unpark(token));
    }

    /// Ends the watching; nothing is parked any more.
    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
        self.waker.wake();
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_watch_that_cannot_wait_rests_each_time() {
        let idle_set = IdleSet::new(Arc::default()).expect("an epoll instance");
        let (waits, start) = (Cell::new(0), Instant::now());
        idle_set.watch_by(|_, _| {
            waits.set(waits.get() + 1);
            if waits.get() == 5 {
                idle_set.close();
            }
            Err(io::ErrorKind::OutOfMemory.into())
        });
        assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    }
}
