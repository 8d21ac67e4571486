//! Compares other servers with tidegate's models: the same page, the same load, interleaved, and the cost of each as a
//! multiple of the baseline.

pub mod program;
pub(crate) mod running;
pub mod scenario;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::generator::Generator;
use super::round::{self, Figures, Length, Round, RoundLoad};
use super::share::CpuShare;
use super::{LeftOut, MeasuredServer, ServerProcess, affordable, contestants, distinct};
use crate::run::Facts;
use crate::spread::Spread;
use crate::{Bench, LabError};
use running::RunningPeer;
use scenario::{BASELINE, PeerProgram};

/// Bytes of the page that every server returns.
pub const PAGE_BYTES: usize = 4096;

/// The most bytes of an answer's head; more, or less than the page, is another answer than was asked for.
const HEAD_BYTES: f64 = 1024.0;

/// The warm-up of a round, as a fraction of its requests: programs with a JIT compiler need it.
const WARM_UP: u64 = 8;

/// The requests of a calibration round, as a fraction of those of a round.
const CALIBRATION: u64 = 4;

/// The kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Keep-alive connections, or a new one for each request.
    pub keep_alive: bool,
    /// Concurrent requests.
    pub concurrency: usize,
}

impl Case {
    /// For headings.
    #[must_use]
    pub fn words(self) -> String {
        let kept = if self.keep_alive { "connections kept" } else { "a connection for each request" };
        format!("{} at once, {kept}", self.concurrency)
    }

