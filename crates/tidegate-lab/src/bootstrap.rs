//! Confidence intervals by resampling: B. Efron and R. J. Tibshirani, *An Introduction to the Bootstrap* (1993),
//! chapter 13, the percentile interval. It assumes nothing about the distribution of the values, which suits rounds on
//! a shared machine: they have a one-sided tail.
//!
//! Pure and repeatable: the same figures give the same interval, because the seed is fixed.

use serde::{Deserialize, Serialize};

/// Rounds below which a difference is not judged: of two times three exchangeable rounds, one side lies wholly above
/// the other in two of twenty cases by chance alone; of two times four in two of seventy.
pub const LEAST_ROUNDS: usize = 4;

/// Resamples of an interval. At 20,000 the ends of a 99.8% interval still rest on 20 of them.
const RESAMPLES: usize = 20_000;

const SEED: u64 = 0x7469_6465_6761_7465;

/// An interval with its confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies within, including the ends.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The median; with an even number, the mean of the two in the middle. `None` if empty or not finite.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted).filter(|_| values.iter().all(|v| v.is_finite()))
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted.get(half).copied(),
        _ => Some(f64::midpoint(*sorted.get(half.checked_sub(1)?)?, *sorted.get(half)?)),
    }
}

/// The interval of the median of `values`, at `confidence` from 0 to 1. `None` of fewer than [`LEAST_ROUNDS`].
#[must_use]
pub fn of_median(values: &[f64], confidence: f64) -> Option<Interval> {
    let mut draw = Draw::new();
    interval(values, &[1.0; LEAST_ROUNDS], confidence, || draw.median(values))
}

/// The interval of `median(b) / median(a)`, for independent rounds. `None` with fewer than [`LEAST_ROUNDS`] on either
/// side, or if a value of `a` is not above 0.
#[must_use]
pub fn of_ratio(a: &[f64], b: &[f64], confidence: f64) -> Option<Interval> {
    if a.iter().any(|&v| v <= 0.0) {
        return None;
    }
    let mut draw = Draw::new();
    interval(a, b, confidence, || Some(draw.median(b)? / draw.median(a)?))
}

/// The percentiles of `statistic` over all resamples that leave (1 − `confidence`) / 2 on either side.
fn interval(
    a: &[f64],
    b: &[f64],
    confidence: f64,
    mut statistic: impl FnMut() -> Option<f64>,
) -> Option<Interval> {
    let is_sound = |v: &[f64]| v.len() >= LEAST_ROUNDS && v.iter().all(|v| v.is_finite());
    if !is_sound(a) || !is_sound(b) || !(0.0..1.0).contains(&confidence) {
        return None;
    }
    let mut found = (0..RESAMPLES).map(|_| statistic()).collect::<Option<Vec<f64>>>()?;
    found.sort_by(f64::total_cmp);
    let outside = ((1.0 - confidence) / 2.0 * RESAMPLES as f64).floor() as usize;
    Some(Interval { low: *found.get(outside)?, high: *found.get(RESAMPLES - 1 - outside)? })
}

/// Draws samples with replacement.
struct Draw {
    random: fastrand::Rng,
    sample: Vec<f64>,
}

impl Draw {
    fn new() -> Self {
        Self { random: fastrand::Rng::with_seed(SEED), sample: Vec::new() }
    }

    /// The median of a sample as large as `values`.
    fn median(&mut self, values: &[f64]) -> Option<f64> {
        self.sample.clear();
        for _ in 0..values.len() {
            self.sample.push(*values.get(self.random.usize(..values.len()))?);
        }
        self.sample.sort_unstable_by(f64::total_cmp);
        middle(&self.sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!([median(&[]), median(&[1.0, f64::NAN])], [None, None]);
    }

    #[test]
    fn the_interval_is_that_of_all_possible_resamples() {
        // 5 values: the median of a resample is the smallest if it was drawn 3 times or more, with the chance
        // sum C(5,k) 4^(5-k) / 5^5 for k = 3, 4, 5 = 181/3125 = 5.8%; it is at most the second smallest with 31.7%.
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(of_median(&values, 0.95), Some(Interval { low: 1.0, high: 5.0 }));
        assert_eq!(of_median(&values, 0.80), Some(Interval { low: 2.0, high: 4.0 }));
        assert_eq!(of_median(&values, 0.30), Some(Interval { low: 3.0, high: 3.0 }));
    }

    #[test]
    fn the_interval_holds_the_truth_about_as_often_as_it_says() {
        let mut random = fastrand::Rng::with_seed(1);
        // The median of this skewed distribution is 10 + ln 2.
        let mut round = || 10.0 - (1.0 - random.f64()).ln();
        let held = (0..200)
            .filter(|_| {
                let values: Vec<f64> = (0..15).map(|_| round()).collect();
                of_median(&values, 0.9).is_some_and(|i| i.contains(10.0 + std::f64::consts::LN_2))
            })
            .count();
        assert!((165..=198).contains(&held), "{held} of 200");
    }

    #[test]
    fn a_difference_beyond_the_noise_is_seen_and_one_within_it_is_not() {
        let a = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00];
        let scaled = |by: f64| a.map(|v| v * by);
        let slower = of_ratio(&a, &scaled(1.05), 0.95).unwrap();
        assert!(slower.low > 1.0 && slower.contains(1.05), "{slower:?}");
        assert!(of_ratio(&a, &scaled(1.01), 0.95).unwrap().contains(1.0));
        assert_eq!(of_ratio(&a, &a, 0.95), of_ratio(&a, &a, 0.95));
        assert!(of_ratio(&a, &a, 0.95).unwrap().contains(1.0));
    }

    #[test]
    fn what_cannot_be_judged_has_no_interval() {
        let good = [1.0; 4];
        assert_eq!(of_median(&good[..3], 0.95), None);
        assert_eq!(of_ratio(&good, &good[..3], 0.95), None);
        assert_eq!(of_ratio(&[0.0, 1.0, 1.0, 1.0], &good, 0.95), None);
        assert_eq!(of_ratio(&good, &[f64::NAN; 4], 0.95), None);
    }
}
