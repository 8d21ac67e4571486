//! `tidegate serve udp`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::anyhow;
use clap::ValueEnum;
use tidegate::policy::Wait;
use tidegate::system::descriptor::OwnedFd;
use tidegate::{
    BoundDatagramServer, DatagramPath, DatagramPolicy, DatagramServer, DatagramService, DatagramStats, Model,
    RunningDatagrams,
};
use tidegate_services::{UdpEcho, UdpSink};

use super::how::{Common, DEFAULT_ADDRESS, address, failure};
use super::label::Label;
use super::share::Want;
use super::stage::{Bound, Hangup, Plan};
use super::stream::{make_door, open_door, relieve};
use super::usage;
use crate::Failure;
use crate::life::{Change, End, Up, Word};
use crate::limits::{set, size, time, wait};
use crate::metrics::{Entry, Pages, Source};
use crate::origin;
use crate::out::complain;
use crate::system::handover::{Door, Estate, Inheritance, Line};

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
    /// Take the sockets of the server that runs with the same PATH, which then exits; and let a successor find this one
    /// there.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    limits: Limits,
}

/// Limits of datagrams.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Limits")]
struct Limits {
    /// How datagrams go through the kernel: plain (one a call), batched (several a call), or gso (several of one size
    /// and peer as one) [default: batched; plain on uring].
    #[arg(long, value_name = "PATH")]
    path: Option<DatagramPath>,
    /// I/O threads, each with a socket of its own; on pool, which has one socket, workers [default: one for each
    /// processor; 256 for pool].
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

impl UdpArgs {
    pub(super) fn plan(self, label: Label) -> Result<Box<dyn Plan>, Failure> {
        let policy = self.limits.policy()?;
        let model = self.common.model.or(&label, Model::best);
        Ok(Box::new(UdpPlan { args: self, label, policy, model }))
    }
}

/// A server of datagrams whose options make sense.
struct UdpPlan {
    args: UdpArgs,
    label: Label,
    policy: DatagramPolicy,
    model: Model,
}

/// Descriptors of each thread: a socket, a waker, and a ring or epoll instance.
const PER_THREAD: usize = 3;

/// Descriptors for everything else, such as its page of metrics.
const RESERVED: usize = 64;

impl Plan for UdpPlan {
    fn label(&self) -> &Label {
        &self.label
    }

    fn common(&self) -> &Common {
        &self.args.common
    }

    fn handover(&self) -> Option<&Path> {
        self.args.handover.as_deref()
    }

    fn want(&self) -> Want {
        let threads = self.policy.threads.map_or(self.model.default_threads(), usize::from);
        Want::Exactly(threads.saturating_mul(PER_THREAD).saturating_add(RESERVED))
    }

    fn fit(&mut self, _: usize) -> Result<(), Failure> {
        Ok(()) // it takes no descriptors as it runs
    }

    fn bind(self: Box<Self>, passed: Vec<OwnedFd>, pages: &mut Pages) -> Result<Box<dyn Bound>, Failure> {
        let Self { args, label, policy, model } = *self;
        if !passed.is_empty() {
            return Err(usage(anyhow!("a socket was passed (LISTEN_FDS), and datagrams take --listen only")));
        }
        let path = policy.path.unwrap_or_else(|| DatagramPath::default_on(model));
        let origin = match &args.handover {
            Some(door) => Origin::find(door, &args, model, path)?,
            None => Origin::default(),
        };
        let bound = match args.kind {
            Kind::Echo => bind(|_| UdpEcho, policy, model, &args, origin.sockets),
            Kind::Sink => bind(|_| UdpSink, policy, model, &args, origin.sockets),
        }?;
        // Asked for here, so that a model that cannot is refused before anything is said.
        let shared = args.handover.as_ref().map(|_| bound.share_sockets()).transpose().map_err(usage)?;
        let terms = terms(model, path);
        let heirs = shared.map(|listeners| Estate { terms, listeners, metrics: None });
        let entry = args
            .common
            .metrics
            .map(|addr| pages.add(addr, &args.common.metrics_host, origin.metrics, &label));
        Ok(Box::new(UdpBound { args, label, bound, entry, heirs, predecessor: origin.predecessor }))
    }
}

/// What a successor has to agree to: whether calls wait and whether datagrams come joined are properties of the shared
/// sockets.
fn terms(model: Model, path: DatagramPath) -> String {
    format!("udp/{model}/{path}")
}

/// Where the sockets come from that this process does not make itself.
#[derive(Default)]
struct Origin {
    sockets: Vec<OwnedFd>,
    metrics: Option<OwnedFd>,
    predecessor: Option<Line>,
}

impl Origin {
    /// What the server behind the door gives, if one runs.
    fn find(door: &Path, args: &UdpArgs, model: Model, path: DatagramPath) -> Result<Self, Failure> {
        let Some(found) = Inheritance::ask(door).map_err(usage)? else { return Ok(Self::default()) };
        let there = found.terms.strip_prefix("udp/").and_then(|terms| terms.split_once('/'));
        let there = there.and_then(|(model, path)| Some((model.parse::<Model>().ok()?, path)));
        let (other, other_path) = there.ok_or_else(|| origin::other_kind(&found.terms))?;
        if !model.shares_listener_with(other) || path.name() != other_path {
            return Err(usage(anyhow!(
                "a server on {model} with the path {path} cannot receive beside the running one on {other} with {other_path}: add \
                 --model {other} --path {other_path}, or stop that one first"
            )));
        }
        let (predecessor, sockets, metrics) = found.into_parts();
        if let (Some(first), Some(addr)) = (sockets.first(), args.listen) {
            origin::expected_one(first, &addr.into())?;
        }
        let metrics = origin::expected_metrics(metrics, args.common.metrics);
        Ok(Self { sockets, metrics, predecessor: Some(predecessor) })
    }
}

fn bind<S: DatagramService>(
    make: impl Fn(usize) -> S + Send + 'static,
    policy: DatagramPolicy,
    model: Model,
    args: &UdpArgs,
    sockets: Vec<OwnedFd>,
) -> Result<BoundDatagramServer, Failure> {
    let server = DatagramServer::new(make).policy(policy).model(model);
    let bound = match sockets {
        none if none.is_empty() => server.bind(args.listen.unwrap_or(DEFAULT_ADDRESS)),
        sockets => server.receive_on(sockets),
    };
    bound.map_err(failure)
}

struct UdpBound {
    args: UdpArgs,
    label: Label,
    bound: BoundDatagramServer,
    entry: Option<Entry>,
    /// What a successor gets.
    heirs: Option<Estate>,
    predecessor: Option<Line>,
}

impl Bound for UdpBound {
    fn hangup(&self) -> Hangup {
        Hangup::Ends
    }

