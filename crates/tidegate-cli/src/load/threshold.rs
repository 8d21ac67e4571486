//! `--fail-if`: conditions under which a run counts as failed.

use std::fmt;
use std::str::FromStr;

use tidegate::policy::ParseLimitError;
use tidegate_load::Report;

use crate::limits::{rate, time};

const GRAMMAR: &str = "METRIC OP VALUE, like 'p99>5ms', 'errors>0' or 'rps<1000': METRIC is p50, p90, p99, p99.9, max or mean \
    (VALUE in us, ms or s), errors or rps (VALUE without a unit), OP is >, >=, < or <=";

/// A condition.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    metric: Metric,
    comparison: ThresholdOperator,
    /// Microseconds, or a plain number.
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    P50,
    P90,
    P99,
    P99_9,
    Max,
    Mean,
    Errors,
    Rps,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum ThresholdOperator {
    Over,
    OverOrAt,
    Under,
    UnderOrAt,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}; write {GRAMMAR}");
        let at = text.find(['<', '>']).ok_or_else(|| wrong("there is no comparison in it"))?;
        let (metric, rest) = text.split_at(at);
        let metric = match metric.trim() {
            "p50" => Metric::P50,
            "p90" => Metric::P90,
            "p99" => Metric::P99,
            "p99.9" => Metric::P99_9,
            "max" => Metric::Max,
            "mean" => Metric::Mean,
            "errors" => Metric::Errors,
            "rps" => Metric::Rps,
            other => return Err(wrong(&format!("{other:?} is not a metric"))),
        };
        let operators = [
            (">=", ThresholdOperator::OverOrAt),
            ("<=", ThresholdOperator::UnderOrAt),
            (">", ThresholdOperator::Over),
            ("<", ThresholdOperator::Under),
        ];
        let (comparison, value) = operators
            .iter()
            .find_map(|(sign, comparison)| Some((*comparison, rest.strip_prefix(sign)?)))
            .ok_or_else(|| wrong("there is no comparison in it"))?;
        let value = value.trim();
        let number = |e: ParseLimitError| wrong(&format!("{value:?} is {e}"));
        let value = match metric {
            Metric::Errors | Metric::Rps => rate(value).map_err(number)?,
            // Microseconds or seconds: a plain number would be read as the one and meant as the other.
            _ if value.ends_with(|last: char| last.is_ascii_digit()) => {
                return Err(wrong("a latency needs a unit"));
            }
            _ => time(value).map_err(number)?.as_secs_f64() * 1e6,
        };
        Ok(Self { text: text.into(), metric, comparison, value })
    }
}

impl Threshold {
    /// The measured value, if the condition is true. Latencies of a run without responses exceed every bound.
    pub fn violation(&self, r: &Report) -> Option<String> {
        let l = &r.latency_us;
        let latency = |us: f64| if r.requests == 0 { f64::INFINITY } else { us };
        let not_started = r.open_loop.as_ref().map_or(0, |open| open.not_started);
        let measured = match self.metric {
            Metric::P50 => latency(l.p50 as f64),
            Metric::P90 => latency(l.p90 as f64),
            Metric::P99 => latency(l.p99 as f64),
            Metric::P99_9 => latency(l.p99_9 as f64),
            Metric::Max => latency(l.max as f64),
            Metric::Mean => latency(l.mean),
            Metric::Errors => (r.failed + r.timed_out + r.connect_failed + not_started) as f64,
            Metric::Rps => r.requests_per_s,
        };
        let holds = match self.comparison {
            ThresholdOperator::Over => measured > self.value,
            ThresholdOperator::OverOrAt => measured >= self.value,
            ThresholdOperator::Under => measured < self.value,
            ThresholdOperator::UnderOrAt => measured <= self.value,
        };
        let unit = if matches!(self.metric, Metric::Errors | Metric::Rps) { "" } else { " µs" };
        holds.then(|| format!("--fail-if {self}: it was {measured:.0}{unit}"))
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::report::Latency;

    fn holds(text: &str) -> bool {
        let latency_us = Latency { p99: 5_000, p99_9: 9_000, mean: 700.5, ..Latency::default() };
        let report =
            Report { requests: 10, requests_per_s: 1000.0, failed: 2, latency_us, ..Report::default() };
        text.parse::<Threshold>().unwrap().violation(&report).is_some()
    }

    #[test]
    fn conditions_are_compared_in_their_units() {
        for text in
            ["p99>4ms", "p99>=5ms", "p99.9 > 0.008s", "mean>700us", "mean<=701µs", "errors>1", "rps<1000.5"]
        {
            assert!(holds(text), "{text}");
        }
        for text in ["p99>5ms", "p99<5000us", "errors>2", "rps<1000", "mean>1s"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn a_run_without_answers_is_over_every_bound() {
        assert!("p50>1s".parse::<Threshold>().unwrap().violation(&Report::default()).is_some());
    }

    #[test]
    fn nonsense_is_answered_with_the_grammar() {
        for text in [
            "",
            "p99",
            "p98>1ms",
            "p99>5",
            "p99>ms",
            "p99>-1ms",
            "errors>1ms",
            "rps<nan",
            "p99=5ms",
            "p99>inf s",
        ] {
            let why = text.parse::<Threshold>().unwrap_err();
            assert!(why.contains("METRIC OP VALUE"), "{text}: {why}");
        }
    }
}
