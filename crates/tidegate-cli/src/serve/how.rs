//! Where and how a server runs: the options that services have in common.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use tidegate::{Choice, Endpoint, Model, ParseEndpointError, ParseModelError, Policy, Service, StartError};
use tidegate_services::http::AccessError;
use tidegate_services::http::access::Host;
use tidegate_services::layers::{ProxyLimits, ProxyProtocol};

use super::label::{Label, name};
use super::stage::Plan;
use super::stream::{StreamPlan, binder};
use super::usage;
use crate::Failure;
use crate::limits::{Limits, time};
use crate::tls::{Secure, TlsArgs};

/// Where to listen if nobody says so.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Options of every server, of connections or of datagrams.
#[derive(clap::Args, Clone)]
pub struct Common {
    /// What the server is called in metrics, statistics and notes [default: its service, with a number where several
    /// are alike].
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// I/O model: blocking, pool, select, poll, epoll, uring, tokio, or auto for the best one available.
    #[arg(long, value_name = "MODEL", default_value = "auto", value_parser = model)]
    pub model: Asked,
    /// Processors to run on, such as 0,1 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Print all counters to stderr at exit, as one line of JSON.
    #[arg(long)]
    pub stats: bool,
    /// Publish counters for Prometheus here (/metrics), and the probes /healthz and /readyz. Servers of one process may
    /// share an address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// A name, besides localhost and addresses, by which the metrics may be asked for (the Host field), or * for any;
    /// give it again for more. Others are refused: a page in somebody's browser must not read them by a name of its
    /// own.
    #[arg(long, value_name = "NAME", value_parser = host, requires = "metrics")]
    pub metrics_host: Vec<Host>,
    /// After a signal, go on for so long while /readyz says 503 already, so that balancers look away first. Servers of
    /// one process wait for the longest of theirs [default: 0s].
    #[arg(long, value_name = "TIME", value_parser = time, requires = "metrics")]
    pub drain_delay: Option<Duration>,
}

/// Where and how any service of connections runs.
#[derive(clap::Args)]
pub struct How {
    /// Where to listen: ADDR:PORT (port 0 lets the system pick one), unix:PATH for a Unix socket with this file, or
    /// unix:@NAME for one without. Give it again for further addresses of the same service: each has I/O threads and
    /// limits of its own [default: 127.0.0.1:8080, or the sockets that are passed].
    #[arg(long, value_name = "ADDR:PORT", value_parser = endpoint)]
    listen: Vec<Endpoint>,
    /// Listen with Multipath TCP (RFC 8684); clients that have only plain TCP are served as well.
    #[arg(long)]
    mptcp: bool,
    /// Take the listening socket of the server that runs with the same PATH, which then drains and exits; and let a
    /// successor find this one there.
    #[arg(long, value_name = "PATH")]
    pub handover: Option<PathBuf>,
    /// Require a PROXY protocol header (version 1 or 2) in front of each connection, which names its client.
    #[arg(long)]
    proxy_protocol: bool,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub limits: Limits,
}

/// How clients name a service, and what it speaks.
pub struct Kind {
    /// The scheme of its URL, and the one over TLS.
    pub schemes: [&'static str; 2],
    /// The path of its URL.
    pub path: &'static str,
    /// What it speaks, for ALPN.
    pub protocols: &'static [&'static str],
}

impl Kind {
    /// The URL of a server that listens there. A Unix socket is written as `load` takes it.
    pub fn url(&self, at: &Endpoint, secure: Option<&Secure>) -> String {
        let scheme = self.schemes[usize::from(secure.is_some())];
        match (at.addr(), secure) {
            (Some(addr), _) => format!("{scheme}://{addr}{}", self.path),
            (None, None) => at.to_string(),
            (None, Some(_)) => format!("{scheme}://{at}"),
        }
    }
}

impl How {
    /// A server behind the layers asked for: the header of a proxy comes first and in the clear, then TLS.
    pub fn plan<S: Service>(
        self,
        label: Label,
        kind: &'static Kind,
        policy: Policy,
        service: S,
    ) -> Result<Box<dyn Plan>, Failure> {
        Ok(Box::new(self.stream_plan(label, kind, policy, service)?))
    }

