//! Compares two saved runs, row by row: better, worse, or no significant difference.
//!
//! A difference is significant if the confidence interval of the ratio of medians does not contain 1. With many rows,
//! one of twenty unchanged ones would be reported at 95%; so each row is judged at 1 − 5% / rows (C. E. Bonferroni,
//! 1936), which makes it 95% for the table.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{self, Interval, LEAST_ROUNDS};
use crate::run::{Better, Measure, Row, Run};

/// Probability that an unchanged table shows a difference.
pub(crate) const FALSE_ALARM: f64 = 0.05;

/// The judgement of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Significance {
    /// B is better.
    Better,
    /// B is worse.
    Worse,
    /// The interval of the ratio contains 1, or is within the margin.
    NoSignificantDifference,
    /// Too few rounds to decide.
    TooFewRounds,
    /// A round of A is not above 0, so B is no multiple of it.
    NoRatio,
}

/// A row of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The experiment.
    pub experiment: String,
    /// The row.
    pub name: String,
    /// The figure compared.
    pub measure: String,
    /// Which direction is better.
    pub better: Better,
    /// Median of A.
    pub a: f64,
    /// Median of B.
    pub b: f64,
    /// Rounds of A and of B.
    pub rounds: [usize; 2],
    /// B / A.
    pub ratio: f64,
    /// Interval of the ratio; none with too few rounds, or where there is no ratio.
    pub interval: Option<Interval>,
    /// The judgement.
    pub verdict: Significance,
}

impl Judged {
    /// In words, for a table.
    #[must_use]
    pub fn words(&self) -> String {
        let percent = |ratio: f64| format!("{:+.1}%", (ratio - 1.0) * 100.0);
        let range =
            self.interval.map_or(String::new(), |i| format!(" [{} to {}]", percent(i.low), percent(i.high)));
        let change = percent(self.ratio);
        match self.verdict {
            Significance::NoSignificantDifference => format!("no significant difference: {change}{range}"),
            Significance::TooFewRounds if !self.ratio.is_finite() => {
                format!("not judged: needs {LEAST_ROUNDS} rounds on each side")
            }
            Significance::TooFewRounds => {
                format!("not judged: {change}, needs {LEAST_ROUNDS} rounds on each side")
            }
            Significance::NoRatio => "not judged: a round of A is not above 0".into(),
            Significance::Better => format!("{} by {change}{range}", self.word(["faster", "less"])),
            Significance::Worse => format!("{} by {change}{range}", self.word(["slower", "more"])),
        }
    }

    /// Memory does not become faster.
    fn word<'a>(&self, [time, memory]: [&'a str; 2]) -> &'a str {
        if self.measure.contains("bytes") { memory } else { time }
    }
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Confidence of each row's interval, 0 to 1.
    pub confidence: f64,
    /// Rows in both runs.
    pub rows: Vec<Judged>,
    /// Rows only in A.
    pub only_a: Vec<String>,
    /// Rows only in B.
    pub only_b: Vec<String>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Options of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CompareOptions {
    /// The figure; none is each row's main one.
    pub measure: Option<String>,
    /// Differences up to this fraction (0.02 for 2%) are not reported as significant.
    pub margin: f64,
}

/// Compares two runs.
#[must_use]
pub fn compare(a: &Run, b: &Run, question: &CompareOptions) -> Comparison {
    let pairs: Vec<_> = a.rows.iter().filter_map(|row| pair(row, b, question)).collect();
    let confidence = 1.0 - FALSE_ALARM / pairs.len().max(1) as f64;
    let rows = pairs.into_iter().map(|pair| judge(pair, confidence, question.margin)).collect();
    let only = |these: &Run, those: &Run| {
        let alone = these.rows.iter().filter(|row| counterpart(row, those).is_none());
        alone.map(|row| format!("{}: {}", row.experiment, row.name)).collect()
    };
    Comparison { confidence, rows, only_a: only(a, b), only_b: only(b, a), warnings: warnings(a, b) }
}

