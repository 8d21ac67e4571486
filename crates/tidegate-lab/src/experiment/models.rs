//! Table 6-3: an echo server on every model, with as many clients as in the book: without limit, without waiting for
//! answers, and rate-limited.
//!
//! Servers of clients without limit have a [share](super::share) of their processor that leaves the load time. Those of
//! clients that do not wait for answers have not: so many messages are on their way that a server which cannot keep up
//! would answer most of them only after the window.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate_load::Report;

use super::generator::{Agents, Generator};
use super::round::{Figures, Round};
use super::share::CpuShare;
pub use super::sizing::Scarce;
use super::sizing::{self, Sizing};
use super::window::{WindowLength, Windowed};
use super::{LeftOut, ServerProcess, contestants, position};
use crate::run::Facts;
use crate::sample::Usage;
use crate::{Bench, LabError};

/// The behaviour of the clients of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientPace {
    /// Each connection sends the next message as soon as the last one came back.
    Unlimited,
    /// Each connection sends without waiting for answers, until so many messages are on their way.
    Outstanding {
        /// Messages for each connection.
        messages: usize,
    },
    /// Each block of 1,000 connections sends this many bytes per second.
    Limited {
        /// Bytes per second for each block.
        bytes_per_s: u64,
    },
}

impl fmt::Display for ClientPace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Outstanding { messages } => write!(f, "{messages} outstanding"),
            Self::Limited { bytes_per_s } => write!(f, "{bytes_per_s} B/s a block"),
        }
    }
}

/// Messages on their way on each connection that does not wait for answers, as many sends as the book's server allows.
const OUTSTANDING: usize = 200;

/// Connections of the largest row.
pub const MANY: usize = 50_000;

/// Bytes of a message of clients without limit, unless asked otherwise.
pub const MESSAGE_BYTES: usize = 4096;

/// The load of one row for each model.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLoad {
    /// Connections attempted.
    pub connections: usize,
    /// Their behaviour.
    pub pace: ClientPace,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Length of the measuring window.
    pub window: Duration,
}

impl RowLoad {
    /// Whether its servers have a share of their processors: whether the load could be the limit.
    fn has_share(&self) -> bool {
        self.pace == ClientPace::Unlimited
    }
}

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order.
    pub models: Vec<Model>,
    /// The rows for each.
    pub loads: Vec<RowLoad>,
    /// Rounds of each row.
    pub repeats: usize,
    /// Agents that generate the loads; none is this machine.
    pub agents: Option<Agents>,
}

impl Settings {
    /// The book's rows: 7,000 connections without limit, 12,000 and 50,000 with 200,000 bytes/s for each block; and
    /// 7,000 that do not wait for answers.
    ///
    /// The paced messages are short enough that every connection sends at least one in the window.
    #[must_use]
    pub fn classic(models: Vec<Model>, window: Duration) -> Self {
        let limited = |connections| RowLoad {
            connections,
            pace: ClientPace::Limited { bytes_per_s: 200_000 },
            message_bytes: 512,
            window: window.max(Duration::from_secs(3)),
        };
        let outstanding = ClientPace::Outstanding { messages: OUTSTANDING };
        Self {
            models,
            loads: vec![
                RowLoad {
                    connections: 7_000,
                    pace: ClientPace::Unlimited,
                    message_bytes: MESSAGE_BYTES,
                    window,
                },
                RowLoad { connections: 7_000, pace: outstanding, message_bytes: 1024, window },
                limited(12_000),
                limited(MANY),
            ],
            repeats: 1,
            agents: None,
        }
    }

    /// The rows of clients without limit for each of these sizes of a message, in place of the one they have.
    pub fn set_message_bytes(&mut self, sizes: &[usize]) {
        let each = |load: RowLoad| match load.pace {
            ClientPace::Unlimited => {
                sizes.iter().map(|&message_bytes| RowLoad { message_bytes, ..load.clone() }).collect()
            }
            _ => vec![load],
        };
        self.loads = self.loads.drain(..).flat_map(each).collect();
    }

