//! `tidegate bench`.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate::{Model, system};
use tidegate_lab::experiment::round::Length;
use tidegate_lab::peers::{self, Case, scenario};
use tidegate_lab::report::{self, Results, certificate};
use tidegate_lab::run::Facts;
use tidegate_lab::{
    Agents, Bench, LabError, concurrency, connections, latency, models, process, survival, udp,
};

use crate::nats::NatsArgs;
use crate::out::{complain, say};
use crate::system::signals;
use crate::{Failure, Outcome};

/// Options of `bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure [default: which model to take here, in about a minute].
    experiment: Option<Experiment>,
    /// Fewer points and shorter windows.
    #[arg(long)]
    quick: bool,
    /// Folder for the report; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
    /// Only these models.
    #[arg(long, value_name = "MODELS", value_delimiter = ',')]
    models: Vec<Model>,
    /// models: connections of each row, in place of 7,000 and 12,000. concurrency, peers: the points. connections: the rows of each model,
    /// in place of 10,000 and 50,000. survival: well-behaved clients, in place of 50.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// models: seconds of each row. connections: of each probe, and so the time they rest. survival: of the attack. udp: of each run. latency: of each window.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..3600))]
    seconds: Option<u32>,
    /// concurrency, peers: requests of each round.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// models, concurrency, udp, peers: rounds of each row; tidegate compare needs 4 or more. latency: windows of each line.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: Option<u32>,
    /// peers: a file with more servers to measure, like scenarios/peers.toml.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// peers: only these other servers; the floor comes with them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// concurrency: keep connections rather than making a new one for each request; without an experiment they are kept.
    #[arg(long)]
    keepalive: bool,
    #[command(flatten)]
    agents: AgentArgs,
}

/// A round of the answer, and its idle connections: with seven models and two points it takes about a minute.
const ANSWER_ROUND: Duration = Duration::from_millis(500);
const ANSWER_IDLE: usize = 5_000;

/// Loads that agents carry; the servers run here.
#[derive(clap::Args)]
struct AgentArgs {
    /// concurrency, connections: let agents carry the loads, over the broker at nats://HOST:PORT; the servers run here.
    #[arg(long, value_name = "URL", requires = "agents")]
    nats: Option<String>,
    /// concurrency, connections: agents that carry one load.
    #[arg(long, value_name = "N", requires = "nats", value_parser = clap::value_parser!(u16).range(1..))]
    agents: Option<u16>,
    /// With --agents: the address of this machine that they reach.
    #[arg(long, value_name = "IP", requires = "nats", default_value = "127.0.0.1")]
    server_address: IpAddr,
    #[command(flatten)]
    access: NatsArgs,
}

impl AgentArgs {
    /// None unless agents were asked for.
    fn settings(&self, experiment: Option<Experiment>) -> Result<Option<Agents>, Failure> {
        let url = self.access.broker(self.nats.as_deref())?;
        let (Some(url), Some(count)) = (url, self.agents) else { return Ok(None) };
        if let Some((what, why)) = without_agents(experiment) {
            return Err(Failure::Usage(anyhow!(
                "{what} cannot be carried by agents: {why}; `bench concurrency` and `bench connections` can"
            )));
        }
        let mut options = vec!["--nats".to_owned(), url.to_owned()];
        options.extend(self.access.words());
        Ok(Some(Agents { count: count.into(), options, server: self.server_address }))
    }
}

