//! `tidegate serve`.

mod chat;
mod files;
mod udp;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use anyhow::{Context, anyhow};
use clap::Subcommand;
use tidegate::system::descriptor::OwnedFd;
use tidegate::{
    Choice, CloseReason, Endpoint, Model, ParseEndpointError, Policy, Running, Server, Service, StartError,
    Stats, system,
};
use tidegate_services::layers::{ProxyLimits, ProxyProtocol};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};
use tidegate_services::{Echo, Http, HttpLimits, Page};

use crate::life::{self, Change, End, Word};
use crate::limits::{Limits, Optional, Strategy, size, time_or_none};
use crate::log::note;
use crate::metrics::{self, Board};
use crate::origin::{Asked as AskedSockets, Origin};
use crate::system::handover::{Door, Estate, Inheritance, Line};
use crate::system::{manager, signals};
use crate::tls::{Secure, TlsArgs};
use crate::{Failure, Outcome};

/// Options of `serve`.
#[derive(clap::Args)]
pub struct Args {
    /// Take service and options from this file (docs/config.md); options beside it win over those in it.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    what: Box<What>,
}

#[derive(Subcommand)]
enum What {
    /// Send back whatever is received (RFC 862).
    Echo(EchoArgs),
    /// Answer every HTTP request with the same page.
    Http(HttpArgs),
    /// A messenger: rooms, history and presence, as lines and over WebSocket, with a page (docs/chat.md).
    Chat(chat::ChatArgs),
    /// Answer HTTP requests with the files of a folder.
    Files(files::FilesArgs),
    /// Answer datagrams, or just take them.
    Udp(udp::UdpArgs),
}

/// Where and how any service runs.
#[derive(clap::Args)]
struct How {
    /// Where to listen: ADDR:PORT (port 0 lets the system pick one), unix:PATH for a Unix socket with this file, or unix:@NAME for
    /// one without [default: 127.0.0.1:8080, or a socket that is passed].
    #[arg(long, value_name = "ADDR:PORT", value_parser = endpoint)]
    listen: Option<Endpoint>,
    /// Listen with Multipath TCP (RFC 8684); clients that have only plain TCP are served as well.
    #[arg(long)]
    mptcp: bool,
    /// Take the listening socket of the server that runs with the same PATH, which then drains and exits; and let a
    /// successor find this one there.
    #[arg(long, value_name = "PATH")]
    handover: Option<PathBuf>,
    /// I/O model: blocking, pool, select, poll, epoll, uring, tokio, or auto for the best one available.
    #[arg(long, value_name = "MODEL", default_value = "auto", value_parser = model)]
    model: Asked,
    /// Processors to run on, such as 0,1 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Require a PROXY protocol header (version 1 or 2) in front of each connection, which names its client.
    #[arg(long)]
    proxy_protocol: bool,
    #[command(flatten)]
    tls: TlsArgs,
    /// Print all counters to stderr at exit, as one line of JSON.
    #[arg(long)]
    stats: bool,
    /// Publish counters for Prometheus here (/metrics), and the probes /healthz and /readyz.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    limits: Limits,
}

#[derive(clap::Args)]
struct EchoArgs {
    /// Speak WebSocket (RFC 6455), and send messages back.
    #[arg(long)]
    websocket: bool,
    /// Largest message of a WebSocket; a larger one closes it [default: 60KiB].
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "websocket")]
    message_bytes: Option<usize>,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args)]
struct HttpArgs {
    /// File to serve in place of the built-in page of 4 KiB.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    #[command(flatten)]
    limits: HttpLimitArgs,
    #[command(flatten)]
    how: How,
}

/// What a client may ask of any HTTP service.
#[derive(clap::Args)]
struct HttpLimitArgs {
    /// Largest head of a request; more is answered with 431 [default: 16KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    head_bytes: Option<usize>,
    /// Largest body of a request; more is answered with 413 [default: 1MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    body_bytes: Option<usize>,
    /// Time for a request to arrive once it has begun, or none; then the answer is 408 [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    request_timeout: Option<Optional>,
}

/// Where to listen if nobody says so.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// What a service is called, and how clients name it.
struct Kind {
    name: &'static str,
    /// The scheme of its URL, and the one over TLS.
    schemes: [&'static str; 2],
    path: &'static str,
    /// What it speaks, for ALPN.
    protocols: &'static [&'static str],
}

