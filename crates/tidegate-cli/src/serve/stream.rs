//! A server of connections through its stages.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tidegate::system::descriptor::OwnedFd;
use tidegate::{
    BoundServer, Endpoint, Model, Policy, Running, Server, ServerHandle, Service, StartError, Stats,
};
use tidegate_cluster::rooms::Bridge;
use tidegate_services::ChatCounters;
use tidegate_services::proxy::Upstreams;

use super::how::{How, ServerCommon, ServiceKind, failure};
use super::nodes::StartBridge;
use super::proxy;
use super::stage::{Bound, PlannedServer};
use crate::label::Label;
use crate::life::{self, ExitReason, ServerChange, ServerCommand, Up};
use crate::limits::{Strategy, Want, without_effect};
use crate::metrics::{Entry, MetricsPages, StatsSource};
use crate::origin::{DEFAULT_ADDRESS, Listeners, SocketOrigin, SocketRequest, terms};
use crate::out::complain;
use crate::system::Hangup;
use crate::system::handover::{HandoverListener, HandoverState, HandoverStream, Inheritance};
use crate::tls::Secure;
use crate::{Failure, usage};

/// The listening socket of a server.
pub enum ListenSocket {
    /// An address to bind.
    Address(Endpoint),
    /// An inherited socket.
    Socket(OwnedFd),
}

/// Binds one service, to several addresses if necessary.
pub type Binder = Box<dyn Fn(Policy, Model, ListenSocket) -> Result<BoundServer, StartError>>;

/// A binder that makes the service of each address.
pub fn binder<S: Service>(each: impl Fn() -> S + 'static) -> Binder {
    Box::new(move |policy, model, at| {
        let server = Server::new(each()).policy(policy).model(model);
        match at {
            ListenSocket::Address(at) => server.bind(at),
            ListenSocket::Socket(socket) => server.listen_on(socket),
        }
    })
}

/// What a connection server keeps through all its stages.
pub struct StreamServer {
    pub how: How,
    pub label: Label,
    pub kind: &'static ServiceKind,
    pub model: Model,
    pub drain_timeout: Duration,
    pub secure: Option<Secure>,
    /// Its chat counters, if it is a messenger.
    pub chat: Option<Arc<ChatCounters>>,
    /// If it is a proxy, its upstreams.
    pub proxy: Option<Arc<Upstreams>>,
}

/// A connection server with valid options.
pub struct StreamPlan {
    pub server: StreamServer,
    pub policy: Policy,
    pub binder: Binder,
    /// Its federation options, if it shares its rooms.
    pub bridge: Option<StartBridge>,
}

impl PlannedServer for StreamPlan {
    fn label(&self) -> &Label {
        &self.server.label
    }

    fn common(&self) -> &ServerCommon {
        &self.server.how.common
    }

    fn handover(&self) -> Option<&Path> {
        self.server.how.handover.as_deref()
    }

    fn want(&self) -> Want {
        self.server.how.limits.want(&self.policy, self.server.model).times(self.server.how.addresses())
    }

    fn fit(&mut self, descriptors: usize) -> Result<(), Failure> {
        // More sockets may be inherited than addresses were given; then a lack of descriptors shows at run time.
        let each = descriptors / self.server.how.addresses();
        if let Some(text) = self.server.how.limits.fit(&mut self.policy, self.server.model, each)? {
            self.server.label.note("max-connections", &text);
        }
        for text in without_effect(&self.policy, self.server.model) {
            self.server.label.note("no-effect", &text);
        }
        let memory = self.server.model.memory_bound(&self.policy);
        tracing::info!(
            server = self.server.label.name,
            model = self.server.model.name(),
            bytes = memory.total(),
            connections = memory.connections,
            each_connection = memory.each_connection,
            process = memory.process,
            addresses = self.server.how.addresses(),
            "the upper bound of memory"
        );
        Ok(())
    }

    fn bind(
        self: Box<Self>,
        passed: Vec<OwnedFd>,
        pages: &mut MetricsPages,
    ) -> Result<Box<dyn Bound>, Failure> {
        let Self { server, policy, binder, bridge } = *self;
        let StreamServer { how, label, model, .. } = &server;
        let asked = SocketRequest {
            handover: how.handover.as_deref(),
            listen: how.asked()?,
            metrics: how.common.metrics,
        };
        let origin = SocketOrigin::find(&asked, *model, passed, label)?;
        let bind_one = |at| binder(policy.clone(), *model, at);
        let bound = match origin.listeners {
            Listeners::Own => bind(bind_one, asked.listen)?,
            Listeners::Passed(sockets) => adopt(bind_one, sockets)?,
            Listeners::Inherited(sockets) => with_files(adopt(bind_one, sockets)?)?,
        };
        let entry =
            how.common.metrics.map(|addr| pages.add(addr, &how.common.metrics_host, origin.metrics, label));
        let predecessor = origin.predecessor;
        Ok(Box::new(StreamBound { server, bridge, bound, predecessor, entry }))
    }
}

