//! Service demand at fixed rates: server processor time for a request in an open loop, where the server is mostly idle
//! and each request may pay for its own wake-up. Closed loops do not show that.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::Generator;
use super::round::{self, Figures, Round};
use super::{LeftOut, Server, affordable, contestants, position};
use crate::run::Facts;
use crate::{Bench, LabError};

/// The least part of the rate that a server has to answer for its figure to be one of that rate.
const LEAST_PART: f64 = 0.97;

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
}

impl Settings {
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
    /// The results of its rounds.
    pub figures: Figures,
}

impl Row {
    /// Whether the server answered what was scheduled. If not, it was saturated, and its figures are of that.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.figures.requests_per_s.median >= LEAST_PART * self.rate as f64
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
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

/// Measures all rows; within each repeat the models alternate.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let (models, left_out) = contestants(&settings.models);
    let (connections, note) = affordable(settings.connections);
    let mut table = Table {
        connections,
        window_s: settings.window.as_secs_f64(),
        repeats: settings.repeats,
        left_out,
        notes: note.into_iter().collect(),
        ..Table::default()
    };
    for &rate in &settings.rates {
        let load = format!("at {rate}/s");
        let rows = round::of_models(&models, settings.repeats, &load, &mut table.failed, |model| {
            progress(&format!("{model}, {rate} requests/s"));
            measure(bench, model, rate, connections, settings.window)
        });
        let row = |(model, figures): (Model, Figures)| Row { model: model.to_string(), rate, figures };
        table.rows.extend(rows.into_iter().map(row));
    }
    table.rows.sort_by_key(|row| (position(&row.model), row.rate));
    table
}

/// A round against a fresh server, so that it inherits nothing from another.
fn measure(
    bench: &Bench,
    model: Model,
    rate: u64,
    connections: usize,
    window: Duration,
) -> Result<Round, LabError> {
    let server = Server::start(bench, "http", model, &[])?;
    let options = [
        ["-c", &connections.to_string()],
        ["--rate", &rate.to_string()],
        ["-d", &window.as_secs_f64().to_string()],
    ];
    let pid = server.process.id();
    let round = round::load(Generator::here(bench), &server.url, pid, options.as_flattened())?;
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
            figures: Figures { requests_per_s: Spread::of([answered]).unwrap(), ..Figures::default() },
        };
        assert!(row(9_990.0).is_kept() && row(9_701.0).is_kept() && !row(9_000.0).is_kept());
    }
}
