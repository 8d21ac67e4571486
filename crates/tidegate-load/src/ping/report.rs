//! The result of a ping-pong. Serialised as JSON this is the stable output of `tidegate load ping --json`.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate::policy::Wait;

use super::PingPlan;
use super::session::PingShared;
use crate::histogram::encode;
use crate::verdict::{Share, Warning};

/// The outcome of a ping-pong. Times are microseconds or seconds, as their names say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PingReport {
    /// Version of this format: 1.
    pub format: u32,
    /// `ping`.
    pub protocol: String,
    /// The target.
    pub target: String,
    /// The generator's I/O model.
    pub model: String,
    /// How its thread waited: `block`, `spin` or `spin:…`.
    pub wait: String,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Connections, each with one message in flight.
    pub connections: usize,
    /// Established connections.
    pub connected: usize,
    /// Of those, connections over shared memory.
    pub fast_paths: u64,
    /// Length of the measuring window in seconds.
    pub elapsed_s: f64,
    /// Whether the run was interrupted.
    #[serde(default)]
    pub interrupted: bool,
    /// Correct messages received in the window.
    pub round_trips: u64,
    /// Total round trips per second.
    pub round_trips_per_s: f64,
    /// Bytes a second in each direction.
    pub bytes_per_s: f64,
    /// Messages that did not come back.
    pub lost: u64,
    /// Messages that differ from what was sent.
    pub wrong: u64,
    /// The distribution of the round trips.
    pub round_trip: RoundTrip,
    /// The complete histogram in nanoseconds, V2 encoding, compressed, base64. Any `HdrHistogram` tool reads it.
    pub round_trip_v2: String,
    /// The generator's busiest thread; none if unknown. A spinning thread runs all the time.
    pub generator: Option<Share>,
    /// The busiest thread of the server; none without `--server-pid`.
    pub server: Option<Share>,
    /// The first error.
    pub first_error: Option<String>,
    /// Warnings about the result.
    pub warnings: Vec<Warning>,
}

/// A distribution of round trips in microseconds, from a histogram in nanoseconds with three significant digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "percentiles are named by their numbers")]
pub struct RoundTrip {
    pub mean_us: f64,
    pub min_us: f64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub max_us: f64,
    /// How much round trips vary.
    pub jitter: Jitter,
}

/// Standard deviations in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// Of all round trips.
    pub all_us: f64,
    /// Of those up to the 99.9th percentile: without outliers caused by the system.
    pub below_p99_9_us: f64,
}

impl RoundTrip {
    /// Of round trips in nanoseconds.
    #[must_use]
    pub fn of(nanos: &Histogram<u64>) -> Self {
        if nanos.is_empty() {
            return Self::default();
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(nanos.value_at_quantile(quantile));
        let jitter = Jitter {
            all_us: nanos.stdev() / 1e3,
            below_p99_9_us: stdev_up_to(nanos, nanos.value_at_quantile(0.999)) / 1e3,
        };
        Self {
            mean_us: nanos.mean() / 1e3,
            min_us: us(nanos.min()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: us(nanos.max()),
            jitter,
        }
    }
}

/// The standard deviation of the values up to `most`.
fn stdev_up_to(histogram: &Histogram<u64>, most: u64) -> f64 {
    let kept = || {
        let recorded = histogram.iter_recorded().take_while(|v| v.value_iterated_to() <= most);
        recorded
            .map(|v| (histogram.median_equivalent(v.value_iterated_to()) as f64, v.count_at_value() as f64))
    };
    let count: f64 = kept().map(|(_, n)| n).sum();
    if count == 0.0 {
        return 0.0;
    }
    let mean = kept().map(|(value, n)| value * n).sum::<f64>() / count;
    (kept().map(|(value, n)| (value - mean).powi(2) * n).sum::<f64>() / count).sqrt()
}

/// How a thread waits, as on the command line.
fn wait_name(wait: Wait) -> String {
    match wait {
        Wait::Block => "block".into(),
        Wait::Spin => "spin".into(),
        Wait::SpinThenBlock(limit) => format!("spin:{}ms", limit.as_millis()),
        other => format!("{other:?}"),
    }
}

impl PingReport {
    pub(super) fn new(plan: &PingPlan, model: Model) -> Self {
        Self {
            format: 1,
            protocol: "ping".into(),
            target: plan.target.to_string(),
            model: model.name().into(),
            wait: wait_name(plan.wait),
            message_bytes: plan.size,
            connections: plan.connections,
            ..Self::default()
        }
    }

    /// Enters what the sessions have left.
    pub(super) fn enter(&mut self, shared: &PingShared, passed: Duration) {
        let state = shared.state();
        self.connected = state.count.established;
        self.elapsed_s = passed.as_secs_f64();
        self.round_trips = state.nanos.len();
        if self.elapsed_s > 0.0 {
            self.round_trips_per_s = self.round_trips as f64 / self.elapsed_s;
            self.bytes_per_s = self.round_trips_per_s * self.message_bytes as f64;
        }
        self.lost = state.lost;
        self.wrong = state.wrong;
        self.round_trip = RoundTrip::of(&state.nanos);
        self.round_trip_v2 = encode(&state.nanos);
        self.first_error = state.first_error.clone();
    }

    /// Whether every connection was established, every message came back correctly, and the run was not interrupted.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.connected == self.connections
            && self.lost == 0
            && self.wrong == 0
            && self.round_trips > 0
            && !self.interrupted
    }
}