fn bind(
    bind_one: impl Fn(ListenSocket) -> Result<BoundServer, StartError>,
    asked: Vec<Endpoint>,
) -> Result<Vec<BoundServer>, Failure> {
    let asked = if asked.is_empty() { vec![DEFAULT_ADDRESS.into()] } else { asked };
    let mut bound = Vec::new();
    for (number, at) in asked.iter().enumerate() {
        let one = bind_one(ListenSocket::Address(at.clone()));
        bound
            .push(one.map_err(|e| match (taken(&e), asked.iter().take(number).find(|own| covers(own, at))) {
            (true, Some(own)) => usage(anyhow!(
                "--listen {at} conflicts with --listen {own}, which uses the same port: leave one of them out"
            )),
            _ => failure(e),
        })?);
    }
    Ok(bound)
}

fn taken(e: &StartError) -> bool {
    matches!(e, StartError::Listen { error, .. } if error.kind() == io::ErrorKind::AddrInUse)
}

/// Whether a listener at `own` may prevent another one at `at`.
fn covers(own: &Endpoint, at: &Endpoint) -> bool {
    match (own.addr(), at.addr()) {
        (Some(own), Some(at)) => {
            own.port() == at.port()
                && (own.ip() == at.ip() || own.ip().is_unspecified() || at.ip().is_unspecified())
        }
        _ => own == at,
    }
}

fn adopt(
    bind_one: impl Fn(ListenSocket) -> Result<BoundServer, StartError>,
    sockets: Vec<OwnedFd>,
) -> Result<Vec<BoundServer>, Failure> {
    let one = |socket| bind_one(ListenSocket::Socket(socket)).map_err(failure);
    sockets.into_iter().map(one).collect()
}

/// The same servers, which remove their socket files at the end.
fn with_files(bound: Vec<BoundServer>) -> Result<Vec<BoundServer>, Failure> {
    let own = |one: BoundServer| one.own_socket_file().context("the socket file is gone");
    bound.into_iter().map(own).collect::<Result<_, _>>().map_err(Failure::Run)
}

struct StreamBound {
    server: StreamServer,
    bridge: Option<StartBridge>,
    /// One for each address.
    bound: Vec<BoundServer>,
    predecessor: Option<HandoverStream>,
    entry: Option<Entry>,
}

impl Bound for StreamBound {
    fn hangup(&self) -> Hangup {
        if self.server.secure.is_some() { Hangup::Reloads } else { Hangup::Ends }
    }

    fn start(
        self: Box<Self>,
        number: usize,
        words: &Sender<ServerCommand>,
        pages: &MetricsPages,
    ) -> Result<Box<dyn Up>, Failure> {
        let Self { server, bridge, bound, predecessor, entry } = *self;
        let StreamServer { how, label, model, secure, chat, proxy, .. } = &server;
        let lacks = |e| Failure::Run(anyhow::Error::from(e).context("no descriptor is left"));
        let shared = match &how.handover {
            Some(_) => {
                bound.iter().map(|one| one.share_listener()).collect::<Result<_, _>>().map_err(lacks)?
            }
            None => Vec::new(),
        };
        // Its thread stays on the processors of this server, and no client is accepted before the rooms are loaded.
        let bridge = bridge.map(|start| start()).transpose()?;
        let running =
            bound.into_iter().map(|one| one.start()).collect::<Result<Vec<_>, _>>().map_err(failure)?;
        if let Some(entry) = &entry {
            let tls = secure.as_ref().map(Secure::counters);
            let each: Vec<_> = running.iter().map(Running::handle).collect();
            let stats = Box::new(move || each.iter().map(ServerHandle::stats).sum());
            let (chat, proxy) = (chat.clone(), proxy.clone());
            entry.accepting(*model, StatsSource::Connections { stats, tls, chat, proxy });
        }
        let mut successors = None;
        if let Some(path) = &how.handover {
            let metrics = pages.share(how.common.metrics).transpose().map_err(lacks)?;
            let state = HandoverState { terms: terms(*model, label.service), listeners: shared, metrics };
            successors = Some(listen_for_successor(path, state, number, words.clone())?);
        }
        let stopped = None;
        Ok(Box::new(StreamUp { server, running, predecessor, entry, successors, stopped, bridge }))
    }
}

