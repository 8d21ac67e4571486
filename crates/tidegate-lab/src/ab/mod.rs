//! Measures two programs, or two command lines of one, interleaved until the result is significant.

mod contender;
pub mod sequential;

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub use contender::Contender;
pub use sequential::{Decision, Pairs};

use crate::bootstrap::{Interval, median};
use crate::experiment::generator::Generator;
use crate::experiment::peers::running::RunningPeer;
use crate::experiment::round::{self, Length, Round, RoundLoad};
use crate::machine::MachineActivity;
use crate::run::Circumstances;
use crate::{Bench, LabError};

/// Confidence of the reported interval.
pub const CONFIDENCE: f64 = 0.95;

/// Responses whose sizes differ by more than this factor count as different.
const SAME_SIZE: f64 = 1.05;

/// Turns of each program in a pair, in random order. A disturbance that is longer than a turn affects both.
const TURNS: usize = 4;

/// Consecutive pairs that are repeated because a turn had no response, or the server no processor time in it: the
/// machine was too busy, or it is so in every turn.
const REPEATS: usize = 5;

/// The warm-up before the first turn, as a fraction of a turn.
const WARM_UP: u32 = 2;

/// What is compared, how, and with which error rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The baseline.
    pub old: Contender,
    /// The candidate.
    pub new: Contender,
    /// Concurrent requests.
    pub connections: usize,
    /// Keep-alive connections, or a new one for each request.
    pub keep_alive: bool,
    /// Length of a turn, without the warm-up before the first.
    pub turn: Duration,
    /// The comparison ends when a difference this large, as a fraction (0.03 for 3%), is ruled out. A smaller one that
    /// is sure before is a difference, too.
    pub least: f64,
    /// Probability of reporting a difference between identical programs.
    pub false_alarm: f64,
    /// No pair except the first begins after this time.
    pub budget: Duration,
}

/// One turn of each program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundPair {
    /// Whether NEW was measured first.
    pub new_first: bool,
    /// OLD's figures.
    pub old: Round,
    /// NEW's figures.
    pub new: Round,
}

impl RoundPair {
    fn log_ratio(&self) -> f64 {
        (self.new.cpu_s_per_100k / self.old.cpu_s_per_100k).ln()
    }
}

/// The turns of both programs, which were started anew, and other activity of the machine meanwhile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// In order.
    pub turns: Vec<RoundPair>,
    /// Activity of the machine while both ran.
    pub activity: MachineActivity,
}

impl Pair {
    /// ln(cost of NEW / cost of OLD): the median of the turns, so that a single disturbed turn has no effect.
    fn log_ratio(&self) -> f64 {
        let logs: Vec<f64> = self.turns.iter().map(RoundPair::log_ratio).collect();
        median(&logs).unwrap_or(f64::NAN)
    }
}

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AbOutcome {
    /// When, where and how.
    pub circumstances: Circumstances,
    /// The decision at the end.
    pub decision: Decision,
    /// Ratio NEW / OLD of server CPU per request.
    pub ratio: Option<f64>,
    /// Its 95% interval, valid at any stopping time; `None` with too few pairs.
    pub interval: Option<Interval>,
    /// Duration in seconds.
    pub elapsed_s: f64,
    /// Every pair, in order.
    pub pairs: Vec<Pair>,
}

/// Compares until the result is significant, or the budget is used up. `progress` is called before each pair.
///
/// # Errors
/// A server or a load failed.
pub fn run(
    bench: &Bench,
    settings: &Settings,
    mut progress: impl FnMut(&Pairs),
) -> Result<AbOutcome, LabError> {
    let mut circumstances = Circumstances::here(bench);
    circumstances.settings = settings.facts();
    let begun = Instant::now();
    let (mut pairs, mut known) = (Vec::new(), Pairs::default());
    let (mut decision, mut repeated) = (Decision::Undecided, 0);
    while decision == Decision::Undecided && (pairs.is_empty() || begun.elapsed() < settings.budget) {
        progress(&known);
        let pair = match measure(bench, settings) {
            Err(error) if error.is_transient() && repeated < REPEATS => {
                repeated += 1;
                continue;
            }
            pair => pair?,
        };
        repeated = 0;
        known.add(pair.log_ratio());
        pairs.push(pair);
        decision = known.decide(settings.false_alarm, settings.least);
    }
    let (ratio, interval) = (known.ratio(), known.interval(CONFIDENCE));
    let elapsed_s = begun.elapsed().as_secs_f64();
    Ok(AbOutcome { circumstances, decision, ratio, interval, elapsed_s, pairs })
}