const ECHO: Kind = Kind { name: "echo", schemes: ["tcp", "tls"], path: "", protocols: &[] };
const WEBSOCKET: Kind = Kind { name: "echo", schemes: ["ws", "wss"], path: "/", protocols: &["http/1.1"] };
const HTTP: Kind = Kind { name: "http", schemes: ["http", "https"], path: "/", protocols: &["http/1.1"] };

impl Kind {
    /// The URL of a server that listens there. A Unix socket is written as `load` takes it.
    fn url(&self, at: &Endpoint, secure: Option<&Secure>) -> String {
        let scheme = self.schemes[usize::from(secure.is_some())];
        match (at.addr(), secure) {
            (Some(addr), _) => format!("{scheme}://{addr}{}", self.path),
            (None, None) => at.to_string(),
            (None, Some(_)) => format!("{scheme}://{at}"),
        }
    }
}

/// The model asked for; `None` is `auto`.
#[derive(Clone, Copy)]
struct Asked(Option<Model>);

fn model(text: &str) -> Result<Asked, String> {
    if text == "auto" { Ok(Asked(None)) } else { text.parse().map(|model| Asked(Some(model))) }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
    }
    text.parse().map_err(|_| "not an address; write ADDR:PORT, such as 127.0.0.1:8080 or [::1]:8080".into())
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.starts_with("localhost:") {
        return address(text).map(Endpoint::from);
    }
    text.parse().map_err(|e: ParseEndpointError| e.to_string())
}

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    if let Some(path) = &args.config {
        tracing::info!(path = %path.display(), "options come from a file, too");
    }
    match *args.what {
        What::Echo(args) => args.run(),
        What::Chat(args) => args.run(),
        What::Http(args) => {
            let policy = args.how.limits.policy();
            let limits = args.limits.limits(&policy)?;
            let page = args.page.as_deref().map_or_else(|| Ok(Page::default()), Page::read).map_err(usage)?;
            args.how.serve(&HTTP, policy, || Http::new(page, limits))
        }
        What::Files(args) => files::run(args),
        What::Udp(args) => udp::run(&args),
    }
}

fn usage(e: impl Into<anyhow::Error>) -> Failure {
    Failure::Usage(e.into())
}

impl EchoArgs {
    fn run(&self) -> Outcome {
        let mut policy = self.how.limits.policy();
        if !self.websocket {
            return self.how.serve(&ECHO, policy, || Echo);
        }
        let default = WebSocketLimits::default();
        let message_bytes = self.message_bytes.unwrap_or(default.message_bytes);
        let limits = WebSocketLimits { message_bytes, ..default };
        self.how.limits.make_room(&mut policy, limits.input_bytes());
        limits.check(&policy).map_err(usage)?;
        self.how.serve(&WEBSOCKET, policy, || WebSocket::new(EchoMessages, limits))
    }
}

impl HttpLimitArgs {
    fn limits(&self, policy: &Policy) -> Result<HttpLimits, Failure> {
        let default = HttpLimits::default();
        let limits = HttpLimits {
            // A default yields to what was asked for; two limits that were both asked for may contradict.
            head_bytes: self.head_bytes.unwrap_or(default.head_bytes.min(policy.input_bytes)),
            body_bytes: self.body_bytes.map_or(default.body_bytes, |bytes| bytes as u64),
            request_timeout: self.request_timeout.map_or(default.request_timeout, |time| time.0),
        };
        limits.check(policy).map_err(usage)?;
        Ok(limits)
    }
}

impl How {
    /// Serves until told to stop, behind the layers asked for: the header of a proxy comes first and in the clear, then TLS.
    fn serve<S: Service>(&self, kind: &Kind, mut policy: Policy, service: impl FnOnce() -> S) -> Outcome {
        match self.tls.read(kind.protocols, &self.limits, &mut policy)? {
            None => self.serve_behind_proxy(kind, policy, None, service),
            Some(tls) => self.serve_behind_proxy(kind, policy, Some(&tls), || tls.around(service())),
        }
    }

