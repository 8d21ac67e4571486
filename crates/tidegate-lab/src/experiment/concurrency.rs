//! Responses a second and time per request against concurrency: the figure of the source's second article.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use super::{LeftOut, Limit, ResultFile, Server, affordable, contestants};
use crate::process::{Process, cpus};
use crate::sample::cpu_s;
use crate::spread::Spread;
use crate::{Bench, LabError};

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// Concurrent requests of each point.
    pub points: Vec<usize>,
    /// Requests of each run.
    pub requests: u64,
    /// Runs of each point.
    pub repeats: usize,
    /// Keep connections; the source had a new one for each request.
    pub keep_alive: bool,
}

/// One model at one concurrency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The model.
    pub model: String,
    /// Requests at once.
    pub concurrency: usize,
    /// Right answers a second.
    pub requests_per_s: Spread,
    /// Mean time of a request in microseconds.
    pub mean_us: Spread,
    /// 99th percentile of the time of a request, in microseconds.
    pub p99_us: Spread,
    /// Server CPU seconds for 100,000 answers.
    pub cpu_s_per_100k: Spread,
    /// Failed requests of all runs.
    pub failed: u64,
    /// Who had no processor time left, in each run.
    pub limits: Vec<Limit>,
}

/// All points.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Requests of each run.
    pub requests: u64,
    /// Runs of each point.
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

/// One run.
struct Run {
    requests_per_s: f64,
    mean_us: f64,
    p99_us: f64,
    cpu_s_per_100k: f64,
    failed: u64,
    limit: Limit,
}

/// How long one run may take.
const RUN: Duration = Duration::from_secs(180);

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
        let mut runs: Vec<Vec<Run>> = models.iter().map(|_| Vec::new()).collect();
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

fn point(model: Model, concurrency: usize, runs: &[Run]) -> Option<Point> {
    let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of));
    Some(Point {
        model: model.to_string(),
        concurrency,
        requests_per_s: spread(|r| r.requests_per_s)?,
        mean_us: spread(|r| r.mean_us)?,
        p99_us: spread(|r| r.p99_us)?,
        cpu_s_per_100k: spread(|r| r.cpu_s_per_100k)?,
        failed: runs.iter().map(|r| r.failed).sum(),
        limits: runs.iter().map(|r| r.limit).collect(),
    })
}

/// One run against a server of its own, so that no run inherits what another left behind.
fn measure(bench: &Bench, settings: &Settings, model: Model, concurrency: usize) -> Result<Run, LabError> {
    let server = Server::start(bench, "http", model, &[])?;
    let file = ResultFile::new();
    let mut args: Vec<String> = vec!["load".into(), "http".into(), server.url.clone()];
    args.extend(["-c".into(), concurrency.to_string(), "-n".into(), settings.requests.to_string()]);
    args.extend(["--json".into(), file.0.display().to_string(), "--tolerate-failures".into()]);
    if !settings.keep_alive {
        args.push("--no-keepalive".into());
    }
    args.extend(cpus(&bench.load_cpus));
    let name = format!("tidegate {}", args.join(" "));
    let before = cpu_s(server.process.id());
    let client = Process::start(bench, &args)?;
    let good = client.wait(RUN)?;
    let used = cpu_s(server.process.id()) - before;
    let report = file.read(&name)?;
    if !good || report.requests == 0 {
        let why = report.first_error.unwrap_or_else(|| "no request was answered".into());
        return Err(LabError::Process { what: name, why });
    }
    let elapsed = report.elapsed_s.max(1e-9);
    let load_part = (report.cpu_user_s + report.cpu_system_s) / elapsed;
    Ok(Run {
        requests_per_s: report.requests_per_s,
        mean_us: report.latency_us.mean,
        p99_us: report.latency_us.p99 as f64,
        cpu_s_per_100k: used * 1e5 / report.requests as f64,
        failed: report.failed + report.timed_out,
        limit: Limit::of(bench, used / elapsed, load_part),
    })
}
