//! `tidegate serve udp`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use tidegate::policy::Wait;
use tidegate::{
    DatagramPath, DatagramPolicy, DatagramServer, DatagramService, DatagramStats, Model, RunningDatagrams,
};
use tidegate_services::{UdpEcho, UdpSink};

use super::{Asked, DEFAULT_ADDRESS, address, announce, choose, failure, model, pin, usage};
use crate::life::{self, End};
use crate::limits::{set, size, time, wait};
use crate::log::note;
use crate::system::{manager, signals};
use crate::{Failure, Outcome};

/// What is done with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Send each back (RFC 862).
    Echo,
    /// Take each and answer none (RFC 863).
    Sink,
}

/// Options of `serve udp`.
#[derive(clap::Args)]
pub struct UdpArgs {
    /// What to do with datagrams.
    #[arg(value_enum)]
    kind: Kind,
    /// Address to receive at; port 0 lets the system pick one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// I/O model: blocking, pool, select, poll, epoll, uring, tokio, or auto for the best one available.
    #[arg(long, value_name = "MODEL", default_value = "auto", value_parser = model)]
    model: Asked,
    /// Processors to run on, such as 0,1 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Print all counters to stderr at exit, as one line of JSON.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    limits: Limits,
}

/// Limits of datagrams.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// How datagrams go through the kernel: plain (one a call), batched (several a call), or gso (several of one size and peer as
    /// one) [default: batched; plain on uring].
    #[arg(long, value_name = "PATH")]
    path: Option<DatagramPath>,
    /// I/O threads, each with a socket of its own; on pool, which has one socket, workers [default: one for each processor; 256 for pool].
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Datagrams of one receive or send call; on uring receive buffers of each thread [default: 64].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Longest datagram that is taken; longer ones are dropped and counted [default: 65507].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    largest_datagram: Option<usize>,
    /// Replies of a thread that may wait to be sent; further ones are dropped and counted [default: 8192].
    #[arg(long, value_name = "N")]
    replies: Option<usize>,
    /// Bytes of those replies [default: 1MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    reply_bytes: Option<usize>,
    /// Datagrams that one send joins on the path gso [default: 64].
    #[arg(long, value_name = "N")]
    segments: Option<usize>,
    /// Longest reply that is joined with others on the path gso: what fits the MTU [default: 1452].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    segment_bytes: Option<usize>,
    /// SO_RCVBUF: what the kernel keeps while the server is busy [default: net.core.rmem_default].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_receive_buffer: Option<usize>,
    /// SO_SNDBUF [default: net.core.wmem_default].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    socket_send_buffer: Option<usize>,
    /// How an I/O thread waits: block, spin, or spin:TIME to spin for so long and then block [default: block].
    #[arg(long, value_name = "HOW", value_parser = wait)]
    wait: Option<Wait>,
    /// How long a stop may take to serve what has arrived [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = time)]
    drain_timeout: Option<Duration>,
    /// Stack of each thread of blocking and pool [default: 128KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    thread_stack_bytes: Option<usize>,
}

impl Limits {
    fn policy(&self) -> Result<DatagramPolicy, Failure> {
        let mut policy =
            DatagramPolicy { path: self.path, threads: self.threads, ..DatagramPolicy::default() };
        if self.path != Some(DatagramPath::Segments)
            && (self.segments.is_some() || self.segment_bytes.is_some())
        {
            return Err(usage(anyhow!(
                "--segments and --segment-bytes are of the path gso: add --path gso, or leave them out"
            )));
        }
        set(&mut policy.batch, self.batch);
        set(&mut policy.largest_datagram, self.largest_datagram);
        set(&mut policy.replies, self.replies);
        set(&mut policy.reply_bytes, self.reply_bytes);
        set(&mut policy.segments, self.segments);
        set(&mut policy.segment_bytes, self.segment_bytes);
        policy.socket_receive_buffer = self.socket_receive_buffer;
        policy.socket_send_buffer = self.socket_send_buffer;
        set(&mut policy.wait, self.wait);
        set(&mut policy.drain_timeout, self.drain_timeout);
        set(&mut policy.thread_stack_bytes, self.thread_stack_bytes);
        Ok(policy)
    }
}

/// Runs the command.
pub fn run(args: &UdpArgs) -> Outcome {
    match args.kind {
        Kind::Echo => args.serve(|_| UdpEcho),
        Kind::Sink => args.serve(|_| UdpSink),
    }
}

impl UdpArgs {
    fn serve<S: DatagramService>(&self, make: impl Fn(usize) -> S) -> Outcome {
        let policy = self.limits.policy()?;
        pin(&self.cpus)?; // before any thread starts, so that all of them stay there
        let model = choose(self.model, Model::best);
        let server = DatagramServer::new(make).policy(policy).model(model);
        let bound = server.bind(self.listen.unwrap_or(DEFAULT_ADDRESS)).map_err(failure)?;
        let (ends, told) = mpsc::channel();
        signals::report(ends, None).map_err(Failure::Run)?;
        let running = bound.start().map_err(failure)?;
        announce(&format!("udp://{}", running.local_addr()))?;
        manager::tell_ready();
        let unchanged = |_| note("strategy", "datagrams have no strategies; nothing was changed");
        let end = life::wait(&told, || running.is_broken(), unchanged);
        manager::tell_stopping();
        if end == End::Broken {
            drop(running);
            return Err(Failure::Run(anyhow!(
                "an I/O thread has ended by itself; start again, and report what was logged above"
            )));
        }
        self.drain(running, model);
        Ok(ExitCode::SUCCESS)
    }

    fn drain(&self, running: RunningDatagrams, model: Model) {
        let path = running.path();
        let before = running.stats();
        running.stop();
        let stats = running.join();
        let served = stats.datagrams_in.saturating_sub(before.datagrams_in);
        let text = format!(
            "drained: {served} more datagrams were served, {} replies given up at the drain timeout",
            stats.abandoned
        );
        note("drained", &text);
        if self.stats {
            eprintln!("{}", to_json(model, path, &stats));
        }
    }
}

/// All counters under their names.
fn to_json(model: Model, path: DatagramPath, stats: &DatagramStats) -> serde_json::Value {
    let mut counters: serde_json::Map<_, _> =
        stats.named().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    counters.insert("model".into(), model.name().into());
    counters.insert("path".into(), path.name().into());
    counters.into()
}
