//! The verdict on a result: which side was the limit, and warnings.

use std::fmt;

use serde::{Deserialize, Serialize};

pub use crate::procs::Share;

/// Inputs besides the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The busiest thread of the generator; none if unknown.
    pub generator: Option<Share>,
    /// The busiest thread of the server; none without `--server-pid`.
    pub server: Option<Share>,
    /// Mean of the sampled requests in flight.
    pub mean_in_flight: f64,
    /// Number of samples.
    pub samples: u64,
    /// In an open loop, how many more requests were in flight in the last quarter of the window than in its second.
    /// Only of the time in which the rate is constant.
    #[serde(default)]
    pub backlog_growth: f64,
    /// Events that one wake-up of a generator thread brought, on average.
    pub events_per_wake_up: f64,
    /// The target is on another machine, whose processes cannot be looked at from here.
    #[serde(default)]
    pub is_remote: bool,
}

/// Which side was the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedBy {
    /// The result describes the server.
    Server,
    /// The result describes the generator.
    Generator,
    /// Neither was saturated.
    Neither,
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "the server was the limit",
            Self::Generator => "the generator was the limit",
            Self::Neither => "neither was the limit",
        })
    }
}

/// A warning about a result.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Warning {
    /// A thread of the generator was saturated.
    GeneratorBusy {
        /// The share of the time it ran.
        ran: f64,
    },
    /// A thread of the generator had to wait for a processor.
    GeneratorStarved {
        /// The share of the time it waited.
        waited: f64,
    },
    /// The generator woke up late for requests that a connection was free for.
    LateWakeUps {
        /// Requests it was late for.
        late: u64,
        /// Requests begun.
        started: u64,
    },
    /// Fewer requests were begun than were due.
    PacingMissed {
        /// Requests a second that were asked for.
        asked_per_s: f64,
        /// Requests a second that were begun.
        started_per_s: f64,
    },
    /// Requests with unknown latency, missing in the percentiles.
    LostSamples {
        /// How many.
        lost: u64,
        /// How many are known.
        known: u64,
    },
    /// Rate times latency is not what was in flight (J. D. C. Little, 1961): time is missing somewhere.
    LittlesLaw {
        /// Requests in flight, seen.
        seen: f64,
        /// Rate times mean latency.
        computed: f64,
    },
    /// Both sides sleep and wake each other; the result describes that cost.
    WakeUpBound,
    /// The window was too short.
    ShortWindow {
        /// Its length in seconds.
        elapsed_s: f64,
    },
    /// The server's CPU usage was not sampled.
    ServerUnseen,
    /// Agents with parts of the load were lost.
    AgentsLost {
        /// How many.
        lost: u64,
    },
}

impl Warning {
    /// The remedy, if the server is on another machine.
    #[must_use]
    pub fn remedy_for_remote(&self) -> &'static str {
        match self {
            Self::ServerUnseen => "look at its busiest thread on its own machine (top -H)",
            other => other.remedy(),
        }
    }

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::GeneratorBusy { .. } => {
                "give it more threads (--threads, of `load udp` -c) and processors, or run several and `load merge`"
            }
            Self::GeneratorStarved { .. } => "give it a processor that nothing else uses, with --cpus",
            Self::LateWakeUps { .. } => {
                "free its processor of other work, or read from-start latencies beside the others"
            }
            Self::PacingMissed { .. } => {
                "raise -c so that a connection is free for each request, or lower --rate"
            }
            Self::LostSamples { .. } => "raise --timeout or lower the load; the true percentiles are higher",
            Self::LittlesLaw { .. } => "measure longer; if it stays, do not trust the latencies",
            Self::WakeUpBound => {
                "raise -c until one side is busy, or compare processor time per request instead of rates"
            }
            Self::ShortWindow { .. } => {
                "measure longer: raise the time (-d), or the number that ends the load"
            }
            Self::ServerUnseen => "give --server-pid to include its CPU usage",
            Self::AgentsLost { .. } => {
                "read what is said of them, and run it again for a result without a gap"
            }
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        match *self {
            Self::GeneratorBusy { ran } => {
                write!(f, "a thread of the generator was busy {:.0}% of the time", percent(ran))
            }
            Self::GeneratorStarved { waited } => {
                write!(
                    f,
                    "a thread of the generator waited {:.0}% of the time for a processor",
                    percent(waited)
                )
            }
            Self::LateWakeUps { late, started } => {
                write!(f, "the generator woke up late for {late} of {started} requests")
            }
            Self::PacingMissed { asked_per_s, started_per_s } => {
                write!(f, "{started_per_s:.1} requests/s were begun and {asked_per_s:.1} were due")
            }
            Self::LostSamples { lost, known } => {
                write!(f, "the latencies of {lost} requests are not known, beside {known} that are")
            }
            Self::LittlesLaw { seen, computed } => {
                write!(f, "{seen:.1} requests were in flight, but rate times latency is {computed:.1}")
            }
            Self::WakeUpBound => f.write_str("both sides sleep and wake each other up"),
            Self::ShortWindow { elapsed_s } => write!(f, "the window was only {elapsed_s:.2} s long"),
            Self::ServerUnseen => f.write_str("the server's CPU usage is unknown"),
            Self::AgentsLost { lost } => write!(f, "{lost} of the agents' parts were lost"),
        }
    }
}

/// Which side was the limit, the reason, and warnings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which side was the limit.
    pub limited_by: LimitedBy,
    /// The reason and the remedy.
    pub because: String,
    /// Warnings.
    pub warnings: Vec<Warning>,
    /// What it was judged by, besides the report.
    pub evidence: Evidence,
}

impl Verdict {
    /// The remedy of a warning of this result.
    #[must_use]
    pub fn remedy(&self, warning: &Warning) -> &'static str {
        if self.evidence.is_remote { warning.remedy_for_remote() } else { warning.remedy() }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.limited_by, self.because)
    }
}
