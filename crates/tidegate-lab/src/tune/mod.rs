//! Finds, by testing on this machine, the settings of a server that serve a goal best. "There is no magical method" to
//! know them (A. Jones and J. Ohlund, *Network Programming for Microsoft Windows*, chapter 6), so each is tried.
//!
//! One setting after the other is changed (coordinate descent): the model first, then what it is given. Candidates take
//! turns, round by round, so that a slow moment of the machine hits all alike. One replaces what is there only if the
//! confidence interval of the ratio of medians says that it is better; otherwise the default stays.
//!
//! | module | what it holds |
//! |---|---|
//! | `knob` | what can be set, and which values are tried |
//! | `search` | the descent and its judgement; pure |
//! | `trial` | one candidate measured once, with a fresh server and load |
//! | `file` | the result as a file for `serve --config` |

mod file;
mod knob;
mod search;
mod trial;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::Model;

use crate::experiment::{LeftOut, contestants};
use crate::run::Better;
use crate::{Bench, LabError};

pub use file::config;
pub use knob::{Knob, Setting};
pub use search::SearchStage;

use search::{Descent, SearchResult, TuneCandidate};
use trial::Workbench;

/// What a server is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// As many right answers a second as possible, in a closed loop of HTTP requests.
    Throughput,
    /// As little memory for each of very many resting connections as possible, and as many of them.
    Connections,
    /// The smallest 99th percentile of latency, in an open loop of HTTP requests at half of what the server can answer.
    P99,
    /// As little processor time for each answer as possible, in the same open loop.
    Cpu,
}

impl Goal {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Connections => "connections",
            Self::P99 => "p99",
            Self::Cpu => "cpu",
        }
    }

    /// The figure it is judged by, and which way is good.
    fn measure(self) -> (&'static str, Better) {
        match self {
            Self::Throughput => ("requests_per_s", Better::Higher),
            Self::Connections => ("bytes_each", Better::Lower),
            Self::P99 => ("p99_us", Better::Lower),
            Self::Cpu => ("cpu_s_per_100k", Better::Lower),
        }
    }

    /// The service that is measured.
    #[must_use]
    pub fn service(self) -> &'static str {
        match self {
            Self::Connections => "echo",
            Self::Throughput | Self::P99 | Self::Cpu => "http",
        }
    }
}

/// How to look for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What the server is to be good at.
    pub goal: Goal,
    /// The models to try; the best one available is the default.
    pub models: Vec<Model>,
    /// Connections of the load while settings are compared.
    pub connections: usize,
    /// Numbers of connections to try for the cap, in rising order.
    pub ladder: Vec<usize>,
    /// Requests a second for [`Goal::P99`] and [`Goal::Cpu`]; none takes half of what the default settings can answer.
    pub rate: Option<f64>,
    /// Most that may be added to a request so that one wake-up answers several, for [`Goal::Cpu`]; none adds nothing.
    pub max_delay: Option<Duration>,
    /// Whether HTTP connections are kept.
    pub keep_alive: bool,
    /// Rounds of each candidate.
    pub rounds: usize,
    /// Values tried of each setting.
    pub extent: Extent,
    /// No trial is begun after this time.
    pub budget: Duration,
}

impl Settings {
    /// The values of a setting to try on a model whose server has so many processors: [`Knob::values`] where the goal
    /// can depend on it, and of [`Knob::Coalesce`] what is asked for where the model has it.
    fn values(&self, knob: Knob, model: Model, processors: usize) -> Vec<Option<u64>> {
        match (knob, self.max_delay) {
            (Knob::Coalesce, Some(delay)) if knob.has_effect(model) => {
                vec![None, Some(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX))]
            }
            _ if self.depends_on(knob) => knob.values(model, processors, self.extent),
            _ => Vec::new(),
        }
    }

    /// Whether the goal can depend on a setting: what cannot help takes no time.
    fn depends_on(&self, knob: Knob) -> bool {
        match knob {
            // Spinning spends processor time and saves no memory.
            Knob::Wait => matches!(self.goal, Goal::Throughput | Goal::P99),
            // Connections that are kept are accepted before anything is measured.
            Knob::PostedAccepts => self.goal != Goal::Connections && !self.keep_alive,
            // A locked buffer takes as much memory, or more; and who rests has nothing in flight.
            Knob::LockMemory | Knob::PostedSends | Knob::PostedReceives => self.goal != Goal::Connections,
            _ => true,
        }
    }
}

/// How many values of a setting are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The default and one or two others, once.
    Quick,
    /// More of them, and all again if something has changed.
    Full,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOutcome {
    /// What it is good at.
    pub goal: Goal,
    /// The settings.
    pub chosen: Setting,
    /// Everything that was tried, in order.
    pub stages: Vec<SearchStage>,
    /// How it was measured, and what has to be known about it.
    pub notes: Vec<String>,
    /// Models that cannot be tried here.
    pub left_out: Vec<LeftOut>,
    /// Whether the budget ended before everything was tried.
    pub is_cut_short: bool,
}

