//! Responses per second and CPU time per request as functions of concurrency: the figure of the second article.
//!
//! The server gets a [share](super::share) of its processor that leaves the load generator idle time, so that the
//! server is the limit and not the load. A short calibration chooses the share of each point, the same for all models;
//! rounds that show otherwise are repeated with a smaller one. Rates are given for a whole processor.

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::{Agents, Generator};
use super::peers::program::Program;
use super::round::{self, Figures, Length, Requests, Round};
use super::share::Share;
use super::{LeftOut, affordable, contestants, position};
use crate::run::Facts;
use crate::{Bench, LabError};

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Concurrent requests of each point.
    pub points: Vec<usize>,
    /// Length of each round.
    pub length: Length,
    /// Rounds of each point.
    pub repeats: usize,
    /// Keep-alive connections; the article used a new one for each request.
    pub keep_alive: bool,
    /// Agents that generate the loads; none is this machine.
    pub agents: Option<Agents>,
    /// The server program; none is `tidegate serve http`.
    pub program: Option<Program>,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let kept = if self.keep_alive { "kept" } else { "one for each request" };
        let facts = [("length of a round", self.length.to_string()), ("connections", kept.into())];
        let agents = self.agents.as_ref().map(|agents| ("agents", agents.count.to_string()));
        let program = self.program.as_ref().map(|program| ("program", program.to_string()));
        facts.into_iter().chain(agents).chain(program).map(into_fact).collect()
    }

    /// Rounds of each model and point, the calibration included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.points.len() * (self.repeats + usize::from(self.agents.is_none()))
    }
}

fn into_fact((name, value): (&str, String)) -> (String, String) {
    (format!("concurrency: {name}"), value)
}

/// One model at one concurrency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The model.
    pub model: String,
    /// Concurrent requests.
    pub concurrency: usize,
    /// What the server had of its processors in the last round, 0 to 1.
    #[serde(default = "super::whole")]
    pub share: f64,
    /// The results of its rounds.
    pub figures: Figures,
}

/// All points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Length of each round, in words.
    #[serde(default)]
    pub length: String,
    /// Rounds of each point.
    pub repeats: usize,
    /// Whether connections were keep-alive.
    pub keep_alive: bool,
    /// How servers were limited to their share.
    #[serde(default)]
    pub throttle: String,
    /// The program that served, if it was another than `tidegate serve http`.
    #[serde(default)]
    pub program: Option<String>,
    /// In the order of models, then concurrency.
    pub points: Vec<Point>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Points that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// Measures all points; within each repeat the models alternate, so that a slow moment of the machine affects all
/// alike.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let (models, left_out) = contestants(&settings.models);
    let mut share = Share::new(bench, settings.agents.as_ref());
    let mut table = Table {
        length: settings.length.to_string(),
        repeats: settings.repeats,
        keep_alive: settings.keep_alive,
        throttle: share.method().into(),
        program: settings.program.as_ref().map(ToString::to_string),
        left_out,
        ..Table::default()
    };
    for &wanted in &settings.points {
        let (concurrency, note) = affordable(wanted);
        table.notes.extend(note);
        let level = Level { bench, settings, concurrency };
        share.calibrate(&models, |share, &model| {
            progress(&format!("{model}, {concurrency} at once: calibration"));
            level.round(share, model, settings.length.trial())
        });
        let load = format!("at {concurrency}");
        let rows = round::of_models(&models, settings.repeats, &load, &mut table.failed, |model| {
            progress(&format!("{model}, {concurrency} at once"));
            share.fitted(|round| round, |share| level.round(share, model, settings.length))
        });
        let share = share.value();
        let point = |(model, figures): (Model, Figures)| Point {
            model: model.to_string(),
            concurrency,
            share,
            figures,
        };
        table.points.extend(rows.into_iter().map(point));
    }
    table.points.sort_by_key(|p| (position(&p.model), p.concurrency));
    table
}

/// One concurrency.
struct Level<'a> {
    bench: &'a Bench,
    settings: &'a Settings,
    concurrency: usize,
}

impl Level<'_> {
    /// A round against a fresh server, so that it inherits nothing from another.
    fn round(&self, share: &Share, model: Model, length: Length) -> Result<Round, LabError> {
        let requests =
            Requests { concurrency: self.concurrency, length, keep_alive: self.settings.keep_alive };
        let generator = Generator::new(self.bench, self.settings.agents.as_ref());
        if let Some(program) = &self.settings.program {
            let server = program.start(self.bench, model)?;
            return loaded(generator, share, model, &server.url, server.id(), requests);
        }
        let server = generator.server("http", model, &[])?;
        loaded(generator, share, model, &server.url, server.process.id(), requests)
    }
}

/// The same against this server.
fn loaded(
    generator: Generator<'_>,
    share: &Share,
    model: Model,
    url: &str,
    pid: u32,
    requests: Requests,
) -> Result<Round, LabError> {
    share.hold(pid, model)?;
    Ok(round::throttled(generator, url, pid, requests, share.value())?.without_short_window())
}