    fn serve_behind_proxy<S: Service>(
        &self,
        kind: &Kind,
        policy: Policy,
        secure: Option<&Secure>,
        service: impl FnOnce() -> S,
    ) -> Outcome {
        if !self.proxy_protocol {
            return self.serve_bare(kind, policy, secure, service);
        }
        let default = ProxyLimits::default();
        let limits = ProxyLimits { header_bytes: default.header_bytes.min(policy.input_bytes), ..default };
        limits.check(&policy).map_err(usage)?;
        self.serve_bare(kind, policy, secure, || ProxyProtocol::new(service(), limits))
    }

    fn serve_bare<S: Service>(
        &self,
        kind: &Kind,
        mut policy: Policy,
        secure: Option<&Secure>,
        service: impl FnOnce() -> S,
    ) -> Outcome {
        policy.check().map_err(usage)?;
        pin(&self.cpus)?; // before any thread starts, so that all of them stay there
        if let Err(e) = system::raise_descriptor_limit() {
            note("descriptor-limit", &format!("the descriptor limit stays as it is: {e}"));
        }
        let model = choose(self.model, || Model::best_for(&policy));
        if let Some(text) = self.limits.fit(&mut policy, model)? {
            note("max-connections", &text);
        }
        let memory = model.memory_bound(&policy);
        tracing::info!(
            model = model.name(),
            bytes = memory.total(),
            connections = memory.connections,
            each_connection = memory.each_connection,
            process = memory.process,
            "the most memory that the limits allow"
        );
        let drain_timeout = policy.drain_timeout;
        let asked =
            AskedSockets { handover: self.handover.as_deref(), listen: self.asked()?, metrics: self.metrics };
        let origin = Origin::find(&asked, model)?;
        let server = Server::new(service()).policy(policy).model(model);
        let bound = match origin.listener {
            Some(socket) => server.listen_on(socket),
            None => server.bind(asked.listen.unwrap_or(DEFAULT_ADDRESS.into())),
        }
        .map_err(failure)?;
        // The file of a socket belongs to the last server that accepts from it; a service manager keeps its own.
        let bound = match origin.predecessor {
            Some(_) => {
                bound.own_socket_file().context("the file of the socket is gone").map_err(Failure::Run)?
            }
            None => bound,
        };
        let mut estate = Estate { model, sockets: Vec::new() };
        if self.handover.is_some() {
            estate
                .sockets
                .push(bound.share_listener().context("no descriptor is left").map_err(Failure::Run)?);
        }
        let board = Board::new();
        let metrics = self.publish(&board, origin.metrics, &mut estate)?;
        let (ends, told) = mpsc::channel();
        signals::report(ends.clone(), secure.map(|secure| &*secure.identity)).map_err(Failure::Run)?;
        let mut running = bound.start().map_err(failure)?;
        board.accepting(kind.name, &running);
        let door = self.open_door(estate, ends)?;
        announce(&kind.url(running.local_addr(), secure))?;
        if let Some(predecessor) = origin.predecessor {
            relieve(&predecessor);
        }
        manager::tell_ready();
        let change = |change| match (change, secure) {
            (Change::Strategy(strategy), _) => self.change(&running, strategy),
            (Change::Certificate, Some(secure)) => secure.reload(),
            (Change::Certificate, None) => {} // SIGHUP is not asked for then
        };
        let end = life::wait(&told, || running.is_broken(), change);
        manager::tell_stopping();
        board.draining();
        drop(door);
        match end {
            End::Broken => return Err(broken(running)),
            End::Succeeded => running.keep_socket_file(),
            End::Signal => {}
        }
        // The probes answer to the end of the drain, unless a successor answers them.
        let metrics = metrics.filter(|_| end != End::Succeeded);
        let stats = life::drain(running, drain_timeout).map_err(Failure::Run)?;
        drop(metrics);
        if self.stats {
            let mut counters = to_json(model, &stats);
            if let Some(secure) = secure {
                counters["tls"] = secure.to_json();
            }
            eprintln!("{counters}");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Goes on with another strategy.
    fn change(&self, running: &Running, strategy: Strategy) {
        let policy = self.limits.changed_to(strategy, running.first_policy());
        match running.set_policy(policy) {
            Ok(()) => note("strategy", &format!("the strategy is {strategy:?} from now on")),
            Err(e) => note("strategy", &format!("the strategy stays as it is: {e}")),
        }
    }

    /// Where to listen, if the command line says so.
    fn asked(&self) -> Result<Option<Endpoint>, Failure> {
        match (&self.listen, self.mptcp) {
            (listen, false) => Ok(listen.clone()),
            (None, true) => Ok(Some(Endpoint::Mptcp(DEFAULT_ADDRESS))),
            (Some(Endpoint::Tcp(addr) | Endpoint::Mptcp(addr)), true) => Ok(Some(Endpoint::Mptcp(*addr))),
            (Some(_), true) => {
                Err(usage(anyhow!("--mptcp needs --listen ADDR:PORT: a Unix socket has one path only")))
            }
        }
    }

    /// Starts the listener of `--metrics`, if there is to be one.
    fn publish(
        &self,
        board: &Arc<Board>,
        inherited: Option<OwnedFd>,
        estate: &mut Estate,
    ) -> Result<Option<Running>, Failure> {
        let Some(addr) = self.metrics else { return Ok(None) };
        let (running, share) = metrics::serve(addr, inherited, board).map_err(failure)?;
        if self.handover.is_some() {
            estate.sockets.push(share.context("no descriptor is left").map_err(Failure::Run)?);
        }
        note("metrics", &format!("metrics on http://{}/metrics", running.local_addr()));
        Ok(Some(running))
    }

    /// Lets a successor find this process, if there may be one.
    fn open_door(&self, estate: Estate, words: Sender<Word>) -> Result<Option<Door>, Failure> {
        let Some(path) = &self.handover else { return Ok(None) };
        let taken = move || _ = words.send(Word::End(End::Succeeded));
        let door = Door::open(path, estate, taken);
        let door = door.with_context(|| {
            format!("can not put a socket at {}; name a path in a folder that may be written", path.display())
        });
        door.map(Some).map_err(Failure::Run)
    }
}

/// Keeps this process to the processors asked for.
fn pin(cpus: &[usize]) -> Result<(), Failure> {
    if cpus.is_empty() {
        return Ok(());
    }
    let allowed = system::allowed_cpus();
    if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        return Err(Failure::Usage(anyhow!("no processor {cpu} here; this process may use {allowed:?}")));
    }
    system::pin_to_cpus(cpus).context("can not keep to the processors asked for").map_err(usage)
}

/// The model asked for, or the best one.
fn choose(asked: Asked, best: impl FnOnce() -> Choice) -> Model {
    asked.0.unwrap_or_else(|| {
        let choice = best();
        note("model", &format!("model {}: {}", choice.model, choice.why));
        choice.model
    })
}

/// What the user can put right on the command line is usage; the rest is the run.
fn failure(e: StartError) -> Failure {
    match e {
        StartError::Policy(_)
        | StartError::Unavailable { .. }
        | StartError::PathUnavailable { .. }
        | StartError::Adopt { .. } => usage(e),
        _ => Failure::Run(e.into()),
    }
}

/// The one line on stdout. Whoever started the server waits for it.
fn announce(url: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "listening on {url}").and_then(|()| out.flush());
    said.context("can not write to stdout").map_err(Failure::Run)
}

/// The predecessor drains from now on. If it has gone meanwhile, that is what was wanted.
fn relieve(predecessor: &Line) {
    match Inheritance::ready(predecessor) {
        Ok(()) => note("handover", "accepting in the place of the running server, which drains now"),
        Err(e) => note("handover", &format!("accepting; the server that ran before is gone already: {e}")),
    }
}

/// Ends what is left of a server that has lost an I/O thread.
fn broken(running: Running) -> Failure {
    tracing::error!(event = "broken", "an I/O thread has ended by itself; stopping the others");
    drop(running); // stops and waits, at most for the drain timeout
    Failure::Run(anyhow!(
        "an I/O thread has ended by itself and its connections are lost; start again, and report what was logged above"
    ))
}

/// All counters under their names.
fn to_json(model: Model, stats: &Stats) -> serde_json::Value {
    let mut counters: serde_json::Map<_, _> =
        stats.named().into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    let closed: serde_json::Map<_, _> =
        CloseReason::ALL.iter().map(|&why| (why.name().into(), stats.closed_by(why).into())).collect();
    counters.insert("model".into(), model.name().into());
    counters.insert("largest_batch".into(), stats.largest_batch.into());
    counters.insert("closed".into(), closed.into());
    counters.into()
}
