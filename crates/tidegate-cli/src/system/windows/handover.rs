//! `serve --handover` is refused: no socket here carries another one to a successor.

use std::io;
use std::path::Path;

use anyhow::bail;
use tidegate::system::descriptor::OwnedFd;

/// The connection to the one that runs: there is none.
#[allow(dead_code, reason = "made where sockets are handed over")]
pub struct Line(());

/// What a running server gave: nothing, so there never is one.
#[allow(dead_code, reason = "made where sockets are handed over")]
pub struct Inheritance {
    /// What it runs on.
    pub terms: String,
    line: Line,
    listeners: Vec<OwnedFd>,
}

impl Inheritance {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn ask(_: &Path) -> anyhow::Result<Option<Self>> {
        bail!(
            "--handover passes the listening socket over a Unix socket, which Windows cannot: leave it out, and put a balancer in front to restart without refusals"
        );
    }

    /// Nobody is there to be told.
    ///
    /// # Errors
    /// Always.
    pub fn ready(_: &Line) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The parts.
    pub fn into_parts(self) -> (Line, Vec<OwnedFd>, Option<OwnedFd>) {
        (self.line, self.listeners, None)
    }
}

/// What a running server has to give.
#[allow(dead_code, reason = "taken where sockets are handed over")]
pub struct Estate {
    /// What it runs on.
    pub terms: String,
    /// The listening sockets.
    pub listeners: Vec<OwnedFd>,
    /// That of the metrics, if there is one.
    pub metrics: Option<OwnedFd>,
}

/// The place where a successor finds this process: there is none.
pub enum Door {}

impl Door {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn beside(_: &Path, _: Estate, _: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There never is one.
    ///
    /// # Errors
    /// None.
    pub fn open(&self) -> io::Result<()> {
        match *self {}
    }
}
