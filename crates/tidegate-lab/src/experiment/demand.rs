//! Service demand at fixed rates: server processor time for a request in an open loop, where the server is mostly idle
//! and each request may pay for its own wake-up. Closed loops do not show that.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate::policy::{Effect, Limited, Policy};

use super::generator::Generator;
use super::round::{self, Figures, Length, Round};
use super::{LeftOut, ServerProcess, affordable, contestants, interleave, position};
use crate::bootstrap::{Interval, of_ratio};
use crate::run::Facts;
use crate::{Bench, LabError};

/// The least part of the rate that a server has to answer for its figure to be one of that rate.
pub(crate) const LEAST_PART: f64 = 0.97;

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Requests a second, all connections together.
    pub rates: Vec<u64>,
    /// Keep-alive connections that carry them.
    pub connections: usize,
    /// Length of each round.
    pub window: Duration,
    /// Rounds of each model and rate.
    pub repeats: usize,
    /// Numbers of I/O threads to compare; the default of the model if there are none.
    pub threads: Vec<usize>,
}

impl Settings {
    /// Servers of each model.
    #[must_use]
    pub fn servers(&self) -> Vec<Option<usize>> {
        if self.threads.is_empty() { vec![None] } else { self.threads.iter().copied().map(Some).collect() }
    }

    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let window = format!("{} s", self.window.as_secs_f64());
        let facts = [("length of a round", window), ("connections", self.connections.to_string())];
        facts.into_iter().map(|(name, value)| (format!("demand: {name}"), value)).collect()
    }
}

/// One model at one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// Requests a second that were scheduled.
    pub rate: u64,
    /// I/O threads of the server, if it was given a number.
    #[serde(default)]
    pub threads: Option<usize>,
    /// The results of its rounds.
    pub figures: Figures,
}

impl Row {
    /// Whether the server answered what was scheduled. If not, it was saturated, and its figures are of that.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.figures.requests_per_s.median >= LEAST_PART * self.rate as f64
    }

    /// The model, with the number of its threads if it was given one.
    #[must_use]
    pub fn name(&self) -> String {
        match self.threads {
            None => self.model.clone(),
            Some(1) => format!("{}, 1 thread", self.model),
            Some(n) => format!("{}, {n} threads", self.model),
        }
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Connections of each load.
    pub connections: usize,
    /// Length of each round in seconds.
    pub window_s: f64,
    /// Rounds of each row.
    pub repeats: usize,
    /// In the order of models, then rates.
    pub rows: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

impl ResultTable {
    /// The cost of a request of a row as a multiple of that with the fewest threads, at the same rate, and its 95%
    /// interval, which takes four rounds.
    #[must_use]
    pub fn against_fewest(&self, row: &Row) -> Option<(f64, Option<Interval>)> {
        let same = self.rows.iter().filter(|other| other.model == row.model && other.rate == row.rate);
        let fewest = same.min_by_key(|other| other.threads)?;
        let [of_fewest, own] = [fewest, row].map(|row| &row.figures.cpu_s_per_100k);
        (fewest.threads < row.threads)
            .then(|| (own.median / of_fewest.median, of_ratio(&of_fewest.rounds, &own.rounds, 0.95)))
    }
}

/// Measures all rows; within each repeat the models alternate.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (mut models, mut left_out) = contestants(&settings.models);
    if !settings.threads.is_empty() {
        let (with, without) = models.into_iter().partition(|&model| has_threads(model));
        models = with;
        let why = "it has no number of I/O threads to set";
        left_out.extend(
            Vec::into_iter(without).map(|model: Model| LeftOut { model: model.to_string(), why: why.into() }),
        );
    }
    let (connections, note) = affordable(settings.connections);
    let mut table = ResultTable {
        connections,
        window_s: settings.window.as_secs_f64(),
        repeats: settings.repeats,
        left_out,
        notes: note.into_iter().collect(),
        ..ResultTable::default()
    };
    for &rate in &settings.rates {
        let servers = settings.servers();
        let subjects: Vec<(Model, Option<usize>)> =
            models.iter().flat_map(|&model| servers.iter().map(move |&threads| (model, threads))).collect();
        let row = |&(model, threads): &(Model, Option<usize>), figures| Row {
            model: model.to_string(),
            rate,
            threads,
            figures,
        };
        let name = |subject: &_| row(subject, Figures::default()).name();
        let full_name = |subject: &_| format!("{} at {rate}/s", name(subject));
        let rounds = interleave(&subjects, settings.repeats, &mut table.failed, full_name, |subject| {
            progress(&format!("{}, {rate} requests/s", name(subject)));
            let &(model, threads) = subject;
            measure(bench, model, threads, rate, connections, settings.window)
        });
        let rows = subjects.iter().zip(rounds);
        table.rows.extend(rows.filter_map(|(subject, rounds)| Some(row(subject, Figures::of(&rounds)?))));
    }
    table.rows.sort_by_key(|row| (position(&row.model), row.threads, row.rate));
    table
}

/// Whether a server on this model can be given a number of I/O threads.
fn has_threads(model: Model) -> bool {
    Policy::limit("threads").is_some_and(|limit| model.effect(limit) == Effect::Kept)
}

/// A round against a fresh server, so that it inherits nothing from another.
fn measure(
    bench: &Bench,
    model: Model,
    threads: Option<usize>,
    rate: u64,
    connections: usize,
    window: Duration,
) -> Result<Round, LabError> {
    let threads: Vec<String> = threads.iter().flat_map(|n| ["--threads".into(), n.to_string()]).collect();
    let threads: Vec<&str> = threads.iter().map(String::as_str).collect();
    let mut server = ServerProcess::start(bench, "http", model, &threads)?;
    let options = [["-c", &connections.to_string()], ["--rate", &rate.to_string()]];
    let round =
        round::load(Generator::here(bench), &mut server, Length::Time(window), options.as_flattened(), 1.0)?;
    Ok(round.without_short_window())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Spread;

    #[test]
    fn a_row_is_of_its_rate_only_if_that_was_answered() {
        let row = |answered: f64| Row {
            model: "epoll".into(),
            rate: 10_000,
            threads: None,
            figures: Figures { requests_per_s: Spread::of([answered]).unwrap(), ..Figures::default() },
        };
        assert!(row(9_990.0).is_kept() && row(9_701.0).is_kept() && !row(9_000.0).is_kept());
    }

    #[test]
    fn threads_are_compared_with_the_fewest_at_the_same_rate() {
        let row = |threads, rate, cost: f64| Row {
            model: "epoll".into(),
            rate,
            threads,
            figures: Figures {
                cpu_s_per_100k: Spread::of([cost, 1.01 * cost, 0.99 * cost, cost]).unwrap(),
                ..Figures::default()
            },
        };
        let rows = vec![row(Some(1), 200, 9.0), row(Some(1), 100, 2.0), row(Some(4), 100, 3.0)];
        let table = ResultTable { rows, ..ResultTable::default() };
        let (ratio, interval) = table.against_fewest(&table.rows[2]).unwrap();
        let interval = interval.unwrap();
        assert!((ratio - 1.5).abs() < 1e-9 && interval.contains(1.5) && interval.low > 1.4, "{interval:?}");
        assert!(
            table.against_fewest(&table.rows[0]).is_none(),
            "it is the one that others are compared with"
        );
        assert_eq!(table.rows[2].name(), "epoll, 4 threads");
    }
}
