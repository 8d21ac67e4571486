//! `tidegate ab`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::system;
use tidegate_lab::Bench;
use tidegate_lab::ab::{self, AbOutcome as Found, Contender, Decision, Pairs, Settings};
use tidegate_lab::experiment::affordable;
use tidegate_lab::experiment::round::Round;
use tidegate_lab::spread::Spread;

use crate::bench::end_children_and_exit_with;
use crate::compare::number;
use crate::limits::{at_least_one, time};
use crate::out;
use crate::out::json::Json;
use crate::{CommandResult, Failure, usage};

/// Options of `ab`.
#[derive(clap::Args)]
pub struct Args {
    /// The baseline: a tidegate binary, or a command line with {listen} in place of ADDRESS:PORT.
    old: String,
    /// The candidate.
    new: String,
    /// Path requested from both.
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Concurrent requests.
    #[arg(short, long, value_name = "COUNT", default_value_t = 100, value_parser = at_least_one::<u32>)]
    connections: u32,
    /// A new connection for each request.
    #[arg(long)]
    no_keepalive: bool,
    /// Length of a turn. In each pair both programs run, and are loaded in four turns each.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = time)]
    turn: Duration,
    /// Stop when a difference this large, in percent, is ruled out. No threshold: a smaller one that is sure before is
    /// reported too, and the exit code is 1 if NEW costs more.
    #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
    least: f64,
    /// Probability of reporting a difference between identical programs, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    false_alarms: f64,
    /// Start no pair after this time.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    budget: Duration,
    /// Write the result with every turn as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command: exit code 1 if NEW costs more, 2 if that could not be found out, as `diff` has it.
pub fn run(args: Args) -> CommandResult {
    let settings = args.settings().map_err(Failure::Usage)?;
    let mut json = Json::open(args.json.as_deref())?;
    let _ = system::raise_descriptor_limit(); // `connections` are checked against what there is
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let bench = Bench::new(program, &system::allowed_cpus());
    end_children_and_exit_with(2)?; // 1 would be an answer
    let bar = crate::bench::spinner();
    let found = ab::run(&bench, &settings, |known| {
        bar.set_message(progress_text(known));
        bar.tick();
    });
    bar.finish_and_clear();
    let found = found.map_err(usage)?; // 1 would be an answer
    json.put_or_print(&found, &shown(&found)).map_err(Failure::Usage)?;
    Ok(if found.decision == Decision::Dearer { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

impl Args {
    fn settings(&self) -> anyhow::Result<Settings> {
        if !(0.1..=50.0).contains(&self.least) {
            return Err(anyhow!("--least {} is not from 0.1 to 50 percent", self.least));
        }
        // The sentence has an interval of 95%, which a less certain answer would not have yet.
        if !(0.001..=5.0).contains(&self.false_alarms) {
            return Err(anyhow!("--false-alarms {} is not from 0.001 to 5 percent", self.false_alarms));
        }
        let turns = Duration::from_millis(20)..=Duration::from_secs(60);
        if !turns.contains(&self.turn) {
            return Err(anyhow!("--turn {:?} is not from 20ms to 1m", self.turn));
        }
        let connections = self.connections as usize;
        if let (_, Some(note)) = affordable(connections) {
            return Err(anyhow!("--connections {connections} is not possible: {note}"));
        }
        let folder = std::env::current_dir().context("cannot find the current directory")?;
        let contender = |text: &str| Contender::new(text, &self.path, folder.clone());
        Ok(Settings {
            old: contender(&self.old)?,
            new: contender(&self.new)?,
            connections,
            keep_alive: !self.no_keepalive,
            turn: self.turn,
            least: self.least / 100.0,
            false_alarm: self.false_alarms / 100.0,
            budget: self.budget,
        })
    }
}

fn progress_text(known: &Pairs) -> String {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let so_far = known.ratio().zip(known.interval(ab::CONFIDENCE)).map_or(String::new(), |(ratio, i)| {
        format!(": {:+.1}%, 95% CI {:+.1} to {:+.1}", percent(ratio), percent(i.low), percent(i.high))
    });
    format!("{} pairs{so_far}", known.len())
}

fn shown(found: &Found) -> String {
    let mut table = out::table(["", "CPU s for 100,000 requests", "fewest–most", "requests/s", "p99 in µs"]);
    table.add_row(cells("OLD", found.turns().map(|turn| &turn.old)));
    table.add_row(cells("NEW", found.turns().map(|turn| &turn.new)));
    let remark = found.remark().map_or(String::new(), |remark| format!("note: {remark}\n"));
    let (pairs, seconds) = (found.pairs.len(), found.elapsed_s);
    format!(
        "{}\n{table}\n{remark}{pairs} pairs in {seconds:.0} s, medians; {}\n",
        found.sentence(),
        found.activity()
    )
}

fn cells<'a>(name: &str, rounds: impl Iterator<Item = &'a Round> + Clone) -> [String; 5] {
    let spread = |figure: fn(&Round) -> f64| Spread::of(rounds.clone().map(figure));
    let dash = || "–".to_owned();
    let median = |figure| spread(figure).map_or_else(dash, |spread| number(spread.median));
    let cost = spread(|round| round.cpu_s_per_100k);
    [
        name.to_owned(),
        cost.as_ref().map_or_else(dash, |cost| number(cost.median)),
        cost.as_ref().map_or_else(dash, |cost| format!("{}–{}", number(cost.min), number(cost.max))),
        median(|round| round.requests_per_s),
        median(|round| round.p99_us),
    ]
}
