//! Options common to services: where to listen and how to run.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::builder::TypedValueParser;
use tidegate::{Choice, Endpoint, Model, ParseEndpointError, ParseModelError, Policy, Service, StartError};
use tidegate_services::http::AccessError;
use tidegate_services::http::access::Host;
use tidegate_services::layers::{ProxyLimits, ProxyProtocol};

use super::stage::PlannedServer;
use super::stream::{StreamPlan, StreamServer, binder};
use crate::label::{Label, name};
use crate::limits::{Given, Limits, models, time};
use crate::origin::DEFAULT_ADDRESS;
use crate::tls::{Secure, TlsArgs};
use crate::{Failure, usage};

/// Options of every server, of connections or of datagrams.
#[derive(clap::Args, Clone)]
pub struct ServerCommon {
    /// Name of the server in metrics, statistics and notes [default: its service, with a number if several are alike].
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// I/O model, or auto for the best one available.
    #[arg(long, value_name = "MODEL", default_value = "auto", value_parser = models().try_map(|name: String| model(&name)))]
    pub model: ModelOption,
    /// Processors to run on, such as 0,1 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cpus: Vec<usize>,
    /// Print all counters to stderr at exit, as one line of JSON.
    #[arg(long)]
    pub stats: bool,
    /// Export counters for Prometheus at this address (/metrics), and the probes /healthz and /readyz. Servers of one
    /// process may share an address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address)]
    pub metrics: Option<SocketAddr>,
    /// A host name, besides localhost and addresses, accepted for metrics requests (the Host field), or * for any; may
    /// be given several times. Other names are refused, as a protection against DNS rebinding.
    #[arg(long, value_name = "NAME", value_parser = host, requires = "metrics")]
    pub metrics_host: Vec<Host>,
    /// After a signal, keep accepting for this long while /readyz returns 503, so that load balancers notice first.
    /// Servers of one process use the longest of their delays [default: 0s].
    #[arg(long, value_name = "TIME", value_parser = time, requires = "metrics")]
    pub drain_delay: Option<Duration>,
}

/// Listening and running options of connection services.
#[derive(clap::Args)]
pub struct How {
    /// Listening address: ADDR:PORT (port 0 lets the system pick one), unix:PATH for a Unix socket with this file, or
    /// unix:@NAME for an abstract one. May be given several times: each address has its own I/O threads and limits
    /// [default: 127.0.0.1:8080, or the inherited sockets].
    #[arg(long, value_name = "ADDR:PORT", value_parser = endpoint)]
    listen: Vec<Endpoint>,
    /// Listen with Multipath TCP (RFC 8684); clients with plain TCP are served as well.
    #[arg(long)]
    mptcp: bool,
    /// Take the listening socket over from the server that runs with the same PATH, which then drains and exits; and
    /// let a successor find this one there.
    #[arg(long, value_name = "PATH")]
    pub handover: Option<PathBuf>,
    /// Require a PROXY protocol header (version 1 or 2) at the start of each connection.
    #[arg(long)]
    proxy_protocol: bool,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    pub common: ServerCommon,
    #[command(flatten)]
    pub limits: Limits,
    #[command(flatten)]
    proxy_limits: Given<ProxyLimits>,
}

/// How clients address a service, and its protocol.
pub struct ServiceKind {
    /// The scheme of its URL, and the one over TLS.
    pub schemes: [&'static str; 2],
    /// The path of its URL.
    pub path: &'static str,
    /// Its ALPN protocol.
    pub protocols: &'static [&'static str],
}

impl ServiceKind {
    /// The URL of a server that listens there. A Unix socket has the form that `load` accepts.
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
    /// A server with the selected layers: the PROXY header comes first and unencrypted, then TLS.
    pub fn plan<S: Service>(
        self,
        label: Label,
        kind: &'static ServiceKind,
        policy: Policy,
        service: S,
    ) -> Result<Box<dyn PlannedServer>, Failure> {
        Ok(Box::new(self.stream_plan(label, kind, policy, service)?))
    }

    /// The same, for a service that adds something.
    pub fn stream_plan<S: Service>(
        self,
        label: Label,
        kind: &'static ServiceKind,
        policy: Policy,
        service: S,
    ) -> Result<StreamPlan, Failure> {
        let service = Arc::new(service);
        self.stream_plan_each(label, kind, policy, move || service.clone())
    }

