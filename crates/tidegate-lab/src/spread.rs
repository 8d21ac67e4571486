//! Medians with their confidence interval, minimum and maximum, and all rounds they were made of.

use serde::{Deserialize, Serialize};

use crate::bootstrap::{self, Interval};

/// Confidence of the intervals shown beside medians.
pub const CONFIDENCE: f64 = 0.95;

/// The median of repeated measurements, and how far they lay apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The 95% confidence interval of the median (percentile bootstrap); none of fewer than four rounds.
    pub interval: Option<Interval>,
    /// All of them, in the order of rounds.
    pub rounds: Vec<f64>,
}

impl Spread {
    /// Of these values; `None` if there are none. What is not a number is left out.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let rounds: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        Some(Self {
            median: bootstrap::median(&rounds)?,
            min: rounds.iter().copied().min_by(f64::total_cmp)?,
            max: rounds.iter().copied().max_by(f64::total_cmp)?,
            interval: bootstrap::of_median(&rounds, CONFIDENCE),
            rounds,
        })
    }

    /// The same in another unit.
    #[must_use]
    pub fn times(&self, factor: f64) -> Self {
        Self {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
            interval: self.interval.map(|i| Interval { low: i.low * factor, high: i.high * factor }),
            rounds: self.rounds.iter().map(|v| v * factor).collect(),
        }
    }

    /// Whether there is more than one round: one has no spread.
    #[must_use]
    pub fn has_several(&self) -> bool {
        self.rounds.len() > 1
    }

    /// How far rounds lay apart, for bars and brackets: the confidence interval, or minimum and maximum if there is
    /// none.
    #[must_use]
    pub fn bounds(&self) -> Interval {
        self.interval.unwrap_or(Interval { low: self.min, high: self.max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rounds_are_kept_and_summed_up() {
        let s = Spread::of([3.0, f64::NAN, 1.0, 2.0]).unwrap();
        assert_eq!((s.median, s.min, s.max, s.interval), (2.0, 1.0, 3.0, None));
        assert_eq!(s.rounds, [3.0, 1.0, 2.0]);
        assert_eq!(s.bounds(), Interval { low: 1.0, high: 3.0 });
        let five = Spread::of([1.0, 2.0, 3.0, 4.0, 5.0]).unwrap().times(10.0);
        assert_eq!((five.median, five.interval), (30.0, Some(Interval { low: 10.0, high: 50.0 })));
        assert_eq!(Spread::of([]), None);
    }
}
