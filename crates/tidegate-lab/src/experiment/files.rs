//! Files from disk: as many clients as the machine has room for, each of which asks once for a different file, while
//! the page cache has none of them or all of them.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::Report;

use super::generator::Generator;
use super::round::{Figures, LEAST_PER_S, Round, per_s};
use super::sizing::{self, Sizing};
use super::window::{WindowLength, Windowed};
use super::{LeftOut, ServerProcess, contestants, interleave, position};
use crate::process::Scratch;
use crate::run::Facts;
use crate::sample::read_from_disk;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// Bytes of a file.
pub const FILE_BYTES: usize = 4096;

/// Requests a second where they come at once: faster than any load sends them.
const AT_ONCE: u64 = 1_000_000;

/// Where the files are when they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// On the disk only.
    Cold,
    /// In the page cache.
    Warm,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        })
    }
}

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalRate {
    /// All at once.
    AtOnce,
    /// So many a second.
    Rate(u64),
}

impl fmt::Display for ArrivalRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtOnce => f.write_str("at once"),
            Self::Rate(rate) => write!(f, "{rate}/s"),
        }
    }
}

impl ArrivalRate {
    fn per_s(self) -> u64 {
        match self {
            Self::AtOnce => AT_ONCE,
            Self::Rate(rate) => rate,
        }
    }

    /// How long the requests of so many clients take, if a slow disk does not keep up with them.
    fn time(self, clients: usize) -> Duration {
        per_s(clients as u64, self.per_s().min(LEAST_PER_S))
    }
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Clients, which are as many files.
    pub clients: usize,
    /// When they ask.
    pub arrivals: Vec<ArrivalRate>,
    /// Rounds of each row.
    pub repeats: usize,
    /// The directory in which a directory for the files is made: on a disk.
    pub folder: PathBuf,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts::from([("files: clients".to_owned(), self.clients.to_string())])
    }
}

/// One model with one state of the cache and one arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// Where the files were.
    pub cache: Cache,
    /// When the requests were due.
    pub arrival: ArrivalRate,
    /// Clients asked for; the machine may have room for fewer.
    pub asked: u64,
    /// Clients that asked.
    pub clients: u64,
    /// Of those, the fewest in a round that had their file, whole.
    pub answered: u64,
    /// Bytes that the server had the disk read for a request; `None` where it cannot be asked.
    pub disk_bytes_each: Option<Spread>,
    /// The results of its rounds.
    pub figures: Figures,
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Rounds of each row.
    pub repeats: usize,
    /// In the order of models, then arrivals, cold before warm.
    pub rows: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// What was measured differently, and why.
    pub notes: Vec<String>,
}

/// One round of one row.
struct Take {
    answered: u64,
    disk_bytes_each: Option<f64>,
    round: Round,
}

/// Measures all rows; within each repeat the models alternate.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let mut table = ResultTable { repeats: settings.repeats, left_out, ..ResultTable::default() };
    let subjects = sizing::plan(bench, Generator::here(bench).source(), &models, settings.clients);
    table.notes.extend(sizing::missing(&subjects));
    // As many as clients fit, which may be far fewer than were asked for.
    let clients = subjects.iter().map(|(_, sizing)| sizing.connections).max().unwrap_or_default();
    let files = match FileSet::create(&settings.folder, clients) {
        Ok(files) => files,
        Err(e) => {
            let why = format!(
                "cannot put {clients} files of {FILE_BYTES} bytes into {}: {e}; choose another directory with --out",
                settings.folder.display()
            );
            table.failed.push(LeftOut { model: "files".into(), why });
            return table;
        }
    };
    for &arrival in &settings.arrivals {
        for cache in [Cache::Cold, Cache::Warm] {
            let name = |(model, _): &(Model, Sizing)| format!("{model}, {cache}, {arrival}");
            let takes =
                interleave(&subjects, settings.repeats, &mut table.failed, name, |(model, sizing)| {
                    progress(&format!("{model}, {} clients, {cache}, {arrival}", sizing.connections));
                    measure(bench, *model, sizing, &files, cache, arrival)
                });
            let rows = subjects.iter().zip(takes);
            table.rows.extend(
                rows.filter_map(|((model, sizing), takes)| row(*model, sizing, cache, arrival, &takes)),
            );
        }
    }
    table.notes.extend(not_cold(&table.rows));
    table.rows.sort_by_key(|row| position(&row.model)); // stable
    table
}

