//! `tidegate load ping`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tidegate::policy::{FastPath, Wait};
use tidegate_load::{Amount, PingPlan, PingReport, Target, ping};

use super::args::model;
use super::cluster::NoAgents;
use super::pin;
use super::silence::note;
use crate::limits::{count, models, size, time, wait};
use crate::out::complain;
use crate::out::json::Json;
use crate::system::signals;
use crate::{CommandResult, Failure, usage};

/// How long it runs by default.
const DEFAULT: Duration = Duration::from_secs(5);

/// Options of `load ping`.
#[derive(clap::Args)]
pub struct PingArgs {
    /// Target: tcp://HOST:PORT, HOST:PORT or unix:PATH of an echo server.
    #[arg(required_unless_present_any = ["bare", "bare_echo"])]
    target: Option<String>,
    #[command(flatten)]
    agents: NoAgents,
    /// Ping the process started with --bare-echo under this name instead of a server: shared memory only, the baseline
    /// for any server. Both sides spin.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["target", "requests", "connections", "fast_path", "wait"])]
    bare: Option<String>,
    /// Be the other side of --bare, once, and print its name.
    #[arg(long, conflicts_with_all = ["target", "bare"])]
    bare_echo: bool,
    /// Bytes of a message; the first 8 are the time it was sent.
    #[arg(long, value_name = "SIZE", default_value_t = 64, value_parser = size)]
    size: usize,
    /// Connections, each with one message in flight.
    #[arg(short, long, value_name = "COUNT", default_value = "1", value_parser = count::<usize>)]
    connections: usize,
    /// Stop after this many round trips.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = count::<u64>)]
    requests: Option<u64>,
    /// Stop after this time: 10s, 1m, or plain seconds [default: 5s].
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// With -d: warm-up time, which is not measured.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = time)]
    warm_up: Duration,
    /// How the thread waits: block, spin, or spin:TIME (spin that long, then block).
    #[arg(long, value_name = "HOW", default_value = "block", value_parser = wait)]
    wait: Wait,
    /// Shared memory instead of TCP, if the server is a tidegate on this host that also sets this option.
    #[arg(long)]
    fast_path: bool,
    /// With --fast-path: bytes of shared memory for each direction, a power of two [default: 256KiB].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "fast_path")]
    ring_bytes: Option<usize>,
    /// The I/O model of this side, or auto.
    #[arg(long, default_value = "auto", value_parser = models())]
    model: String,
    /// Run on these processors only, for example 1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The server's process id, if it runs here: its CPU time is reported, too.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Connect timeout, and time limit for the last responses.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    timeout: Duration,
    /// Write the result as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

impl PingArgs {
    fn fast_path(&self) -> Option<FastPath> {
        let default = FastPath::default();
        self.fast_path.then(|| default.ring_bytes(self.ring_bytes.unwrap_or(default.ring_bytes)))
    }
}

/// Runs the command.
pub fn run(args: &PingArgs) -> CommandResult {
    pin(&args.cpus)?;
    if args.bare_echo {
        return bare::echo();
    }
    let mut json = Json::open(args.json.as_deref())?;
    let report = match &args.bare {
        Some(name) => bare::ping(name, args.size, args.duration.unwrap_or(DEFAULT))?,
        None => measure(args)?,
    };
    let is_remote = args
        .target
        .as_deref()
        .is_some_and(|target| Target::parse(target).is_ok_and(|target| target.is_remote()));
    json.put_or_print(&report, &summary(&report, is_remote))?;
    if report.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    if report.interrupted {
        complain!("error: interrupted; the result is of the {:.1} s until then", report.elapsed_s);
    }
    if let Some(why) = &report.first_error {
        complain!("error: {why}");
    }
    Ok(ExitCode::from(1))
}

fn measure(args: &PingArgs) -> Result<PingReport, Failure> {
    let target = Target::parse(args.target.as_deref().unwrap_or_default()).map_err(usage)?;
    let plan = PingPlan {
        target: target.endpoint,
        size: args.size,
        connections: args.connections,
        amount: match (args.requests, args.duration) {
            (Some(n), _) => Amount::Requests(n),
            (None, s) => Amount::Time(s.unwrap_or(DEFAULT)),
        },
        warm_up: args.warm_up,
        wait: args.wait,
        fast_path: args.fast_path(),
        model: model(&args.model)?,
        timeout: args.timeout,
        server_pid: args.server_pid,
    };
    let interrupted = signals::flag_of_the_first().context("cannot install signal handlers")?;
    let target = plan.target.to_string();
    ping(&interrupted, &plan, |silence| complain!("{}", note(&target, silence))).map_err(usage)
}

/// The baseline: shared memory and nothing else.
#[cfg(target_os = "linux")]
mod bare {
    use std::process::ExitCode;
    use std::time::Duration;

