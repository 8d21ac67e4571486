//! What `tidegate bench` measures: experiments with their settings, from the options.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::Model;
use tidegate_lab::experiment::holders;
use tidegate_lab::experiment::round::Length;
use tidegate_lab::peers::{self, Case, scenario};
use tidegate_lab::{
    Agents, ServerProgram, concurrency, connections, demand, files, latency, memory, models, plan, reuse,
    survival, udp,
};

use super::{Args, ExperimentName};
use crate::{Failure, usage};

/// A round of the answer, how many, and its idle connections: with seven models and two points not quite a minute. Of
/// six rounds the interval leaves the extremes out, of four it does not.
const ANSWER_ROUND: Duration = Duration::from_millis(350);
const ANSWER_ROUNDS: usize = 6;
/// Time for the rounds of a point of the answer, which usually take 20 s here, so that it comes within a minute.
const ANSWER_TIME: Duration = Duration::from_secs(23);
const ANSWER_IDLE: usize = 5_000;
const ANSWER_IDLE_QUICK: usize = 500;

/// Bytes of the page, and of a message, that `bench all` has beside the usual one.
const SMALL_PAGE: usize = 1024;

/// Concurrent requests that the answer is taken from.
const ANSWER_POINTS: &[usize] = &[100, 1_000];

impl Args {
    /// What is to be measured, in order.
    pub(super) fn plan(&self) -> Result<Vec<Box<dyn plan::Experiment>>, Failure> {
        use ExperimentName::{
            All, App, Concurrency, Connections, Demand, Files, Latency, Memory, Models, Peers, Reuse,
            Survival, Udp,
        };
        self.refuse_what_has_no_effect()?;
        let agents = self.agents.settings(self.experiment)?;
        let settings = |experiment| -> Result<Box<dyn plan::Experiment>, Failure> {
            Ok(match experiment {
                All | Concurrency | App => Box::new(self.concurrency_settings(agents.clone())?),
                Models => Box::new(models::Settings { agents: agents.clone(), ..self.models_settings() }),
                Reuse => Box::new(self.reuse_settings()),
                Demand => Box::new(self.demand_settings()),
                Connections => Box::new(self.connections_settings(agents.clone())),
                Memory => Box::new(self.memory_settings()),
                Files => Box::new(self.files_settings()),
                Survival => Box::new(self.survival_settings()),
                Udp => Box::new(self.udp_settings()),
                Peers => Box::new(self.peers_settings()?),
                Latency => Box::new(self.latency_settings()),
            })
        };
        let mut plan = Vec::new();
        if self.experiment == Some(All) && !self.keepalive {
            plan.push(Box::new(plan::ConcurrencySummary(self.answer_settings(agents.clone())?)) as Box<_>);
        }
        for experiment in self.experiments() {
            plan.push(settings(experiment)?);
            if experiment == Concurrency {
                for page in self.other_pages(agents.clone())? {
                    plan.push(Box::new(plan::PageSize(page)));
                }
            }
        }
        Ok(plan)
    }