/// Looks for the settings. `progress` is notified of each trial before it begins, `shown` gets each stage when it is
/// done.
///
/// # Errors
/// No model can be measured at all, or nothing could be judged: there is nothing to write down.
pub fn run(
    bench: &Bench,
    settings: &Settings,
    progress: impl FnMut(&str),
    shown: impl FnMut(&SearchStage),
) -> Result<TuneOutcome, LabError> {
    let default = Model::best().model;
    let (mut models, left_out) = contestants(&settings.models);
    models.sort_by_key(|&model| model != default); // stable: the default comes first, the others stay in order
    let processors = bench.server_cpus.len().max(1);
    let window = window(settings, &models, processors);
    let mut workbench = Workbench::new(bench, settings, window, progress);
    if let Some(&model) = models.first() {
        workbench.settle(model)?;
    }
    let candidates = models.iter().map(|&model| TuneCandidate::of(Setting::new(model), settings.connections));
    let mut descent = Descent::new(&mut workbench, settings, shown);
    let Some(chosen) = descent.model(candidates.collect()) else {
        let failed = descent.found().stages.into_iter().flat_map(|stage| stage.failed);
        return Err(none_measured(failed.chain(left_out)));
    };
    let passes = if settings.extent == Extent::Quick { 1 } else { 2 };
    let chosen = descent.knobs(chosen, processors, passes);
    let chosen = match settings.goal {
        Goal::Connections => descent.most(chosen, &settings.ladder),
        Goal::Throughput | Goal::P99 | Goal::Cpu => descent.knee(chosen, &settings.ladder),
    };
    let found = descent.found();
    let mut notes = workbench.notes();
    refuse_what_was_not_judged(&found, settings)?;
    let SearchResult { stages, is_cut_short } = found;
    if is_cut_short {
        notes.push(format!(
            "the budget of {} s was over before everything was tried; give more with --budget",
            settings.budget.as_secs_f64()
        ));
    }
    Ok(TuneOutcome { goal: settings.goal, chosen, stages, notes, left_out, is_cut_short })
}

/// Settings that nothing was compared for are not a result.
fn refuse_what_was_not_judged(found: &SearchResult, settings: &Settings) -> Result<(), LabError> {
    if found.stages.iter().any(|stage| stage.is_judged) {
        return Ok(());
    }
    let why = if found.is_cut_short {
        format!(
            "the budget of {} s was over before any stage could be judged; give more with --budget",
            settings.budget.as_secs_f64()
        )
    } else {
        let decisions = found.stages.iter().map(|stage| stage.decision.as_str()).collect::<Vec<_>>();
        format!(
            "no stage could be judged ({}); give the load a dedicated processor, or lower --rate or --connections",
            decisions.join("; ")
        )
    };
    Err(LabError::Process { what: "tune".into(), why: format!("{why}. Nothing was written") })
}

/// Why there is no answer: what went wrong with each model.
fn none_measured(failed: impl Iterator<Item = LeftOut>) -> LabError {
    let each: Vec<String> = failed.map(|LeftOut { model, why }| format!("{model}: {why}")).collect();
    let why = format!(
        "no model could be measured ({}); tidegate doctor shows what works on this machine",
        each.join("; ")
    );
    LabError::Process { what: "tune".into(), why }
}

/// Most trials of a search that changes nothing, to divide the budget by.
#[must_use]
pub fn trials(settings: &Settings, processors: usize) -> usize {
    let (models, _) = contestants(&settings.models);
    let values: usize = Knob::ALL
        .iter()
        .map(|&knob| {
            let most = models.iter().map(|&model| settings.values(knob, model, processors).len()).max();
            most.filter(|&n| n > 1).unwrap_or(0)
        })
        .sum();
    let ladder = if settings.goal == Goal::Connections { 0 } else { settings.ladder.len() };
    (models.len() + values + ladder) * settings.rounds + settings.ladder.len()
}

/// How long each trial measures, so that all of them fit into the budget.
fn window(settings: &Settings, models: &[Model], processors: usize) -> Duration {
    /// Starting and stopping server and load, about.
    const OVERHEAD_S: f64 = 0.25;
    if settings.goal == Goal::Connections {
        return Duration::from_millis(100); // of a probe that has to be served; memory does not depend on it
    }
    let trials = trials(&Settings { models: models.into(), ..settings.clone() }, processors).max(1);
    let each = settings.budget.as_secs_f64() / trials as f64 - OVERHEAD_S;
    Duration::from_secs_f64(each.clamp(0.3, 3.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_not_tried_with_what_cannot_help_it() {
        let tried = |goal, keep_alive| {
            let settings = Settings {
                goal,
                models: Vec::new(),
                connections: 100,
                ladder: Vec::new(),
                rate: None,
                max_delay: None,
                keep_alive,
                rounds: 4,
                extent: Extent::Quick,
                budget: Duration::ZERO,
            };
            let all = Knob::ALL.into_iter();
            let tried = all.filter(|&knob| !settings.values(knob, Model::Iocp, 2).is_empty());
            tried.map(Knob::name).collect::<Vec<_>>().join(" ")
        };
        let usual = "threads buffers buffer-bytes events-per-wait outstanding-sends";
        let receives = "max-receiving receive";
        for goal in [Goal::Throughput, Goal::P99] {
            let rest = format!("posted-sends wait {receives} posted-receives lock-memory");
            assert_eq!(tried(goal, true), format!("{usual} {rest}"));
        }
        let rest = format!("posted-sends {receives} posted-receives lock-memory");
        assert_eq!(tried(Goal::Cpu, true), format!("{usual} {rest}"));
        let rest = format!("posted-sends wait {receives} posted-receives posted-accepts lock-memory");
        assert_eq!(tried(Goal::Throughput, false), format!("{usual} {rest}"));
        assert_eq!(tried(Goal::Connections, true), format!("{usual} {receives}"));
    }
}
