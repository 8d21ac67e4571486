//! The options of `load udp`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::{Availability, DatagramPath, Endpoint};
use tidegate_load::{Amount, Expect, Security, Target, UdpPlan};

use super::args::Output;
use super::cluster::NoAgents;
use crate::limits::{at_least_one, count, rate, size, time};
use crate::system::signals;
use crate::{CommandResult, Failure, usage};

/// Options of `load udp`.
#[derive(clap::Args)]
pub struct UdpArgs {
    /// Target: udp://HOST:PORT or HOST:PORT.
    target: String,
    #[command(flatten)]
    agents: NoAgents,
    /// Bytes of a message; the first 24 contain its number and times.
    #[arg(long, value_name = "SIZE", default_value_t = 64, value_parser = size)]
    size: usize,
    /// How messages pass through the kernel: plain (one per call), batched (several per call), or gso (several as one).
    #[arg(long, value_name = "PATH", default_value_t = DatagramPath::Plain)]
    path: DatagramPath,
    /// Only send: expect no replies.
    #[arg(long, conflicts_with = "window")]
    one_way: bool,
    /// Messages in flight of each flow, without --rate [default: 64].
    #[arg(long, value_name = "COUNT", conflicts_with = "rate", value_parser = count::<usize>)]
    window: Option<usize>,
    /// Open loop: total messages per second, on an exact schedule; latency counts from when a message was due [default:
    /// as fast as possible].
    #[arg(long, value_name = "COUNT_PER_S", value_parser = rate)]
    rate: Option<f64>,
    /// Stop after this many messages.
    #[arg(short = 'n', long, value_name = "COUNT", conflicts_with = "duration", value_parser = at_least_one::<u64>)]
    messages: Option<u64>,
    /// Stop after this time: 10s, 1m, or plain seconds [default: 10s].
    #[arg(short, long, visible_short_alias = 'z', value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Flows: sockets, each with its own thread.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = 1, value_parser = count::<usize>)]
    flows: usize,
    /// Messages per call on the paths batched and gso [default: 64].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    batch: Option<usize>,
    /// Messages that one send joins on the path gso [default: 64].
    #[arg(long, value_name = "COUNT", value_parser = count::<usize>)]
    segments: Option<usize>,
    /// SO_RCVBUF of each flow [default: net.core.rmem_default].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_receive_buffer: Option<usize>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The server's process id, if it runs here: the verdict then includes its CPU time.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// How long to wait for the last messages, and for any reply while the window is full; then they count as lost.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    timeout: Duration,
    #[command(flatten)]
    output: Output,
}

/// Sends, and reports the result.
pub fn run(args: &UdpArgs) -> CommandResult {
    let plan = args.plan()?;
    let interrupted = signals::flag_of_the_first().context("cannot install signal handlers")?;
    let painter = super::painter(format!("udp {}", plan.target), plan.flows, plan.amount, &args.output);
    super::conduct(&args.cpus, &args.output, plan.target.to_string(), painter, |observer| {
        tidegate_load::run_udp(&interrupted, &plan, observer).map_err(super::failure)
    })
}

impl UdpArgs {
    fn plan(&self) -> Result<UdpPlan, Failure> {
        let bare = self.target.strip_prefix("udp://").unwrap_or(&self.target);
        if bare.contains("://") {
            return Err(usage(anyhow!("{:?} is not a datagram target; write udp://HOST:PORT", self.target)));
        }
        if let Availability::Unavailable(why) = self.path.availability() {
            return Err(usage(anyhow!("the path {} is unavailable: {why}", self.path)));
        }
        for (given, name, path) in [
            (self.batch.is_some(), "--batch", DatagramPath::Batched),
            (self.segments.is_some(), "--segments", DatagramPath::Segments),
        ] {
            if given && self.path != path && self.path != DatagramPath::Segments {
                return Err(usage(anyhow!(
                    "{name} has no effect on the path {}: add --path {path}",
                    self.path
                )));
            }
        }
        let amount = match (self.messages, self.duration) {
            (Some(n), _) => Amount::Requests(n),
            (None, Some(s)) => Amount::Time(s),
            (None, None) => Amount::Time(Duration::from_secs(10)),
        };
        let window = self.window.unwrap_or(64);
        Ok(UdpPlan {
            target: address(bare)?,
            path: self.path,
            size: self.size,
            flows: self.flows,
            expect: if self.one_way { Expect::Nothing } else { Expect::Echo { window } },
            amount,
            rate: self.rate,
            timeout: self.timeout,
            batch: self.batch.unwrap_or(64),
            segments: self.segments.unwrap_or(64),
            socket_receive_buffer: self.socket_receive_buffer,
            server_pid: self.server_pid,
        })
    }
}

/// Datagrams go to an address and a port, in clear.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let target = Target::parse(text).map_err(usage)?;
    match (&target.endpoint, &target.security) {
        (Endpoint::Tcp(addr), Security::Plain) => Ok(*addr),
        _ => Err(Failure::Usage(anyhow!("not a datagram address: {text}; write udp://HOST:PORT"))),
    }
}
