//! `serve --handover` is not supported: Windows cannot pass a socket to a successor over another one.

use std::io;
use std::path::Path;

use anyhow::bail;
use tidegate::system::descriptor::OwnedFd;

/// The connection to the predecessor: never exists.
#[allow(dead_code, reason = "made where sockets are handed over")]
pub struct HandoverStream(());

/// What a predecessor sent: never exists.
#[allow(dead_code, reason = "made where sockets are handed over")]
pub struct Inheritance {
    /// What it runs on.
    pub terms: String,
    stream: HandoverStream,
    listeners: Vec<OwnedFd>,
}

impl Inheritance {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn ask(_: &Path) -> anyhow::Result<Option<Self>> {
        bail!(
            "--handover passes the listening socket over a Unix socket, which Windows cannot: leave it out, and \
             use a load balancer to restart without refusing clients"
        );
    }

    /// Does nothing: there is no predecessor.
    ///
    /// # Errors
    /// Always.
    pub fn ready(_: &HandoverStream) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The parts.
    pub fn into_parts(self) -> (HandoverStream, Vec<OwnedFd>, Option<OwnedFd>) {
        (self.stream, self.listeners, None)
    }
}

/// What a predecessor sends.
#[allow(dead_code, reason = "taken where sockets are handed over")]
pub struct HandoverState {
    /// What it runs on.
    pub terms: String,
    /// The listening sockets.
    pub listeners: Vec<OwnedFd>,
    /// That of the metrics, if there is one.
    pub metrics: Option<OwnedFd>,
}

/// The hand-over socket: never exists.
pub enum HandoverListener {}

impl HandoverListener {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn beside(_: &Path, _: HandoverState, _: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Does nothing.
    ///
    /// # Errors
    /// None.
    pub fn open(&self) -> io::Result<()> {
        match *self {}
    }
}
