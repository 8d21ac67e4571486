//! The options of `load udp`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::{Availability, DatagramPath, Endpoint};
use tidegate_load::{Amount, Expect, Security, Target, UdpPlan};

use super::args::{Output, seconds};
use super::cluster::NoAgents;
use crate::limits::size;
use crate::system::signals;
use crate::{Failure, Outcome};

/// Options of `load udp`.
#[derive(clap::Args)]
pub struct UdpArgs {
    /// Where to: udp://HOST:PORT or HOST:PORT.
    target: String,
    #[command(flatten)]
    agents: NoAgents,
    /// Bytes of a message; the first 24 are its number and times.
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: usize,
    /// How messages go through the kernel here: plain (one a call), batched (several a call), or gso (several as one).
    #[arg(long, value_name = "PATH", default_value_t = DatagramPath::Plain)]
    path: DatagramPath,
    /// Nothing comes back: only send.
    #[arg(long, conflicts_with = "window")]
    one_way: bool,
    /// Messages on their way at once in each flow, without --rate [default: 64].
    #[arg(long, value_name = "MESSAGES", conflicts_with = "rate")]
    window: Option<usize>,
    /// Open loop: messages a second, all flows together, on an exact schedule; latency counts from when a message was
    /// due [default: as fast as it goes].
    #[arg(long, value_name = "MESSAGES_PER_S")]
    rate: Option<f64>,
    /// Stop after this many messages.
    #[arg(short = 'n', long, value_name = "MESSAGES", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// Stop after this many seconds [default: 10].
    #[arg(short, long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Flows: sockets, each with a thread.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1)]
    flows: usize,
    /// Calls' worth of messages on the paths batched and gso [default: 64].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Messages that one send joins on the path gso [default: 64].
    #[arg(long, value_name = "N")]
    segments: Option<usize>,
    /// SO_RCVBUF of each flow [default: net.core.rmem_default].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_receive_buffer: Option<usize>,
    /// Run on these processors only, for example 1 or 0,1.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// The server's process id, if it runs here: the certificate then looks at its processor time too.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Seconds to wait for the last messages, and for any while a window is full; then they count as lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    timeout: f64,
    #[command(flatten)]
    output: Output,
}

/// Sends, and shows what came of it.
pub fn run(args: &UdpArgs) -> Outcome {
    let plan = args.plan()?;
    let interrupted = signals::flag_of_the_first().context("signals cannot be watched")?;
    let painter = super::painter(format!("udp {}", plan.target), plan.flows, plan.amount, &args.output);
    super::conduct(&args.cpus, &args.output, painter, |observer| {
        tidegate_load::run_udp(&interrupted, &plan, observer).map_err(super::failure)
    })
}

impl UdpArgs {
    fn plan(&self) -> Result<UdpPlan, Failure> {
        let usage = |e: anyhow::Error| Failure::Usage(e);
        let bare = self.target.strip_prefix("udp://").unwrap_or(&self.target);
        if bare.contains("://") {
            return Err(usage(anyhow!("{:?} is no target of datagrams; write udp://HOST:PORT", self.target)));
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
                    "{name} means nothing on the path {}: add --path {path}",
                    self.path
                )));
            }
        }
        let amount = match (self.messages, self.duration) {
            (Some(n), _) => Amount::Requests(n),
            (None, Some(s)) => Amount::Time(seconds("-d", s)?),
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
            timeout: seconds("--timeout", self.timeout)?,
            batch: self.batch.unwrap_or(64),
            segments: self.segments.unwrap_or(64),
            socket_receive_buffer: self.socket_receive_buffer,
            server_pid: self.server_pid,
        })
    }
}

/// Datagrams go to an address and a port, in clear.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    let target = Target::parse(text).map_err(|e| Failure::Usage(e.into()))?;
    match (&target.endpoint, &target.security) {
        (Endpoint::Tcp(addr), Security::Plain) => Ok(*addr),
        _ => Err(Failure::Usage(anyhow!("no address of datagrams: {text}; write udp://HOST:PORT"))),
    }
}
