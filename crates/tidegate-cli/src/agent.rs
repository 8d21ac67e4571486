//! `tidegate agent`.

use std::process::ExitCode;

use anyhow::{Context, anyhow};
use tidegate::system;
use tidegate_cluster::AllowList;
use tidegate_cluster::agent::{AgentOptions, serve};

use crate::limits::{at_least_one, signed_seconds};
use crate::log::note;
use crate::nats::{NatsArgs, failure, name_or_host};
use crate::system::signals;
use crate::{CommandResult, Failure};

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Args {
    /// The broker, nats://HOST:PORT; tls:// to require encryption.
    #[arg(long, value_name = "URL")]
    nats: String,
    #[command(flatten)]
    access: NatsArgs,
    /// Name of this agent in results [default: HOSTNAME].
    #[arg(long)]
    name: Option<String>,
    /// Allowed targets: a network like 10.0.0.0/8, an address, a host name, or unix; may be given several times.
    /// Without it nothing is allowed, not even this machine.
    #[arg(long, value_name = "CIDR|HOST", value_delimiter = ',')]
    allow: Vec<String>,
    /// Exit after this many loads [default: never].
    #[arg(long, value_name = "COUNT", value_parser = at_least_one::<u64>)]
    runs: Option<u64>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Report the wall clock this much ahead: for tests of wrong clocks.
    #[arg(long, value_name = "TIME", default_value_t = 0.0, allow_hyphen_values = true, hide = true, value_parser = signed_seconds)]
    clock_offset: f64,
    /// Report it this much more ahead once a load has begun.
    #[arg(long, value_name = "TIME", default_value_t = 0.0, allow_hyphen_values = true, hide = true, value_parser = signed_seconds)]
    clock_jump: f64,
}

/// Waits for loads until a signal.
pub fn run(args: &Args) -> CommandResult {
    let allow = AllowList::parse(&args.allow).map_err(|why| Failure::Usage(anyhow!(why)))?;
    if !args.cpus.is_empty() {
        let pinned = system::pin_to_cpus(&args.cpus);
        pinned.with_context(|| format!("cannot use --cpus {:?}", args.cpus)).map_err(Failure::Usage)?;
    }
    let name = name_or_host("--name", args.name.as_deref(), "agent")?;
    let access = args.access.access(&args.nats);
    let interrupted = signals::flag_of_the_first().context("cannot install signal handlers")?;
    let (clock_ahead_s, clock_jump_s) = (args.clock_offset, args.clock_jump);
    let options = AgentOptions { access, name, allow, runs: args.runs, clock_ahead_s, clock_jump_s };
    serve(&options, &interrupted, &mut |event, text| note(event, text)).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}