/// What agents cannot do, and why.
fn without_agents(experiment: Option<Experiment>) -> Option<(&'static str, &'static str)> {
    Some(match experiment {
        Some(Experiment::Concurrency | Experiment::Connections) => return None,
        None => ("`bench` without an experiment", "it is about server and load on one machine"),
        Some(Experiment::All) => ("`bench all`", "some of it needs server and load on one machine"),
        Some(Experiment::Models) => {
            ("`bench models`", "its load looks at the server's process while it measures")
        }
        Some(Experiment::Survival) => ("`bench survival`", "attacks stay on this machine"),
        Some(Experiment::Udp) => ("`bench udp`", "agents carry loads of connections only"),
        Some(Experiment::Peers) => ("`bench peers`", "other servers are started for this machine only"),
        Some(Experiment::Latency) => ("`bench latency`", "it measures the ways within one machine"),
    })
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Every experiment but peers; with --quick about 8 minutes here.
    All,
    /// Table 6-3: an echo server on every model, unlimited and rate-limited.
    Models,
    /// Responses a second and time per request at 10 to 10,000 concurrent.
    Concurrency,
    /// What very many resting connections cost, for each of them and for a busy one; uring and epoll unless --models says otherwise.
    Connections,
    /// What well-behaved clients get before, under and after a mixed attack, on every model.
    Survival,
    /// Datagrams a second: plain, batched and GSO/GRO, on every model, and what the source reckons from that for TCP.
    Udp,
    /// nginx, h2o, node and others from scenarios/peers.toml beside every model; only if it is named, because some are built first.
    Peers,
    /// How long one message to and fro takes: every model and way of waiting, TCP, the fast path, and the bare ring.
    Latency,
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    report::prepare(&args.out).map_err(usage)?;
    // A failure leaves the limit as it is; the experiments say what they could not afford.
    let _ = system::raise_descriptor_limit();
    let program = std::env::current_exe().context("this program cannot find its own file")?;
    let bench = Bench::new(program, &system::allowed_cpus());
    let wanted = if args.models.is_empty() { Model::ALL.to_vec() } else { args.models.clone() };
    if let Some(model) = args.models.iter().find(|m| !m.availability().is_available()) {
        return Err(Failure::Usage(anyhow!("the model {model} is unavailable; tidegate doctor says why")));
    }
    let table_settings = args.models_settings(wanted.clone());
    let figure_settings = args.concurrency_settings(wanted)?;
    let crowd_settings = args.connections_settings(figure_settings.agents.clone());
    let siege_settings = args.survival_settings();
    let udp_settings = args.udp_settings();
    let peer_settings = args.peers_settings()?;
    let trip_settings = args.latency_settings();
    let (tables, figures, crowds, sieges, datagrams, trips) = (
        args.includes(Experiment::Models),
        args.includes(Experiment::Concurrency),
        args.includes(Experiment::Connections),
        args.includes(Experiment::Survival),
        args.includes(Experiment::Udp),
        args.includes(Experiment::Latency),
    );
    let here = |models: &[Model]| models.iter().filter(|m| m.availability().is_available()).count();
    let steps = usize::from(tables)
        * here(&table_settings.models)
        * table_settings.loads.len()
        * table_settings.repeats
        + usize::from(figures) * here(&figure_settings.models) * figure_settings.rounds()
        + usize::from(crowds) * here(&crowd_settings.models) * crowd_settings.sizes.len()
        + usize::from(sieges) * here(&siege_settings.models)
        + usize::from(datagrams) * udp_settings.runs()
        + peer_settings.as_ref().map_or(0, |s| {
            let rounds = s.cases.len() * s.repeats;
            s.peers.len() + (s.peers.len() + here(&s.models)) * rounds
        })
        + usize::from(trips) * trip_settings.windows();
    end_children_with_this_program()?;
    let bar = progress_bar(steps as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let mut results = Results::new(&bench);
    let mut told = |included: bool, facts: Facts| {
        if included {
            results.circumstances.settings.extend(facts);
        }
    };
    told(tables, table_settings.facts());
    told(figures, figure_settings.facts());
    told(crowds, crowd_settings.facts());
    told(sieges, siege_settings.facts());
    told(peer_settings.is_some(), peer_settings.as_ref().map(peers::Settings::facts).unwrap_or_default());
    if tables {
        results.models = Some(models::run(&bench, &table_settings, step));
    }
    if figures {
        results.concurrency = Some(concurrency::run(&bench, &figure_settings, step));
    }
    if crowds {
        results.connections = Some(connections::run(&bench, &crowd_settings, step));
    }
    if sieges {
        results.survival = Some(survival::run(&bench, &siege_settings, step));
    }
    if datagrams {
        results.udp = Some(udp::run(&bench, &udp_settings, step));
    }
    if let Some(settings) = &peer_settings {
        results.peers = Some(peers::run(&bench, settings, step));
    }
    if trips {
        results.latency = Some(latency::run(&bench, &trip_settings, step));
    }
    bar.finish_and_clear();
    let written = report::write(&args.out, &results);
    let shown = show(&results, args.experiment); // also if they cannot be saved
    let run = written.map_err(|e| Failure::Run(e.into()))?;
    shown?;
    say!("report: {}", args.out.join("report.html").display())?;
    say!("run: {} (for tidegate compare)", run.display())?;
    Ok(if results.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// SIGINT and SIGTERM end servers and loads too: other programs would not notice that the bench is gone.
pub(crate) fn end_children_with_this_program() -> anyhow::Result<()> {
    signals::once(|| {
        process::end_all();
        complain!("interrupted: nothing was written");
        std::process::exit(1);
    })
    .context("signals cannot be handled")
}

fn usage(e: LabError) -> Failure {
    Failure::Usage(e.into())
}

impl Args {
    fn includes(&self, experiment: Experiment) -> bool {
        match self.experiment {
            // What the answer needs.
            None => matches!(experiment, Experiment::Concurrency | Experiment::Connections),
            Some(Experiment::All) => experiment != Experiment::Peers,
            Some(named) => named == experiment && experiment != Experiment::Peers,
        }
    }

    fn is_quick(&self) -> bool {
        self.quick || self.experiment.is_none()
    }

    fn models_settings(&self, wanted: Vec<Model>) -> models::Settings {
        let seconds = self.seconds.unwrap_or(if self.is_quick() { 2 } else { 5 });
        let mut settings = models::Settings::classic(wanted, Duration::from_secs(seconds.into()));
        if !self.connections.is_empty() {
            let sized = |load: &models::Load, n: usize| models::Load { connections: n, ..load.clone() };
            let classic = settings.loads;
            settings.loads = self
                .sizes(&[])
                .into_iter()
                .flat_map(|n| classic.iter().map(move |load| sized(load, n)))
                .collect();
        }
        settings.repeats = self.rounds(1, 4);
        for load in &mut settings.loads {
            load.window = self.seconds.map_or(load.window, |s| Duration::from_secs(s.into()));
        }
        settings
    }

    /// Rounds of each row: what `--repeats` says, or the default, quick or not.
    fn rounds(&self, quick: usize, full: usize) -> usize {
        let default = if self.is_quick() { quick } else { full };
        self.repeats.map_or(default, |n| n as usize)
    }

    /// What `--connections` says, or the default.
    fn sizes(&self, default: &[usize]) -> Vec<usize> {
        match self.connections.as_slice() {
            [] => default.to_vec(),
            given => given.iter().map(|&n| n as usize).collect(),
        }
    }

    fn connections_settings(&self, agents: Option<Agents>) -> connections::Settings {
        let quick = self.is_quick();
        let models =
            if self.models.is_empty() { vec![Model::Uring, Model::Epoll] } else { self.models.clone() };
        connections::Settings {
            models,
            sizes: match self.experiment {
                None => vec![ANSWER_IDLE],
                Some(_) => self.sizes(if quick { &[1_000, 5_000] } else { &[10_000, 50_000] }),
            },
            probe: Duration::from_secs(self.seconds.map_or(if quick { 1 } else { 5 }, Into::into)),
            agents,
        }
    }

    fn survival_settings(&self) -> survival::Settings {
        let quick = self.is_quick();
        let seconds = Duration::from_secs;
        let attack = seconds(self.seconds.map_or(if quick { 8 } else { 30 }, Into::into));
        survival::Settings {
            models: if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() },
            clients: self.sizes(&[50]).first().copied().unwrap_or(50),
            undisturbed: seconds(if quick { 3 } else { 8 }).min(attack),
            attack,
            attackers: survival::Attackers::default(),
        }
    }

    fn udp_settings(&self) -> udp::Settings {
        let quick = self.is_quick();
        udp::Settings {
            models: if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() },
            sizes: vec![64, 1_400],
            window: Duration::from_secs(self.seconds.map_or(if quick { 1 } else { 3 }, Into::into)),
            repeats: self.repeats.map_or(if quick { 1 } else { 4 }, |n| n as usize),
        }
    }

    /// None unless peers were asked for.
    fn peers_settings(&self) -> Result<Option<peers::Settings>, Failure> {
        if self.experiment != Some(Experiment::Peers) {
            return match (&self.peers, self.only.first()) {
                (None, None) => Ok(None),
                _ => Err(Failure::Usage(anyhow!("--peers and --only belong to `bench peers`"))),
            };
        }
        let cache = cache();
        let mut all = scenario::peers(&cache, self.peers.as_deref()).map_err(usage)?;
        if let Some(name) = self.only.iter().find(|name| !all.iter().any(|peer| peer.name == **name)) {
            let names: Vec<&str> = all.iter().map(|peer| peer.name.as_str()).collect();
            return Err(Failure::Usage(anyhow!("there is no peer {name}; there are {}", names.join(", "))));
        }
        let is_wanted =
            |name: &String| self.only.is_empty() || name == scenario::FLOOR || self.only.contains(name);
        all.retain(|peer| is_wanted(&peer.name));
        let quick = self.is_quick();
        let kept = self.sizes(if quick { &[100] } else { &[100, 1_000] });
        let kept = kept.into_iter().map(|concurrency| Case { keep_alive: true, concurrency });
        let each = self.sizes(&[100]).into_iter().map(|concurrency| Case { keep_alive: false, concurrency });
        Ok(Some(peers::Settings {
            peers: all,
            models: if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() },
            cases: kept.chain(each).collect(),
            requests: self.requests.unwrap_or(if quick { 20_000 } else { 60_000 }),
            repeats: self.rounds(4, 6),
            cache,
        }))
    }

    fn latency_settings(&self) -> latency::Settings {
        let quick = self.is_quick();
        let models = if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() };
        latency::Settings {
            models,
            window: Duration::from_secs(self.seconds.map_or(if quick { 1 } else { 3 }, Into::into)),
            repeats: self.repeats.map_or(if quick { 1 } else { 5 }, |n| n as usize),
            sizes: if quick {
                vec![64, 4_096, 1 << 20]
            } else {
                (6..=20).step_by(2).map(|n| 1 << n).collect()
            },
        }
    }

    fn concurrency_settings(&self, wanted: Vec<Model>) -> Result<concurrency::Settings, Failure> {
        let points: &[usize] = match (self.experiment, self.is_quick()) {
            (None, _) => &[100, 1_000],
            (_, true) => &[10, 100, 1_000, 10_000],
            (_, false) => &[10, 30, 100, 300, 1_000, 3_000, 10_000],
        };
        let length = match (self.requests, self.experiment, self.is_quick()) {
            (Some(requests), ..) => Length::Requests(requests),
            (None, None, _) => Length::Time(ANSWER_ROUND),
            (None, _, true) => Length::Time(Duration::from_secs(1)),
            (None, _, false) => Length::Time(Duration::from_secs(2)),
        };
        Ok(concurrency::Settings {
            models: wanted,
            points: self.sizes(points),
            length,
            repeats: self.rounds(4, 6),
            keep_alive: self.keepalive || self.experiment.is_none(),
            agents: self.agents.settings(self.experiment)?,
        })
    }
}

