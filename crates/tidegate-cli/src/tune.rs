//! `tidegate tune`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use tidegate::{Model, Policy, system};
use tidegate_lab::Bench;
use tidegate_lab::report::verdict;
use tidegate_lab::run::{Circumstances, Row};
use tidegate_lab::save::ResultFile;
use tidegate_lab::spread::Spread;
use tidegate_lab::tune::{self, Extent, Goal, SearchStage, Settings, TuneOutcome as Found};

use crate::bench::{end_children_with_this_program, progress_bar};
use crate::compare::number;
use crate::limits::{at_least_one, each_model, rate, time};
use crate::out::{self, say};
use crate::{CommandResult, Failure};

/// Options of `tune`.
#[derive(clap::Args)]
pub struct Args {
    /// The goal of the tuning.
    #[arg(long, default_value = "throughput")]
    goal: Objective,
    /// Write the settings to this file, for serve --config.
    #[arg(long, value_name = "FILE", default_value = "tidegate.toml")]
    out: PathBuf,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Fewer values of each setting, fewer rounds, and a budget of 2 minutes.
    #[arg(long)]
    quick: bool,
    /// Start no trial after this time [default: 10m, with --quick 2m].
    #[arg(long, value_name = "TIME", value_parser = time)]
    budget: Option<Duration>,
    /// Try only these models.
    #[arg(long, value_name = "MODELS", value_delimiter = ',', value_parser = each_model())]
    models: Vec<Model>,
    /// Connections of the load while settings are compared [default: 100; for the goal connections 5000, with --quick
    /// 1000].
    #[arg(short, long, value_name = "COUNT", value_parser = at_least_one::<u32>)]
    connections: Option<u32>,
    /// Numbers of connections to try for max-connections [default: 10 to 10000; for the goal connections 1000 to
    /// 50000].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = at_least_one::<u32>)]
    caps: Vec<u32>,
    /// Goals p99 and cpu: requests per second of the load [default: half of the maximum with default settings].
    #[arg(long, value_name = "COUNT_PER_S", value_parser = rate)]
    rate: Option<f64>,
    /// Goal cpu: maximum delay added so that one wake-up serves several requests; tried as --coalesce.
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_delay: Option<Duration>,
    /// Goals throughput, p99 and cpu: a new connection for each request.
    #[arg(long)]
    no_keepalive: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Objective {
    /// The highest request rate.
    Throughput,
    /// Very many connections, with as little memory for each as possible.
    Connections,
    /// The smallest 99th percentile of latency.
    P99,
    /// The least CPU time for each request, at a rate below the maximum.
    Cpu,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    args.check().map_err(Failure::Usage)?;
    // On failure the limit stays as it is; skipped trials are reported.
    let _ = system::raise_descriptor_limit();
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let bench = Bench::halved(program, &system::allowed_cpus());
    let settings = args.settings();
    end_children_with_this_program()?;
    let bar = progress_bar(tune::trials(&settings, bench.server_cpus.len().max(1)) as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let found = tune::run(&bench, &settings, step, |stage| {
        let _ = bar.suspend(|| show(stage)); // what matters is reported again at the end, and is in the file
    });
    bar.finish_and_clear();
    let found = found.map_err(|e| Failure::Run(e.into()))?;
    let shown = summarise(&found);
    let text = tune::config(&found, &Circumstances::here(&bench));
    args.write(&text).map_err(Failure::Run)?;
    shown?;
    say!("wrote {}; start with: tidegate serve --config {}", args.out.display(), args.out.display())?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Errors that would otherwise show only at the end.
    fn check(&self) -> anyhow::Result<()> {
        let out = self.out.display();
        if !self.force && self.out.symlink_metadata().is_ok() {
            return Err(anyhow!("{out} exists; give another file with --out, or replace it with --force"));
        }
        let folder = self.out.parent().filter(|folder| !folder.as_os_str().is_empty());
        if !folder.unwrap_or(Path::new(".")).is_dir() || self.out.is_dir() {
            return Err(anyhow!("cannot write {out}; give a file in an existing directory with --out"));
        }
        if let Some(model) = self.models.iter().find(|m| !m.availability().is_available()) {
            return Err(anyhow!("the model {model} is unavailable; tidegate doctor says why"));
        }
        if self.rate.is_some() && !matches!(self.goal, Objective::P99 | Objective::Cpu) {
            return Err(anyhow!("--rate requires --goal p99 or cpu; the other goals have no schedule"));
        }
        if let Some(delay) = self.max_delay {
            if self.goal != Objective::Cpu {
                return Err(anyhow!(
                    "--max-delay requires --goal cpu; the other goals gain nothing by delays"
                ));
            }
            if delay < Duration::from_micros(1) {
                return Err(anyhow!("--max-delay below 1us allows no delay; leave it out"));
            }
            Policy::default().coalesce(delay).check().context("--max-delay is tried as --coalesce")?;
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(anyhow!("--rate is not above 0; give requests a second, such as 10000"));
        }
        if self.no_keepalive && self.goal == Objective::Connections {
            return Err(anyhow!("--no-keepalive contradicts --goal connections, whose connections are idle"));
        }
        Ok(())
    }

    fn settings(&self) -> Settings {
        let goal = match self.goal {
            Objective::Throughput => Goal::Throughput,
            Objective::Connections => Goal::Connections,
            Objective::P99 => Goal::P99,
            Objective::Cpu => Goal::Cpu,
        };
        let (rounds, extent, budget_s) =
            if self.quick { (4, Extent::Quick, 120) } else { (6, Extent::Full, 600) };
        let (connections, ladder): (u32, &[u32]) = match (goal, self.quick) {
            (Goal::Connections, true) => (1_000, &[1_000, 2_000, 5_000, 10_000]),
            (Goal::Connections, false) => (5_000, &[1_000, 2_000, 5_000, 10_000, 20_000, 50_000]),
            (_, true) => (100, &[10, 100, 1_000, 10_000]),
            (_, false) => (100, &[10, 30, 100, 300, 1_000, 3_000, 10_000]),
        };
        let mut ladder = if self.caps.is_empty() { ladder.to_vec() } else { self.caps.clone() };
        ladder.sort_unstable();
        ladder.dedup();
        Settings {
            goal,
            models: if self.models.is_empty() { Model::ALL.to_vec() } else { self.models.clone() },
            connections: self.connections.unwrap_or(connections) as usize,
            ladder: ladder.into_iter().map(|n| n as usize).collect(),
            rate: self.rate,
            max_delay: self.max_delay,
            keep_alive: !self.no_keepalive,
            rounds,
            extent,
            budget: self.budget.unwrap_or(Duration::from_secs(budget_s)),
        }
    }

    /// A file that has come meanwhile is not overwritten either.
    fn write(&self, text: &str) -> anyhow::Result<()> {
        let file = ResultFile::create(&self.out);
        let written = match self.force {
            true => file.and_then(|file| file.write(text.as_bytes())),
            false => file.and_then(|file| file.write_new(text.as_bytes())),
        };
        written.with_context(|| format!("cannot write {}; the settings were:\n{text}", self.out.display()))
    }
}

/// A stage as a table, with its decision.
fn show(stage: &SearchStage) -> anyhow::Result<()> {
    let figure = stage.rows.first().and_then(|row| row.measures.first());
    let figure = figure.map_or("figure", |measure| measure.name.as_str());
    let mut table = out::table([
        stage.name.as_str(),
        figure,
        "95% interval, or range",
        "rounds",
        "CPU s/100,000",
        "against the first",
        "limit",
    ]);
    for (i, row) in stage.rows.iter().enumerate() {
        table.add_row(cells(stage, i, row));
    }
    if !stage.rows.is_empty() {
        say!("{table}")?;
    }
    for out in &stage.failed {
        say!("left out: {}: {}", out.model, out.why)?;
    }
    say!("→ {}\n", stage.decision)
}

fn cells(stage: &SearchStage, i: usize, row: &Row) -> [String; 7] {
    let spread = |measure: usize| Spread::of(row.measures.get(measure)?.rounds.iter().copied());
    let dash = || "–".to_owned();
    let figure = spread(0);
    let mark = if stage.chosen == Some(i) { "→ " } else { "" };
    let judged = i.checked_sub(1).and_then(|i| stage.against_first.get(i));
    [
        format!("{mark}{}", row.name),
        figure.as_ref().map_or_else(dash, |s| number(s.median)),
        figure.as_ref().filter(|s| s.has_several()).map_or_else(dash, range),
        figure.as_ref().map_or_else(dash, |s| s.rounds.len().to_string()),
        spread(1).map_or_else(dash, |s| number(s.median)),
        judged.map_or_else(dash, |judged| judged.words()),
        verdict::limits(&row.verdicts),
    ]
}

/// How far the rounds lay apart.
fn range(spread: &Spread) -> String {
    let bounds = spread.bounds();
    format!("{}–{}", number(bounds.low), number(bounds.high))
}

fn summarise(found: &Found) -> anyhow::Result<()> {
    for note in &found.notes {
        say!("note: {note}")?;
    }
    for out in &found.left_out {
        say!("left out: {}: {}", out.model, out.why)?;
    }
    let rows: Vec<Row> = found.stages.iter().flat_map(|stage| stage.rows.clone()).collect();
    for doubt in verdict::doubts(&rows) {
        say!("warning: {}", doubt.line())?;
    }
    if let Some(summary) = verdict::summary(&rows) {
        say!("{summary}")?;
    }
    say!("for {}: {}", found.goal.name(), found.chosen)
}

#[cfg(test)]
mod tests {
    use tidegate_lab::run::{Better, Measure};

    use super::*;

    #[test]
    fn one_round_has_no_range() {
        let shown = |rounds: &[f64]| {
            let measure =
                Measure { name: "requests_per_s".into(), better: Better::Higher, rounds: rounds.to_vec() };
            let row = Row {
                experiment: "tune".into(),
                name: "epoll".into(),
                measures: vec![measure],
                ..Row::default()
            };
            let stage = SearchStage {
                name: "model".into(),
                rows: vec![row],
                against_first: Vec::new(),
                chosen: None,
                decision: String::new(),
                failed: Vec::new(),
                is_judged: false,
            };
            let [_, figure, range, rounds, ..] = cells(&stage, 0, &stage.rows[0]);
            [figure, range, rounds]
        };
        assert_eq!(shown(&[2.0]), ["2.000", "–", "1"]);
        assert_eq!(shown(&[4.0, 1.0, 2.0]), ["2.000", "1.000–4.000", "3"], "minimum and maximum");
        assert_eq!(shown(&[1.0, 2.0, 3.0, 4.0, 5.0]), ["3.000", "1.000–5.000", "5"], "the interval");
        assert_eq!(shown(&[]), ["–"; 3]);
    }
}
