//! The stages of a server: planned (its options are valid), bound (connections queue), started. Each stage is done for
//! all servers of the process before the next.

use std::sync::mpsc::Sender;

use tidegate::system::descriptor::OwnedFd;

use super::how::ServerCommon;
use crate::Failure;
use crate::label::Label;
use crate::life::{ServerCommand, Up};
use crate::limits::Want;
use crate::metrics::MetricsPages;
use crate::system::Hangup;

/// A server with valid options. Called on a thread pinned to the processors of this server.
pub trait PlannedServer {
    /// Its label.
    fn label(&self) -> &Label;
    /// The options every server has.
    fn common(&self) -> &ServerCommon;
    /// Its hand-over path.
    fn handover(&self) -> Option<&std::path::Path>;
    /// Descriptors that it requests.
    fn want(&self) -> Want;
    /// Adapts its limits to this many descriptors.
    fn fit(&mut self, descriptors: usize) -> Result<(), Failure>;
    /// Binds, or uses inherited sockets: from the service manager (`passed`), or from its predecessor.
    fn bind(
        self: Box<Self>,
        passed: Vec<OwnedFd>,
        pages: &mut MetricsPages,
    ) -> Result<Box<dyn Bound>, Failure>;
}

/// A bound server. Called on a thread pinned to the processors of this server.
pub trait Bound {
    /// Its reaction to SIGHUP.
    fn hangup(&self) -> Hangup;
    /// Starts its threads. A successor is reported through `words`, with the server's `number`.
    fn start(
        self: Box<Self>,
        number: usize,
        words: &Sender<ServerCommand>,
        pages: &MetricsPages,
    ) -> Result<Box<dyn Up>, Failure>;
}
