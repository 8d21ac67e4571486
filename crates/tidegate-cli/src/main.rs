//! The `tidegate` command.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the reader has gone: see `out`

mod agent;
mod bench;
mod compare;
mod config;
mod doctor;
mod fastpath;
mod life;
mod limits;
mod load;
mod log;
mod metrics;
mod nats;
mod origin;
mod out;
mod serve;
mod shell;
mod system;
mod tls;
mod tune;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

/// A scalable socket server on any I/O model, its load generator, and a lab that measures them all on this machine.
///
/// Exit codes: 0 success, 1 run or check failed, 2 usage error.
#[derive(Parser)]
#[command(name = "tidegate", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    log: log::Args,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a server.
    Serve(serve::Args),
    /// Generate load against a server, and measure it.
    Load(load::Args),
    /// Wait for work from `load … --nats` on another host, and do it: several agents generate one load together.
    Agent(agent::Args),
    /// Measure every I/O model on this machine and write a report.
    Bench(bench::Args),
    /// Compare two runs that bench saved, with a verdict for each row.
    Compare(compare::Args),
    /// Find the settings of a server that serve a goal best on this machine, by testing them, and write them to a file.
    Tune(tune::Args),
    /// Accelerate local TCP between unmodified programs (eBPF sockmap).
    Fastpath(fastpath::Args),
    /// Check which models and kernel features work on this machine.
    Doctor(doctor::Args),
    /// Write the script with which a shell completes commands and options.
    Completions(shell::CompletionsArgs),
    /// Write the manual pages of all commands.
    Man(shell::ManArgs),
}

/// How a command failed.
enum Failure {
    /// The command line asks for something that cannot be: exit code 2.
    Usage(anyhow::Error),
    /// The run failed: exit code 1.
    Run(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        Self::Run(e)
    }
}

impl Cli {
    fn into_server(self) -> Option<serve::Args> {
        match self.command {
            Command::Serve(args) => Some(args),
            _ => None,
        }
    }
}

type Outcome = Result<ExitCode, Failure>;

fn main() -> ExitCode {
    let lines = config::expand(&Cli::command(), std::env::args_os().collect());
    let (error, code) = match lines.and_then(|lines| run(lines.into_iter().map(Cli::parse_from).collect())) {
        Ok(code) => return code,
        Err(Failure::Usage(e)) => (e, 2),
        Err(Failure::Run(e)) => (e, 1),
    };
    log::failed(&error, code);
    ExitCode::from(code)
}

/// Runs the command; of several, which only `serve` makes of a file, all are one.
fn run(mut lines: Vec<Cli>) -> Outcome {
    let rest = lines.split_off(lines.len().min(1));
    let cli = lines.pop().context("no command").map_err(Failure::Usage)?;
    cli.log.start()?;
    match cli.command {
        Command::Serve(args) => serve::run(args, rest.into_iter().filter_map(Cli::into_server)),
        Command::Load(args) => load::run(args),
        Command::Agent(args) => agent::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Fastpath(args) => fastpath::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => shell::completions(Cli::command(), &args),
        Command::Man(args) => shell::man(Cli::command(), &args),
    }
}
