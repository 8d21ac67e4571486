//! Where the sockets of `serve` come from that it does not make itself: the service manager, or the server it succeeds.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, anyhow};
use tidegate::system::descriptor::OwnedFd;
use tidegate::system::local_endpoint;
use tidegate::{Endpoint, Model};

use crate::Failure;
use crate::serve::Label;
use crate::system::handover::{Inheritance, Line};

/// What the command line says about sockets.
pub struct Asked<'a> {
    /// `--handover`.
    pub handover: Option<&'a Path>,
    /// Every `--listen` that was given.
    pub listen: Vec<Endpoint>,
    /// `--metrics`.
    pub metrics: Option<SocketAddr>,
}

fn usage(e: anyhow::Error) -> Failure {
    Failure::Usage(e)
}

/// What a server listens on.
#[derive(Default)]
pub enum Listeners {
    /// What it binds itself.
    #[default]
    Own,
    /// Sockets of the service manager, to which their files belong.
    Passed(Vec<OwnedFd>),
    /// Those of the server that runs. The file of a socket belongs to the last server that accepts from it.
    Inherited(Vec<OwnedFd>),
}

/// Where the sockets come from that this process does not make itself.
#[derive(Default)]
pub struct Origin {
    /// To listen on.
    pub listeners: Listeners,
    /// For `--metrics`.
    pub metrics: Option<OwnedFd>,
    /// The connection to the server that runs, which is to drain once this one accepts.
    pub predecessor: Option<Line>,
}

impl Origin {
    /// Sockets from the service manager go before those of a running server; that one is relieved all the same.
    pub fn find(how: &Asked<'_>, model: Model, passed: Vec<OwnedFd>, label: &Label) -> Result<Self, Failure> {
        let mut origin = match how.handover {
            Some(path) => Self::inherited(path, how, model)?,
            None => Self::default(),
        };
        for socket in &passed {
            let at =
                local_endpoint(socket).context("the passed socket has no address").map_err(Failure::Run)?;
            let text = format!("listening on {at}, the socket that was passed (LISTEN_FDS)");
            label.note("socket-activation", &text);
        }
        if !passed.is_empty() {
            origin.listeners = Listeners::Passed(passed);
        }
        Ok(origin)
    }

    fn inherited(path: &Path, how: &Asked<'_>, model: Model) -> Result<Self, Failure> {
        let Some(found) = Inheritance::ask(path).map_err(usage)? else { return Ok(Self::default()) };
        let there: Model = found.terms.parse().map_err(|_| other_kind(&found.terms))?;
        if !model.shares_listener_with(there) {
            return Err(usage(anyhow!(
                "a server on {model} cannot accept beside the running one on {there}: choose --model {there}, or stop that one first"
            )));
        }
        let (predecessor, listeners, metrics) = found.into_parts();
        let listeners = Listeners::Inherited(expected(listeners, &how.listen)?);
        let metrics = expected_metrics(metrics, how.metrics);
        Ok(Self { listeners, metrics, predecessor: Some(predecessor) })
    }
}

/// A running server that gives other sockets than a successor can use.
pub fn other_kind(terms: &str) -> Failure {
    let kind = if terms.starts_with("udp/") { "serves datagrams" } else { "serves connections" };
    usage(anyhow!("the server behind --handover {kind}: name another path, or stop that one first"))
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

/// Inherited sockets must not silently stand for other addresses: each has to be one that was asked for, and the other
/// way round.
fn expected(sockets: Vec<OwnedFd>, asked: &[Endpoint]) -> Result<Vec<OwnedFd>, Failure> {
    let mut wanted: Vec<&Endpoint> = asked.iter().collect();
    wanted.sort_by_key(|at| at.addr().is_some_and(|addr| addr.port() == 0)); // who takes any port takes what is left
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
