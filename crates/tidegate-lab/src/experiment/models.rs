//! Table 6-3: an echo server on every model, with as many clients as in the book, unlimited and then rate-limited.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::Report;

use super::round::{Figures, Round};
use super::{LeftOut, PATIENCE, ResultFile, Server, affordable, contestants, interleave, position};
use crate::process::{Process, cpus, shown};
use crate::run::Facts;
use crate::sample::{Sampler, Usage};
use crate::{Bench, LabError};

/// The behaviour of the clients of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Each connection sends the next message as soon as the last one came back.
    Unlimited,
    /// Each block of 1,000 connections sends this many bytes per second.
    Limited {
        /// Bytes per second for each block.
        bytes_per_s: u64,
    },
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited { bytes_per_s } => write!(f, "{bytes_per_s} B/s a block"),
        }
    }
}

/// The load of one row for each model.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Connections attempted.
    pub connections: usize,
    /// Their behaviour.
    pub pace: Pace,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Length of the measuring window.
    pub window: Duration,
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// The rows for each.
    pub loads: Vec<Load>,
    /// Rounds of each row.
    pub repeats: usize,
}

impl Settings {
    /// The book's two rows: 7,000 connections without limit, 12,000 with 200,000 bytes/s for each block.
    ///
    /// The paced messages are short enough that every connection sends at least one in the window.
    #[must_use]
    pub fn classic(models: Vec<Model>, window: Duration) -> Self {
        let limited = window.max(Duration::from_secs(3));
        Self {
            models,
            loads: vec![
                Load { connections: 7_000, pace: Pace::Unlimited, message_bytes: 4096, window },
                Load {
                    connections: 12_000,
                    pace: Pace::Limited { bytes_per_s: 200_000 },
                    message_bytes: 512,
                    window: limited,
                },
            ],
            repeats: 1,
        }
    }

    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let loads = self.loads.iter().map(|load| {
            let name = format!("models: {} connections, {}", load.connections, load.pace);
            (name, format!("{} bytes a message, {} s", load.message_bytes, load.window.as_secs_f64()))
        });
        loads.collect()
    }
}

/// One row of the table. It shows the round with the median CPU cost, so that its figures belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// The behaviour of the clients.
    pub pace: Pace,
    /// Connections attempted.
    pub attempted: u64,
    /// Connections established and verified byte for byte.
    pub connected: u64,
    /// Resources used by the server in the window.
    pub usage: Usage,
    /// The load's results.
    pub load: Report,
    /// The results of all rounds.
    pub figures: Figures,
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// A row for each model and load.
    pub rows: Vec<Row>,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// Differences from the book's measurement, and why.
    pub notes: Vec<String>,
}

/// Measures the table; within each round the models alternate, so that a slow moment of the machine affects all alike.
/// `progress` is called before each row.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> Table {
    let (models, left_out) = contestants(&settings.models);
    let mut table = Table { left_out, ..Table::default() };
    for load in &settings.loads {
        let (connections, note) = affordable(load.connections);
        table.notes.extend(note);
        let load = Load { connections, ..load.clone() };
        let takes = interleave(&models, settings.repeats, &mut table.failed, Model::to_string, |&model| {
            progress(&format!("{model}, {connections} connections"));
            measure(bench, model, &load)
        });
        table.rows.extend(models.iter().zip(takes).filter_map(|(&model, takes)| row(model, &load, takes)));
    }
    table.rows.sort_by_key(|row| position(&row.model)); // stable: rows of a model stay in the order of their loads
    table
}

/// One round of one row.
struct Take {
    usage: Usage,
    load: Report,
    round: Round,
}

fn row(model: Model, load: &Load, mut takes: Vec<Take>) -> Option<Row> {
    let rounds: Vec<Round> = takes.iter().map(|take| take.round.clone()).collect();
    let figures = Figures::of(&rounds)?;
    takes.sort_by(|a, b| a.round.cpu_s_per_100k.total_cmp(&b.round.cpu_s_per_100k));
    let Take { usage, load: report, .. } = takes.swap_remove(takes.len() / 2);
    Some(Row {
        model: model.to_string(),
        pace: load.pace,
        attempted: load.connections as u64,
        connected: report.verified_connections,
        usage,
        load: report,
        figures,
    })
}

/// Measures one round, with a fresh server.
fn measure(bench: &Bench, model: Model, load: &Load) -> Result<Take, LabError> {
    // Silent connections must be established, too, as in the book.
    let patient = ["--defer-accept", "none", "--first-byte-timeout", "none"];
    let server = Server::start(bench, "echo", model, &patient)?;
    let file = ResultFile::new();
    let args = arguments(bench, &server, load, &file);
    let name = shown(&args);
    let mut client = Process::start(bench, &args)?;
    client.wait_for_line("phase connected", PATIENCE)?;
    client.wait_for_line("phase measuring", PATIENCE)?;
    let mut sampler = Sampler::start(server.process.id(), server.port)?;
    std::thread::sleep(load.window); // the load measures for as long; its last answers are waited for after that
    sampler.end_window();
    client.wait_for_line("phase done", PATIENCE)?;
    let usage = sampler.stop();
    if !client.wait(PATIENCE)? {
        let report = file.read(&name)?;
        let why = report.first_error.unwrap_or_else(|| "failed without saying why".into());
        return Err(LabError::Process { what: name, why });
    }
    let load = file.read(&name)?;
    let round = Round::of(bench, &load, usage.cpu_s);
    Ok(Take { usage, load, round })
}

fn arguments(bench: &Bench, server: &Server, load: &Load, file: &ResultFile) -> Vec<String> {
    let mut args: Vec<String> = vec!["load".into(), "echo".into(), server.url.clone()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("-c", load.connections.to_string());
    option("-d", load.window.as_secs_f64().to_string());
    option("--size", load.message_bytes.to_string());
    option("--timeout", "5".into());
    option("--json", file.0.display().to_string());
    option("--server-pid", server.process.id().to_string());
    if let Pace::Limited { bytes_per_s } = load.pace {
        option("-r", bytes_per_s.to_string());
    }
    args.extend(["--phases".into(), "--tolerate-failures".into()]);
    args.extend(cpus(&bench.load_cpus));
    args
}
