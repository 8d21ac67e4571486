//! `tidegate agent`.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use tidegate::system;
use tidegate_cluster::AllowList;
use tidegate_cluster::agent::{AgentOptions, serve};

use crate::log::note;
use crate::nats::{NatsArgs, failure, name_or_host};
use crate::system::signals;
use crate::{Failure, Outcome};

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Args {
    /// The broker, nats://HOST:PORT; tls:// if it must encrypt.
    #[arg(long, value_name = "URL")]
    nats: String,
    #[command(flatten)]
    access: NatsArgs,
    /// What this agent is called in results [default: HOSTNAME].
    #[arg(long)]
    name: Option<String>,
    /// Where loads may go: a network like 10.0.0.0/8, an address, a host name, or unix; may be given several times.
    /// Nothing is allowed without it, this machine no more than another.
    #[arg(long, value_name = "CIDR|HOST", value_delimiter = ',')]
    allow: Vec<String>,
    /// End after so many loads [default: never].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    runs: Option<u64>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Show the wall clock so many seconds ahead: for tests of clocks that are wrong.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, allow_negative_numbers = true, hide = true)]
    clock_offset: f64,
    /// Show it so many more seconds ahead once a load has begun.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, allow_negative_numbers = true, hide = true)]
    clock_jump: f64,
}

/// Waits for work until a signal.
pub fn run(args: &Args) -> Outcome {
    let allow = AllowList::parse(&args.allow).map_err(|why| Failure::Usage(anyhow!(why)))?;
    if !args.cpus.is_empty() {
        let pinned = system::pin_to_cpus(&args.cpus);
        pinned.with_context(|| format!("--cpus {:?} cannot be used", args.cpus)).map_err(Failure::Usage)?;
    }
    let name = name_or_host("--name", args.name.as_deref(), "agent")?;
    let access = args.access.access(&args.nats);
    let interrupted = signals::flag_of_the_first().context("signals cannot be watched")?;
    let (clock_ahead_s, clock_jump_s) = (args.clock_offset, args.clock_jump);
    let options = AgentOptions { access, name, allow, runs: args.runs, clock_ahead_s, clock_jump_s };
    serve(&options, &interrupted, &mut |event, text| note(event, text)).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}
