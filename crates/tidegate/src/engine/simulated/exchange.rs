//! What the peers of somebody's own service say and must receive, and when all of that is over.

use std::sync::Arc;

use super::socket::{SimulatedSocket, SocketState};
use super::world::World;

/// What somebody's own test has a peer say, and what it must be sent if nothing breaks the connection.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) sends: Arc<[u8]>,
    pub(crate) expects: Arc<[u8]>,
}

/// Bytes that do not follow from their positions.
#[derive(Debug)]
pub(super) struct GivenBytes {
    /// What the peer may be sent, and says: more than one for a peer that was dialled, and none for an address at which
    /// nobody is.
    pub(super) exchanges: Vec<Exchange>,
    /// Which one it is. A peer that was dialled knows that when it has heard all of it.
    pub(super) which: Option<usize>,
    /// What the kernel took for the peer.
    pub(super) taken: Vec<u8>,
    /// The peer hears no more than this: the rest was lost in a reset.
    pub(super) cut: Option<usize>,
}

impl GivenBytes {
    pub(super) fn new(exchanges: Vec<Exchange>, which: Option<usize>) -> Self {
        Self { exchanges, which, taken: Vec::new(), cut: None }
    }

    pub(super) fn says(&self) -> &[u8] {
        self.which.map_or(&[], |which| &self.exchanges[which].sends)
    }

    /// What the peer has received.
    pub(super) fn received(&self) -> &[u8] {
        &self.taken[..self.cut.unwrap_or(self.taken.len()).min(self.taken.len())]
    }
}

impl SimulatedSocket {
    /// Nothing more will come of it.
    pub(super) fn is_over(&self) -> bool {
        let failed = self.asker.is_some() && self.server == SocketState::Away && self.log.dropped;
        self.server == SocketState::Closed || failed
    }
}

impl World {
    /// Somebody's own service has nothing more to do.
    pub(super) fn is_all_over(&self) -> bool {
        self.sockets.iter().all(|socket| socket.given.is_some() && socket.is_over())
    }
}
