//! `tidegate serve udp`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use anyhow::anyhow;
use clap::ValueEnum;
use tidegate::system::descriptor::OwnedFd;
use tidegate::{
    BoundDatagramServer, DatagramPath, DatagramPolicy, DatagramServer, DatagramService, DatagramStats, Model,
    RunningDatagrams,
};
use tidegate_services::{UdpEcho, UdpSink};

use super::how::{ServerCommon, address, failure};
use super::stage::{Bound, PlannedServer};
use super::stream::{listen_for_successor, open_handover, relieve};
use crate::label::Label;
use crate::life::{ExitReason, ServerChange, ServerCommand, Up};
use crate::limits::{Given, Want, without_effect};
use crate::metrics::{Entry, MetricsPages, StatsSource};
use crate::origin::{self, DEFAULT_ADDRESS};
use crate::out::complain;
use crate::system::Hangup;
use crate::system::handover::{HandoverListener, HandoverState, HandoverStream, Inheritance};
use crate::{Failure, usage};

/// The datagram services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DatagramKind {
    /// Send each datagram back (RFC 862).
    Echo,
    /// Discard each datagram (RFC 863).
    Sink,
}

impl DatagramKind {
    fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Sink => "sink",
        }
    }

    /// What a successor has to be, too.
    fn service(self) -> String {
        format!("udp {}", self.name())
    }
}

/// Options of `serve udp`.
#[derive(clap::Args)]
pub struct UdpArgs {
    /// The service.
    #[arg(value_enum)]
    kind: DatagramKind,
    /// Address to bind; port 0 lets the system pick one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Take the sockets over from the server that runs with the same PATH, which then exits; and let a successor find
    /// this one there.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    #[command(flatten)]
    pub(super) common: ServerCommon,
    #[command(flatten)]
    limits: DatagramLimits,
}

/// Limits of datagrams.
#[derive(clap::Args)]
#[command(next_help_heading = "Limits")]
struct DatagramLimits {
    #[command(flatten)]
    given: Given<DatagramPolicy>,
}

impl DatagramLimits {
    fn policy(&self) -> Result<DatagramPolicy, Failure> {
        let mut policy = DatagramPolicy::default();
        self.given.apply(&mut policy);
        let joins = self.given.has("segments") || self.given.has("segment_bytes");
        if joins && policy.path != Some(DatagramPath::Segments) {
            return Err(usage(anyhow!(
                "--segments and --segment-bytes require the path gso: add --path gso, or leave them out"
            )));
        }
        Ok(policy)
    }
}

impl UdpArgs {
    pub(super) fn plan(self, label: Label) -> Result<Box<dyn PlannedServer>, Failure> {
        let policy = self.limits.policy()?;
        let model = self.common.model.or(&label, Model::best);
        Ok(Box::new(UdpServer { args: self, label, policy, model }))
    }
}

/// A datagram server with valid options.
struct UdpServer {
    args: UdpArgs,
    label: Label,
    policy: DatagramPolicy,
    model: Model,
}

/// Descriptors of each thread: a socket, a waker, and a ring or epoll instance.
const PER_THREAD: usize = 3;

/// Descriptors for everything else, such as the metrics listener.
const RESERVED: usize = 64;

impl PlannedServer for UdpServer {
    fn label(&self) -> &Label {
        &self.label
    }

    fn common(&self) -> &ServerCommon {
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
        // It takes no descriptors as it runs.
        for text in without_effect(&self.policy, self.model) {
            self.label.note("no-effect", &text);
        }
        Ok(())
    }

    fn bind(
        self: Box<Self>,
        passed: Vec<OwnedFd>,
        pages: &mut MetricsPages,
    ) -> Result<Box<dyn Bound>, Failure> {
        let Self { args, label, policy, model } = *self;
        if !passed.is_empty() {
            return Err(usage(anyhow!(
                "a socket was inherited (LISTEN_FDS), but datagram servers support --listen only"
            )));
        }
        let path = policy.path.unwrap_or_else(|| DatagramPath::default_on(model));
        let origin = match &args.handover {
            Some(successors) => DatagramSockets::find(successors, &args, model, path, &label)?,
            None => DatagramSockets::default(),
        };
        let bound = match args.kind {
            DatagramKind::Echo => bind(|_| UdpEcho, policy, model, &args, origin.sockets),
            DatagramKind::Sink => bind(|_| UdpSink, policy, model, &args, origin.sockets),
        }?;
        // Checked here, so that an unsuitable model is refused before anything is printed.
        let shared = args.handover.as_ref().map(|_| bound.share_sockets()).transpose().map_err(usage)?;
        let terms = terms(model, path, args.kind);
        let shared_state = shared.map(|listeners| HandoverState { terms, listeners, metrics: None });
        let entry = args
            .common
            .metrics
            .map(|addr| pages.add(addr, &args.common.metrics_host, origin.metrics, &label));
        Ok(Box::new(UdpBound { args, label, bound, entry, shared_state, predecessor: origin.predecessor }))
    }
}

