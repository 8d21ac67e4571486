//! The lead of a run: distributes the plan, compares clocks, starts all agents at one moment, monitors them, and merges
//! the results.

#[cfg(not(feature = "nats"))]
mod absent;
#[cfg(feature = "nats")]
mod conduct;

use std::time::Duration;

use crate::access::BrokerAccess;
#[cfg(not(feature = "nats"))]
pub use absent::carry_out;
#[cfg(feature = "nats")]
pub use conduct::carry_out;

/// What to do when an agent is lost, or another problem occurs between the agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// End the load; the result covers the time until then.
    #[default]
    Stop,
    /// Continue with the others; the lost part is missing.
    Continue,
    /// Continue, and let the others take over the rest of the lost part.
    Redistribute,
}

/// Options of the distribution.
#[derive(Clone, Debug)]
pub struct LeadOptions {
    /// The broker.
    pub access: BrokerAccess,
    /// Number of agents.
    pub agents: usize,
    /// How long to wait for them.
    pub wait: Duration,
    /// What to do when one is lost.
    pub on_lost: OnLost,
    /// Silence after which an agent counts as lost; an agent without contact for this long ends its load.
    pub timeout: Duration,
    /// Maximum offset of a wall clock, and maximum delay of a start.
    pub clock_bound: Duration,
    /// Agents keep their connections open until the observer has received the result.
    pub hold: bool,
}
