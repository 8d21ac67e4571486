//! Responses per second and CPU time per request as functions of concurrency: the figure of the second article.
//!
//! The server gets a [share](super::share) of its processor that leaves the load generator idle time, so that the
//! server is the limit and not the load. A short calibration chooses the share of each point, the same for all models;
//! rounds that show otherwise are repeated with a smaller one. Rates are given for a whole processor.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::{Agents, Generator};
use super::peers::PAGE_BYTES;
use super::peers::program::ServerProgram;
use super::round::{self, Figures, Length, Round, RoundLoad};
use super::share::CpuShare;
use super::{LeftOut, MeasuredServer, affordable, contestants, distinct, position, scratch};
use crate::process::Scratch;
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
    /// Time for the rounds of a point: when it is over, what has [enough](ENOUGH) rounds gets no more.
    pub within: Option<Duration>,
    /// Keep-alive connections; the article used a new one for each request.
    pub keep_alive: bool,
    /// Agents that generate the loads; none is this machine.
    pub agents: Option<Agents>,
    /// The server program; none is `tidegate serve http`.
    pub program: Option<ServerProgram>,
    /// Bytes of the page that `tidegate serve http` returns.
    pub page_bytes: usize,
}

/// Rounds without which a point has no interval.
pub const ENOUGH: usize = 4;

impl Settings {
    /// The numbers of the rounds of a point that began at `begun`.
    fn turns(&self, begun: Instant) -> impl Iterator<Item = usize> + use<> {
        let within = self.within;
        let has_time = move || within.is_none_or(|within| begun.elapsed() < within);
        (0..self.repeats).take_while(move |&turn| turn < ENOUGH || has_time())
    }

    /// The settings that a saved run records, because they change the figures: of rows with kept connections apart from
    /// those of the others, because a run may have both. Names of rows have the size of the page.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let facts = [("length of a round", self.length.to_string())];
        let agents = self.agents.as_ref().map(|agents| ("agents", agents.count.to_string()));
        let program = self.program.as_ref().map(|program| ("program", program.to_string()));
        let kept = if self.keep_alive { "connections kept" } else { "a connection for each request" };
        let facts = facts.into_iter().chain(agents).chain(program);
        facts.map(|(name, value)| (format!("concurrency, {kept}: {name}"), value)).collect()
    }

    /// Rounds of each model and point, the calibration included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.points.len() * (self.repeats + usize::from(self.agents.is_none()))
    }
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
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
    /// Bytes of the page, where `tidegate serve http` served.
    #[serde(default = "usual_page")]
    pub page_bytes: usize,
    /// In the order of models, then concurrency.
    pub points: Vec<Point>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Points that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

fn usual_page() -> usize {
    PAGE_BYTES
}

