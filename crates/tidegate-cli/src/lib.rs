//! The `tidegate` command: [`main`] reads the command line and runs it. For the binary of this package alone; what
//! others use is in the crates `tidegate`, `tidegate-services` and `tidegate-tls`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // they panic when the reader has gone: see `out`

mod ab;
mod agent;
mod bench;
mod cert;
mod compare;
mod config;
mod doctor;
mod failure;
mod fastpath;
mod help;
mod label;
mod lesson;
mod life;
mod limits;
mod load;
mod log;
mod metrics;
mod nats;
mod origin;
mod out;
// Pages are about every system; the options of Linux are the most.
#[cfg(all(test, target_os = "linux"))]
mod reference;
mod serve;
mod shell;
mod system;
mod tls;
mod tune;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::{CommandResult, Failure, usage};

/// A scalable socket server for any I/O model, its load generator, and a lab that measures them on this machine.
///
/// Exit codes: 0 success, 1 run or check failed, 2 usage error.
#[derive(Parser)]
#[command(name = "tidegate", version, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    log: log::Args,
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Run a server.
    Serve(serve::Args),
    /// Generate load against a server, and measure it.
    Load(load::Args),
    /// Wait for loads from `load … --nats` on another host, and run them: several agents generate one load together.
    Agent(agent::Args),
    /// Measure every I/O model on this machine and write a report.
    Bench(Box<bench::Args>),
    /// Compare two runs that bench saved, with a verdict for each row.
    Compare(compare::Args),
    /// Compare two builds or command lines, interleaved, until the result is significant; exit code 1 if the new one
    /// costs more.
    Ab(ab::Args),
    /// Find the best server settings for a goal on this machine by testing, and write them to a file.
    Tune(tune::Args),
    /// Accelerate local TCP between unmodified programs (eBPF sockmap).
    Fastpath(fastpath::Args),
    /// Check which models and kernel features work on this machine.
    Doctor(doctor::Args),
    /// Write a TLS certificate for tests, with the authority that signs it.
    Cert(cert::Args),
    /// Take a course of ten small servers, each with a fault to find.
    Lesson(lesson::Args),
    /// Write the completion script for a shell.
    Completions(shell::CompletionsArgs),
    /// Write the manual pages.
    Man(shell::ManArgs),
}

impl Cli {
    /// The command line as a whole.
    fn line() -> clap::Command {
        help::complete(Self::command()).term_width(out::help_columns())
    }

    /// Parses one command line; on an error prints it and exits.
    fn read(line: Vec<OsString>) -> Self {
        let mut cli = Self::line();
        let read = cli.try_get_matches_from_mut(line).and_then(|matches| Self::from_arg_matches(&matches));
        read.unwrap_or_else(|e| exit_with(&e.format(&mut cli)))
    }

    fn into_server(self) -> Option<serve::Args> {
        match self.command {
            Subcommands::Serve(args) => Some(args),
            _ => None,
        }
    }
}

/// Prints a help that was asked for, or what is wrong with the command line, and exits.
fn exit_with(said: &clap::Error) -> ! {
    let written = said.print().and_then(|()| std::io::stdout().flush());
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe && !said.use_stderr() => {
            log::failed(&anyhow::Error::from(e).context("cannot write to stdout"), 1);
            std::process::exit(1)
        }
        _ => std::process::exit(said.exit_code()),
    }
}

/// Runs the command line of this process. The exit code is 0 for success, 1 for a run or check that failed, and 2 for
/// a usage error.
pub fn main() -> ExitCode {
    let lines = config::expand(&Cli::line(), std::env::args_os().collect());
    let (error, code) = match lines.and_then(|lines| run(lines.into_iter().map(Cli::read).collect())) {
        Ok(code) => return code,
        Err(Failure::Usage(e)) => (e, 2),
        Err(Failure::Run(e)) => (e, 1),
    };
    log::failed(&error, code);
    ExitCode::from(code)
}

/// Runs the command; only `serve` with a file has several command lines.
fn run(mut lines: Vec<Cli>) -> CommandResult {
    let rest = lines.split_off(lines.len().min(1));
    let cli = lines.pop().context("no command").map_err(Failure::Usage)?;
    cli.log.start()?;
    match cli.command {
        Subcommands::Serve(args) => serve::run(args, rest.into_iter().filter_map(Cli::into_server)),
        Subcommands::Load(args) => load::run(args),
        Subcommands::Agent(args) => agent::run(&args),
        Subcommands::Bench(args) => bench::run(*args),
        Subcommands::Compare(args) => compare::run(args),
        Subcommands::Ab(args) => ab::run(args),
        Subcommands::Tune(args) => tune::run(args),
        Subcommands::Fastpath(args) => fastpath::run(args),
        Subcommands::Doctor(args) => doctor::run(args),
        Subcommands::Cert(args) => cert::run(&args),
        Subcommands::Lesson(args) => lesson::run(&args),
        Subcommands::Completions(args) => shell::completions(Cli::line(), &args),
        Subcommands::Man(args) => shell::man(Cli::line(), &args),
    }
}
