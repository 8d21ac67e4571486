//! Datagrams: messages per second on every model and path, and the book's estimate for TCP derived from them.
//!
//! One flow sends as fast as possible, one way; the server counts what it receives. As in the book, that is how fast
//! messages are *produced and consumed*, by two processes on one machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate::{DatagramPath, Model};
use tidegate_load::cpu_time::cpu_s;
use tidegate_load::verdict::Verdict;

use super::round::assessed;
use super::{LeftOut, LoadResultFile, ServerProcess, TIMEOUT, interleave, separated, why_not};
use crate::process::{Process, cpus, shown};
use crate::run::Facts;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// Packets of one HTTP request with a response of 4 KiB on its own connection, as the book counts them: three to begin,
/// the request and its acknowledgement, three with data and three acknowledgements, four to end.
pub const PACKETS_PER_REQUEST: f64 = 15.0;

/// The settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Models of the server.
    pub models: Vec<Model>,
    /// Bytes of a message.
    pub sizes: Vec<usize>,
    /// Duration of each run.
    pub window: Duration,
    /// Runs of each row.
    pub repeats: usize,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        [("udp: length of a run".to_owned(), format!("{} s", self.window.as_secs_f64()))].into()
    }

    /// The paths of a model.
    fn paths(model: Model) -> impl Iterator<Item = DatagramPath> {
        // A ring batches by nature, so there is no such path on it.
        DatagramPath::ALL
            .iter()
            .copied()
            .filter(move |&path| model != Model::Uring || path != DatagramPath::Batched)
            .filter(|path| path.availability().is_available())
    }

    /// The number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        let rows: usize = contestants(&self.models).0.into_iter().map(|m| Self::paths(m).count()).sum();
        rows * self.sizes.len() * self.repeats
    }
}

/// Messages a second of one model, path and size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model of the server.
    pub model: String,
    /// How datagrams passed through the kernel, on both sides.
    pub path: String,
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages sent by the producer, per second.
    pub sent_per_s: Spread,
    /// Messages received by the server, per second. The rest was dropped by the kernel because the server's socket was
    /// full.
    pub taken_per_s: Spread,
    /// CPU time of the server, in microseconds per message received.
    pub cpu_us: Spread,
    /// Messages received, relative to the path plain of the same model and size.
    pub times_plain: Option<f64>,
    /// Of each run.
    pub verdicts: Vec<Verdict>,
}

impl Row {
    /// The book's estimate of requests per second over TCP from these messages: one packet for each message.
    #[must_use]
    pub fn tcp_estimate(&self) -> f64 {
        self.taken_per_s.median / PACKETS_PER_REQUEST
    }
}

/// Everything measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Seconds of each run.
    pub window_s: f64,
    /// Runs of each row.
    pub repeats: usize,
    /// Rows, models in order, then sizes, then paths.
    pub rows: Vec<Row>,
    /// Models that are unavailable, or have no datagrams.
    pub left_out: Vec<LeftOut>,
    /// Runs that failed.
    pub failed: Vec<LeftOut>,
}

/// Separates models that serve datagrams here from those that do not.
fn contestants(wanted: &[Model]) -> (Vec<Model>, Vec<LeftOut>) {
    separated(wanted, |model| why_not(model.serves_datagrams()))
}

/// One run.
struct UdpRun {
    sent_per_s: f64,
    taken_per_s: f64,
    cpu_us: f64,
    verdict: Verdict,
}

/// Measures all rows; within each repeat the paths alternate.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let mut table = ResultTable {
        window_s: settings.window.as_secs_f64(),
        repeats: settings.repeats,
        left_out,
        ..ResultTable::default()
    };
    for model in models {
        for &bytes in &settings.sizes {
            let paths: Vec<DatagramPath> = Settings::paths(model).collect();
            let name = |path: &DatagramPath| format!("{model}, {path}, {bytes} bytes");
            let runs = interleave(&paths, settings.repeats, &mut table.failed, name, |path| {
                progress(&name(path));
                measure(bench, settings, model, *path, bytes)
            });
            let first = table.rows.len();
            let rows = paths.iter().zip(&runs).filter_map(|(&path, runs)| row(model, path, bytes, runs));
            table.rows.extend(rows);
            compare(&mut table.rows[first..]);
        }
    }
    table
}

fn row(model: Model, path: DatagramPath, bytes: usize, runs: &[UdpRun]) -> Option<Row> {
    let spread = |of: fn(&UdpRun) -> f64| Spread::of(runs.iter().map(of));
    Some(Row {
        model: model.to_string(),
        path: path.to_string(),
        bytes,
        sent_per_s: spread(|r| r.sent_per_s)?,
        taken_per_s: spread(|r| r.taken_per_s)?,
        cpu_us: spread(|r| r.cpu_us)?,
        times_plain: None,
        verdicts: runs.iter().map(|r| r.verdict.clone()).collect(),
    })
}

