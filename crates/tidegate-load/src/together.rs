//! What each of several agents did that carried a load together.

use serde::{Deserialize, Serialize};

use crate::certificate::Certificate;
use crate::report::Latency;

/// A load that several agents carried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// The agents, by name.
    pub agents: Vec<AgentReport>,
    /// What went wrong between them, in words: an agent that was lost, a clock that is wrong, messages that are
    /// missing. A result with any of these is not what was asked for.
    pub troubles: Vec<String>,
}

/// What one agent did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentReport {
    /// Its name.
    pub name: String,
    /// Whether its result is in the whole; if not, nothing below this line but the clock is known.
    pub counted: bool,
    /// Its wall clock before ours, in microseconds. Only looked at: the start is by a clock that nobody sets.
    pub clock_ahead_us: f64,
    /// The quickest round trip to it, in microseconds; half of it is how far the start may be off.
    pub round_trip_us: f64,
    /// How long after the common start it began, in microseconds; about, within half the round trip.
    pub began_late_us: f64,
    /// Connections it was given.
    pub connections: usize,
    /// Connections of those that stood.
    pub connected: u64,
    /// Requests answered right.
    pub requests: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Right answers a second.
    pub requests_per_s: f64,
    /// Its latencies.
    pub latency_us: Latency,
    /// All of `latency_us`: a histogram in microseconds, V2 encoding, compressed, base64.
    pub latency_v2: String,
    /// Which side was the limit as it saw it.
    pub certificate: Option<Certificate>,
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
    pub told_requests: u64,
    /// Who took its part over.
    pub taken_over_by: Vec<String>,
    /// From when on they did, in seconds from the common start; none if nobody did, or before the start.
    pub taken_over_s: Option<f64>,
    /// Requests of its part of the schedule, until the load ended, that are in nobody's result; none without a
    /// schedule.
    pub missing_requests: Option<u64>,
}
