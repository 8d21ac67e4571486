//! Latency, as percentiles.

use serde::{Deserialize, Serialize};

/// A distribution of latencies in microseconds, from a histogram with three significant digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "percentiles are named by their numbers")]
pub struct Latency {
    pub mean: f64,
    pub stdev: f64,
    pub min: u64,
    pub p50: u64,
    pub p75: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl Latency {
    /// Computes the percentiles of a histogram in microseconds.
    #[must_use]
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            mean: histogram.mean(),
            stdev: histogram.stdev(),
            min: histogram.min(),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: histogram.max(),
        }
    }
}
