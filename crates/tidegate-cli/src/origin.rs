//! The sockets of `serve` that it inherits: from the service manager, or from the server it succeeds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, anyhow};
use tidegate::system::descriptor::OwnedFd;
use tidegate::system::local_endpoint;
use tidegate::{Endpoint, Model};

use crate::label::Label;
use crate::system::handover::{HandoverStream, Inheritance};
use crate::{Failure, usage};

/// The socket options of the command line.
pub struct SocketRequest<'a> {
    /// `--handover`.
    pub handover: Option<&'a Path>,
    /// Every `--listen` that was given.
    pub listen: Vec<Endpoint>,
    /// `--metrics`.
    pub metrics: Option<SocketAddr>,
}

/// The default listening address.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The listening sockets of a server.
#[derive(Default)]
pub enum Listeners {
    /// It binds them itself.
    #[default]
    Own,
    /// Inherited from the service manager, which owns their files.
    Passed(Vec<OwnedFd>),
    /// Inherited from the running server. The socket file belongs to the last server that accepts from it.
    Inherited(Vec<OwnedFd>),
}

/// The inherited sockets.
#[derive(Default)]
pub struct SocketOrigin {
    /// Listening sockets.
    pub listeners: Listeners,
    /// For `--metrics`.
    pub metrics: Option<OwnedFd>,
    /// The connection to the running server, which drains once this one accepts.
    pub predecessor: Option<HandoverStream>,
}

impl SocketOrigin {
    /// Sockets of the service manager take precedence over those of a running server; that one is still replaced.
    pub fn find(
        how: &SocketRequest<'_>,
        model: Model,
        passed: Vec<OwnedFd>,
        label: &Label,
    ) -> Result<Self, Failure> {
        let mut origin = match how.handover {
            Some(path) => Self::inherited(path, how, model, label.service)?,
            None => Self::default(),
        };
        if let (Some(path), None, []) = (how.handover, &origin.predecessor, passed.as_slice()) {
            note_nobody(path, how.listen.is_empty(), label);
        }
        for socket in &passed {
            let at = local_endpoint(socket)
                .context("the inherited socket has no address")
                .map_err(Failure::Run)?;
            let text = format!("listening on {at}, an inherited socket (LISTEN_FDS)");
            label.note("socket-activation", &text);
        }
        if !passed.is_empty() {
            origin.listeners = Listeners::Passed(passed);
        }
        Ok(origin)
    }

    fn inherited(path: &Path, how: &SocketRequest<'_>, model: Model, service: &str) -> Result<Self, Failure> {
        let Some(found) = Inheritance::ask(path).map_err(usage)? else { return Ok(Self::default()) };
        let (there, service_there) = parted(&found.terms);
        let there: Model = there.parse().map_err(|_| other_kind(&found.terms))?;
        same_service(service, service_there)?;
        if !model.shares_listener_with(there) {
            return Err(usage(anyhow!(
                "a server on {model} cannot share the listener with the running one on {there}: choose \
                 --model {there}, or stop that one first"
            )));
        }
        let (predecessor, listeners, metrics) = found.into_parts();
        let listeners = Listeners::Inherited(expected(listeners, &how.listen)?);
        let metrics = expected_metrics(metrics, how.metrics);
        Ok(Self { listeners, metrics, predecessor: Some(predecessor) })
    }
}

/// What a server of connections says that it runs: its model, and its service where that is named.
pub fn terms(model: Model, service: &str) -> String {
    format!("{model}/{service}")
}

fn parted(terms: &str) -> (&str, Option<&str>) {
    terms.split_once('/').map_or((terms, None), |(model, service)| (model, Some(service)))
}

/// A successor with another service would answer the clients of the running one in another protocol.
///
/// # Errors
/// They differ. Earlier versions do not name theirs.
pub fn same_service(asked: &str, running: Option<&str>) -> Result<(), Failure> {
    match running {
        Some(running) if running != asked => Err(usage(anyhow!(
            "the server behind --handover runs the service {running}, and this one is {asked}: name another path, or \
             stop that one first"
        ))),
        _ => Ok(()),
    }
}

/// Says that there was nothing to take over, if it was not said where to listen then.
pub fn note_nobody(path: &Path, by_default: bool, label: &Label) {
    if by_default {
        let text = format!(
            "no server answers at {} to take over from; listening on {DEFAULT_ADDRESS}, because --listen is not given",
            path.display()
        );
        label.note("handover", &text);
    }
}

/// A running server whose sockets a successor cannot use.
pub fn other_kind(terms: &str) -> Failure {
    let kind = if terms.starts_with("udp/") { "serves datagrams" } else { "serves connections" };
    usage(anyhow!("the server behind --handover {kind}: give another path, or stop that one first"))
}

/// The inherited socket of `--metrics`, if it is the one asked for.
pub fn expected_metrics(socket: Option<OwnedFd>, asked: Option<SocketAddr>) -> Option<OwnedFd> {
    socket.zip(asked).filter(|(socket, addr)| is_at(socket, &(*addr).into())).map(|(socket, _)| socket)
}

/// Whether an inherited socket is what was asked for; port 0 is any port.
fn is_at(socket: &OwnedFd, asked: &Endpoint) -> bool {
    let Ok(here) = local_endpoint(socket) else { return false };
    match (&here, asked) {
        (Endpoint::Tcp(here), Endpoint::Tcp(asked)) | (Endpoint::Mptcp(here), Endpoint::Mptcp(asked)) => {
            here == asked || asked.port() == 0 && here.ip() == asked.ip()
        }
        _ => here == *asked,
    }
}

/// Inherited sockets must not silently replace other addresses: each must match a requested one, and vice versa.
fn expected(sockets: Vec<OwnedFd>, asked: &[Endpoint]) -> Result<Vec<OwnedFd>, Failure> {
    let mut wanted: Vec<&Endpoint> = asked.iter().collect();
    wanted.sort_by_key(|at| at.addr().is_some_and(|addr| addr.port() == 0)); // port 0 matches what is left
    let mut left: Vec<&OwnedFd> = sockets.iter().collect();
    for at in wanted {
        let there = left.iter().position(|socket| is_at(socket, at));
        left.remove(there.ok_or_else(|| others(&sockets, asked))?);
    }
    if asked.is_empty() || left.is_empty() { Ok(sockets) } else { Err(others(&sockets, asked)) }
}

/// The same of one socket.
pub fn expected_one(socket: &OwnedFd, asked: &Endpoint) -> Result<(), Failure> {
    if is_at(socket, asked) {
        return Ok(());
    }
    Err(others([socket], std::slice::from_ref(asked)))
}

#[cold]
fn others<'a>(sockets: impl IntoIterator<Item = &'a OwnedFd>, asked: &[Endpoint]) -> Failure {
    let here = |socket| local_endpoint(socket).map_or("an unknown address".into(), |here| here.to_string());
    let here: Vec<String> = sockets.into_iter().map(here).collect();
    let asked: Vec<_> = asked.iter().map(ToString::to_string).collect();
    usage(anyhow!(
        "--listen is {}, but the running server listens on {}: leave --listen out, or stop that one first",
        asked.join(", "),
        here.join(", ")
    ))
}