    /// The models asked for, or all.
    fn wanted(&self) -> Vec<Model> {
        if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() }
    }

    /// The models asked for, or two that hold the most connections.
    fn some_wanted(&self) -> Vec<Model> {
        if self.models.is_empty() { holders(&Model::available()) } else { self.models.clone() }
    }

    fn is_quick(&self) -> bool {
        self.quick || self.is_short()
    }

    /// Whether a sentence and its one table are what was asked for.
    pub(super) fn is_short(&self) -> bool {
        matches!(self.experiment, None | Some(ExperimentName::App))
    }

    fn models_settings(&self) -> models::Settings {
        let window = self.seconds.unwrap_or(Duration::from_secs(if self.is_quick() { 2 } else { 5 }));
        let mut settings = models::Settings::classic(self.wanted(), window);
        if self.connections.is_empty() && self.is_quick() {
            settings.loads.retain(|load| load.connections < models::MANY);
        }
        if !self.connections.is_empty() {
            let sized = |load: &models::RowLoad, n: usize| models::RowLoad { connections: n, ..load.clone() };
            let mut classic = settings.loads;
            classic.dedup_by_key(|load| load.pace);
            settings.loads = self
                .sizes(&[])
                .into_iter()
                .flat_map(|n| classic.iter().map(move |load| sized(load, n)))
                .collect();
        }
        match (self.page.as_slice(), self.experiment) {
            ([], Some(ExperimentName::All)) => {
                settings.set_message_bytes(&[models::MESSAGE_BYTES, SMALL_PAGE])
            }
            ([], _) => {}
            (sizes, _) => settings.set_message_bytes(sizes),
        }
        settings.repeats = self.rounds(1, 4);
        for load in &mut settings.loads {
            load.window = self.seconds.unwrap_or(load.window);
        }
        settings
    }

    /// Rounds of each row: what `--repeats` says, or the default, quick or not.
    fn rounds(&self, quick: usize, full: usize) -> usize {
        let default = if self.is_quick() { quick } else { full };
        self.repeats.map_or(default, |n| n as usize)
    }

    /// Of a round: what `--requests` or `--seconds` say, or the default.
    fn length(&self, default: Duration) -> Length {
        let time = Length::Time(self.seconds.unwrap_or(default));
        self.requests.map_or(time, Length::Requests)
    }

    /// What `--connections` says, or the default.
    fn sizes(&self, default: &[usize]) -> Vec<usize> {
        match self.connections.as_slice() {
            [] => default.to_vec(),
            given => given.iter().map(|&n| n as usize).collect(),
        }
    }

    /// The first of `--connections`, or the default: for rows that all have the same number.
    fn size(&self, default: usize) -> usize {
        self.connections.first().map_or(default, |&n| n as usize)
    }

    fn connections_settings(&self, agents: Option<Agents>) -> connections::Settings {
        let quick = self.is_quick();
        connections::Settings {
            models: self.some_wanted(),
            sizes: match self.experiment {
                None if self.quick => vec![ANSWER_IDLE_QUICK],
                None => vec![ANSWER_IDLE],
                Some(_) => self.sizes(if quick { &[1_000, 5_000] } else { &[10_000, 50_000] }),
            },
            probe: self.seconds.unwrap_or(Duration::from_secs(if quick { 1 } else { 5 })),
            agents,
        }
    }

    fn demand_settings(&self) -> demand::Settings {
        let quick = self.is_quick();
        let rates: &[u64] = if quick { &[1_000, 10_000] } else { &[1_000, 10_000, 50_000] };
        demand::Settings {
            models: self.wanted(),
            rates: if self.rates.is_empty() { rates.to_vec() } else { self.rates.clone() },
            connections: self.size(100),
            window: self.seconds.unwrap_or(Duration::from_secs(if quick { 1 } else { 2 })),
            repeats: self.rounds(1, 4),
            threads: self
                .threads
                .iter()
                .copied()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .map(Into::into)
                .collect(),
        }
    }

    fn memory_settings(&self) -> memory::Settings {
        let quick = self.is_quick();
        memory::Settings {
            models: self.some_wanted(),
            connections: self.size(1_000),
            quick,
            window: self.seconds.unwrap_or(Duration::from_secs(if quick { 1 } else { 2 })),
            repeats: self.rounds(1, 4),
        }
    }

    fn files_settings(&self) -> files::Settings {
        let clients = if self.is_quick() { 2_000 } else { 10_000 };
        let rates: &[u64] = if self.rates.is_empty() { &[5_000] } else { &self.rates };
        let rates = rates.iter().map(|&rate| files::ArrivalRate::Rate(rate));
        files::Settings {
            models: self.wanted(),
            clients: self.size(clients),
            arrivals: rates.chain([files::ArrivalRate::AtOnce]).collect(),
            repeats: self.rounds(1, 4),
            folder: self.out.clone(),
        }
    }

    fn survival_settings(&self) -> survival::Settings {
        let quick = self.is_quick();
        let seconds = Duration::from_secs;
        let attack = self.seconds.unwrap_or(seconds(if quick { 8 } else { 30 }));
        survival::Settings {
            models: self.wanted(),
            clients: self.size(50),
            undisturbed: seconds(if quick { 3 } else { 8 }).min(attack),
            attack,
            attackers: survival::Attackers::default(),
        }
    }

    fn udp_settings(&self) -> udp::Settings {
        let quick = self.is_quick();
        udp::Settings {
            models: self.wanted(),
            sizes: vec![64, 1_400],
            window: self.seconds.unwrap_or(Duration::from_secs(if quick { 1 } else { 3 })),
            repeats: self.rounds(1, 4),
        }
    }

    fn peers_settings(&self) -> Result<peers::Settings, Failure> {
        let cache = cache();
        let mut all = scenario::peers(&cache, self.peers.as_deref()).map_err(usage)?;
        if let Some(name) = self.only.iter().find(|name| !all.iter().any(|peer| peer.name == **name)) {
            let names: Vec<&str> = all.iter().map(|peer| peer.name.as_str()).collect();
            return Err(Failure::Usage(anyhow!("unknown peer {name}; the peers are {}", names.join(", "))));
        }
        let is_wanted =
            |name: &String| self.only.is_empty() || name == scenario::BASELINE || self.only.contains(name);
        all.retain(|peer| is_wanted(&peer.name));
        let quick = self.is_quick();
        let kept = self.sizes(if quick { &[100] } else { &[100, 1_000] });
        let kept = kept.into_iter().map(|concurrency| Case { keep_alive: true, concurrency });
        let each = self.sizes(&[100]).into_iter().map(|concurrency| Case { keep_alive: false, concurrency });
        Ok(peers::Settings {
            peers: all,
            models: self.wanted(),
            cases: kept.chain(each).collect(),
            requests: self.requests.unwrap_or(if quick { 20_000 } else { 60_000 }),
            repeats: self.rounds(4, 6),
            cache,
        })
    }

    fn latency_settings(&self) -> latency::Settings {
        let quick = self.is_quick();
        latency::Settings {
            models: self.wanted(),
            window: self.seconds.unwrap_or(Duration::from_secs(if quick { 1 } else { 3 })),
            repeats: self.rounds(1, 5),
            sizes: if quick {
                vec![64, 4_096, 1 << 20]
            } else {
                (6..=20).step_by(2).map(|n| 1 << n).collect()
            },
        }
    }

    /// Of the answer and of the user's own program fewer points, and short rounds.
    fn concurrency_settings(&self, agents: Option<Agents>) -> Result<concurrency::Settings, Failure> {
        let is_short = self.is_short();
        let points: &[usize] = match (is_short, self.is_quick()) {
            (true, _) => ANSWER_POINTS,
            (_, true) => &[10, 100, 1_000],
            (_, false) => &[10, 30, 100, 300, 1_000, 3_000, 10_000],
        };
        let usual = match (is_short, self.is_quick()) {
            (true, _) => ANSWER_ROUND,
            (_, true) => Duration::from_secs(1),
            (_, false) => Duration::from_secs(2),
        };
        Ok(concurrency::Settings {
            models: self.wanted(),
            points: self.sizes(points),
            length: self.length(usual),
            repeats: self.rounds(if is_short { ANSWER_ROUNDS } else { 4 }, 6),
            within: (is_short && self.is_as_long_as_usual()).then_some(ANSWER_TIME),
            keep_alive: self.keepalive || is_short,
            agents,
            program: self.program()?,
            page_bytes: self.page.first().copied().unwrap_or(peers::PAGE_BYTES),
        })
    }

    /// Whether nothing is said of the length of rounds, nor how many there are to be.
    fn is_as_long_as_usual(&self) -> bool {
        self.repeats.is_none() && self.requests.is_none() && self.seconds.is_none()
    }

    /// Concurrency with pages of other sizes: those of `--page` after the first, or a small one in `bench all`.
    fn other_pages(&self, agents: Option<Agents>) -> Result<Vec<concurrency::Settings>, Failure> {
        let settings = self.concurrency_settings(agents)?;
        let small = || {
            vec![concurrency::Settings {
                points: ANSWER_POINTS.to_vec(),
                page_bytes: SMALL_PAGE,
                ..settings.clone()
            }]
        };
        let sized = |&page_bytes: &usize| concurrency::Settings { page_bytes, ..settings.clone() };
        Ok(match (self.experiment, self.page.as_slice()) {
            (Some(ExperimentName::All), []) => small(),
            (_, sizes) => sizes.iter().skip(1).map(sized).collect(),
        })
    }

    fn reuse_settings(&self) -> reuse::Settings {
        let quick = self.is_quick();
        reuse::Settings {
            models: self.wanted(),
            connections: self.size(100),
            length: self.length(Duration::from_secs(if quick { 1 } else { 2 })),
            repeats: self.rounds(1, 4),
        }
    }

    /// The points from which `bench` without a name takes its answer.
    fn answer_settings(&self, agents: Option<Agents>) -> Result<concurrency::Settings, Failure> {
        Ok(concurrency::Settings {
            points: ANSWER_POINTS.to_vec(),
            length: self.length(ANSWER_ROUND),
            repeats: self.rounds(ANSWER_ROUNDS, ANSWER_ROUNDS),
            within: self.is_as_long_as_usual().then_some(ANSWER_TIME),
            keep_alive: true,
            ..self.concurrency_settings(agents)?
        })
    }

    fn program(&self) -> Result<Option<ServerProgram>, Failure> {
        if self.experiment != Some(ExperimentName::App) {
            return Ok(None);
        }
        let folder = std::env::current_dir().context("the current directory")?;
        let path = self.path.clone().unwrap_or_else(|| "/".into());
        ServerProgram::new(self.command.clone(), path, folder).map(Some).map_err(usage)
    }
}

