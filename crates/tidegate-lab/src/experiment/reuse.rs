//! Sockets of ended connections reused for accepts (`accept.reuse`, the book's `DisconnectEx`) against sockets that are
//! closed: responses with a connection for each request.

use serde::{Deserialize, Serialize};
use tidegate::Model;
use tidegate::policy::{Effect, Limited, Policy};

use super::generator::Generator;
use super::round::{self, Figures, Length, Round, RoundLoad};
use super::share::CpuShare;
use super::{LeftOut, ServerProcess, affordable, missing, position};
use crate::run::Facts;
use crate::{Bench, LabError};

/// The limit that is compared with its default.
const LIMIT: &str = "accept.reuse";

/// Sockets that each thread keeps.
const KEPT: &str = "256";

/// The settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, in order; those that cannot reuse sockets are left out.
    pub models: Vec<Model>,
    /// Concurrent requests.
    pub connections: usize,
    /// Length of each round.
    pub length: Length,
    /// Rounds of each row.
    pub repeats: usize,
}

impl Settings {
    /// The settings that a saved run records, because they change the figures.
    #[must_use]
    pub fn facts(&self) -> Facts {
        let facts =
            [("length of a round", self.length.to_string()), ("connections", self.connections.to_string())];
        facts.map(|(name, value)| (format!("reuse: {name}"), value)).into()
    }

    /// Rounds in all.
    #[must_use]
    pub fn rounds(&self) -> usize {
        separated(&self.models, missing).0.len() * 2 * self.repeats
    }
}

/// A model with one of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// Whether sockets were reused.
    pub reused: bool,
    /// What the server had of its processors in the last round, 0 to 1.
    pub share: f64,
    /// The results of its rounds.
    pub figures: Figures,
}

impl Row {
    /// In a word.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        if self.reused { "reused" } else { "closed" }
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultTable {
    /// Length of each round, in words.
    pub length: String,
    /// Rounds of each row.
    pub repeats: usize,
    /// Concurrent requests.
    pub connections: usize,
    /// Sockets that each thread kept.
    pub kept: String,
    /// How servers were limited to their share.
    pub throttle: String,
    /// In the order of models.
    pub rows: Vec<Row>,
    /// Models that can reuse sockets and are not here; where there are none at all, why.
    pub left_out: Vec<LeftOut>,
    /// Rows that failed, and why.
    pub failed: Vec<LeftOut>,
}

/// The models of these that can reuse sockets and are not missing for this reason, and what is to be said about those
/// that can and are.
fn separated(wanted: &[Model], missing: impl Fn(Model) -> Option<String>) -> (Vec<Model>, Vec<LeftOut>) {
    let can = |model: &Model| Policy::limit(LIMIT).is_some_and(|limit| limit.on(*model) == Effect::Kept);
    let able: Vec<Model> = Model::ALL.iter().copied().filter(can).collect();
    let asked: Vec<Model> = able.iter().copied().filter(|model| wanted.contains(model)).collect();
    if asked.is_empty() {
        let names = able.iter().map(|model| model.name()).collect::<Vec<_>>().join(", ");
        let why = format!("of these models none can reuse sockets for accepts; {names} can");
        return (Vec::new(), vec![LeftOut { model: "reused sockets".into(), why }]);
    }
    super::separated(&asked, missing)
}

/// Measures all rows, in turns.
pub fn run(bench: &Bench, settings: &Settings, mut progress: impl FnMut(&str)) -> ResultTable {
    let (models, left_out) = separated(&settings.models, missing);
    let (connections, _) = affordable(settings.connections);
    let mut share = CpuShare::new(bench, None);
    let mut table = ResultTable {
        length: settings.length.to_string(),
        repeats: settings.repeats,
        connections,
        kept: KEPT.into(),
        left_out,
        ..ResultTable::default()
    };
    let subjects: Vec<(Model, bool)> =
        models.iter().flat_map(|&model| [(model, false), (model, true)]).collect();
    let requests = RoundLoad { concurrency: connections, length: settings.length, keep_alive: false };
    let name = |(model, reused): &(Model, bool)| {
        format!("{model}, sockets {}", if *reused { "reused" } else { "closed" })
    };
    let rounds = share.in_turns(&subjects, 0..settings.repeats, &mut table.failed, name, |share, subject| {
        progress(&name(subject));
        measure(bench, *subject, requests, share)
    });
    table.throttle = share.method();
    let share = share.value();
    let row = |((model, reused), rounds): (&(Model, bool), Vec<Option<Round>>)| {
        let figures = Figures::in_turns(&rounds)?;
        Some(Row { model: model.to_string(), reused: *reused, share, figures })
    };
    table.rows = subjects.iter().zip(rounds).filter_map(row).collect();
    table.rows.sort_by_key(|row| (position(&row.model), row.reused));
    table
}

/// A round against a fresh server.
fn measure(
    bench: &Bench,
    (model, reused): (Model, bool),
    requests: RoundLoad,
    share: &mut CpuShare,
) -> Result<Round, LabError> {
    let options: &[&str] = if reused { &["--reuse-sockets", KEPT] } else { &[] };
    let mut server = ServerProcess::start(bench, "http", model, options)?;
    share.hold(server.process.id());
    let round = round::throttled(Generator::here(bench), &mut server, requests, share.value())?;
    Ok(round.without_short_window())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_can_reuse_sockets_are_measured_and_named_where_they_are_missing() {
        let (here, out) = separated(Model::ALL, |_| None);
        assert!(here == [Model::Iocp] && out.is_empty(), "as on Windows: {here:?} {out:?}");
        let of_windows = |_| Some("it is a model of Windows".to_owned());
        let (here, out) = separated(Model::ALL, of_windows);
        assert!(here.is_empty() && out.len() == 1, "{out:?}");
        // By the name that other tables have for it: a report with several says it once.
        assert_eq!((out[0].model.as_str(), out[0].why.as_str()), ("iocp", "it is a model of Windows"));
        let (here, out) = separated(&[Model::Epoll], of_windows);
        assert!(
            here.is_empty() && out[0].why.ends_with("none can reuse sockets for accepts; iocp can"),
            "{out:?}"
        );
    }
}
