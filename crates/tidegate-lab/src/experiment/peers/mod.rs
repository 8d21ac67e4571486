//! Other servers beside tidegate's own models: the same page, the same load, in turn, and how many times the floor each
//! costs.

pub mod program;
mod running;
pub mod scenario;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::Generator;
use super::round::{self, Figures, Length, Requests, Round};
use super::{LeftOut, Server, affordable, contestants};
use crate::run::Facts;
use crate::spread::Spread;
use crate::{Bench, LabError};
use running::Running;
use scenario::{FLOOR, Peer};

/// Bytes of the page that everybody answers with.
pub const PAGE_BYTES: usize = 4096;

/// The most bytes of an answer's head; more, or less than the page, is another answer than was asked for.
const HEAD_BYTES: f64 = 1024.0;

/// One part of the requests of a round comes before it and does not count: programs that compile while they run need
/// it.
const WARM_UP: u64 = 8;

/// How the load asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Whether connections are kept, or each request has one of its own.
    pub keep_alive: bool,
    /// Requests at once.
    pub concurrency: usize,
}

impl Case {
    /// For headings.
    #[must_use]
    pub fn words(self) -> String {
        let kept = if self.keep_alive { "connections kept" } else { "a connection for each request" };
        format!("{} at once, {kept}", self.concurrency)
    }
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Other servers, in order.
    pub peers: Vec<Peer>,
    /// tidegate's models, in order.
    pub models: Vec<Model>,
    /// How they are asked.
    pub cases: Vec<Case>,
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each row.
    pub repeats: usize,
    /// Where peers are built.
    pub cache: PathBuf,
}

impl Settings {
    /// What of them a saved run has to tell, because it changes the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        [("peers: requests of a round".to_owned(), self.requests.to_string())].into()
    }
}

/// One server in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The peer, or `tidegate MODEL`.
    pub name: String,
    /// How it was asked.
    pub case: Case,
    /// What its rounds came to.
    pub figures: Figures,
    /// Its CPU cost by that of the floor in the same round; none if the floor could not be measured.
    pub times_floor: Option<Spread>,
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each row.
    pub repeats: usize,
    /// In the order of cases, then of cost.
    pub rows: Vec<Row>,
    /// Peers that are not here and models that are unavailable, with what to do about it.
    pub left_out: Vec<LeftOut>,
    /// Rounds that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// Somebody to be measured.
enum Contestant {
    Peer(Box<Peer>, PathBuf),
    Own(Model),
}

impl Contestant {
    fn name(&self) -> String {
        match self {
            Self::Peer(peer, _) => peer.name.clone(),
            Self::Own(model) => format!("tidegate {model}"),
        }
    }
}

/// Builds and measures all; within each round they take turns, so that a slow moment of the machine hits all alike.
/// `progress` is told of each step before it is done.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let (models, left_out) = contestants(&settings.models);
    let mut table =
        Table { requests: settings.requests, repeats: settings.repeats, left_out, ..Table::default() };
    let mut all: Vec<Contestant> = Vec::new();
    for peer in &settings.peers {
        progress(&format!("building {}", peer.name));
        match peer.prepare(&settings.cache) {
            Ok(build) => all.push(Contestant::Peer(Box::new(peer.clone()), build)),
            Err(why) => table.left_out.push(LeftOut { model: peer.name.clone(), why }),
        }
    }
    all.extend(models.into_iter().map(Contestant::Own));
    for &wanted in &settings.cases {
        let (concurrency, note) = affordable(wanted.concurrency);
        table.notes.extend(note);
        let case = Case { concurrency, ..wanted };
        let mut rounds: Vec<Vec<Option<Round>>> = all.iter().map(|_| Vec::new()).collect();
        for _ in 0..settings.repeats {
            for (one, rounds) in all.iter().zip(&mut rounds) {
                progress(&format!("{}, {}", one.name(), case.words()));
                let round = measure(bench, one, case, settings.requests);
                if let Err(e) = &round {
                    table.failed.push(LeftOut { model: one.name(), why: e.to_string() });
                }
                rounds.push(round.ok());
            }
        }
        table.rows.extend(rows(case, &all, &rounds));
    }
    table
}

