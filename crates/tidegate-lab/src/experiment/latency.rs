//! The latency table of the article on the loopback fast path: one message in flight between two single-threaded
//! processes, for every model and wait mode, over TCP, a Unix socket, a sockmap and the fast path, and over bare shared
//! memory as the baseline.
//!
//! On Windows over TCP and the fast path, which is `SIO_LOOPBACK_FAST_PATH` there: with `iocp` and `rio` these are the
//! lines of the article.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::PingReport;
use tidegate_os::extension;

use super::round::Length;
use super::sockmap::SockmapGroup;
use super::{LeftOut, LoadResultFile, ServerProcess, TIMEOUT, contestants, interleave};
use crate::process::{Process, cpus, shown};
use crate::run::Facts;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportKind {
    /// TCP over loopback.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// TCP sockets with BPF sockmap.
    Sockmap,
    /// Shared memory, through the library.
    FastPath,
    /// Shared memory without the library.
    BareRing,
}

impl TransportKind {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Unix => "Unix",
            Self::Sockmap => "sockmap",
            Self::FastPath => "fast path",
            Self::BareRing => "bare ring",
        }
    }
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitStrategy {
    /// Sleep.
    Block,
    /// Spin.
    Spin,
    /// Spin for 1 ms, then sleep.
    SpinThenBlock,
}

impl WaitStrategy {
    /// As on the command line.
    #[must_use]
    pub fn option(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Spin => "spin",
            Self::SpinThenBlock => "spin:1ms",
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySetup {
    /// The model of both sides; `None` for the bare ring.
    pub model: Option<String>,
    /// The transport.
    pub transport: TransportKind,
    /// How both sides wait.
    pub waiting: WaitStrategy,
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Length of each window.
    pub window: Duration,
    /// Windows of each line; lines alternate.
    pub repeats: usize,
    /// Message sizes of the chart, which is about `epoll` spinning over TCP and the fast path, and the bare ring.
    pub sizes: Vec<usize>,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        [("latency: length of a window".to_owned(), format!("{} s", self.window.as_secs_f64()))].into()
    }

    /// Windows that will be measured.
    #[must_use]
    pub fn windows(&self) -> usize {
        let (models, _) = contestants(&self.models);
        let missing = missing();
        let here =
            |setups: Vec<LatencySetup>| setups.iter().filter(|s| s.is_here(&missing, cfg!(windows))).count();
        (here(setups(&models)) + here(charted()) * self.sizes.len()) * self.repeats
    }
}

/// A line with its figures, each the median of several windows. Times are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The line.
    pub setup: LatencySetup,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Mean round trip.
    pub mean_us: Spread,
    /// Round trips per second.
    pub per_s: Spread,
    /// Bytes per second in each direction.
    pub bytes_per_s: Spread,
    /// Median round trip.
    pub p50_us: Spread,
    /// 99th percentile.
    pub p99_us: Spread,
    /// 99.9th percentile.
    pub p99_9_us: Spread,
    /// Standard deviation of all round trips.
    pub jitter_us: Spread,
    /// Standard deviation of those up to the 99.9th percentile.
    pub jitter_below_us: Spread,
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Seconds of each window, and windows of each line.
    pub window_s: f64,
    /// See `window_s`.
    pub repeats: usize,
    /// 64-byte messages; [`base`](Self::base) is what they are compared with.
    pub rows: Vec<Row>,
    /// Other sizes.
    pub sizes: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Lines that failed, and why.
    pub failed: Vec<LeftOut>,
}

impl ResultTable {
    /// The row that the others are compared with: where there is `iocp` over TCP, asleep, that row, as in the article;
    /// else the first.
    #[must_use]
    pub fn base(&self) -> Option<&Row> {
        let is_of_the_article = |row: &&Row| row.setup == LatencySetup::of_the_article();
        self.rows.iter().find(is_of_the_article).or(self.rows.first())
    }
}

/// Bytes of a message in the article.
pub const MESSAGE: usize = 64;

