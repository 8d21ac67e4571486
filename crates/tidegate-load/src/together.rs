//! The results of each of several agents that ran a load together.

use serde::{Deserialize, Serialize};

use crate::latency::Latency;
use crate::verdict::Verdict;

/// A load run by several agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// The agents, by name.
    pub agents: Vec<AgentReport>,
    /// Problems between them: a lost agent, a wrong clock, missing messages. A result with any of these is incomplete.
    pub troubles: Vec<String>,
}

/// The result of one agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Its name.
    pub name: String,
    /// Whether its result is included; if not, only the clock below is known.
    pub counted: bool,
    /// Offset of its wall clock to ours, in microseconds. For information: the start uses a monotonic clock.
    pub clock_ahead_us: f64,
    /// The fastest round trip to it, in microseconds; half of it is the uncertainty of the start.
    pub round_trip_us: f64,
    /// Delay of its start after the common start, in microseconds; accurate to half the round trip.
    pub began_late_us: f64,
    /// Connections assigned to it.
    pub connections: usize,
    /// Established connections.
    pub connected: u64,
    /// Correct responses.
    pub requests: u64,
    /// Failed requests.
    pub failed: u64,
    /// Correct responses per second.
    pub requests_per_s: f64,
    /// Its latencies.
    pub latency_us: Latency,
    /// All of `latency_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    pub latency_v2: String,
    /// Which side was the limit, as measured by it.
    pub verdict: Option<Verdict>,
    /// Which lost agent had this part before, if any. An agent has one row for each of its parts.
    #[serde(default)]
    pub taken_over_from: Option<String>,
    /// How it was lost, if it was.
    #[serde(default)]
    pub loss: Option<Loss>,
}

/// An agent that was lost, or ended early: what of its part was not done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// When it was last heard, in seconds from the common start; none if it was lost before.
    pub heard_s: Option<f64>,
    /// When it was given up, in the same seconds.
    pub noticed_s: Option<f64>,
    /// Connections of its part.
    pub connections: usize,
    /// Requests that it said were answered, and that are not in the result because it brought none.
    pub reported_requests: u64,
    /// Who took its part over.
    pub taken_over_by: Vec<String>,
    /// From when on they did, in seconds from the common start; none if nobody did, or before the start.
    pub taken_over_s: Option<f64>,
    /// Requests of its part of the schedule, until the load ended, that are in nobody's result; none without a
    /// schedule.
    pub missing_requests: Option<u64>,
}
