//! Responses per second and CPU time per request as functions of concurrency: the figure of the second article.
//!
//! The server gets a [share](crate::throttle) of its processor that leaves the load generator idle time, so that the
//! server is the limit and not the load. A short calibration chooses the share of each point, the same for all models;
//! rounds that show otherwise are repeated with a smaller one. Rates are given for a whole processor.

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::verdict::LimitedBy;

use super::generator::{Agents, Generator};
use super::peers::program::Program;
use super::round::{self, Figures, Length, Requests, Round};
use super::{LeftOut, affordable, contestants, position};
use crate::run::Facts;
use crate::throttle::Throttle;
use crate::{Bench, LabError};

/// What the load may be busy in a round, of its time. The rest is for what differs from the calibration.
const LOAD_BUSY: f64 = 0.55;

/// The smallest share of a server. Below it the quota's steps are too coarse.
const LEAST_SHARE: f64 = 0.1;

/// By how much the share of a point shrinks after a round whose limit was not the server, and how often.
const SHRINK: f64 = 0.7;
const MOST_REPEATS: usize = 3;

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
    #[serde(default = "whole")]
    pub share: f64,
    /// The results of its rounds.
    pub figures: Figures,
}

fn whole() -> f64 {
    1.0
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
    let mut throttle = Throttle::new(bench);
    let mut table = Table {
        length: settings.length.to_string(),
        repeats: settings.repeats,
        keep_alive: settings.keep_alive,
        throttle: throttle.method().into(),
        program: settings.program.as_ref().map(ToString::to_string),
        left_out,
        ..Table::default()
    };
    for &wanted in &settings.points {
        let (concurrency, note) = affordable(wanted);
        table.notes.extend(note);
        let mut level = Level { bench, settings, throttle: &mut throttle, concurrency, share: 1.0 };
        if settings.agents.is_none() {
            level.calibrate(&models, &mut progress);
        }
        let load = format!("at {concurrency}");
        let rows = round::of_models(&models, settings.repeats, &load, &mut table.failed, |model| {
            progress(&format!("{model}, {concurrency} at once"));
            level.measure(model)
        });
        let share = level.share;
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

/// One concurrency, and what servers have of their processors at it.
struct Level<'a> {
    bench: &'a Bench,
    settings: &'a Settings,
    throttle: &'a mut Throttle,
    concurrency: usize,
    share: f64,
}

impl Level<'_> {
    /// Chooses the share at which the load has time left with the model that is cheapest beside it.
    fn calibrate(&mut self, models: &[Model], mut progress: impl FnMut(&str)) {
        self.share = self.throttle.set(1.0);
        let mut least: f64 = 1.0;
        for &model in models {
            progress(&format!("{model}, {} at once: calibration", self.concurrency));
            // A model that fails does so again when it is measured, and is named then.
            if let Ok(round) = self.round(model, self.settings.length.trial()) {
                least = least.min(share_for(&round));
            }
        }
        self.share = self.throttle.set(least);
    }

    /// One round whose limit is the server, if a smaller share can bring that about.
    fn measure(&mut self, model: Model) -> Result<Round, LabError> {
        let mut round = self.round(model, self.settings.length)?;
        for _ in 0..MOST_REPEATS {
            let smaller = self.share * SHRINK;
            let is_done = round.verdict.limited_by == LimitedBy::Server || smaller < LEAST_SHARE;
            if is_done || self.settings.agents.is_some() || !self.bench.is_pinned_apart() {
                break;
            }
            self.share = self.throttle.set(smaller);
            round = self.round(model, self.settings.length)?;
        }
        Ok(round)
    }

    /// A round against a fresh server, so that it inherits nothing from another.
    fn round(&self, model: Model, length: Length) -> Result<Round, LabError> {
        let requests =
            Requests { concurrency: self.concurrency, length, keep_alive: self.settings.keep_alive };
        let generator = Generator::new(self.bench, self.settings.agents.as_ref());
        if let Some(program) = &self.settings.program {
            let server = program.start(self.bench, model)?;
            return self.loaded(generator, model, &server.url, server.id(), requests);
        }
        let server = generator.server("http", model, &[])?;
        self.loaded(generator, model, &server.url, server.process.id(), requests)
    }

    /// The same against this server.
    fn loaded(
        &self,
        generator: Generator<'_>,
        model: Model,
        url: &str,
        pid: u32,
        requests: Requests,
    ) -> Result<Round, LabError> {
        self.throttle.hold(pid).map_err(|e| LabError::Process {
            what: format!("the control group of {model}"),
            why: e.to_string(),
        })?;
        Ok(round::throttled(generator, url, pid, requests, self.share)?.without_short_window())
    }
}

/// The share of a server at which the load is busy for [`LOAD_BUSY`] of its time, by what both used for a request in
/// this round.
fn share_for(round: &Round) -> f64 {
    let Some(load) = round.verdict.evidence.generator else { return 1.0 };
    let load_us = load.ran * 1e6 / round.requests_per_s.max(1e-9);
    let server_us = round.cpu_s_per_100k * 10.0;
    (LOAD_BUSY * server_us / load_us.max(1e-9)).clamp(LEAST_SHARE, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::Report;
    use tidegate_load::verdict::{Evidence, Share, Verdict};

    fn round(load_ran: f64, server_us: f64) -> Round {
        let evidence =
            Evidence { generator: Some(Share { ran: load_ran, waited: 0.0 }), ..Evidence::default() };
        let verdict = Verdict {
            limited_by: LimitedBy::Generator,
            because: String::new(),
            warnings: Vec::new(),
            evidence,
        };
        let report =
            Report { requests: 10_000, requests_per_s: 100_000.0, elapsed_s: 0.1, ..Report::default() };
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![1], group: None };
        Round { verdict, ..Round::of(&bench, &report, server_us * 0.01) }
    }

    #[test]
    fn the_share_leaves_the_load_time() {
        // The load uses 10 µs for a request.
        for (server_us, share) in [(10.0, LOAD_BUSY), (5.0, LOAD_BUSY / 2.0), (60.0, 1.0), (0.1, LEAST_SHARE)]
        {
            assert!((share_for(&round(1.0, server_us)) - share).abs() < 1e-9, "{server_us}");
        }
        let unseen = Round {
            verdict: Verdict { evidence: Evidence::default(), ..round(1.0, 1.0).verdict },
            ..round(1.0, 1.0)
        };
        assert!((share_for(&unseen) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_rate_of_a_whole_processor_follows_from_the_cost() {
        assert!((round(1.0, 20.0).per_processor_s - 50_000.0).abs() < 1.0);
    }
}