/// Models with the fast path; on Windows also those of `OF_WINDOWS`.
const FAST: [Model; 6] = [Model::Pool, Model::Select, Model::Poll, Model::Epoll, Model::Uring, Model::Tokio];
/// Models whose threads can spin; on Windows also those of `OF_WINDOWS`.
const LOOPS: [Model; 4] = [Model::Select, Model::Poll, Model::Epoll, Model::Uring];
const OF_WINDOWS: [Model; 5] =
    [Model::AsyncSelect, Model::EventSelect, Model::Overlapped, Model::Iocp, Model::Rio];

/// The model of the chart.
const CHARTED: Model = if cfg!(windows) { Model::Iocp } else { Model::Epoll };

/// Transports that only another system has: their lines are not in the table, and not among what is left out.
fn of_another_system(is_windows: bool) -> &'static [TransportKind] {
    if is_windows { &[TransportKind::Unix, TransportKind::Sockmap, TransportKind::BareRing] } else { &[] }
}

/// Transports that are not here, and why.
fn missing() -> Vec<(TransportKind, String)> {
    let mut missing = Vec::new();
    if !cfg!(windows)
        && let Err(why) = SockmapGroup::open()
    {
        missing.push((TransportKind::Sockmap, why.to_string()));
    }
    if cfg!(windows) {
        let option = extension::found().into_iter().find(|one| one.name == "loopback fast path");
        let refused = option.and_then(|option| option.refused);
        missing.extend(refused.map(|why| (TransportKind::FastPath, why.to_string())));
    }
    missing
}

/// The lines of the table for these models.
#[must_use]
pub fn setups(models: &[Model]) -> Vec<LatencySetup> {
    let mut setups = Vec::new();
    let fast = [FAST.as_slice(), &OF_WINDOWS].concat();
    let transports: [(_, &[Model]); 4] = [
        (TransportKind::Tcp, models),
        (TransportKind::Unix, models),
        (TransportKind::Sockmap, models),
        (TransportKind::FastPath, &fast),
    ];
    let spins = |m: &Model| LOOPS.contains(m) || OF_WINDOWS.contains(m);
    for (transport, able) in transports {
        for waiting in [WaitStrategy::Block, WaitStrategy::Spin, WaitStrategy::SpinThenBlock] {
            let can = |m: &&Model| able.contains(m) && (waiting == WaitStrategy::Block || spins(m));
            if (transport, waiting) == (TransportKind::Sockmap, WaitStrategy::SpinThenBlock) {
                continue; // nothing that the two before it do not show
            }
            let setup = |m: &Model| LatencySetup { model: Some(m.name().into()), transport, waiting };
            setups.extend(models.iter().filter(can).map(setup));
        }
    }
    setups.push(LatencySetup {
        model: None,
        transport: TransportKind::BareRing,
        waiting: WaitStrategy::Spin,
    });
    setups
}

/// Measures the table, and the chart of sizes. `progress` is called before each window.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let mut table = ResultTable {
        window_s: settings.window.as_secs_f64(),
        repeats: settings.repeats,
        ..ResultTable::default()
    };
    let (models, left_out) = contestants(&settings.models);
    table.left_out = left_out;
    let missing = missing();
    table.left_out.extend(
        missing.iter().map(|(transport, why)| LeftOut { model: transport.name().into(), why: why.clone() }),
    );
    let here = |setup: &LatencySetup| setup.is_here(&missing, cfg!(windows));
    let tasks: Vec<_> = setups(&models).into_iter().filter(here).map(|setup| (setup, MESSAGE)).collect();
    table.rows = measure_all(bench, settings, &tasks, &mut table.failed, &mut progress);
    let tasks: Vec<_> = charted()
        .into_iter()
        .filter(here)
        .flat_map(|setup| settings.sizes.iter().map(move |&size| (setup.clone(), size)))
        .collect();
    table.sizes = measure_all(bench, settings, &tasks, &mut table.failed, &mut progress);
    table
}

/// The lines of the chart.
fn charted() -> Vec<LatencySetup> {
    let mut setups = setups(&[CHARTED]);
    setups.retain(|setup| setup.waiting == WaitStrategy::Spin);
    setups
}

