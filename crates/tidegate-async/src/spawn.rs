//! Spawned futures and offloaded jobs of a connection.

use std::future::Future;
use std::sync::Arc;

use futures_channel::oneshot;

use crate::OffloadFailed;
use crate::shared::Shared;

/// Spawns futures of one connection, and jobs beside its I/O thread.
#[derive(Clone, Debug)]
pub struct Spawner {
    shared: Arc<Shared>,
}

impl Spawner {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Runs a future on the connection's I/O thread. It is dropped when the connection ends, and does not keep it open.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.shared.spawn(Box::pin(future));
    }

    /// Runs a long or blocking job on a worker thread; see [`Connection::offload`](crate::Connection::offload).
    ///
    /// # Errors
    /// [`OffloadFailed`] when the queue is full or the job panicked.
    pub fn offload<T: Send + 'static, J: FnOnce() -> T + Send + 'static>(
        &self,
        job: J,
    ) -> impl Future<Output = Result<T, OffloadFailed>> + Send + use<T, J> {
        let (done, result) = oneshot::channel();
        self.shared.offload(Box::new(move || {
            let _ = done.send(job()); // the receiver may be gone
        }));
        async move { result.await.map_err(|_| OffloadFailed) }
    }

    #[cfg(feature = "hyper")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
