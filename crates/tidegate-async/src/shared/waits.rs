//! What of a connection is waited for beside its bytes: the drain of the server, and timers.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering::Acquire, Ordering::Release};
use std::task::{Context, Poll};
use std::time::Instant;

use super::{Shared, Waiter};

/// Whether the server drains, and the wakers of tasks waiting for that.
#[derive(Default)]
pub(crate) struct DrainWaiters {
    pub(crate) begun: bool,
    /// The code waits for the drain: it decides when the connection ends.
    pub(crate) watched: bool,
    pub(super) waiting: BTreeMap<u64, Waiter>,
    next: u64,
}

/// Where a future that waits for the drain is among those that do.
#[derive(Debug, Default)]
pub(crate) struct DrainPlace {
    key: Option<u64>,
    /// The session's own task waits there.
    is_session: bool,
}

impl DrainWaiters {
    fn new_key(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Shared {
    /// Waits until the server drains. `id` is the place among those that wait, once it has one.
    pub(crate) fn poll_draining(&self, task: &Context<'_>, id: &mut DrainPlace) -> Poll<()> {
        let own = self.session_waiter(task);
        if own.is_some() && id.is_session && !self.drains.load(Acquire) {
            return Poll::Pending; // it has its place already
        }
        id.is_session = own.is_some();
        let waiter = own.unwrap_or_else(|| Waiter::Other(task.waker().clone()));
        let mut state = self.lock();
        state.draining.watched = true;
        if state.draining.begun || state.closed {
            return Poll::Ready(());
        }
        let key = *id.key.get_or_insert_with(|| state.draining.new_key());
        let before = state.draining.waiting.insert(key, waiter);
        drop(state);
        drop(before);
        Poll::Pending
    }

    pub(crate) fn cancel_draining(&self, id: &DrainPlace) {
        if let Some(key) = id.key {
            let waiter = self.lock().draining.waiting.remove(&key);
            drop(waiter); // not under the lock
        }
    }

    /// The time that a timer of this connection counts from.
    pub(crate) fn now(&self) -> Instant {
        // Virtual time is ahead of the clock; the time of a batch of events is behind it.
        let clock = Instant::now();
        self.lock().now.map_or(clock, |now| now.max(clock))
    }

    /// Waits until `at`. `id` is that of the timer, once it is set. Returns immediately if the connection is gone,
    /// because no thread would fire the timer.
    pub(crate) fn poll_timer(&self, task: &Context<'_>, at: Instant, id: &mut Option<u64>) -> Poll<()> {
        let waiter = self.session_waiter(task).unwrap_or_else(|| Waiter::Other(task.waker().clone()));
        let mut state = self.lock();
        let now = state.now.filter(|_| state.running).unwrap_or_else(Instant::now);
        let over = at <= now || state.closed;
        if over {
            let before = id.take().and_then(|id| state.timers.remove((at, id)));
            drop(state);
            drop(before);
            return Poll::Ready(());
        }
        let before = match *id {
            Some(id) => state.timers.set((at, id), waiter),
            None => {
                *id = Some(state.timers.add(at, waiter));
                None
            }
        };
        if before.is_some() {
            drop(state); // the waker has changed, not the time
        } else {
            self.notify(state);
        }
        drop(before);
        Poll::Pending
    }

    pub(crate) fn cancel_timer(&self, at: Instant, id: u64) {
        let waiter = self.lock().timers.remove((at, id));
        drop(waiter); // not under the lock
    }

    /// The server drains: wakes who waits for that.
    pub(crate) fn begin_to_drain(&self) {
        let mut state = self.lock();
        state.draining.begun = true;
        self.drains.store(true, Release);
        let waiting = std::mem::take(&mut state.draining.waiting);
        drop(state);
        waiting.into_values().for_each(|waiter| self.notify_waiter(waiter));
    }
}
