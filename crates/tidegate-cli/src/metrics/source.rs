//! What is published of a server.

use std::sync::Arc;

use tidegate::{DatagramStats, Stats};
use tidegate_services::ChatCounters;
use tidegate_services::proxy::Upstreams;
use tidegate_tls::TlsCounters;

/// The phase of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ServerPhase {
    /// Not yet.
    Starting,
    /// Yes.
    Accepting,
    /// Draining or stopped.
    Draining,
}

/// The source of a server's counters.
pub enum StatsSource {
    /// It serves connections.
    Connections {
        stats: Box<dyn Fn() -> Stats + Send + Sync>,
        /// If they are encrypted.
        tls: Option<Arc<TlsCounters>>,
        /// If it is a messenger.
        chat: Option<Arc<ChatCounters>>,
        /// If it is a proxy.
        proxy: Option<Arc<Upstreams>>,
    },
    /// It serves datagrams.
    Datagrams(Box<dyn Fn() -> DatagramStats + Send + Sync>),
}