/// Where other servers are built, as the XDG Base Directory Specification has it.
fn cache() -> PathBuf {
    let from = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")));
    cache.unwrap_or_else(std::env::temp_dir).join("tidegate").join("peers")
}

/// On a terminal only; a pipe sees the tables and nothing else.
pub(crate) fn progress_bar(steps: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(steps), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len}, {elapsed}, about {eta} left: {msg}")
    {
        bar.set_style(style);
    }
    bar
}

fn show(results: &Results, experiment: Option<Experiment>) -> anyhow::Result<()> {
    if let Some(answer) = report::answer::sentence(results) {
        say!("{answer}\n")?;
    }
    let all = report::sections(results);
    // The answer has one table; the report has the others.
    let shown = if experiment.is_none() { all.len().min(1) } else { all.len() };
    for (title, cells, about) in all.into_iter().take(shown) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        let mut rows = cells.into_iter();
        if let Some(head) = rows.next() {
            table.set_header(head);
        }
        for row in rows {
            table.add_row(row);
        }
        say!("{title}\n{table}\n{about}\n")?;
    }
    for remark in results.remarks() {
        say!("note: {remark}")?;
    }
    for (models, why) in report::left_out_together(results) {
        say!("left out: {}: {why}", models.join(", "))?;
    }
    let rows = results.rows();
    for doubt in certificate::doubts(&rows) {
        say!("warning: {}", doubt.line())?;
    }
    if let Some(summary) = certificate::summary(&rows) {
        say!("{summary}")?;
    }
    say!("{}", results.method())
}