    /// The same, for a service that adds something.
    pub fn stream_plan<S: Service>(
        self,
        label: Label,
        kind: &'static Kind,
        mut policy: Policy,
        service: S,
    ) -> Result<StreamPlan, Failure> {
        let secure = self.tls.read(kind.protocols, &self.limits, &mut policy)?;
        let proxy = self.proxy_limits(&policy)?;
        let binder = match (proxy, &secure) {
            (None, None) => binder(service),
            (None, Some(tls)) => binder(tls.around(service)),
            (Some(limits), None) => binder(ProxyProtocol::new(service, limits)),
            (Some(limits), Some(tls)) => binder(ProxyProtocol::new(tls.around(service), limits)),
        };
        policy.check().map_err(usage)?;
        let model = self.common.model.or(&label, || Model::best_for(&policy));
        Ok(StreamPlan {
            how: self,
            label,
            kind,
            policy,
            model,
            secure,
            binder,
            chat: None,
            proxy: None,
            bridge: None,
        })
    }

    /// The limits of the header of a proxy, if there is to be one.
    fn proxy_limits(&self, policy: &Policy) -> Result<Option<ProxyLimits>, Failure> {
        if !self.proxy_protocol {
            return Ok(None);
        }
        let default = ProxyLimits::default();
        let limits = ProxyLimits { header_bytes: default.header_bytes.min(policy.input_bytes), ..default };
        limits.check(policy).map_err(usage)?;
        Ok(Some(limits))
    }

    /// Addresses to listen on that were named.
    pub fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    /// Addresses to listen on, at least: more sockets may be passed.
    pub fn addresses(&self) -> usize {
        self.listen.len().max(1)
    }

    /// Where to listen, as far as the command line says so.
    pub fn asked(&self) -> Result<Vec<Endpoint>, Failure> {
        if !self.mptcp {
            return Ok(self.listen.clone());
        }
        if self.listen.is_empty() {
            return Ok(vec![Endpoint::Mptcp(DEFAULT_ADDRESS)]);
        }
        let multipath = |at: &Endpoint| match at.addr() {
            Some(addr) => Ok(Endpoint::Mptcp(addr)),
            None => Err(usage(anyhow!("--mptcp needs --listen ADDR:PORT: a Unix socket has one path only"))),
        };
        self.listen.iter().map(multipath).collect()
    }
}

/// The model asked for; `None` is `auto`.
#[derive(Clone, Copy)]
pub struct Asked(Option<Model>);

impl Asked {
    /// The model asked for, or the best one.
    pub fn or(self, label: &Label, best: impl FnOnce() -> Choice) -> Model {
        self.0.unwrap_or_else(|| {
            let choice = best();
            label.note("model", &format!("model {}: {}", choice.model, choice.why));
            choice.model
        })
    }
}

fn model(text: &str) -> Result<Asked, ParseModelError> {
    if text == "auto" { Ok(Asked(None)) } else { text.parse().map(|model| Asked(Some(model))) }
}

/// An address, for clap.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
    }
    text.parse().map_err(|_| "not an address; write ADDR:PORT, such as 127.0.0.1:8080 or [::1]:8080".into())
}

/// A name by which a server may be asked, for clap.
pub fn host(text: &str) -> Result<Host, String> {
    text.parse().map_err(|e: AccessError| e.to_string())
}

/// An address or a Unix socket, for clap.
pub fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.starts_with("localhost:") {
        return address(text).map(Endpoint::from);
    }
    text.parse().map_err(|e: ParseEndpointError| e.to_string())
}

/// What the user can put right on the command line is usage; the rest is the run.
pub fn failure(e: StartError) -> Failure {
    match e {
        StartError::Policy(_)
        | StartError::Unavailable { .. }
        | StartError::PathUnavailable { .. }
        | StartError::Adopt { .. }
        | StartError::AdoptDatagrams { .. } => usage(e),
        _ => Failure::Run(e.into()),
    }
}