    use anyhow::{Context, anyhow};
    use tidegate_load::{PingReport, baseline_echo, baseline_ping};

    use crate::out::say;
    use crate::{CommandResult, Failure};

    pub fn echo() -> CommandResult {
        let ready = |name: &str| {
            let _ = say!("listening on {name}"); // nobody reads: then nobody calls either
        };
        baseline_echo(ready).context("the bare ring failed").map_err(Failure::Run)?;
        Ok(ExitCode::SUCCESS)
    }

    pub fn ping(name: &str, size: usize, time: Duration) -> Result<PingReport, Failure> {
        if size == 0 || time.is_zero() {
            return Err(Failure::Usage(anyhow!("--size must be at least 1 byte, and -d longer than 0")));
        }
        let report = baseline_ping(name, size, time);
        report
            .with_context(|| format!("no bare ring at {name:?}; start one with --bare-echo"))
            .map_err(Failure::Run)
    }
}

/// There is no shared memory of this kind here.
#[cfg(not(target_os = "linux"))]
mod bare {
    use std::time::Duration;

    use anyhow::anyhow;
    use tidegate_load::PingReport;

    use crate::{CommandResult, Failure};

    pub fn echo() -> CommandResult {
        Err(Failure::Usage(anyhow!("--bare-echo requires Linux")))
    }

    pub fn ping(_: &str, _: usize, _: Duration) -> Result<PingReport, Failure> {
        Err(Failure::Usage(anyhow!("--bare requires Linux")))
    }
}

fn summary(r: &PingReport, is_remote: bool) -> String {
    let t = &r.round_trip;
    let mut text = format!(
        "ping {} over {} connections, {} bytes, model {}, wait {}{}\n\
         round trips  {} in {:.3} s: {:.0}/s, {:.0} bytes/s each way; {} lost, {} wrong\n\
         µs           mean {:.3} min {:.3} p50 {:.3} p90 {:.3} p99 {:.3} p99.9 {:.3} max {:.1}\n\
         jitter µs    {:.3} (standard deviation), {:.3} below p99.9\n",
        r.target,
        r.connected,
        r.message_bytes,
        r.model,
        r.wait,
        if r.fast_paths > 0 { ", fast path" } else { "" },
        r.round_trips,
        r.elapsed_s,
        r.round_trips_per_s,
        r.bytes_per_s,
        r.lost,
        r.wrong,
        t.mean_us,
        t.min_us,
        t.p50_us,
        t.p90_us,
        t.p99_us,
        t.p99_9_us,
        t.max_us,
        t.jitter.all_us,
        t.jitter.below_p99_9_us,
    );
    for (who, share) in [("this side", r.generator), ("server", r.server)] {
        if let Some(share) = share {
            let percent = |part: f64| part * 100.0;
            text.push_str(&format!(
                "{who:<12} its busiest thread ran {:.0}% of the time and waited {:.0}% for a processor\n",
                percent(share.ran),
                percent(share.waited)
            ));
        }
    }
    for warning in &r.warnings {
        let remedy = if is_remote { warning.remedy_for_remote() } else { warning.remedy() };
        text.push_str(&format!("warning      {warning}: {remedy}\n"));
    }
    text
}