/// The same row of another run.
fn counterpart<'a>(row: &Row, run: &'a Run) -> Option<&'a Row> {
    run.rows.iter().find(|other| other.experiment == row.experiment && other.name == row.name)
}

/// The row that both are of, and the figure of each.
pub(crate) type RowPair<'a> = (&'a Row, &'a Measure, &'a Measure);

fn pair<'a>(row: &'a Row, b: &'a Run, question: &CompareOptions) -> Option<RowPair<'a>> {
    let named = |m: &&Measure| question.measure.as_ref().is_none_or(|name| *name == m.name);
    let ours = row.measures.iter().find(named)?;
    let theirs = counterpart(row, b)?.measures.iter().find(|m| m.name == ours.name)?;
    (!ours.rounds.is_empty() && !theirs.rounds.is_empty()).then_some((row, ours, theirs))
}

/// Judges one pair; differences up to the part `margin` count as none.
pub(crate) fn judge((row, a, b): RowPair<'_>, confidence: f64, margin: f64) -> Judged {
    let median = |m: &Measure| bootstrap::median(&m.rounds).unwrap_or(f64::NAN);
    let (a_median, b_median) = (median(a), median(b));
    let interval = bootstrap::of_ratio(&a.rounds, &b.rounds, confidence);
    let verdict = match (interval, a.better) {
        (None, _) if a.rounds.len().min(b.rounds.len()) < LEAST_ROUNDS => Significance::TooFewRounds,
        (None, _) => Significance::NoRatio,
        (Some(i), Better::Lower) if i.low > 1.0 + margin => Significance::Worse,
        (Some(i), Better::Higher) if i.low > 1.0 + margin => Significance::Better,
        (Some(i), Better::Lower) if i.high < 1.0 - margin => Significance::Better,
        (Some(i), Better::Higher) if i.high < 1.0 - margin => Significance::Worse,
        _ => Significance::NoSignificantDifference,
    };
    Judged {
        experiment: row.experiment.clone(),
        name: row.name.clone(),
        measure: a.name.clone(),
        better: a.better,
        a: a_median,
        b: b_median,
        rounds: [a.rounds.len(), b.rounds.len()],
        ratio: b_median / a_median,
        interval,
        verdict,
    }
}