impl Default for ResultTable {
    fn default() -> Self {
        Self {
            length: String::new(),
            repeats: 0,
            keep_alive: false,
            throttle: String::new(),
            program: None,
            page_bytes: PAGE_BYTES,
            points: Vec::new(),
            left_out: Vec::new(),
            failed: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Measures all points; within each repeat the models alternate, so that a slow moment of the machine affects all
/// alike.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let mut share = CpuShare::new(bench, settings.agents.as_ref());
    let mut table = ResultTable {
        length: settings.length.to_string(),
        repeats: settings.repeats,
        keep_alive: settings.keep_alive,
        program: settings.program.as_ref().map(ToString::to_string),
        page_bytes: settings.page_bytes,
        left_out,
        ..ResultTable::default()
    };
    let page = match ServedPage::new(settings.page_bytes) {
        Ok(page) => page,
        Err(e) => {
            table.failed.push(LeftOut {
                model: format!("a page of {} bytes", settings.page_bytes),
                why: e.to_string(),
            });
            return table;
        }
    };
    let (points, notes): (Vec<_>, Vec<_>) = settings.points.iter().map(|&wanted| affordable(wanted)).unzip();
    table.notes.extend(notes.into_iter().flatten());
    for concurrency in distinct(points) {
        let level = ConcurrencyLevel { bench, settings, concurrency, page: &page };
        share.calibrate(&models, |share, &model| {
            progress(&format!("{model}, {concurrency} at once: calibration"));
            level.round(share, model, settings.length.trial())
        });
        let load = format!("at {concurrency}");
        let name = |model: &Model| format!("{model} {load}");
        let turns = settings.turns(Instant::now());
        let rounds = share.in_turns(&models, turns, &mut table.failed, name, |share, &model| {
            progress(&format!("{model}, {concurrency} at once"));
            level.round(share, model, settings.length)
        });
        let taken = rounds.first().map_or(settings.repeats, Vec::len);
        if taken < settings.repeats {
            table.notes.push(format!(
                "{load}: {taken} of {} rounds, because they took longer than expected",
                settings.repeats
            ));
        }
        let share = share.value();
        let point = |(model, rounds): (&Model, Vec<Option<Round>>)| {
            let figures = Figures::in_turns(&rounds)?;
            Some(Point { model: model.to_string(), concurrency, share, figures })
        };
        table.points.extend(models.iter().zip(rounds).filter_map(point));
    }
    table.throttle = share.method();
    table.points.sort_by_key(|p| (position(&p.model), p.concurrency));
    table
}

/// One concurrency.
struct ConcurrencyLevel<'a> {
    bench: &'a Bench,
    settings: &'a Settings,
    concurrency: usize,
    page: &'a ServedPage,
}

impl ConcurrencyLevel<'_> {
    /// A round against a fresh server, so that it inherits nothing from another.
    fn round(&self, share: &mut CpuShare, model: Model, length: Length) -> Result<Round, LabError> {
        let requests =
            RoundLoad { concurrency: self.concurrency, length, keep_alive: self.settings.keep_alive };
        let generator = Generator::new(self.bench, self.settings.agents.as_ref());
        if let Some(program) = &self.settings.program {
            return loaded(generator, share, &mut program.start(self.bench, model)?, requests);
        }
        let mut server = generator.server("http", model, &self.page.options())?;
        loaded(generator, share, &mut server, requests)
    }
}

/// The page that servers return.
struct ServedPage {
    /// None is the built-in one.
    file: Option<(Scratch, String)>,
}

impl ServedPage {
    fn new(bytes: usize) -> Result<Self, LabError> {
        if bytes == PAGE_BYTES {
            return Ok(Self { file: None });
        }
        let folder = scratch("page")?;
        let path = folder.path().join("page.html").display().to_string();
        let failed = |e: std::io::Error| LabError::Process { what: path.clone(), why: e.to_string() };
        std::fs::write(&path, "x".repeat(bytes)).map_err(failed)?;
        Ok(Self { file: Some((folder, path)) })
    }

    fn options(&self) -> Vec<&str> {
        self.file.as_ref().map_or(Vec::new(), |(_, path)| vec!["--page", path])
    }
}

/// The same against this server.
fn loaded(
    generator: Generator<'_>,
    share: &mut CpuShare,
    server: &mut dyn MeasuredServer,
    requests: RoundLoad,
) -> Result<Round, LabError> {
    share.hold(server.id());
    Ok(round::throttled(generator, server, requests, share.value())?.without_short_window())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_time_is_over_a_point_gets_no_more_than_enough_rounds() {
        let settings = |within| Settings {
            models: Vec::new(),
            points: vec![100],
            length: Length::Requests(1),
            repeats: ENOUGH + 2,
            within,
            keep_alive: true,
            agents: None,
            program: None,
            page_bytes: PAGE_BYTES,
        };
        let turns = |within| settings(within).turns(Instant::now()).count();
        assert_eq!(turns(Some(Duration::ZERO)), ENOUGH);
        assert_eq!(turns(Some(Duration::from_secs(3600))), ENOUGH + 2);
        assert_eq!(turns(None), ENOUGH + 2);
    }

    #[test]
    fn a_page_of_another_size_is_a_file_that_goes_with_the_measurement() {
        let page = ServedPage::new(1_024).unwrap();
        let [option, path] = page.options()[..] else { panic!("no file") };
        let (option, path) = (option.to_owned(), std::path::PathBuf::from(path));
        assert_eq!((option.as_str(), std::fs::metadata(&path).unwrap().len()), ("--page", 1_024));
        drop(page);
        assert!(!path.exists());
        assert!(ServedPage::new(PAGE_BYTES).unwrap().options().is_empty(), "the built-in page");
    }
}