    /// The same with as many connections as are possible, and a message if they are fewer.
    fn affordable(self) -> (Self, Option<String>) {
        let (concurrency, note) = affordable(self.concurrency);
        (Self { concurrency, ..self }, note)
    }
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Other servers, in order.
    pub peers: Vec<PeerProgram>,
    /// tidegate's models, in order.
    pub models: Vec<Model>,
    /// The load.
    pub cases: Vec<Case>,
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each row.
    pub repeats: usize,
    /// Where peers are built.
    pub cache: PathBuf,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
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
    /// The load.
    pub case: Case,
    /// What the server had of its processors in the last round, 0 to 1.
    #[serde(default = "crate::experiment::whole")]
    pub share: f64,
    /// The results of its rounds.
    pub figures: Figures,
    /// Its CPU cost relative to the baseline in the same round; none if the baseline could not be measured.
    pub times_baseline: Option<Spread>,
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Requests of each round.
    pub requests: u64,
    /// Rounds of each row.
    pub repeats: usize,
    /// How servers were limited to their share.
    #[serde(default)]
    pub throttle: String,
    /// In the order of cases, then of cost.
    pub rows: Vec<Row>,
    /// Peers and models that are unavailable, with the remedy.
    pub left_out: Vec<LeftOut>,
    /// Rounds that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// Somebody to be measured.
enum Contestant {
    Peer(Box<PeerProgram>, PathBuf),
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

/// Builds and measures all; within each round they alternate, so that a slow moment of the machine affects all alike.
/// `progress` is called before each step.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let mut share = CpuShare::new(bench, None);
    let mut table = ResultTable {
        requests: settings.requests,
        repeats: settings.repeats,
        left_out,
        ..ResultTable::default()
    };
    let mut all: Vec<Contestant> = Vec::new();
    for peer in &settings.peers {
        progress(&format!("building {}", peer.name));
        match peer.prepare(&settings.cache) {
            Ok(build) => all.push(Contestant::Peer(Box::new(peer.clone()), build)),
            Err(why) => table.left_out.push(LeftOut { model: peer.name.clone(), why }),
        }
    }
    all.extend(models.into_iter().map(Contestant::Own));
    let (cases, notes): (Vec<_>, Vec<_>) = settings.cases.iter().map(|case| case.affordable()).unzip();
    table.notes.extend(distinct(notes.into_iter().flatten()));
    for case in distinct(cases) {
        share.calibrate(&all, |share, one| {
            progress(&format!("{}, {}: calibration", one.name(), case.words()));
            measure(bench, share, one, case, (settings.requests / CALIBRATION).max(1))
        });
        let failed = &mut table.failed;
        let rounds = share.in_turns(&all, 0..settings.repeats, failed, Contestant::name, |share, one| {
            progress(&format!("{}, {}", one.name(), case.words()));
            measure(bench, share, one, case, settings.requests)
        });
        table.rows.extend(rows(case, share.value(), &all, &rounds));
    }
    table.throttle = share.method();
    table
}

/// The rows of a case, cheapest first.
fn rows(case: Case, share: f64, all: &[Contestant], rounds: &[Vec<Option<Round>>]) -> Vec<Row> {
    let names: Vec<String> = all.iter().map(Contestant::name).collect();
    let baseline = names.iter().position(|name| name == BASELINE).and_then(|at| rounds.get(at));
    let mut rows: Vec<Row> = names
        .into_iter()
        .zip(rounds)
        .filter_map(|(name, rounds)| {
            let times_baseline = baseline.and_then(|baseline| Spread::of(ratios(rounds, baseline)));
            Some(Row { name, case, share, figures: Figures::in_turns(rounds)?, times_baseline })
        })
        .collect();
    let cost = |row: &Row| row.figures.cpu_s_per_100k.median;
    rows.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    rows
}

/// Cost by the baseline's in the same round, where both are known.
fn ratios(rounds: &[Option<Round>], baseline: &[Option<Round>]) -> Vec<f64> {
    let both = rounds.iter().zip(baseline).filter_map(|(one, baseline)| one.as_ref().zip(baseline.as_ref()));
    both.map(|(one, baseline)| one.cpu_s_per_100k / baseline.cpu_s_per_100k).collect()
}

/// One round against a fresh server.
fn measure(
    bench: &Bench,
    share: &mut CpuShare,
    one: &Contestant,
    case: Case,
    count: u64,
) -> Result<Round, LabError> {
    let mut warmed_up = |server: &mut dyn MeasuredServer| {
        share.hold(server.id());
        warmed_up(Generator::here(bench), share.value(), server, case, count)
    };
    match one {
        Contestant::Own(model) => warmed_up(&mut ServerProcess::start(bench, "http", *model, &[])?),
        Contestant::Peer(peer, build) => {
            warmed_up(&mut RunningPeer::start(bench, peer, build.clone(), case.keep_alive)?)
        }
    }
}

fn warmed_up(
    generator: Generator<'_>,
    share: f64,
    server: &mut dyn MeasuredServer,
    case: Case,
    count: u64,
) -> Result<Round, LabError> {
    let Case { keep_alive, concurrency } = case;
    let few = (count / WARM_UP).max(concurrency as u64);
    let round = |server: &mut dyn MeasuredServer, count| {
        let load = RoundLoad { concurrency, length: Length::Requests(count), keep_alive };
        round::throttled(generator, server, load, share)
    };
    let first = round(server, few)?;
    let least = PAGE_BYTES as f64;
    if !(least..=least + HEAD_BYTES).contains(&first.bytes_each) {
        let why = format!(
            "answers have {:.0} bytes; to be compared they need a page of {PAGE_BYTES} and a head of at most {HEAD_BYTES}",
            first.bytes_each
        );
        return Err(LabError::Process { what: server.url().into(), why });
    }
    Ok(round(server, count)?.without_short_window())
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
    fn cost_is_counted_in_baselines_of_the_same_round() {
        let all = [Model::Epoll, Model::Poll].map(Contestant::Own);
        let case = Case { keep_alive: true, concurrency: 1 };
        let baseline = [round(1.0), None, round(2.0)];
        let slow = [round(1.5), round(9.0), round(3.0)];
        assert_eq!(ratios(&slow, &baseline), [1.5, 1.5]);
        let rows = rows(case, 1.0, &all, &[slow.into(), baseline.into()]);
        assert_eq!(
            rows.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(),
            ["tidegate poll", "tidegate epoll"]
        );
        assert!(
            rows.iter().all(|row| row.times_baseline.is_none()),
            "without the baseline nothing is counted in it"
        );
    }
}
