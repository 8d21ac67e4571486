//! Where `pool` parks connections on systems without epoll: at the end of the queue, to be looked at in turn.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::super::worker::registry::ConnectionRegistry;
use super::pool::{PooledConnection, WorkItem, WorkQueue};

/// The way back into the queue.
pub(super) struct IdleSet {
    queue: Arc<WorkQueue>,
    closed: Mutex<bool>,
    changed: Condvar,
}

impl IdleSet {
    pub(super) fn new(queue: Arc<WorkQueue>) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { queue, closed: Mutex::new(false), changed: Condvar::new() }))
    }

    /// Lets the others have their turn first.
    pub(super) fn park(self: &Arc<Self>, pooled: Box<PooledConnection>, _: &ConnectionRegistry) {
        self.queue.push(WorkItem::Rotated(pooled));
    }

    /// There is nothing to watch: sleeps until the idle set is closed.
    pub(super) fn watch(&self) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(closed, |closed| !*closed));
    }

    /// Ends the watching.
    pub(super) fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}