/// The rows of these tasks, which alternate.
fn measure_all(
    bench: &Bench,
    settings: &Settings,
    tasks: &[(LatencySetup, usize)],
    failed: &mut Vec<LeftOut>,
    progress: &mut impl FnMut(&str),
) -> Vec<Row> {
    let name = |(setup, size): &(LatencySetup, usize)| format!("{}, {size} bytes", setup.name());
    let reports = interleave(tasks, settings.repeats, failed, name, |task| {
        progress(&name(task));
        measure(bench, &task.0, task.1, settings.window)
    });
    tasks.iter().zip(&reports).filter_map(|((setup, size), reports)| Row::of(setup, *size, reports)).collect()
}

impl LatencySetup {
    /// The line that the reductions of the article are against.
    fn of_the_article() -> Self {
        let model = Some(Model::Iocp.name().into());
        Self { model, transport: TransportKind::Tcp, waiting: WaitStrategy::Block }
    }

    fn is_here(&self, missing: &[(TransportKind, String)], is_windows: bool) -> bool {
        let is_missing = missing.iter().any(|(transport, _)| *transport == self.transport);
        !is_missing && !of_another_system(is_windows).contains(&self.transport)
    }

    /// In words.
    #[must_use]
    pub fn name(&self) -> String {
        let model = self.model.as_deref().unwrap_or("no model");
        format!("{model}, {}, {}", self.transport.name(), self.waiting.option())
    }
}

impl Row {
    fn of(setup: &LatencySetup, message_bytes: usize, reports: &[PingReport]) -> Option<Self> {
        let spread = |of: fn(&PingReport) -> f64| Spread::of(reports.iter().map(of));
        Some(Self {
            setup: setup.clone(),
            message_bytes,
            mean_us: spread(|r| r.round_trip.mean_us)?,
            per_s: spread(|r| r.round_trips_per_s)?,
            bytes_per_s: spread(|r| r.bytes_per_s)?,
            p50_us: spread(|r| r.round_trip.p50_us)?,
            p99_us: spread(|r| r.round_trip.p99_us)?,
            p99_9_us: spread(|r| r.round_trip.p99_9_us)?,
            jitter_us: spread(|r| r.round_trip.jitter.all_us)?,
            jitter_below_us: spread(|r| r.round_trip.jitter.below_p99_9_us)?,
        })
    }
}

