//! The latency table of the source: one message to and fro between two processes of one thread each, for every model
//! and way of waiting, over TCP, a Unix socket, a map of sockets and the fast path, and over bare shared memory as the
//! floor.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::PingReport;

use super::sockmap::Way;
use super::{LeftOut, PATIENCE, ResultFile, Server, contestants};
use crate::process::{Process, cpus, shown};
use crate::spread::Spread;
use crate::{Bench, LabError};

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP over loopback.
    Tcp,
    /// A Unix stream socket.
    Unix,
    /// TCP sockets whose bytes go through a map in the kernel (BPF sockmap).
    Sockmap,
    /// Shared memory, through the library.
    FastPath,
    /// Shared memory, and nothing else.
    BareRing,
}

impl Transport {
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
pub enum Waiting {
    /// Sleep.
    Block,
    /// Ask again and again.
    Spin,
    /// Ask for 1 ms, then sleep.
    SpinThenBlock,
}

impl Waiting {
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

/// One line of the table: what both sides run on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The model of both sides; `None` for the bare ring.
    pub model: Option<String>,
    /// What carries the bytes.
    pub transport: Transport,
    /// How both sides wait.
    pub waiting: Waiting,
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Length of each window.
    pub window: Duration,
    /// Windows of each line; lines take turns.
    pub repeats: usize,
    /// Message sizes of the chart, which is about `epoll` spinning over TCP and the fast path, and the bare ring.
    pub sizes: Vec<usize>,
}

impl Settings {
    /// Windows that will be measured.
    #[must_use]
    pub fn windows(&self) -> usize {
        let (models, _) = contestants(&self.models);
        let sockmap = Way::open().is_ok();
        let here = |line: &Line| sockmap || line.transport != Transport::Sockmap;
        let charted = || charted().filter(here);
        (lines(&models).into_iter().filter(here).count() + charted().count() * self.sizes.len())
            * self.repeats
    }
}

/// A line with its figures, each a median of several windows. Times are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it is about.
    pub line: Line,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Mean round trip.
    pub mean_us: Spread,
    /// Round trips a second.
    pub per_s: Spread,
    /// Bytes a second in each direction.
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
pub struct Table {
    /// Seconds of each window, and windows of each line.
    pub window_s: f64,
    /// See `window_s`.
    pub repeats: usize,
    /// 64-byte messages; the first row is what the others are compared with.
    pub rows: Vec<Row>,
    /// Other sizes.
    pub sizes: Vec<Row>,
    /// Models that cannot be measured here.
    pub left_out: Vec<LeftOut>,
    /// Lines that failed, and why.
    pub failed: Vec<LeftOut>,
}

/// Bytes of a message in the source.
pub const MESSAGE: usize = 64;

const FAST: [Model; 4] = [Model::Pool, Model::Select, Model::Poll, Model::Epoll];
const LOOPS: [Model; 4] = [Model::Select, Model::Poll, Model::Epoll, Model::Uring];

/// The lines of the table for these models.
#[must_use]
pub fn lines(models: &[Model]) -> Vec<Line> {
    let mut lines = Vec::new();
    let transports = [
        (Transport::Tcp, models),
        (Transport::Unix, models),
        (Transport::Sockmap, models),
        (Transport::FastPath, &FAST[..]),
    ];
    for (transport, able) in transports {
        for waiting in [Waiting::Block, Waiting::Spin, Waiting::SpinThenBlock] {
            let can = |m: &&Model| able.contains(m) && (waiting == Waiting::Block || LOOPS.contains(m));
            if (transport, waiting) == (Transport::Sockmap, Waiting::SpinThenBlock) {
                continue; // nothing that the two before it do not show
            }
            let line = |m: &Model| Line { model: Some(m.name().into()), transport, waiting };
            lines.extend(models.iter().filter(can).map(line));
        }
    }
    lines.push(Line { model: None, transport: Transport::BareRing, waiting: Waiting::Spin });
    lines
}

/// Measures the table, and the chart over sizes. `progress` is told of each window before it is measured.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let mut table =
        Table { window_s: settings.window.as_secs_f64(), repeats: settings.repeats, ..Table::default() };
    let (models, left_out) = contestants(&settings.models);
    table.left_out = left_out;
    if let Err(why) = Way::open() {
        table.left_out.push(LeftOut { model: Transport::Sockmap.name().into(), why: why.to_string() });
    }
    let without = table.left_out.iter().any(|out| out.model == Transport::Sockmap.name());
    let here = |line: &Line| !without || line.transport != Transport::Sockmap;
    let tasks: Vec<_> = lines(&models).into_iter().filter(here).map(|line| (line, MESSAGE)).collect();
    table.rows = measure_all(bench, settings, &tasks, &mut table.failed, &mut progress);
    let tasks: Vec<_> = charted()
        .filter(here)
        .flat_map(|line| settings.sizes.iter().map(move |&size| (line.clone(), size)))
        .collect();
    table.sizes = measure_all(bench, settings, &tasks, &mut table.failed, &mut progress);
    table
}

/// The lines of the chart.
fn charted() -> impl Iterator<Item = Line> {
    lines(&[Model::Epoll]).into_iter().filter(|line| line.waiting == Waiting::Spin)
}

