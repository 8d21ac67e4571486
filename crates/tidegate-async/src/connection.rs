//! A connection as async code sees it, whole and split.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::Peer;

use crate::shared::Shared;
use crate::{ConnectionHandle, Draining, OffloadFailed, Sleep, Timeout};

/// One connection as async code sees it. Implements the read and write traits of the enabled features.
///
/// Can be moved to another thread: then each read and write wakes the connection's I/O thread. The connection lives
/// until the future that [`service`](crate::service()) created for it has returned, even if handles remain.
#[derive(Debug)]
pub struct Connection {
    pub(crate) handle: ConnectionHandle,
}

/// The read half of a [`Connection`].
#[derive(Debug)]
pub struct ReadHalf {
    pub(crate) handle: ConnectionHandle,
}

/// The write half of a [`Connection`]. Dropping it shuts the sending side down.
#[derive(Debug)]
pub struct WriteHalf {
    pub(crate) handle: ConnectionHandle,
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        let _ = self.handle.shared.finish();
    }
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { handle: ConnectionHandle::new(shared) }
    }

    /// The handle of the connection, for what it does beside reading and writing: it borrows nothing.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }

    /// The peer, and the I/O thread that the connection is on.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.handle.peer()
    }

    /// The peer's address, if the service [asks for it](crate::AsyncService::peer_addr).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer().addr
    }

    /// The address of this end, where the service [asked for it](crate::AsyncService::local_addr).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.peer().local_addr
    }

    /// Splits it into halves that can be used side by side.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { handle: self.handle.clone() }, WriteHalf { handle: self.handle })
    }

    /// See [`ConnectionHandle::sleep`].
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.handle.sleep(duration)
    }

    /// See [`ConnectionHandle::sleep_until`].
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        self.handle.sleep_until(at)
    }

    /// See [`ConnectionHandle::timeout`]. For a read or a write take the method of the [handle](Self::handle): the
    /// future borrows the connection.
    pub fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        self.handle.timeout(limit, future)
    }

    /// See [`ConnectionHandle::spawn`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(future);
    }

    /// See [`ConnectionHandle::offload`].
    ///
    /// # Errors
    /// [`OffloadFailed`] when the job was not run, or panicked.
    pub fn offload<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + use<T, J> {
        self.handle.offload(job)
    }

    /// See [`ConnectionHandle::abort`].
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// See [`ConnectionHandle::draining`].
    pub fn draining(&self) -> Draining {
        self.handle.draining()
    }
}

impl ReadHalf {
    /// The handle of the connection.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}

impl WriteHalf {
    /// The handle of the connection.
    #[must_use]
    pub fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}