/// Relates the paths of one model and size to the plain one.
fn compare(rows: &mut [Row]) {
    let plain = rows.iter().find(|row| row.path == DatagramPath::Plain.name());
    let Some(plain) = plain.map(|row| row.taken_per_s.median).filter(|&rate| rate > 0.0) else { return };
    for row in rows {
        row.times_plain = Some(row.taken_per_s.median / plain);
    }
}

/// One run against a fresh server.
fn measure(
    bench: &Bench,
    settings: &Settings,
    model: Model,
    path: DatagramPath,
    bytes: usize,
) -> Result<UdpRun, LabError> {
    // One thread, because it has one processor; `--segment-bytes` is about replies, of which there are none.
    let server = ServerProcess::start(
        bench,
        "udp",
        model,
        &["sink", "--path", path.name(), "--threads", "1", "--stats"],
    )?;
    let file = LoadResultFile::new()?;
    let mut args: Vec<String> = ["load", "udp", server.url.as_str(), "--one-way"].map(Into::into).into();
    args.extend(["--path".into(), path.to_string(), "--size".into(), bytes.to_string()]);
    args.extend(["-d".into(), settings.window.as_secs_f64().to_string()]);
    args.extend(["--json".into(), file.path(), "--tolerate-failures".into()]);
    args.extend(cpus(&bench.load_cpus));
    let name = shown(&args);
    let before = cpu_s(server.process.id());
    let good = Process::start(bench, &args)?.wait(settings.window + TIMEOUT)?;
    let used = cpu_s(server.process.id()) - before;
    let report = file.read(&name)?;
    let sent = report.udp.as_ref().map_or(0, |udp| udp.sent);
    if !good || sent == 0 {
        let why = report.first_error.clone().unwrap_or_else(|| "nothing was sent".into());
        return Err(LabError::Process { what: name, why });
    }
    let said = server.process.stop(TIMEOUT)?;
    let taken = counter(&said, "datagrams_in").filter(|&n| n > 0);
    let taken = taken.ok_or_else(|| LabError::Process {
        what: format!("serve udp on {model}"),
        why: format!("did not say that it got anything: {}", said.trim()),
    })?;
    let elapsed = report.elapsed_s.max(1e-9);
    Ok(UdpRun {
        sent_per_s: sent as f64 / elapsed,
        taken_per_s: taken as f64 / elapsed,
        cpu_us: used * 1e6 / taken as f64,
        verdict: assessed(bench, &report, used),
    })
}

/// A counter out of what `serve --stats` wrote.
fn counter(said: &str, name: &str) -> Option<u64> {
    let line = said.lines().rev().find(|line| line.starts_with('{'))?;
    serde_json::from_str::<Value>(line).ok()?.get(name)?.as_u64()
}

#[cfg(test)]
mod tests {
    use tidegate_load::verdict::{Evidence, LimitedBy};

    use super::*;

    #[test]
    fn models_without_datagrams_are_left_out_with_the_reason() {
        let (here, out) = contestants(&[Model::Select, Model::Rio]);
        assert_eq!(here, [Model::Select]);
        assert!(out.len() == 1 && out[0].model == "rio" && !out[0].why.is_empty(), "{out:?}");
    }

    #[test]
    fn counters_are_found_among_notes() {
        let said = "note: drained\n{\"datagrams_in\":7,\"model\":\"epoll\"}\n";
        assert_eq!(counter(said, "datagrams_in"), Some(7));
        assert_eq!((counter(said, "model"), counter("note: {", "x"), counter("", "x")), (None, None, None));
    }

    #[test]
    fn paths_are_related_to_the_plain_one_and_estimates_to_packets() {
        let limited_by = LimitedBy::Server;
        let because = String::new();
        let verdict = Verdict { limited_by, because, warnings: Vec::new(), evidence: Evidence::default() };
        let run =
            |taken_per_s| UdpRun { sent_per_s: 1.0, taken_per_s, cpu_us: 1.0, verdict: verdict.clone() };
        let row = |path, taken| row(Model::Epoll, path, 64, &[run(taken)]).unwrap();
        let mut rows = [row(DatagramPath::Plain, 230_000.0), row(DatagramPath::Segments, 6_900_000.0)];
        compare(&mut rows);
        assert_eq!(rows.each_ref().map(|r| r.times_plain), [Some(1.0), Some(30.0)]);
        assert_eq!(rows[0].tcp_estimate().round(), 15_333.0); // the book's own figures
        let mut alone = [row(DatagramPath::Segments, 1.0)];
        compare(&mut alone);
        assert_eq!(alone[0].times_plain, None);
    }
}