/// Starts both programs in random order, and measures their turns.
fn measure(bench: &Bench, settings: &Settings) -> Result<Pair, LabError> {
    let before = MachineActivity::now();
    let (mut old, mut new) = in_any_order(
        || settings.old.start(bench, settings.keep_alive),
        || settings.new.start(bench, settings.keep_alive),
    )?
    .1;
    let turn = |server: &mut RunningPeer, time| {
        let length = Length::Time(time);
        let load = RoundLoad { concurrency: settings.connections, length, keep_alive: settings.keep_alive };
        round::http(Generator::here(bench), server, load)
    };
    let mut of_both = |time| in_any_order(|| turn(&mut old, time), || turn(&mut new, time));
    of_both(settings.turn / WARM_UP)?;
    let turns = (0..TURNS).map(|_| {
        let (new_first, (old, new)) = of_both(settings.turn)?;
        Ok(RoundPair { new_first, old: settings.old.check(old)?, new: settings.new.check(new)? })
    });
    let turns = turns.collect::<Result<_, LabError>>()?;
    Ok(Pair { turns, activity: before.until_now() })
}

/// Calls both in random order. Returns whether the second was called first, and both results.
fn in_any_order<T, E>(
    old: impl FnOnce() -> Result<T, E>,
    new: impl FnOnce() -> Result<T, E>,
) -> Result<(bool, (T, T)), E> {
    if fastrand::bool() {
        let new = new()?;
        Ok((true, (old()?, new)))
    } else {
        let old = old()?;
        Ok((false, (old, new()?)))
    }
}

impl Settings {
    fn facts(&self) -> crate::run::Facts {
        let facts = [
            ("ab: old", self.old.to_string()),
            ("ab: new", self.new.to_string()),
            ("ab: connections", self.connections.to_string()),
            ("ab: connections kept", self.keep_alive.to_string()),
            ("ab: length of a turn", format!("{} s", self.turn.as_secs_f64())),
            ("ab: turns of each in a pair", TURNS.to_string()),
            ("ab: difference to rule out", format!("{}%", self.least * 100.0)),
            ("ab: chance of a false alarm", format!("{}%", self.false_alarm * 100.0)),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

impl AbOutcome {
    /// The result in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let Some((ratio, Interval { low, high })) = self.ratio.zip(self.interval) else {
            let pairs = self.pairs.len();
            return format!("Undecided: {pairs} pairs say nothing yet; give more time with --budget.");
        };
        let [ratio, low, high] = [ratio, low, high].map(percent);
        match self.decision {
            Decision::Dearer => format!(
                "NEW costs {ratio:.1}% more CPU for a request than OLD, 95% CI {low:.1} to {high:.1}."
            ),
            Decision::Cheaper => format!(
                "NEW costs {:.1}% less CPU for a request than OLD, 95% CI {:.1} to {:.1}.",
                -ratio, -high, -low
            ),
            Decision::NoDifference => format!(
                "No difference that matters: NEW costs {ratio:+.1}% CPU for a request, 95% CI {low:+.1} to {high:+.1}."
            ),
            Decision::Undecided => format!(
                "Undecided: NEW costs {ratio:+.1}% CPU for a request, 95% CI {low:+.1} to {high:+.1}; give more time \
                 with --budget."
            ),
        }
    }

    /// The turns of all pairs, in order.
    pub fn turns(&self) -> impl Iterator<Item = &RoundPair> + Clone {
        self.pairs.iter().flat_map(|pair| &pair.turns)
    }

    /// A warning about the comparison, if any.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        let mean = |of: fn(&RoundPair) -> &Round| {
            let turns = self.turns();
            turns.clone().map(|turn| of(turn).bytes_each).sum::<f64>() / turns.count().max(1) as f64
        };
        let (old, new) = (mean(|turn| &turn.old), mean(|turn| &turn.new));
        (old * SAME_SIZE < new || new * SAME_SIZE < old).then(|| {
            format!(
                "answers of OLD have {old:.0} bytes and those of NEW {new:.0}: they do not do the same work"
            )
        })
    }

    /// Other activity of the machine, in one line.
    #[must_use]
    pub fn activity(&self) -> String {
        MachineActivity::line(self.pairs.iter().map(|pair| &pair.activity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(decision: Decision, ratio: f64) -> AbOutcome {
        let interval = Some(Interval { low: ratio - 0.009, high: ratio + 0.009 });
        let circumstances = Circumstances::default();
        AbOutcome { circumstances, decision, ratio: Some(ratio), interval, elapsed_s: 1.0, pairs: Vec::new() }
    }

    #[test]
    fn the_sentence_says_which_way_and_how_surely() {
        let sentence = |decision, ratio| outcome(decision, ratio).sentence();
        assert_eq!(
            sentence(Decision::Dearer, 1.031),
            "NEW costs 3.1% more CPU for a request than OLD, 95% CI 2.2 to 4.0."
        );
        assert_eq!(
            sentence(Decision::Cheaper, 0.95),
            "NEW costs 5.0% less CPU for a request than OLD, 95% CI 4.1 to 5.9."
        );
        assert!(sentence(Decision::NoDifference, 1.0).starts_with("No difference that matters"));
        assert!(sentence(Decision::Undecided, 1.0).contains("--budget"));
        let nothing = AbOutcome { ratio: None, ..outcome(Decision::Undecided, 1.0) };
        assert!(nothing.sentence().contains("0 pairs"));
    }
}