    fn start(
        self: Box<Self>,
        number: usize,
        words: &Sender<Word>,
        pages: &Pages,
    ) -> Result<Box<dyn Up>, Failure> {
        let Self { args, label, bound, entry, heirs, predecessor } = *self;
        let running = bound.start().map_err(failure)?;
        if let Some(entry) = &entry {
            entry.accepting(running.model(), Source::Datagrams(Box::new(running.watch())));
        }
        let mut door = None;
        if let (Some(path), Some(estate)) = (&args.handover, heirs) {
            let metrics = pages.share(args.common.metrics).transpose();
            let metrics = metrics.map_err(|e| Failure::Run(anyhow!(e).context("no descriptor is left")))?;
            door = Some(make_door(path, Estate { metrics, ..estate }, number, words.clone())?);
        }
        Ok(Box::new(UdpUp { args, label, running, entry, predecessor, door, stopped: None }))
    }
}

struct UdpUp {
    args: UdpArgs,
    label: Label,
    running: RunningDatagrams,
    entry: Option<Entry>,
    predecessor: Option<Line>,
    door: Option<Door>,
    /// The counters when it was told to stop.
    stopped: Option<DatagramStats>,
}

impl Up for UdpUp {
    fn label(&self) -> &Label {
        &self.label
    }

    fn urls(&self) -> Vec<String> {
        vec![format!("udp://{}", self.running.local_addr())]
    }

    fn open_door(&self) -> Result<(), Failure> {
        open_door(self.door.as_ref(), self.args.handover.as_deref())
    }

    fn relieve(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            relieve(&predecessor, &self.label);
        }
    }

    fn is_broken(&self) -> bool {
        self.running.is_broken()
    }

    fn follow(&self, change: Change) {
        if let Change::Strategy(_) = change {
            self.label.note("strategy", "datagrams have no strategies; nothing was changed");
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn unready(&mut self) {
        if let Some(entry) = &self.entry {
            entry.draining();
        }
        self.door = None;
    }

    fn stop(&mut self, end: End) {
        self.unready();
        self.stopped.get_or_insert_with(|| self.running.stats());
        if end == End::Succeeded {
            self.label.note(
                "succeeded",
                "a successor receives in its place; what waits in the sockets is left to it",
            );
            self.running.leave();
        } else {
            self.running.stop();
        }
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        let Self { args, label, running, stopped, .. } = *self;
        let before = stopped.ok_or_else(|| anyhow!("a server exited unexpectedly"))?;
        let (model, path) = (running.model(), running.path());
        let stats = running.join();
        let served = stats.datagrams_in.saturating_sub(before.datagrams_in);
        let text = format!(
            "drained: {served} more datagrams were served, {} replies given up at the drain timeout",
            stats.abandoned
        );
        label.note("drained", &text);
        if args.common.stats {
            complain!("{}", to_json(&label, model, path, &stats));
        }
        Ok(())
    }
}

/// All counters under their names.
fn to_json(label: &Label, model: Model, path: DatagramPath, stats: &DatagramStats) -> serde_json::Value {
    let mut counters = label.counters(model, stats.named());
    counters.insert("path".into(), path.name().into());
    counters.into()
}
