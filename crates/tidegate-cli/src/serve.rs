//! `tidegate serve`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Subcommand;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tidegate::{CloseReason, Model, Policy, Running, Server, Service, StartError, Stats, system};
use tidegate_services::layers::{ProxyLimits, ProxyProtocol};
use tidegate_services::{Echo, Http, HttpLimits, Page};

use crate::limits::{Limits, Optional, size, time_or_none};
use crate::log::note;
use crate::metrics::{self, Board};
use crate::{Failure, Outcome};

/// Options of `serve`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Box<What>,
}

#[derive(Subcommand)]
enum What {
    /// Send back whatever is received (RFC 862).
    Echo(How),
    /// Answer every HTTP request with the same page.
    Http(HttpArgs),
}

/// Where and how any service runs.
#[derive(clap::Args)]
struct How {
    /// Address to listen on; port 0 lets the system pick one.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080", value_parser = address)]
    listen: SocketAddr,
    /// I/O model: blocking, pool, select, poll, epoll, uring, tokio, or auto for the best one available.
    #[arg(long, value_name = "MODEL", default_value = "auto", value_parser = model)]
    model: Asked,
    /// Processors to run on, such as 0,1 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Require a PROXY protocol header (version 1 or 2) in front of each connection, which names its client.
    #[arg(long)]
    proxy_protocol: bool,
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
struct HttpArgs {
    /// File to serve in place of the built-in page of 4 KiB.
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Largest head of a request; more is answered with 431 [default: 16KiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    head_bytes: Option<usize>,
    /// Largest body of a request; more is answered with 413 [default: 1MiB].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    body_bytes: Option<usize>,
    /// Time for a request to arrive once it has begun, or none; then the answer is 408 [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = time_or_none)]
    request_timeout: Option<Optional>,
    #[command(flatten)]
    how: How,
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

/// Runs the command.
pub fn run(args: Args) -> Outcome {
    match *args.what {
        What::Echo(how) => {
            let policy = how.limits.policy();
            how.serve("echo", "tcp", "", policy, || Echo)
        }
        What::Http(args) => {
            let policy = args.how.limits.policy();
            let limits = args.limits(&policy)?;
            let page = args.page.as_deref().map_or_else(|| Ok(Page::default()), Page::read).map_err(usage)?;
            args.how.serve("http", "http", "/", policy, || Http::new(page, limits))
        }
    }
}

fn usage(e: impl Into<anyhow::Error>) -> Failure {
    Failure::Usage(e.into())
}

impl HttpArgs {
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
    /// Serves until told to stop, behind the layers asked for.
    fn serve<S: Service>(
        &self,
        name: &'static str,
        scheme: &str,
        path: &str,
        policy: Policy,
        service: impl FnOnce() -> S,
    ) -> Outcome {
        if !self.proxy_protocol {
            return self.serve_bare(name, scheme, path, policy, service);
        }
        let default = ProxyLimits::default();
        let limits = ProxyLimits { header_bytes: default.header_bytes.min(policy.input_bytes), ..default };
        limits.check(&policy).map_err(usage)?;
        self.serve_bare(name, scheme, path, policy, || ProxyProtocol::new(service(), limits))
    }

    fn serve_bare<S: Service>(
        &self,
        name: &'static str,
        scheme: &str,
        path: &str,
        mut policy: Policy,
        service: impl FnOnce() -> S,
    ) -> Outcome {
        policy.check().map_err(usage)?;
        self.pin()?; // before any thread starts, so that all of them stay there
        if let Err(e) = system::raise_descriptor_limit() {
            note("descriptor-limit", &format!("the descriptor limit stays as it is: {e}"));
        }
        let model = self.choose();
        if let Some(text) = self.limits.fit(&mut policy, model)? {
            note("max-connections", &text);
        }
        let drain_timeout = policy.drain_timeout;
        let bound = Server::new(service()).policy(policy).model(model).bind(self.listen).map_err(failure)?;
        let board = Board::new();
        let metrics = self.publish(&board)?;
        let mut stop = StopSignals::register().map_err(Failure::Run)?;
        let running = bound.start().map_err(failure)?;
        board.accepting(name, &running);
        announce(&format!("{scheme}://{}{path}", running.local_addr()))?;
        stop.wait();
        board.draining();
        running.stop();
        say_draining(&running, drain_timeout);
        let stats = running.join();
        drop(metrics); // it answers to the end of the drain
        if self.stats {
            eprintln!("{}", to_json(model, &stats));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Starts the listener of `--metrics`, if there is to be one.
    fn publish(&self, board: &Arc<Board>) -> Result<Option<Running>, Failure> {
        let Some(addr) = self.metrics else { return Ok(None) };
        let running = metrics::serve(addr, board).map_err(failure)?;
        note("metrics", &format!("metrics on http://{}/metrics", running.local_addr()));
        Ok(Some(running))
    }

    fn pin(&self) -> Result<(), Failure> {
        if self.cpus.is_empty() {
            return Ok(());
        }
        let allowed = system::allowed_cpus();
        if let Some(cpu) = self.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(Failure::Usage(anyhow!("no processor {cpu} here; this process may use {allowed:?}")));
        }
        system::pin_to_cpus(&self.cpus).context("can not keep to the processors asked for").map_err(usage)
    }

    fn choose(&self) -> Model {
        self.model.0.unwrap_or_else(|| {
            let choice = Model::best();
            note("model", &format!("model {}: {}", choice.model, choice.why));
            choice.model
        })
    }
}

/// What the user can put right on the command line is usage; the rest is the run.
fn failure(e: StartError) -> Failure {
    match e {
        StartError::Policy(_) | StartError::Unavailable { .. } => usage(e),
        _ => Failure::Run(e.into()),
    }
}

/// The one line on stdout. Whoever started the server waits for it.
fn announce(url: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "listening on {url}").and_then(|()| out.flush());
    said.context("can not write to stdout").map_err(Failure::Run)
}

fn say_draining(running: &Running, timeout: Duration) {
    let open = running.stats().open();
    if open > 0 {
        note(
            "stopping",
            &format!(
                "stopping: {open} connections may finish within {timeout:?}; signal again to exit at once"
            ),
        );
    }
}

/// SIGTERM and SIGINT: the first is waited for, the second ends the process with code 1.
struct StopSignals(Signals);

impl StopSignals {
    fn register() -> anyhow::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // In this order: the first signal finds the flag down and puts it up.
            flag::register_conditional_shutdown(signal, 1, Arc::clone(&stopping))?;
            flag::register(signal, Arc::clone(&stopping))?;
        }
        Ok(Self(Signals::new([SIGTERM, SIGINT])?))
    }

    fn wait(&mut self) {
        self.0.forever().next();
    }
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