/// What else differs than what was to be compared.
fn warnings(a: &Run, b: &Run) -> Vec<String> {
    let (a, b) = (&a.circumstances, &b.circumstances);
    let (here, there) = (&a.machine, &b.machine);
    let mut found = Vec::new();
    let mut differ = |what: &str, a: String, b: String| {
        if a != b {
            found.push(format!("{what} differs: {a} and {b}"));
        }
    };
    differ("processor", here.cpu.clone(), there.cpu.clone());
    differ("number of processors", here.cpus.to_string(), there.cpus.to_string());
    differ("kernel", here.system.clone(), there.system.clone());
    differ("memory in MiB", here.memory_mib.to_string(), there.memory_mib.to_string());
    differ("limit of descriptors", here.descriptors.to_string(), there.descriptors.to_string());
    differ("profile of the build", a.build.profile.clone(), b.build.profile.clone());
    let pinning = |apart| if apart { "a processor each" } else { "one for both" };
    differ("processors of server and load", pinning(a.pinned_apart).into(), pinning(b.pinned_apart).into());
    let names: BTreeSet<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    for name in names {
        if let Some((a, b)) = a.setting(name).zip(b.setting(name)) {
            differ(name, a, b);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::run;

    const A: [f64; 6] = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00];

    fn verdict(a: &[f64], b: &[f64], question: &CompareOptions) -> (Significance, String) {
        let comparison = compare(&run("x", a), &run("x", b), question);
        let [row] = comparison.rows.as_slice() else { panic!("{comparison:?}") };
        (row.verdict, row.words())
    }

    #[test]
    fn each_row_gets_the_verdict_that_its_rounds_bear() {
        let all = CompareOptions::default();
        assert_eq!(verdict(&A, &A, &all).0, Significance::NoSignificantDifference);
        let (worse, words) = verdict(&A, &A.map(|v| v * 1.05), &all);
        assert_eq!(worse, Significance::Worse);
        assert!(words.starts_with("slower by +5.0% [+"), "{words}");
        assert_eq!(verdict(&A, &A.map(|v| v * 0.9), &all).0, Significance::Better);
        assert_eq!(verdict(&A, &A[..3], &all).0, Significance::TooFewRounds);
        let (none, words) = verdict(&A.map(|v| v - 1.0), &A, &all);
        assert_eq!(
            (none, words.as_str()),
            (Significance::NoRatio, "not judged: a round of A is not above 0")
        );
        let coarse = CompareOptions { margin: 0.05, ..all };
        assert_eq!(verdict(&A, &A.map(|v| v * 1.05), &coarse).0, Significance::NoSignificantDifference);
    }

    #[test]
    fn more_is_better_where_it_is() {
        let rate = |rounds: &[f64]| {
            let mut run = run("x", rounds);
            run.rows[0].measures[0].better = Better::Higher;
            run
        };
        let comparison = compare(&rate(&A), &rate(&A.map(|v| v * 0.9)), &CompareOptions::default());
        assert_eq!(comparison.rows[0].verdict, Significance::Worse);
    }

    #[test]
    fn the_more_rows_the_more_confidence_each_of_them_needs() {
        let rows = |n: usize| {
            let mut all = run("0", &A);
            all.rows = (0..n).flat_map(|i| run(&i.to_string(), &A).rows).collect();
            all
        };
        let confidence = |n| compare(&rows(n), &rows(n), &CompareOptions::default()).confidence;
        assert!((confidence(1) - 0.95).abs() < 1e-9 && (confidence(10) - 0.995).abs() < 1e-9);
    }

    #[test]
    fn what_else_differs_is_said() {
        let mut b = run("y", &A);
        b.circumstances.machine.system = "Linux 2.4".into();
        b.circumstances.settings.insert("requests".into(), "2".into());
        let mut a = run("x", &A);
        a.circumstances.settings.insert("requests".into(), "1".into());
        let comparison = compare(&a, &b, &CompareOptions::default());
        let warnings = comparison.warnings.join("\n");
        assert!(
            warnings.contains("kernel differs") && warnings.contains("requests differs: 1 and 2"),
            "{warnings}"
        );
        assert_eq!(comparison.only_a, ["concurrency: x"]);
        assert_eq!(comparison.only_b, ["concurrency: y"]);
        assert!(compare(&a, &a, &CompareOptions::default()).warnings.is_empty());
    }

    #[test]
    fn a_setting_that_only_one_run_records_is_the_usual_one_in_the_other() {
        let with = |settings: &[(&str, &str)]| {
            let mut run = run("x", &A);
            let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            run.circumstances.settings = settings.collect();
            run
        };
        let warnings = |a: &Run, b: &Run| compare(a, b, &CompareOptions::default()).warnings;
        let plain = with(&[("concurrency, kept: length of a round", "2 s")]);
        let app = with(&[
            ("concurrency, kept: length of a round", "2 s"),
            ("concurrency, kept: program", "./mine"),
        ]);
        let program = "concurrency, kept: program differs: ./mine and tidegate serve http";
        assert_eq!(warnings(&app, &plain), [program]);
        let by_agents = with(&[("models: 9 connections, unlimited", "5 s"), ("models: agents", "2")]);
        let models = with(&[("models: 7 connections, unlimited", "5 s")]);
        assert_eq!(warnings(&models, &by_agents), ["models: agents differs: none and 2"]);
        // Neither an experiment that only one run has, nor a setting that an older one did not record.
        assert_eq!(warnings(&app, &by_agents), [""; 0]);
        let newer = with(&[("concurrency, kept: length of a round", "2 s"), ("concurrency, kept: new", "1")]);
        assert_eq!(warnings(&plain, &newer), [""; 0]);
    }
}
