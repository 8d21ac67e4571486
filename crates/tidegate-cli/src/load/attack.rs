//! `tidegate load attack`: a bounded mixed attack on a server on this machine.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tidegate::{StartError, system};
use tidegate_load::attack::{AttackSpeech, KindReport};
use tidegate_load::{Attack, AttackReport, LoadError, Target, attack};

use super::args::model;
use super::cluster::NoAgents;
use crate::limits::{count, models, time};
use crate::out::json::Json;
use crate::out::{self, complain, say};
use crate::{CommandResult, Failure, usage};

/// Options of `load attack`.
#[derive(clap::Args)]
pub struct AttackArgs {
    /// A server on this machine: http://HOST:PORT/PATH, or tcp://HOST:PORT or HOST:PORT for bytes instead of requests.
    target: String,
    #[command(flatten)]
    agents: NoAgents,
    /// Duration: 10s, 1m, or plain seconds.
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", default_value = "30s", value_parser = time)]
    duration: Duration,
    /// Connections that send nothing.
    #[arg(long, value_name = "COUNT", default_value_t = 500, value_parser = count::<usize>)]
    silent: usize,
    /// Connections that send one byte per second of a request.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = count::<usize>)]
    trickle: usize,
    /// Connections that send as fast as they can and never read.
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = count::<usize>)]
    flood: usize,
    /// Connections that finish sending in mid-request, and stay open.
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = count::<usize>)]
    half_open: usize,
    /// Connections per second that are opened and reset, immediately or in mid-request.
    #[arg(long, value_name = "COUNT_PER_S", default_value_t = 100, value_parser = count::<u32>)]
    reset_rate: u32,
    /// The I/O model of the attackers, or auto.
    #[arg(long, default_value = "auto", value_parser = models())]
    model: String,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Write the result as JSON to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print a line to standard output when every connection was tried once.
    #[arg(long)]
    phases: bool,
}

/// Attacks, and reports how the server reacted.
pub fn run(args: &AttackArgs) -> CommandResult {
    let plan = args.plan()?;
    if !args.cpus.is_empty() {
        system::pin_to_cpus(&args.cpus)
            .context("cannot run on the given processors")
            .map_err(Failure::Usage)?;
    }
    let mut json = Json::open(args.json.as_deref())?;
    let mut said = !args.phases;
    let report = attack(&plan, |report| {
        if !said && report.has_begun() {
            said = true;
            let _ = say!("phase attacking"); // nobody reads any more: the run goes on
        }
        // Also resets only, which come from the beginning on, have a second to be let in.
        let is_over = report.has_begun() && report.duration_s >= 1.0 && report.never_connected().is_some();
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(|e| match e {
        LoadError::Start(StartError::Engine { .. }) => Failure::Run(e.into()),
        e => usage(e),
    })?;
    let written = json.put(&report);
    show(&report)?;
    written?;
    let Some(why) = report.never_connected() else { return Ok(ExitCode::SUCCESS) };
    complain!("error: {why}");
    Ok(ExitCode::from(1))
}

impl AttackArgs {
    fn plan(&self) -> Result<Attack, Failure> {
        let plan = Attack {
            target: Target::parse(&self.target).map_err(usage)?,
            speech: if self.target.starts_with("http://") { AttackSpeech::Http } else { AttackSpeech::Bytes },
            duration: self.duration,
            silent: self.silent,
            trickle: self.trickle,
            flood: self.flood,
            half_open: self.half_open,
            resets_per_s: self.reset_rate,
            model: model(&self.model)?,
        };
        plan.check().map_err(usage)?;
        Ok(plan)
    }
}

fn show(report: &AttackReport) -> anyhow::Result<()> {
    let mut table = out::table([
        "attackers",
        "at once",
        "opened",
        "failed",
        "closed by server",
        "reset by server",
        "by themselves",
        "still there",
        "lasted s (min/mean/max)",
    ]);
    for kind in report.kinds.iter().filter(|kind| kind.wanted > 0) {
        let KindReport { opened, failed, closed_by_server, reset_by_server, .. } = kind;
        let lasted =
            kind.lasted_s.map_or("–".to_owned(), |[min, mean, max]| format!("{min:.1}/{mean:.1}/{max:.1}"));
        let per = if kind.kind == "reset" { format!("{}/s", kind.wanted) } else { kind.wanted.to_string() };
        let mut row = vec![kind.kind.clone(), per];
        row.extend([opened, failed, closed_by_server, reset_by_server].map(ToString::to_string));
        row.extend([kind.ended_by_attacker.to_string(), kind.standing.to_string(), lasted]);
        table.add_row(row);
    }
    say!("{} under attack for {:.1} s\n{table}", report.target, report.duration_s)
}
