//! Responses a second and time per request against concurrency: the figure of the source's second article.

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::{Agents, Generator};
use super::round::{self, Figures, Requests, Round};
use super::{LeftOut, affordable, contestants};
use crate::run::Facts;
use crate::{Bench, LabError};

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Concurrent requests of each point.
    pub points: Vec<usize>,
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each point.
    pub repeats: usize,
    /// Keep connections; the source had a new one for each request.
    pub keep_alive: bool,
    /// Agents that carry the loads; none is this machine.
    pub agents: Option<Agents>,
}

impl Settings {
    /// What of them a saved run has to tell, because it changes the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let kept = if self.keep_alive { "kept" } else { "one for each request" };
        let facts = [("requests of a round", self.requests.to_string()), ("connections", kept.into())];
        let agents = self.agents.as_ref().map(|agents| ("agents", agents.count.to_string()));
        facts.into_iter().chain(agents).map(into_fact).collect()
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
    /// Requests at once.
    pub concurrency: usize,
    /// What its rounds came to.
    pub figures: Figures,
}

/// All points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each point.
    pub repeats: usize,
    /// Whether connections were kept.
    pub keep_alive: bool,
    /// In the order of models, then concurrency.
    pub points: Vec<Point>,
    /// Models that can not be measured here.
    pub left_out: Vec<LeftOut>,
    /// Points that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// Measures all points; within each repeat the models take turns, so that a slow moment of the machine hits all alike.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let (models, left_out) = contestants(&settings.models);
    let mut table = Table {
        requests: settings.requests,
        repeats: settings.repeats,
        keep_alive: settings.keep_alive,
        left_out,
        ..Table::default()
    };
    for &wanted in &settings.points {
        let (concurrency, note) = affordable(wanted);
        table.notes.extend(note);
        let mut runs: Vec<Vec<Round>> = models.iter().map(|_| Vec::new()).collect();
        for _ in 0..settings.repeats {
            for (&model, runs) in models.iter().zip(&mut runs) {
                progress(&format!("{model}, {concurrency} at once"));
                match measure(bench, settings, model, concurrency) {
                    Ok(run) => runs.push(run),
                    Err(e) => {
                        let model = format!("{model} at {concurrency}");
                        table.failed.push(LeftOut { model, why: e.to_string() });
                    }
                }
            }
        }
        let points = models.iter().zip(&runs).filter_map(|(&model, runs)| point(model, concurrency, runs));
        table.points.extend(points);
    }
    let order = |name: &str| Model::ALL.iter().position(|m| m.name() == name);
    table.points.sort_by_key(|p| (order(&p.model), p.concurrency));
    table
}

fn point(model: Model, concurrency: usize, rounds: &[Round]) -> Option<Point> {
    Some(Point { model: model.to_string(), concurrency, figures: Figures::of(rounds)? })
}

/// One round against a server of its own, so that no round inherits what another left behind.
fn measure(bench: &Bench, settings: &Settings, model: Model, concurrency: usize) -> Result<Round, LabError> {
    let requests = Requests { concurrency, count: settings.requests, keep_alive: settings.keep_alive };
    let generator = Generator::new(bench, settings.agents.as_ref());
    let server = generator.server("http", model, &[])?;
    round::http(generator, &server.url, server.process.id(), requests)
}