fn row(model: Model, sizing: &Sizing, cache: Cache, arrival: ArrivalRate, takes: &[Take]) -> Option<Row> {
    let rounds: Vec<Round> = takes.iter().map(|take| take.round.clone()).collect();
    let disk: Option<Vec<f64>> = takes.iter().map(|take| take.disk_bytes_each).collect();
    Some(Row {
        model: model.to_string(),
        cache,
        arrival,
        asked: sizing.asked as u64,
        clients: sizing.connections as u64,
        answered: takes.iter().map(|take| take.answered).min()?,
        disk_bytes_each: disk.and_then(Spread::of),
        figures: Figures::of(&rounds)?,
    })
}

/// A line if what should have come from the disk did not.
fn not_cold(rows: &[Row]) -> Option<String> {
    let cold = rows.iter().filter(|row| row.cache == Cache::Cold);
    let mut bytes = cold.filter_map(|row| row.disk_bytes_each.as_ref());
    bytes.any(|bytes| bytes.median < FILE_BYTES as f64 / 2.0).then(|| {
        "cold files did not all come from the disk: their file system may keep them in memory (tmpfs), or have no \
         page cache to clear; give a directory on a disk with --out"
            .into()
    })
}

/// A round against a fresh server, whose cache is empty.
fn measure(
    bench: &Bench,
    model: Model,
    sizing: &Sizing,
    files: &FileSet,
    cache: Cache,
    arrival: ArrivalRate,
) -> Result<Take, LabError> {
    let clients = sizing.connections.to_string();
    let folder = files.folder.path().display().to_string();
    let most = sizing.server_connections.to_string();
    let sized = sizing.server_options();
    // All may wait for the disk, and nothing is looked for beside a file.
    let mut options = vec![folder.as_str(), "--offload-queue", &most, "--precompressed", "none"];
    options.extend(sized.iter().map(String::as_str));
    let server = ServerProcess::start(bench, "files", model, &options)?;
    let put =
        |e: io::Error| LabError::Process { what: format!("the page cache, for {model}"), why: e.to_string() };
    match cache {
        Cache::Cold => files.forget().map_err(put)?,
        Cache::Warm => files.read().map_err(put)?,
    }
    // Pages of the program that come from the disk in a round would be counted with its files.
    read(&bench.program).map_err(put)?;
    let rate = arrival.per_s().to_string();
    let paths = files.paths.display().to_string();
    let args = ["http", &server.url, "-c", &clients, "--path-file", &paths];
    let args = args.into_iter().chain(["--requests-each", "1", "--rate", &rate]).map(str::to_owned).collect();
    let pid = server.process.id();
    let before = read_from_disk(pid);
    let mut after = None;
    let load = Windowed {
        generator: Generator::here(bench),
        server,
        args,
        connections: sizing.connections,
        threads: Some(sizing.load_threads),
        length: WindowLength::Expected(arrival.time(sizing.connections)),
    };
    let (usage, report) = load.run(|| after = read_from_disk(pid))?;
    let disk = before.zip(after).map(|(before, after)| after.saturating_sub(before) as f64);
    Ok(Take {
        answered: report.verified_in_window,
        disk_bytes_each: disk.map(|bytes| bytes / report.requests.max(1) as f64),
        round: Round::of(bench, &judged(report, arrival), usage.cpu_s).without_short_window(),
    })
}