/// What a successor must match: blocking mode and datagram coalescing are properties of the shared sockets.
fn terms(model: Model, path: DatagramPath, kind: DatagramKind) -> String {
    format!("udp/{model}/{path}/{}", kind.name())
}

/// Model, path and, where it is named, service of a server of datagrams.
fn parted(terms: &str) -> Option<(Model, &str, Option<String>)> {
    let (model, path) = terms.strip_prefix("udp/")?.split_once('/')?;
    let (path, kind) = path.split_once('/').map_or((path, None), |(path, kind)| (path, Some(kind)));
    Some((model.parse().ok()?, path, kind.map(|kind| format!("udp {kind}"))))
}

/// Where the sockets come from that this process does not make itself.
#[derive(Default)]
struct DatagramSockets {
    sockets: Vec<OwnedFd>,
    metrics: Option<OwnedFd>,
    predecessor: Option<HandoverStream>,
}

impl DatagramSockets {
    /// The sockets of the running server, if there is one.
    fn find(
        successors: &Path,
        args: &UdpArgs,
        model: Model,
        path: DatagramPath,
        label: &Label,
    ) -> Result<Self, Failure> {
        let Some(found) = Inheritance::ask(successors).map_err(usage)? else {
            origin::note_nobody(successors, args.listen.is_none(), label);
            return Ok(Self::default());
        };
        let there = parted(&found.terms).ok_or_else(|| origin::other_kind(&found.terms))?;
        let (other, other_path, other_service) = there;
        origin::same_service(&args.kind.service(), other_service.as_deref())?;
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
    /// The state for a successor.
    shared_state: Option<HandoverState>,
    predecessor: Option<HandoverStream>,
}

impl Bound for UdpBound {
    fn hangup(&self) -> Hangup {
        Hangup::Ends
    }

    fn start(
        self: Box<Self>,
        number: usize,
        words: &Sender<ServerCommand>,
        pages: &MetricsPages,
    ) -> Result<Box<dyn Up>, Failure> {
        let Self { args, label, bound, entry, shared_state, predecessor } = *self;
        let running = bound.start().map_err(failure)?;
        if let Some(entry) = &entry {
            let handle = running.handle();
            entry.accepting(running.model(), StatsSource::Datagrams(Box::new(move || handle.stats())));
        }
        let mut successors = None;
        if let (Some(path), Some(state)) = (&args.handover, shared_state) {
            let metrics = pages.share(args.common.metrics).transpose();
            let metrics = metrics.map_err(|e| Failure::Run(anyhow!(e).context("no descriptor is left")))?;
            successors =
                Some(listen_for_successor(path, HandoverState { metrics, ..state }, number, words.clone())?);
        }
        Ok(Box::new(UdpUp { args, label, running, entry, predecessor, successors, stopped: None }))
    }
}

struct UdpUp {
    args: UdpArgs,
    label: Label,
    running: RunningDatagrams,
    entry: Option<Entry>,
    predecessor: Option<HandoverStream>,
    successors: Option<HandoverListener>,
    /// The counters when the stop began.
    stopped: Option<DatagramStats>,
}

impl Up for UdpUp {
    fn label(&self) -> &Label {
        &self.label
    }

    fn urls(&self) -> Vec<String> {
        vec![format!("udp://{}", self.running.local_addr())]
    }

    fn open_handover(&self) -> Result<(), Failure> {
        open_handover(self.successors.as_ref(), self.args.handover.as_deref())
    }

    fn relieve(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            relieve(&predecessor, &self.label);
        }
    }

    fn is_broken(&self) -> bool {
        self.running.is_broken()
    }

    fn follow(&self, change: ServerChange) {
        if let ServerChange::Strategy(_) = change {
            self.label.note("strategy", "datagram servers have no strategies; nothing was changed");
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn unready(&mut self) {
        if let Some(entry) = &self.entry {
            entry.draining();
        }
        self.successors = None;
    }

    fn stop(&mut self, end: ExitReason) {
        self.unready();
        self.stopped.get_or_insert_with(|| self.running.stats());
        if end == ExitReason::Succeeded {
            self.label.note("succeeded", "a successor receives; queued datagrams are left to it");
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
            "drained: {served} more datagrams were served, {} replies dropped at the drain timeout",
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
