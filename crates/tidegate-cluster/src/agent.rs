//! An agent: waits for loads, runs its parts of one load at a time, and reports progress.

#[cfg(not(feature = "nats"))]
mod absent;
#[cfg(feature = "nats")]
mod work;

use crate::access::BrokerAccess;
use crate::allow::AllowList;
#[cfg(not(feature = "nats"))]
pub use absent::serve;
#[cfg(feature = "nats")]
pub use work::serve;

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The broker.
    pub access: BrokerAccess,
    /// Its name in results.
    pub name: String,
    /// Allowed targets.
    pub allow: AllowList,
    /// Exit after this many loads; `None` is never.
    pub runs: Option<u64>,
    /// Reports its wall clock this many seconds ahead: for tests of wrong clocks.
    pub clock_ahead_s: f64,
    /// Reports it this many more seconds ahead once a load has begun.
    pub clock_jump_s: f64,
}
