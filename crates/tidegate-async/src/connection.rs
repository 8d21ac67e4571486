//! The connection handle given to async code.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tidegate::Peer;

use crate::shared::{DrainPlace, Shared};
use crate::spawn::Spawner;
use crate::time::{Sleep, Timeout};

/// One connection as async code sees it. Implements the read and write traits of the enabled features.
///
/// Can be moved to another thread: then each read and write wakes the connection's I/O thread. The connection lives
/// until the future that [`service`](crate::service()) created for it has returned, even if handles remain.
#[derive(Debug)]
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
    peer: Peer,
}

/// The read half of a [`Connection`].
#[derive(Debug)]
pub struct ReadHalf {
    pub(crate) shared: Arc<Shared>,
}

/// The write half of a [`Connection`]. Dropping it shuts the sending side down.
#[derive(Debug)]
pub struct WriteHalf {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        let _ = self.shared.finish();
    }
}

/// An offloaded job returned no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadFailed;

impl std::fmt::Display for OffloadFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the job panicked or was not run: the queue of offloaded jobs is full, or no thread could be started; \
             reply busy, or raise offload.queue or offload.threads",
        )
    }
}

impl std::error::Error for OffloadFailed {}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, peer: Peer) -> Self {
        Self { shared, peer }
    }

    /// The peer, and the I/O thread that the connection is on.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The peer's address, if the service [asks for it](crate::AsyncService::peer_addr).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.peer.addr
    }

    /// The address of this end, where the service [asked for it](crate::AsyncService::local_addr).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.peer.local_addr
    }

    /// Splits it into halves that can be used side by side.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (ReadHalf { shared: self.shared.clone() }, WriteHalf { shared: self.shared })
    }

    /// Sleeps, on the timers of the connection's I/O thread. Never early while the connection lives; late by at most a
    /// millisecond if that thread is not busy. Returns immediately when the connection has ended: a loop on another
    /// thread that sleeps should end when a read or a write fails.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(self.shared.clone(), duration)
    }

    /// Sleeps until `at`; see [`sleep`](Self::sleep).
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep::until(self.shared.clone(), at)
    }

    /// Runs `future` for at most `limit`.
    pub fn timeout<F: Future>(&self, limit: Duration, future: F) -> Timeout<F> {
        Timeout::new(self.sleep(limit), future)
    }

    /// Runs another future of this connection concurrently, on the same I/O thread; see [`Spawner::spawn`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawner().spawn(future);
    }

    /// Spawns futures and jobs of this connection; can be cloned and outlives borrows of the connection.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner::new(self.shared.clone())
    }

    /// Runs a long or blocking job on a worker thread; bounded by [`Policy::offload`](tidegate::Policy::offload).
    ///
    /// # Errors
    /// [`OffloadFailed`] when the queue is full or the job panicked.
    pub fn offload<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + 'static {
        self.spawner().offload(job)
    }

    /// Waits until the server drains. Code that calls this decides itself when its connection ends, within
    /// [`Policy::drain_timeout`](tidegate::Policy::drain_timeout); otherwise a connection that waits for input is
    /// closed immediately.
    ///
    /// Code that reads ahead while it works, as hyper does, must call this: otherwise a connection that reads counts as
    /// idle.
    pub fn draining(&self) -> Draining {
        Draining { shared: self.shared.clone(), place: DrainPlace::default() }
    }
}

/// A future that waits until the server drains; created by [`Connection::draining`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Draining {
    shared: Arc<Shared>,
    place: DrainPlace,
}

impl Future for Draining {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let Self { shared, place } = self.get_mut();
        shared.poll_draining(task, place)
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.shared.cancel_draining(&self.place);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