/// Requests that come at once are no rate to be kept: who was the limit is judged as in a closed loop.
fn judged(report: Report, arrival: ArrivalRate) -> Report {
    match arrival {
        ArrivalRate::AtOnce => Report { open_loop: None, ..report },
        ArrivalRate::Rate(_) => report,
    }
}

/// The files, and the paths by which they are asked for.
struct FileSet {
    folder: Scratch,
    count: usize,
    /// Outside of what is served.
    paths: PathBuf,
    _beside: Scratch,
}

impl FileSet {
    fn create(inside: &Path, count: usize) -> io::Result<Self> {
        let folder = Scratch::create(inside, "files-")?;
        let beside = Scratch::create(inside, "files-")?;
        let mut bytes = [0; FILE_BYTES];
        for number in 0..count {
            bytes.fill(number as u8); // no two in a row alike
            std::fs::write(folder.path().join(name(number)), bytes)?;
        }
        let paths = beside.path().join("paths");
        let lines = (0..count).map(|number| format!("/{}\n", name(number)));
        std::fs::write(&paths, lines.collect::<String>())?;
        let files = Self { folder, count, paths, _beside: beside };
        match tidegate_os::folder::write_back(&File::open(files.folder.path())?) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {}
            written => written?,
        }
        Ok(files)
    }

    fn each(&self, of: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
        (0..self.count).try_for_each(|number| of(&self.folder.path().join(name(number))))
    }

    /// Leaves them on the disk only.
    fn forget(&self) -> io::Result<()> {
        self.each(|path| tidegate_os::folder::forget_cached(&File::open(path)?))
    }

    /// Brings them into the page cache.
    fn read(&self) -> io::Result<()> {
        self.each(read)
    }
}

/// Brings a file into the page cache.
fn read(path: &Path) -> io::Result<()> {
    io::copy(&mut File::open(path)?, &mut io::sink()).map(drop)
}

fn name(number: usize) -> String {
    format!("{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_waited_for_as_long_as_their_rate_and_a_slow_disk_take() {
        let seconds = Duration::from_secs;
        assert_eq!(ArrivalRate::Rate(10).time(10_000), seconds(1_000));
        for arrival in [ArrivalRate::Rate(5_000), ArrivalRate::AtOnce] {
            assert_eq!(arrival.time(10_000), per_s(10_000, LEAST_PER_S));
        }
    }

    #[test]
    fn there_are_no_more_files_than_clients_fit() {
        let bench = Bench::new("tidegate".into(), &[0, 1]);
        let settings = Settings {
            models: vec![Model::Blocking],
            clients: 1_000_000_000,
            arrivals: vec![ArrivalRate::AtOnce],
            repeats: 1,
            folder: tempfile::tempdir().unwrap().path().join("none"),
        };
        let table = run(&bench, &settings, |_| {});
        let [failed] = table.failed.as_slice() else { panic!("{table:?}") };
        let files = failed.why.strip_prefix("cannot put ").and_then(|rest| rest.split(' ').next());
        let files: usize = files.and_then(|number| number.parse().ok()).unwrap();
        assert!((1..settings.clients).contains(&files), "{failed:?}");
    }

    #[test]
    fn files_have_their_size_and_a_path_each_and_are_gone_afterwards() {
        let inside = tempfile::tempdir().unwrap();
        let files = FileSet::create(inside.path(), 3).unwrap();
        files.read().unwrap();
        let paths = std::fs::read_to_string(&files.paths).unwrap();
        assert_eq!(paths, "/000000\n/000001\n/000002\n");
        for path in paths.lines() {
            let file = files.folder.path().join(path.trim_start_matches('/'));
            assert_eq!(std::fs::metadata(file).unwrap().len(), FILE_BYTES as u64);
        }
        assert_eq!(std::fs::read_dir(files.folder.path()).unwrap().count(), 3, "and nothing else is served");
        drop(files);
        assert_eq!(std::fs::read_dir(inside.path()).unwrap().count(), 0);
    }
}
