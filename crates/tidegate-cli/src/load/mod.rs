//! `tidegate load`.

mod args;
mod attack;
mod chat;
mod cluster;
mod live;
mod output;
mod painter;
mod ping;
mod silence;
mod summary;
mod threshold;
mod udp;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use tidegate::{StartError, system};
use tidegate_load::{Amount, LoadError, Plan, Protocol, Report, RunEvent};

pub use args::Args;
use args::{LoadCommon, LoadKind, MergeArgs, Output};
use live::LiveView;
use output::Sinks;
use painter::Painter;
use silence::SilenceWatch;

use crate::out::json::repeated;
use crate::out::{complain, say};
use crate::system::signals;
use crate::{CommandResult, Failure, usage};

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    match args.kind {
        LoadKind::Echo(args) => generate(&args.plan()?, &args.common),
        LoadKind::Http(args) => generate(&args.plan()?, &args.common),
        LoadKind::Udp(args) => udp::run(&args),
        LoadKind::Chat(args) => chat::run(&args),
        LoadKind::Ping(args) => ping::run(&args),
        LoadKind::Merge(args) => merge(&args),
        LoadKind::Attack(args) => attack::run(&args),
    }
}

fn generate(plan: &Plan, args: &LoadCommon) -> CommandResult {
    let interrupted = signals::flag_of_the_first().context("cannot install signal handlers")?;
    let protocol = match plan.protocol {
        Protocol::Echo { .. } => "echo",
        Protocol::Http(_) => "http",
    };
    let target = plan.target.to_string();
    let title = format!("{protocol} {target}");
    let painter = painter(title, plan.connections, plan.amount, &args.output);
    if let Some(options) = args.cluster.options(args.output.phases)? {
        let tls = args.tls_order(&plan.protocol)?;
        return conduct(&args.cpus, &args.output, target, painter, |observer| {
            cluster::carry_out(&options, plan, tls, &interrupted, observer)
        });
    }
    conduct(&args.cpus, &args.output, target, painter, |observer| {
        tidegate_load::run_until(&interrupted, plan, observer).map_err(failure)
    })
}

/// Maps an error of the generator to an exit code.
fn failure(e: LoadError) -> Failure {
    match e {
        LoadError::Start(StartError::Engine { .. } | StartError::Connect { .. }) => Failure::Run(e.into()),
        e => usage(e),
    }
}

/// Runs a load on these processors, shows its progress, and writes its results.
fn conduct(
    cpus: &[usize],
    output: &Output,
    target: String,
    painter: Option<Painter>,
    load: impl FnOnce(&mut dyn FnMut(RunEvent<'_>)) -> Result<Report, Failure>,
) -> CommandResult {
    pin(cpus)?;
    let mut sinks = Sinks::open(output)?;
    let mut reporter = ProgressReporter { phases: output.phases, painter };
    let mut silence = SilenceWatch::new(target);
    let mut written = Ok(());
    let report = load(&mut |phase| {
        if let Some(line) = silence.hear(&phase) {
            if let Some(painter) = &mut reporter.painter {
                painter.clear(); // it is painted again below the line
            }
            complain!("{line}");
        }
        if let Some(painter) = &mut reporter.painter {
            painter.hear(&phase);
        }
        match phase {
            RunEvent::Second { second, .. } => sinks.second(second),
            RunEvent::Done { report } => {
                // Before the connections are closed, which can take a while.
                written = sinks.report(report);
            }
            _ => {}
        }
        reporter.report(phase);
    })?;
    written?;
    Ok(judge(&report, output))
}

/// Pins the process to these processors; empty means all.
fn pin(cpus: &[usize]) -> Result<(), Failure> {
    if cpus.is_empty() {
        return Ok(());
    }
    let pinned = system::pin_to_cpus(cpus).with_context(|| {
        format!("cannot use --cpus {cpus:?}; this process may use {:?}", system::allowed_cpus())
    });
    pinned.map_err(Failure::Usage)
}

/// The live view, if there is a terminal and it is free for one.
fn painter(title: String, connections: usize, amount: Amount, output: &Output) -> Option<Painter> {
    let taken = output.phases || output.quiet || (output.ndjson && std::io::stdout().is_terminal());
    let view = LiveView::new(title, connections, amount, console::colors_enabled_stderr());
    if taken { None } else { on_terminal(view) }
}

/// Shows a view, if there is a terminal.
fn on_terminal(view: LiveView) -> Option<Painter> {
    std::io::stderr().is_terminal().then(|| Painter::new(view))
}

fn merge(args: &MergeArgs) -> CommandResult {
    let output = &args.output;
    let of_a_run =
        [("--csv", output.csv.is_some()), ("--ndjson", output.ndjson), ("--phases", output.phases)];
    if let Some((option, _)) = of_a_run.iter().find(|(_, is_given)| *is_given) {
        let why =
            anyhow!("{option} is of a load while it runs, and a merged result has no seconds: leave it out");
        return Err(Failure::Usage(why));
    }
    if let Some((_, _, path)) = repeated(args.results.iter().map(|path| ((), path.as_path()))) {
        let why = anyhow!("{} is given twice, and would count twice: name each result once", path.display());
        return Err(Failure::Usage(why));
    }
    let read = |path: &PathBuf| -> anyhow::Result<Report> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a result of tidegate load --json", path.display()))
    };
    let reports =
        args.results.iter().map(read).collect::<anyhow::Result<Vec<_>>>().map_err(Failure::Usage)?;
    let merged = tidegate_load::merge(&reports).map_err(usage)?;
    Sinks::open(&args.output)?.report(&merged)?;
    Ok(judge(&merged, &args.output))
}

/// The exit code of a result.
fn judge(report: &Report, output: &Output) -> ExitCode {
    let mut good = report.is_clean() || (output.tolerate_failures && report.wrong == 0);
    for trouble in report.together.iter().flat_map(|together| &together.troubles) {
        complain!("error: {trouble}");
        good = false;
    }
    if report.interrupted {
        complain!("error: interrupted; the result is of the {:.1} s until then", report.elapsed_s);
    }
    if let Some(after_s) = report.server_gone_after_s.filter(|_| report.connected > 0) {
        let what = match report.udp {
            Some(_) => "the target refused every message",
            None => "the server closed or refused every connection",
        };
        complain!("error: {what}; the load ended after {after_s:.1} s");
    }
    if !good && let Some(why) = &report.first_error {
        complain!("error: {why}");
    }
    for why in output.fail_if.iter().filter_map(|threshold| threshold.violation(report)) {
        complain!("error: {why}");
        good = false;
    }
    if good { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Reports progress: as lines for the lab, or as a view on the terminal.
struct ProgressReporter {
    phases: bool,
    painter: Option<Painter>,
}

impl ProgressReporter {
    fn report(&mut self, phase: RunEvent<'_>) {
        match phase {
            RunEvent::Connected { attempted, connected } => {
                self.line(&format!("phase connected {attempted} {connected}"));
            }
            RunEvent::Measuring => self.line("phase measuring"),
            RunEvent::Opening { .. } | RunEvent::Progress { .. } | RunEvent::Second { .. } => {}
            RunEvent::Done { .. } => {
                self.line("phase done");
                if self.phases {
                    // The end of the input counts as a line: the process that waited for us has gone.
                    let _ = std::io::stdin().read_line(&mut String::new());
                }
            }
        }
    }

    fn line(&self, text: &str) {
        if self.phases {
            let _ = say!("{text}"); // nobody reads any more: the run goes on, and its result is in the file
        }
    }
}
