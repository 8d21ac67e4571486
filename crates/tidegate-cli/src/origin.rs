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
    /// `--listen`, if it was given.
    pub listen: Option<Endpoint>,
    /// `--metrics`.
    pub metrics: Option<SocketAddr>,
}

fn usage(e: anyhow::Error) -> Failure {
    Failure::Usage(e)
}

/// Where the sockets come from that this process does not make itself.
#[derive(Default)]
pub struct Origin {
    /// To listen on, in place of an address.
    pub listener: Option<OwnedFd>,
    /// For `--metrics`.
    pub metrics: Option<OwnedFd>,
    /// The connection to the server that runs, which is to drain once this one accepts.
    pub predecessor: Option<Line>,
}

impl Origin {
    /// A socket from the service manager goes before one of a running server; that one is relieved all the same.
    pub fn find(
        how: &Asked<'_>,
        model: Model,
        passed: Option<OwnedFd>,
        label: &Label,
    ) -> Result<Self, Failure> {
        let mut origin = match how.handover {
            Some(path) => Self::inherited(path, how, model)?,
            None => Self::default(),
        };
        if let Some(socket) = passed {
            let at =
                local_endpoint(&socket).context("the passed socket has no address").map_err(Failure::Run)?;
            let text = format!("listening on {at}, the socket that was passed (LISTEN_FDS)");
            label.note("socket-activation", &text);
            origin.listener = Some(socket);
        }
        Ok(origin)
    }

    fn inherited(path: &Path, how: &Asked<'_>, model: Model) -> Result<Self, Failure> {
        let Some(found) = Inheritance::ask(path).map_err(usage)? else { return Ok(Self::default()) };
        if !model.shares_listener_with(found.model) {
            return Err(usage(anyhow!(
                "a server on {model} can not accept beside the running one on {}: choose --model {}, or stop that one first",
                found.model,
                found.model
            )));
        }
        let (predecessor, listener, metrics) = found.into_parts();
        let listener = expected(listener, how.listen.as_ref())?;
        let metrics = match (metrics, how.metrics) {
            (Some(socket), Some(addr)) if is_at(&socket, &addr.into()) => Some(socket),
            _ => None,
        };
        Ok(Self { listener: Some(listener), metrics, predecessor: Some(predecessor) })
    }
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

/// An inherited socket must not silently stand for another address.
fn expected(socket: OwnedFd, asked: Option<&Endpoint>) -> Result<OwnedFd, Failure> {
    match asked {
        Some(at) if !is_at(&socket, at) => Err(usage(anyhow!(
            "--listen is {at}, but the running server listens on {}: leave --listen out, or stop that one first",
            local_endpoint(&socket).map_or("an unknown address".into(), |here| here.to_string())
        ))),
        _ => Ok(socket),
    }
}
