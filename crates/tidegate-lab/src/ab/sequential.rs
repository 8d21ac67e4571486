//! A paired comparison that may be looked at after each pair and stopped at any time.
//!
//! Each pair gives d = ln(cost of NEW / cost of OLD). In a pair both programs are started anew and measured in random
//! order; so if both are the same program, d is as likely as −d, whatever the machine does meanwhile. For such d,
//! exp(λd − λ²d²/2) is a supermartingale factor for every λ (V. H. de la Peña, "A general class of exponential
//! inequalities for martingales and ratios", Annals of Probability 27, 1999), and so is the mixture of the products
//! over λ ~ N(0, ρ²), which is exp(ρ²S² / 2(1 + ρ²V)) / √(1 + ρ²V) with S = Σd and V = Σd² (H. Robbins, "Statistical
//! methods related to the law of the iterated logarithm", Annals of Mathematical Statistics 41, 1970). It ever reaches
//! 1/α with a chance of at most α (J. Ville, 1939). The same for d − δ gives an interval that holds the true δ at all
//! times at once.
//!
//! Before it enters, d is divided by the spread of the pairs before it, and cut at [`CUT`] of that: neither changes the
//! symmetry, and a single pair in which the machine was away does not drown the others.

use serde::{Deserialize, Serialize};

use crate::bootstrap::{Interval, median};

/// Pairs that only say how much pairs differ.
const LEARNING: usize = 5;

/// A pair counts as no more than this many times the usual spread.
const CUT: f64 = 4.0;

/// ρ: how large a difference is looked for, in spreads of a pair. The cost of a wrong guess is the logarithm of it.
const RHO: f64 = 0.5;

/// The least spread, as a part; pairs that all agree would have none.
const LEAST_SPREAD: f64 = 1e-5;

/// Differences beyond this, as a logarithm, are not looked for: a factor of 1,000.
const FARTHEST: f64 = 7.0;

/// What is known so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// NEW costs more.
    Dearer,
    /// NEW costs less.
    Cheaper,
    /// A difference as large as the one that matters is ruled out.
    NoDifference,
    /// Neither is sure yet.
    Undecided,
}

/// All pairs so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    logs: Vec<f64>,
    /// Each pair that counts, with the spread before it.
    counted: Vec<(f64, f64)>,
}

impl Pairs {
    /// Adds a pair: ln(cost of NEW / cost of OLD). A value that is not finite is ignored; the caller has refused costs
    /// of 0.
    pub fn add(&mut self, log: f64) {
        if !log.is_finite() {
            return;
        }
        if self.logs.len() >= LEARNING {
            self.counted.push((log, spread(&self.logs)));
        }
        self.logs.push(log);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.logs.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.logs.is_empty()
    }

    /// The evidence against a true difference of `delta` (a logarithm), as a logarithm: `None` of it is 0.
    fn evidence(&self, delta: f64) -> f64 {
        let (sum, squares) = self.sums(delta);
        let v = 1.0 + RHO * RHO * squares;
        RHO * RHO * sum * sum / (2.0 * v) - v.ln() / 2.0
    }

    fn sums(&self, delta: f64) -> (f64, f64) {
        let cut = self.counted.iter().map(|(log, spread)| ((log - delta) / spread).clamp(-CUT, CUT));
        cut.fold((0.0, 0.0), |(sum, squares), z| (sum + z, squares + z * z))
    }

    /// NEW by OLD, where the pairs balance; `None` before any counts.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        (!self.counted.is_empty()).then(|| self.centre().exp())
    }

    fn centre(&self) -> f64 {
        // The sum falls as delta grows.
        root(-FARTHEST, FARTHEST, |delta| self.sums(delta).0 < 0.0)
    }

    /// The interval of NEW by OLD that holds the truth at all times with this confidence; `None` while it has no end.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> Option<Interval> {
        let needed = -(1.0 - confidence).ln();
        let centre = self.centre();
        let is_out = |delta: f64| self.evidence(delta) >= needed;
        if !is_out(-FARTHEST) || !is_out(FARTHEST) {
            return None;
        }
        let low = -root(-centre, FARTHEST, |delta| is_out(-delta));
        let high = root(centre, FARTHEST, is_out);
        Some(Interval { low: low.exp(), high: high.exp() })
    }

    /// What can be said now, with a chance of at most `false_alarm` ever to see a difference where there is none.
    /// Differences below `least` (0.03 for 3%) need not be distinguished from none; those that are sure are reported.
    #[must_use]
    pub fn decide(&self, false_alarm: f64, least: f64) -> Decision {
        let is_out = |delta: f64| self.evidence(delta) >= -false_alarm.ln();
        let least = least.ln_1p();
        match self.sums(0.0).0 {
            sum if is_out(0.0) && sum > 0.0 => Decision::Dearer,
            _ if is_out(0.0) => Decision::Cheaper,
            _ if is_out(least) && is_out(-least) => Decision::NoDifference,
            _ => Decision::Undecided,
        }
    }
}

