//! `tidegate bench`.

mod settings;

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate::{Model, system};
use tidegate_lab::report::{self, Results, certificate};
use tidegate_lab::{Agents, Bench, LabError, process};

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
    /// models: connections of each row, in place of 7,000 and 12,000. concurrency, peers: the points. connections: the
    /// rows of each model, in place of 10,000 and 50,000. survival: well-behaved clients, in place of 50.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    connections: Vec<u32>,
    /// models: seconds of each row. connections: of each probe, and so the time they rest. survival: of the attack.
    /// udp: of each run. latency: of each window.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..3600))]
    seconds: Option<u32>,
    /// concurrency, peers: requests of each round.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// models, concurrency, udp, peers: rounds of each row; tidegate compare needs 4 or more. latency: windows of each
    /// line.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: Option<u32>,
    /// peers: a file with more servers to measure, like crates/tidegate-lab/peers/peers.toml.
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,
    /// peers: only these other servers; the floor comes with them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// concurrency: keep connections rather than making a new one for each request; without an experiment they are
    /// kept.
    #[arg(long)]
    keepalive: bool,
    /// app: what the program is asked for [default: /].
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    agents: AgentArgs,
    /// app: the command that starts it, with {model} and {listen} where the model's name and ADDRESS:PORT go.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

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
        Some(Experiment::App) => ("`bench app`", "the program is started for this machine only"),
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
    /// What very many resting connections cost, for each of them and for a busy one; uring and epoll unless --models
    /// says otherwise.
    Connections,
    /// What well-behaved clients get before, under and after a mixed attack, on every model.
    Survival,
    /// Datagrams a second: plain, batched and GSO/GRO, on every model, and what the source reckons from that for TCP.
    Udp,
    /// nginx, h2o, node and others from the built-in peers.toml beside every model; only if it is named, because some
    /// are built first.
    Peers,
    /// Your own HTTP server on every model: `bench app -- ./my-server --model {model} --listen {listen}`.
    App,
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
    if let Some(model) = args.models.iter().find(|m| !m.availability().is_available()) {
        return Err(Failure::Usage(anyhow!("the model {model} is unavailable; tidegate doctor says why")));
    }
    let plan = args.plan()?;
    end_children_with_this_program()?;
    let bar = progress_bar(plan.iter().map(|experiment| experiment.steps() as u64).sum());
    let mut step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let mut results = Results::new(&bench);
    for experiment in &plan {
        results.circumstances.settings.extend(experiment.facts());
    }
    for experiment in &plan {
        experiment.run(&bench, &mut results, &mut step);
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
    let is_short = matches!(experiment, None | Some(Experiment::App));
    let shown = if is_short { all.len().min(1) } else { all.len() };
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