/// Where other servers are built, as the XDG Base Directory Specification has it.
fn cache() -> PathBuf {
    let from = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("tidegate").join("peers")
}

#[cfg(test)]
mod tests {
    use super::super::tests::args;
    use super::*;

    #[test]
    fn bench_all_takes_its_sentence_from_the_experiment_of_bench() {
        let options = [
            &[][..],
            &["--quick"],
            &["--models", "epoll,tokio"],
            &["--repeats", "3"],
            &["--seconds", "5"],
            &["--requests", "50"],
        ];
        for more in options {
            let (short, all) = (args(more), args(&[&["all"], more].concat()));
            let answer = short.concurrency_settings(None).ok().unwrap();
            assert_eq!(all.answer_settings(None).ok().unwrap(), answer, "{more:?}");
            let first = |args: &Args| {
                let plan = args.plan().ok().unwrap();
                (plan[0].steps(), plan[0].step_time())
            };
            assert_eq!(first(&all), first(&short), "{more:?}: it is the first of its plan");
        }
    }

    #[test]
    fn a_length_that_is_given_is_that_of_the_rounds_and_recorded() {
        let facts = |words: &[&str]| {
            let plan = args(words).plan().ok().unwrap();
            plan.iter().flat_map(|experiment| experiment.facts()).collect::<Vec<_>>()
        };
        for experiment in [
            "models",
            "concurrency",
            "reuse",
            "demand",
            "connections",
            "memory",
            "survival",
            "udp",
            "latency",
        ] {
            let usual = facts(&[experiment, "--models", "poll"]);
            let longer = facts(&[experiment, "--models", "poll", "--seconds", "77"]);
            assert_ne!(usual, longer, "{experiment}");
            assert!(longer.iter().any(|(_, value)| value.contains("77 s")), "{experiment}: {longer:?}");
        }
        let length = |words: &[&str]| args(words).concurrency_settings(None).ok().unwrap().length;
        assert_eq!(length(&["--seconds", "5"]), Length::Time(Duration::from_secs(5)));
        assert_eq!(length(&["--seconds", "5", "--requests", "9"]), Length::Requests(9));
    }
}