    /// Rounds of each model, the calibrations included.
    #[must_use]
    pub fn rounds(&self) -> usize {
        let is_calibrated = |load: &&RowLoad| load.has_share() && self.agents.is_none();
        self.loads.len() * self.repeats + self.loads.iter().filter(is_calibrated).count()
    }

    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let loads = self.loads.iter().map(|load| {
            let size = size_in_words(load.pace, load.message_bytes);
            let name = format!("models: {} connections, {}{size}", load.connections, load.pace);
            (name, format!("{} bytes a message, {} s", load.message_bytes, load.window.as_secs_f64()))
        });
        let agents = self.agents.as_ref().map(|agents| ("models: agents".into(), agents.count.to_string()));
        loads.chain(agents).collect()
    }
}

/// The size of a message where it is not the usual one of a row, to be added to its name.
pub(crate) fn size_in_words(pace: ClientPace, bytes: usize) -> String {
    match (pace, bytes) {
        (ClientPace::Unlimited, 0 | MESSAGE_BYTES)
        | (ClientPace::Outstanding { .. } | ClientPace::Limited { .. }, _) => String::new(),
        _ if bytes.is_multiple_of(1024) => format!(", {} KiB", bytes / 1024),
        _ => format!(", {bytes} B"),
    }
}

/// One row of the table. It shows the round with the median CPU cost, so that its figures belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// The behaviour of the clients.
    pub pace: ClientPace,
    /// Bytes of a message; 0 in results that did not say so.
    #[serde(default)]
    pub message_bytes: usize,
    /// Connections asked for; the machine may have room for fewer.
    #[serde(default)]
    pub asked: u64,
    /// Connections attempted.
    pub attempted: u64,
    /// Connections established.
    pub connected: u64,
    /// Connections with at least one message that came back right within the window.
    #[serde(default)]
    pub verified: u64,
    /// What there was too little of to attempt all that were asked for.
    #[serde(default)]
    pub bound: Option<Scarce>,
    /// What the server had of its processors, 0 to 1.
    #[serde(default = "super::whole")]
    pub share: f64,
    /// Resources used by the server in the window.
    pub usage: Usage,
    /// The load's results.
    pub load: Report,
    /// The results of all rounds.
    pub figures: Figures,
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// A row for each model and load.
    pub rows: Vec<Row>,
    /// How servers were limited to their share.
    #[serde(default)]
    pub throttle: String,
    /// Models that are unavailable.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
    /// Differences from the book's measurement, and why.
    pub notes: Vec<String>,
}

/// Measures the table; within each round the models alternate, so that a slow moment of the machine affects all alike.
/// `progress` is called before each row.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = contestants(&settings.models);
    let generator = Generator::new(bench, settings.agents.as_ref());
    let (mut limited, mut whole) = (CpuShare::new(bench, settings.agents.as_ref()), CpuShare::whole());
    let mut table = ResultTable { left_out, ..ResultTable::default() };
    table.notes.extend(generator.remark());
    for load in &settings.loads {
        let subjects = sizing::plan(bench, generator.source(), &models, load.connections);
        table.notes.extend(sizing::missing(&subjects));
        limited.set(1.0); // what competes with its servers would do so with others, too
        let share = if load.has_share() { &mut limited } else { &mut whole };
        let size = size_in_words(load.pace, load.message_bytes);
        let words = |model, sizing: &Sizing| {
            format!("{model}, {} connections, {}{size}", sizing.connections, load.pace)
        };
        let trial = RowLoad { window: load.window / 2, ..load.clone() };
        share.calibrate(&subjects, |share, (model, sizing)| {
            progress(&format!("{}: calibration", words(*model, sizing)));
            measure(generator, *model, &trial, sizing, share)
        });
        let name = |(model, sizing): &(Model, Sizing)| format!("{model} with {}", sizing.connections);
        let (turns, failed) = (0..settings.repeats, &mut table.failed);
        let takes = share.in_turns(&subjects, turns, failed, name, |share, (model, sizing)| {
            progress(&words(*model, sizing));
            measure(generator, *model, load, sizing, share)
        });
        let rows = subjects.iter().zip(takes);
        let row = |((model, sizing), takes): (&(Model, Sizing), Vec<Option<Take>>)| {
            row(*model, load, sizing, takes.into_iter().flatten().collect())
        };
        table.rows.extend(rows.filter_map(row));
    }
    table.throttle = limited.method();
    table.rows.sort_by_key(|row| position(&row.model)); // stable: rows of a model stay in the order of their loads
    table
}