/// Measures one window.
fn measure(
    bench: &Bench,
    setup: &LatencySetup,
    size: usize,
    window: Duration,
) -> Result<PingReport, LabError> {
    let file = LoadResultFile::new()?;
    let mut args: Vec<String> = vec!["load".into(), "ping".into()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("--size", size.to_string());
    option("-d", window.as_secs_f64().to_string());
    option("--json", file.path());
    args.extend(cpus(&bench.load_cpus));
    let fast = setup.transport == TransportKind::FastPath;
    let failed = |why: String| LabError::Process { what: setup.name(), why };
    let way = (setup.transport == TransportKind::Sockmap).then(SockmapGroup::open).transpose();
    let way = way.map_err(|e| failed(e.to_string()))?;
    let inside = Bench { group: way.as_ref().map(|way| way.group().into()), ..bench.clone() };
    let bench = &inside;
    let report = match setup.model.as_deref().and_then(|name| name.parse::<Model>().ok()) {
        None => {
            let mut echo = vec!["load".to_owned(), "ping".into(), "--bare-echo".into()];
            echo.extend(cpus(&bench.server_cpus));
            let mut echo = Process::start(bench, &echo)?;
            let name = echo.wait_for_line("listening on ", TIMEOUT)?;
            args.extend(["--bare".into(), name]);
            ping(bench, args, window, &file)?
        }
        Some(model) => {
            let wait = ["--wait", setup.waiting.option()];
            let mut extra = [&["--threads", "1"][..], &wait].concat();
            if model == Model::Pool || model == Model::Blocking {
                extra.drain(..2); // threads belong to connections there
            }
            extra.extend(fast.then_some("--fast-path"));
            args.extend(wait.map(Into::into));
            args.extend(["--model".into(), model.name().into()]);
            args.extend(fast.then(|| "--fast-path".into()));
            if setup.transport == TransportKind::Unix {
                // A separate name for each window: rings let go of a socket some time after their process has ended.
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let number = NEXT.fetch_add(1, Relaxed);
                let at = format!("unix:@tidegate-latency-{}-{number}", std::process::id());
                let mut serve =
                    ["serve", "echo", "--listen", &at, "--model", model.name()].map(String::from).to_vec();
                serve.extend(extra.iter().map(ToString::to_string));
                serve.extend(cpus(&bench.server_cpus));
                let mut server = Process::start(bench, &serve)?;
                server.wait_for_line("listening on ", TIMEOUT)?;
                args.extend(["--server-pid".into(), server.id().to_string(), at]);
                return ping(bench, args, window, &file);
            }
            // A deferred accept would have the first message, and with it all of that direction, go by TCP.
            extra.extend(way.iter().flat_map(|_| ["--defer-accept", "none"]));
            let server = ServerProcess::start(bench, "echo", model, &extra)?;
            args.extend(["--server-pid".into(), server.process.id().to_string(), server.url.clone()]);
            ping(bench, args, window, &file)?
        }
    };
    let stayed = fast && report.fast_paths != 1;
    if stayed || way.is_some_and(|way| !way.carried_all()) {
        return Err(failed("the connection stayed with TCP".into()));
    }
    Ok(report)
}

fn ping(
    bench: &Bench,
    args: Vec<String>,
    window: Duration,
    file: &LoadResultFile,
) -> Result<PingReport, LabError> {
    let what = shown(&args);
    let mut process = Process::start(bench, &args)?;
    process.wait_for_line("ping ", Length::Time(window).limit())?;
    if !process.wait(TIMEOUT)? {
        return Err(process.failure("not every message came back right".into()));
    }
    file.read_as(&what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_article_are_there() {
        let names: Vec<_> = setups(&[Model::Iocp, Model::Rio]).iter().map(LatencySetup::name).collect();
        for line in [
            "iocp, TCP, block",
            "iocp, TCP, spin",
            "iocp, fast path, block",
            "rio, TCP, spin",
            "rio, fast path, spin",
        ] {
            assert!(names.iter().any(|name| name == line), "{line} in {names:?}");
        }
    }

    #[test]
    fn windows_has_lines_of_tcp_and_its_fast_path_only() {
        let all = setups(&[Model::Iocp, Model::Rio]);
        let here = |is_windows| -> Vec<TransportKind> {
            let here = all.iter().filter(|setup| setup.is_here(&[], is_windows));
            let mut transports: Vec<_> = here.map(|setup| setup.transport).collect();
            transports.dedup();
            transports
        };
        assert_eq!(here(true), [TransportKind::Tcp, TransportKind::FastPath]);
        assert!(here(false).contains(&TransportKind::Unix) && here(false).contains(&TransportKind::BareRing));
        let refused = [(TransportKind::FastPath, "refused".to_owned())];
        assert!(all.iter().filter(|s| s.is_here(&refused, true)).all(|s| s.transport == TransportKind::Tcp));
    }

    #[test]
    fn the_first_line_is_what_everybody_has_and_the_last_the_baseline() {
        let setups = setups(Model::ALL);
        assert_eq!(setups[0].name(), "blocking, TCP, block");
        assert_eq!(setups[setups.len() - 1].transport, TransportKind::BareRing);
        let spins = |setup: &&LatencySetup| {
            setup.waiting != WaitStrategy::Block && setup.model.as_deref() == Some("pool")
        };
        assert_eq!(setups.iter().filter(spins).count(), 0, "a pool does not spin");
        let fast = |line: &&LatencySetup| line.transport == TransportKind::FastPath;
        assert_eq!(setups.iter().filter(fast).count(), (6 + 4 + 4) + 3 * OF_WINDOWS.len());
    }
}