/// Makes the socket by which a successor finds this server.
pub fn listen_for_successor(
    path: &Path,
    state: HandoverState,
    number: usize,
    words: Sender<ServerCommand>,
) -> Result<HandoverListener, Failure> {
    let successors =
        HandoverListener::beside(path, state, move || _ = words.send(ServerCommand::Succeeded(number)));
    successors.map_err(|e| no_handover(path, e))
}

/// Opens it.
pub fn open_handover(successors: Option<&HandoverListener>, path: Option<&Path>) -> Result<(), Failure> {
    let Some((successors, path)) = successors.zip(path) else { return Ok(()) };
    successors.open().map_err(|e| no_handover(path, e))
}

fn no_handover(path: &Path, e: io::Error) -> Failure {
    let shown = path.display();
    Failure::Run(
        anyhow!(e).context(format!("cannot put a socket at {shown}; give a path in a writable directory")),
    )
}

/// Tells the predecessor to drain.
pub fn relieve(predecessor: &HandoverStream, label: &Label) {
    // If it has exited meanwhile, that is fine.
    let text = match Inheritance::ready(predecessor) {
        Ok(()) => "accepting instead of the predecessor, which drains now".to_owned(),
        Err(e) => format!("accepting; the predecessor has already exited: {e}"),
    };
    label.note("handover", &text);
}

struct StreamUp {
    server: StreamServer,
    /// One for each address.
    running: Vec<Running>,
    predecessor: Option<HandoverStream>,
    entry: Option<Entry>,
    successors: Option<HandoverListener>,
    /// The counters when the stop began.
    stopped: Option<Stats>,
    /// Ends when the last thread of the server has.
    bridge: Option<Bridge>,
}

impl Up for StreamUp {
    fn label(&self) -> &Label {
        &self.server.label
    }

    fn urls(&self) -> Vec<String> {
        let url = |one: &Running| self.server.kind.url(one.local_addr(), self.server.secure.as_ref());
        self.running.iter().map(url).collect()
    }

    fn open_handover(&self) -> Result<(), Failure> {
        open_handover(self.successors.as_ref(), self.server.how.handover.as_deref())
    }

    fn relieve(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            relieve(&predecessor, &self.server.label);
        }
    }

    fn is_broken(&self) -> bool {
        self.running.iter().any(Running::is_broken)
    }

    fn follow(&self, change: ServerChange) {
        match (change, &self.server.secure) {
            (ServerChange::Strategy(strategy), _) => self.change(strategy),
            (ServerChange::Certificate, Some(secure)) => secure.reload(&self.server.label),
            (ServerChange::Certificate, None) => {} // another server asked for SIGHUP
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
        if self.stopped.is_some() {
            return;
        }
        self.unready();
        if end == ExitReason::Succeeded {
            self.server.label.note("succeeded", "a successor accepts; draining");
            self.running.iter_mut().for_each(Running::keep_socket_file);
        }
        self.stopped = Some(life::stop(&self.running, self.server.drain_timeout, &self.server.label));
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        let Self { server, running, stopped, bridge, .. } = *self;
        let StreamServer { how, label, model, secure, proxy, .. } = server;
        let before = stopped.ok_or_else(|| anyhow!("a server exited unexpectedly"))?;
        let stats = life::join(running, &before, &label)?;
        drop(bridge);
        if how.common.stats {
            let mut counters = to_json(&label, model, &stats);
            if let Some(secure) = secure {
                counters["tls"] = secure.to_json();
            }
            if let Some(upstreams) = proxy {
                counters["proxy"] = proxy::to_json(&upstreams);
            }
            complain!("{counters}");
        }
        Ok(())
    }
}

impl StreamUp {
    /// Changes the strategy.
    fn change(&self, strategy: Strategy) {
        let change = |one: &Running| {
            let policy = self.server.how.limits.changed_to(strategy, one.first_policy(), one.model());
            one.set_policy(policy)
        };
        // The limits of all addresses are the same, so what one refuses the first has refused.
        let text = match self.running.iter().try_for_each(change) {
            Ok(()) => format!("the strategy is now {strategy:?}"),
            Err(e) => format!("the strategy is unchanged: {e}"),
        };
        self.server.label.note("strategy", &text);
    }
}

/// All counters under their names.
fn to_json(label: &Label, model: Model, stats: &Stats) -> serde_json::Value {
    let mut counters = label.counters(model, stats.named());
    let closed: serde_json::Map<_, _> = tidegate::CloseReason::ALL
        .iter()
        .map(|&why| (why.name().into(), stats.closed_by(why).into()))
        .collect();
    counters.insert("largest_batch".into(), stats.largest_batch.into());
    counters.insert("closed".into(), closed.into());
    counters.into()
}