/// Measures each task in turn, and all of them again: what disturbs the machine for a while disturbs all alike.
fn measure_all(
    bench: &Bench,
    settings: &Settings,
    tasks: &[(Line, usize)],
    failed: &mut Vec<LeftOut>,
    progress: &mut impl FnMut(&str),
) -> Vec<Row> {
    let mut reports: Vec<Vec<PingReport>> = vec![Vec::new(); tasks.len()];
    for _ in 0..settings.repeats {
        for ((line, size), reports) in tasks.iter().zip(&mut reports) {
            let name = format!("{}, {} bytes", line.name(), size);
            progress(&name);
            match measure(bench, line, *size, settings.window) {
                Ok(report) => reports.push(report),
                Err(e) => failed.push(LeftOut { model: name, why: e.to_string() }),
            }
        }
    }
    tasks.iter().zip(&reports).filter_map(|((line, size), reports)| Row::of(line, *size, reports)).collect()
}

impl Line {
    /// In words.
    #[must_use]
    pub fn name(&self) -> String {
        let model = self.model.as_deref().unwrap_or("no model");
        format!("{model}, {}, {}", self.transport.name(), self.waiting.option())
    }
}

impl Row {
    fn of(line: &Line, message_bytes: usize, reports: &[PingReport]) -> Option<Self> {
        let spread = |of: fn(&PingReport) -> f64| Spread::of(reports.iter().map(of));
        Some(Self {
            line: line.clone(),
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
fn measure(bench: &Bench, line: &Line, size: usize, window: Duration) -> Result<PingReport, LabError> {
    let file = ResultFile::new();
    let mut args: Vec<String> = vec!["load".into(), "ping".into()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("--size", size.to_string());
    option("-d", window.as_secs_f64().to_string());
    option("--json", file.0.display().to_string());
    args.extend(cpus(&bench.load_cpus));
    let fast = line.transport == Transport::FastPath;
    let failed = |why: String| LabError::Process { what: line.name(), why };
    let way = (line.transport == Transport::Sockmap).then(Way::open).transpose();
    let way = way.map_err(|e| failed(e.to_string()))?;
    let inside = Bench { group: way.as_ref().map(|way| way.group().into()), ..bench.clone() };
    let bench = &inside;
    let report = match line.model.as_deref().and_then(|name| name.parse::<Model>().ok()) {
        None => {
            let mut echo = vec!["load".to_owned(), "ping".into(), "--bare-echo".into()];
            echo.extend(cpus(&bench.server_cpus));
            let mut echo = Process::start(bench, &echo)?;
            let name = echo.wait_for_line("listening on ", PATIENCE)?;
            args.extend(["--bare".into(), name]);
            ping(bench, args, &file)?
        }
        Some(model) => {
            let wait = ["--wait", line.waiting.option()];
            let mut extra = [&["--threads", "1"][..], &wait].concat();
            if model == Model::Pool || model == Model::Blocking {
                extra.drain(..2); // threads belong to connections there
            }
            extra.extend(fast.then_some("--fast-path"));
            args.extend(wait.map(Into::into));
            args.extend(["--model".into(), model.name().into()]);
            args.extend(fast.then(|| "--fast-path".into()));
            if line.transport == Transport::Unix {
                // A name of its own for each window: rings let go of a socket some time after their process has ended.
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let window = NEXT.fetch_add(1, Relaxed);
                let at = format!("unix:@tidegate-latency-{}-{window}", std::process::id());
                let mut serve =
                    ["serve", "echo", "--listen", &at, "--model", model.name()].map(String::from).to_vec();
                serve.extend(extra.iter().map(ToString::to_string));
                serve.extend(cpus(&bench.server_cpus));
                let mut server = Process::start(bench, &serve)?;
                server.wait_for_line("listening on ", PATIENCE)?;
                args.extend(["--server-pid".into(), server.id().to_string(), at]);
                return ping(bench, args, &file);
            }
            // A deferred accept would have the first message, and with it all of that direction, go by TCP.
            extra.extend(way.iter().flat_map(|_| ["--defer-accept", "none"]));
            let server = Server::start(bench, "echo", model, &extra)?;
            args.extend(["--server-pid".into(), server.process.id().to_string(), server.url.clone()]);
            ping(bench, args, &file)?
        }
    };
    if fast && report.fast_paths != 1 || way.is_some_and(|way| !way.carried_all()) {
        return Err(failed("the connection stayed with TCP".into()));
    }
    Ok(report)
}

fn ping(bench: &Bench, args: Vec<String>, file: &ResultFile) -> Result<PingReport, LabError> {
    let what = shown(&args);
    let mut process = Process::start(bench, &args)?;
    process.wait_for_line("ping ", PATIENCE)?;
    if !process.wait(PATIENCE)? {
        return Err(process.failure("not every message came back right".into()));
    }
    file.read_as(&what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_what_everybody_has_and_the_last_the_floor() {
        let lines = lines(&Model::ALL);
        assert_eq!(lines[0].name(), "blocking, TCP, block");
        assert_eq!(lines[lines.len() - 1].transport, Transport::BareRing);
        let spins = |line: &&Line| line.waiting != Waiting::Block && line.model.as_deref() == Some("pool");
        assert_eq!(lines.iter().filter(spins).count(), 0, "a pool does not spin");
        assert_eq!(lines.iter().filter(|l| l.transport == Transport::FastPath).count(), 4 + 3 + 3);
    }
}