/// One round of one row.
struct Take {
    share: f64,
    usage: Usage,
    load: Report,
    round: Round,
}

impl AsRef<Round> for Take {
    fn as_ref(&self) -> &Round {
        &self.round
    }
}

fn row(model: Model, load: &RowLoad, sizing: &Sizing, mut takes: Vec<Take>) -> Option<Row> {
    let rounds: Vec<Round> = takes.iter().map(|take| take.round.clone()).collect();
    let figures = Figures::of(&rounds)?;
    takes.sort_by(|a, b| a.round.cpu_s_per_100k.total_cmp(&b.round.cpu_s_per_100k));
    let Take { share, usage, load: report, .. } = takes.swap_remove(takes.len() / 2);
    Some(Row {
        model: model.to_string(),
        pace: load.pace,
        message_bytes: load.message_bytes,
        asked: sizing.asked as u64,
        attempted: report.attempted,
        connected: report.connected,
        verified: report.verified_in_window,
        bound: sizing.bound.as_ref().map(|bound| bound.scarce),
        share,
        usage,
        load: report,
        figures,
    })
}

/// Measures one round, with a fresh server.
fn measure(
    generator: Generator<'_>,
    model: Model,
    load: &RowLoad,
    sizing: &Sizing,
    share: &mut CpuShare,
) -> Result<Take, LabError> {
    // Silent connections must be established, too, as in the book.
    let options = sizing.server_options();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = generator.server("echo", model, &options)?;
    share.hold(server.process.id());
    let args = arguments(&server, load, sizing);
    let (connections, length) = (sizing.connections, WindowLength::Fixed(load.window));
    let threads = Some(sizing.load_threads);
    let windowed = Windowed { generator, server, args, connections, threads, length };
    let (usage, load) = windowed.run(|| {})?;
    let round = Round::with_share(generator.bench, &load, usage.cpu_s, share.value());
    Ok(Take { share: share.value(), usage, load, round })
}

fn arguments(server: &ServerProcess, load: &RowLoad, sizing: &Sizing) -> Vec<String> {
    let mut args = vec!["echo".to_owned(), server.url.clone()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("-c", sizing.connections.to_string());
    option("-d", load.window.as_secs_f64().to_string());
    option("--size", load.message_bytes.to_string());
    option("--timeout", "5".into());
    match load.pace {
        ClientPace::Unlimited => {}
        ClientPace::Outstanding { messages } => option("--window", messages.to_string()),
        ClientPace::Limited { bytes_per_s } => option("-r", bytes_per_s.to_string()),
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_without_limit_have_a_row_for_each_size() {
        let mut settings = Settings::classic(vec![Model::Poll], Duration::from_secs(1));
        settings.set_message_bytes(&[1_024, 4_096]);
        let rows: Vec<_> = settings.loads.iter().map(|load| (load.connections, load.message_bytes)).collect();
        assert_eq!(rows, [(7_000, 1_024), (7_000, 4_096), (7_000, 1_024), (12_000, 512), (50_000, 512)]);
        assert_eq!(settings.facts().len(), 5, "each has a name: {:?}", settings.facts());
        let words = |bytes| size_in_words(ClientPace::Unlimited, bytes);
        assert_eq!((words(4_096), words(1_024), words(100)), ("".into(), ", 1 KiB".into(), ", 100 B".into()));
    }
}