/// The usual distance from the middle, scaled to the standard deviation of a normal distribution.
fn spread(logs: &[f64]) -> f64 {
    const OF_NORMAL: f64 = 1.4826;
    let middle = median(logs).unwrap_or(0.0);
    let distances: Vec<f64> = logs.iter().map(|log| (log - middle).abs()).collect();
    (median(&distances).unwrap_or(0.0) * OF_NORMAL).max(LEAST_SPREAD)
}

/// Where `is_beyond` becomes true between `low`, where it is not, and `high`, where it is.
fn root(mut low: f64, mut high: f64, is_beyond: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if is_beyond(middle) { high = middle } else { low = middle }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FALSE_ALARM: f64 = 0.01;

    /// Rounds of a shared machine: 3% each, one in twenty up to twice as dear, and a level that wanders by some
    /// percent.
    struct Machine {
        random: fastrand::Rng,
        level: f64,
    }

    impl Machine {
        fn new(seed: u64) -> Self {
            Self { random: fastrand::Rng::with_seed(seed), level: 0.0 }
        }

        fn normal(&mut self) -> f64 {
            let (a, b) = (1.0 - self.random.f64(), self.random.f64());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        }

        fn round(&mut self, cost: f64) -> f64 {
            self.level = 0.95 * self.level + 0.01 * self.normal();
            let away = if self.random.f64() < 0.05 { self.random.f64() } else { 0.0 };
            cost * (self.level + 0.03 * self.normal() + away).exp()
        }

        /// Pairs, in random order, until it is sure or there were `most`.
        fn compare(&mut self, new: f64, least: f64, most: usize) -> (Decision, Pairs) {
            let mut pairs = Pairs::default();
            while pairs.len() < most {
                let (old, new) = if self.random.bool() {
                    let old = self.round(1.0);
                    (old, self.round(new))
                } else {
                    let new = self.round(new);
                    (self.round(1.0), new)
                };
                pairs.add((new / old).ln());
                match pairs.decide(FALSE_ALARM, least) {
                    Decision::Undecided => {}
                    sure => return (sure, pairs),
                }
            }
            (Decision::Undecided, pairs)
        }
    }

    #[test]
    fn of_500_programs_compared_with_themselves_at_most_5_raise_an_alarm() {
        let outcomes: Vec<_> = (0..500).map(|seed| Machine::new(seed).compare(1.0, 0.03, 2_000).0).collect();
        let count = |decision| outcomes.iter().filter(|&&found| found == decision).count();
        assert!(count(Decision::Dearer) + count(Decision::Cheaper) <= 5, "{outcomes:?}");
        assert_eq!(count(Decision::Undecided), 0, "and all end");
    }

    #[test]
    fn a_difference_of_3_percent_is_found_and_its_interval_holds_it() {
        let mut longest = 0;
        for seed in 0..20 {
            let (decision, pairs) = Machine::new(seed).compare(1.03, 0.03, 1_000);
            assert_eq!(decision, Decision::Dearer, "seed {seed}: {:?}", pairs.interval(0.95));
            let interval = pairs.interval(0.99).unwrap();
            assert!(interval.contains(1.03), "seed {seed}: {interval:?}");
            longest = longest.max(pairs.len());
        }
        assert!(longest < 400, "{longest} pairs");
    }

    #[test]
    fn a_sure_difference_is_one_however_large_those_are_that_are_to_be_ruled_out() {
        let mut machine = Machine::new(2);
        let mut pairs = Pairs::default();
        (0..400).for_each(|_| pairs.add((machine.round(1.05) / machine.round(1.0)).ln()));
        let interval = pairs.interval(1.0 - FALSE_ALARM).unwrap();
        assert!(interval.low > 1.0 && interval.high < 1.5, "{interval:?}");
        assert_eq!(pairs.decide(FALSE_ALARM, 0.5), Decision::Dearer);
    }

    #[test]
    fn what_is_cheaper_is_called_so() {
        let (decision, pairs) = Machine::new(1).compare(0.9, 0.01, 1_000);
        assert_eq!(decision, Decision::Cheaper);
        assert!(pairs.len() < 60, "{} pairs", pairs.len());
        assert!((pairs.ratio().unwrap() - 0.9).abs() < 0.05);
    }

    #[test]
    fn few_pairs_decide_nothing() {
        let mut pairs = Pairs::default();
        assert_eq!((pairs.ratio(), pairs.interval(0.95)), (None, None));
        for _ in 0..LEARNING + 1 {
            pairs.add(2.0_f64.ln());
        }
        assert_eq!(pairs.decide(FALSE_ALARM, 0.01), Decision::Undecided);
        pairs.add(f64::INFINITY); // no cost at all is no pair
        assert_eq!(pairs.len(), LEARNING + 1);
    }

    #[test]
    fn one_pair_in_which_the_machine_was_away_does_not_hide_the_others() {
        let mut machine = Machine::new(3);
        let mut pairs = Pairs::default();
        for i in 0..200 {
            let old = machine.round(1.0) * if i % 50 == 7 { 1_000.0 } else { 1.0 };
            pairs.add((machine.round(1.10) / old).ln());
        }
        assert_eq!(pairs.decide(FALSE_ALARM, 0.01), Decision::Dearer);
    }
}
