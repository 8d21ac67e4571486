//! What async code holds of its connection.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use tidegate::Peer;

use crate::shared::Shared;
use crate::spawn::Spawner;
use crate::time::{Sleep, Timeout};

/// One connection, as async code sees it. Implements the reading and writing traits of the features that are on.
///
/// May be moved to another thread: then each read and write wakes the connection's I/O thread. The connection lives
/// until the future that [`service`](crate::service()) made for it has returned, whoever holds this.
#[derive(Debug)]
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
    peer: Peer,
}

/// The reading half of a [`Connection`].
#[derive(Debug)]
pub struct ReadHalf {
    pub(crate) shared: Arc<Shared>,
}

/// The writing half of a [`Connection`]. Dropping it shuts the sending side down.
#[derive(Debug)]
pub struct WriteHalf {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        let _ = self.shared.finish();
    }
}

/// An offloaded job gave no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadFailed;

impl std::fmt::Display for OffloadFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the job panicked or was not run: the queue of offloaded jobs is full, or no thread could be started; \
             answer busy, or raise offload.queue or offload.threads",
        )
    }
}

impl std::error::Error for OffloadFailed {}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, peer: Peer) -> Self {
        Self { shared, peer }
    }

    /// Who is at the other end, and which I/O thread the connection is on.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The peer's address, where the service [asked for it](crate::AsyncService::needs_peer_addr).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer.addr
    }

    /// Splits it into halves that can be used side by side.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { shared: self.shared.clone() }, WriteHalf { shared: self.shared })
    }

    /// Waits, on the timers of the connection's I/O thread. Never early; late by a millisecond at most while that
    /// thread is not busy.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(self.shared.clone(), duration)
    }

    /// Waits until `at`; see [`sleep`](Self::sleep).
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep::until(self.shared.clone(), at)
    }

    /// Runs `future` for at most `limit`.
    pub fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        Timeout::new(self.sleep(limit), future)
    }

    /// Runs a further future of this connection beside the first, on the same I/O thread; see [`Spawner::spawn`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawner().spawn(future);
    }

    /// Spawns futures of this connection; can be cloned and outlives borrows of the connection.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner::new(self.shared.clone())
    }

    /// Runs a job that takes long, or blocks, away from the I/O threads; bounded by
    /// [`Policy::offload`](tidegate::Policy::offload).
    ///
    /// # Errors
    /// [`OffloadFailed`] when there is no room for the job, or it panicked.
    pub fn offload<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + 'static {
        let (done, result) = oneshot::channel();
        self.shared.offload(Box::new(move || {
            let _ = done.send(job()); // whoever asked may be gone
        }));
        async move { result.await.map_err(|_| OffloadFailed) }
    }

    /// Waits until the server drains. Code that asks decides for itself when its connection ends, within
    /// [`Policy::drain_timeout`](tidegate::Policy::drain_timeout); without, a connection that waits for input is closed
    /// at once.
    ///
    /// Code that reads ahead while it works, as hyper does, has to ask: a connection that reads counts as idle
    /// otherwise.
    pub fn draining(&self) -> Draining {
        Draining { shared: self.shared.clone(), id: self.shared.timer().0 }
    }
}

/// Waits until the server drains; made by [`Connection::draining`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Draining {
    shared: Arc<Shared>,
    id: u64,
}

impl Future for Draining {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        self.shared.poll_draining(task, self.id)
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.shared.cancel_draining(self.id);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
