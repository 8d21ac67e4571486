//! Spawned futures of a connection.

use std::future::Future;
use std::sync::Arc;

use crate::shared::Shared;

/// Spawns futures of one connection.
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

    #[cfg(feature = "hyper")]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}