    /// The same, for a service that each address has to itself.
    pub fn stream_plan_each<S: Service>(
        self,
        label: Label,
        kind: &'static ServiceKind,
        mut policy: Policy,
        each: impl Fn() -> S + 'static,
    ) -> Result<StreamPlan, Failure> {
        let secure = self.tls.read(kind.protocols, &self.limits, &mut policy)?;
        let proxy = self.proxy_limits(&policy)?;
        let binder = match (proxy, secure.clone()) {
            (None, None) => binder(each),
            (None, Some(tls)) => binder(move || tls.around(each())),
            (Some(limits), None) => binder(move || ProxyProtocol::new(each(), limits)),
            (Some(limits), Some(tls)) => binder(move || ProxyProtocol::new(tls.around(each()), limits)),
        };
        policy.check().map_err(usage)?;
        let model = self.common.model.or(&label, || Model::best_for(&policy));
        let policy = self.limits.keep(policy, model);
        let drain_timeout = policy.drain_timeout;
        let server =
            StreamServer { how: self, label, kind, model, drain_timeout, secure, chat: None, proxy: None };
        Ok(StreamPlan { server, policy, binder, bridge: None })
    }

    /// The limits of the PROXY header, if required.
    fn proxy_limits(&self, policy: &Policy) -> Result<Option<ProxyLimits>, Failure> {
        if !self.proxy_protocol {
            return Ok(None);
        }
        let mut limits = ProxyLimits::default();
        limits.header_bytes = limits.header_bytes.min(policy.input_bytes);
        self.proxy_limits.apply(&mut limits);
        limits.check(policy).map_err(usage)?;
        Ok(Some(limits))
    }

    /// The given listening addresses.
    pub fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    /// Number of listening addresses, at least: more sockets may be inherited.
    pub fn addresses(&self) -> usize {
        self.listen.len().max(1)
    }

    /// The listening addresses of the command line.
    pub fn asked(&self) -> Result<Vec<Endpoint>, Failure> {
        if !self.mptcp {
            return Ok(self.listen.clone());
        }
        if self.listen.is_empty() {
            return Ok(vec![Endpoint::Mptcp(DEFAULT_ADDRESS)]);
        }
        let multipath = |at: &Endpoint| match at.addr() {
            Some(addr) => Ok(Endpoint::Mptcp(addr)),
            None => Err(usage(anyhow!("--mptcp needs --listen ADDR:PORT: Unix sockets do not support it"))),
        };
        self.listen.iter().map(multipath).collect()
    }
}

/// The given model; `None` is `auto`.
#[derive(Clone, Copy)]
pub struct ModelOption(Option<Model>);

impl ModelOption {
    /// The given model, or the best one.
    pub fn or(self, label: &Label, best: impl FnOnce() -> Choice) -> Model {
        self.0.unwrap_or_else(|| {
            let choice = best();
            label.note("model", &format!("model {}: {}", choice.model, choice.why));
            choice.model
        })
    }
}

fn model(text: &str) -> Result<ModelOption, ParseModelError> {
    if text == "auto" { Ok(ModelOption(None)) } else { text.parse().map(|model| ModelOption(Some(model))) }
}

/// Parses an address for clap.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into());
    }
    text.parse().map_err(|_| "not an address; write ADDR:PORT, such as 127.0.0.1:8080 or [::1]:8080".into())
}

/// Parses a host name for clap.
pub fn host(text: &str) -> Result<Host, String> {
    text.parse().map_err(|e: AccessError| e.to_string())
}

/// Parses an address or a Unix socket for clap.
pub fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.starts_with("localhost:") {
        return address(text).map(Endpoint::from);
    }
    text.parse().map_err(|e: ParseEndpointError| e.to_string())
}

/// Errors that the user can correct on the command line are usage errors; the others are run errors.
pub fn failure(e: StartError) -> Failure {
    match e {
        StartError::Policy(_)
        | StartError::Address(_)
        | StartError::NotForDatagrams { .. }
        | StartError::Unavailable { .. }
        | StartError::PathUnavailable { .. }
        | StartError::Adopt { .. }
        | StartError::AdoptDatagrams { .. } => usage(e),
        _ => Failure::Run(e.into()),
    }
}