/// The rows of a case, cheapest first.
fn rows(case: Case, all: &[Contestant], rounds: &[Vec<Option<Round>>]) -> Vec<Row> {
    let names: Vec<String> = all.iter().map(Contestant::name).collect();
    let floor = names.iter().position(|name| name == FLOOR).and_then(|at| rounds.get(at));
    let mut rows: Vec<Row> = names
        .into_iter()
        .zip(rounds)
        .filter_map(|(name, rounds)| {
            let good: Vec<Round> = rounds.iter().flatten().cloned().collect();
            let times_floor = floor.and_then(|floor| Spread::of(ratios(rounds, floor)));
            Some(Row { name, case, figures: Figures::of(&good)?, times_floor })
        })
        .collect();
    let cost = |row: &Row| row.figures.cpu_s_per_100k.median;
    rows.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    rows
}

/// Cost by the floor's in the same round, where both are known.
fn ratios(rounds: &[Option<Round>], floor: &[Option<Round>]) -> Vec<f64> {
    let both = rounds.iter().zip(floor).filter_map(|(one, floor)| one.as_ref().zip(floor.as_ref()));
    both.map(|(one, floor)| one.cpu_s_per_100k / floor.cpu_s_per_100k).collect()
}

/// One round against a server of its own.
fn measure(bench: &Bench, one: &Contestant, case: Case, requests: u64) -> Result<Round, LabError> {
    match one {
        Contestant::Own(model) => {
            let server = Server::start(bench, "http", *model, &[])?;
            warmed_up(bench, &server.url, server.process.id(), case, requests)
        }
        Contestant::Peer(peer, build) => {
            let server = Running::start(bench, peer, build.clone(), case.keep_alive)?;
            warmed_up(bench, &server.url, server.id(), case, requests)
        }
    }
}

fn warmed_up(bench: &Bench, url: &str, pid: u32, case: Case, count: u64) -> Result<Round, LabError> {
    let Case { keep_alive, concurrency } = case;
    let few = (count / WARM_UP).max(concurrency as u64);
    let generator = Generator::here(bench);
    let load = |count| Requests { concurrency, length: Length::Requests(count), keep_alive };
    let first = round::http(generator, url, pid, load(few))?;
    let least = PAGE_BYTES as f64;
    if !(least..=least + HEAD_BYTES).contains(&first.bytes_each) {
        let why = format!(
            "answers have {:.0} bytes; to be compared they need a page of {PAGE_BYTES} and a head of at most {HEAD_BYTES}",
            first.bytes_each
        );
        return Err(LabError::Process { what: url.into(), why });
    }
    round::http(generator, url, pid, load(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::Report;

    fn round(cpu_s: f64) -> Option<Round> {
        let bench = Bench::new("tidegate".into(), &[0, 1]);
        Some(Round::of(&bench, &Report { requests: 100_000, elapsed_s: 10.0, ..Report::default() }, cpu_s))
    }

    #[test]
    fn cost_is_counted_in_floors_of_the_same_round() {
        let all = [Model::Epoll, Model::Poll].map(Contestant::Own);
        let case = Case { keep_alive: true, concurrency: 1 };
        let floor = [round(1.0), None, round(2.0)];
        let slow = [round(1.5), round(9.0), round(3.0)];
        assert_eq!(ratios(&slow, &floor), [1.5, 1.5]);
        let rows = rows(case, &all, &[slow.into(), floor.into()]);
        assert_eq!(
            rows.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
            ["tidegate poll", "tidegate epoll"]
        );
        assert!(
            rows.iter().all(|row| row.times_floor.is_none()),
            "without the floor nothing is counted in it"
        );
    }
}
