//! The stages of a server: planned (everything that can be wrong with its options is known), bound (connections wait),
//! started. Each stage is done for all servers of the process before the next.

use std::sync::mpsc::Sender;

use tidegate::system::descriptor::OwnedFd;

use super::how::Common;
use super::label::Label;
use super::share::Want;
use crate::Failure;
use crate::life::{Up, Word};
use crate::metrics::Pages;

/// A server whose options make sense. Called on a thread that is kept to the processors of this server.
pub trait Plan {
    /// What it is called.
    fn label(&self) -> &Label;
    /// The options every server has.
    fn common(&self) -> &Common;
    /// Where a successor finds it.
    fn handover(&self) -> Option<&std::path::Path>;
    /// Descriptors it would like to have.
    fn want(&self) -> Want;
    /// Makes its limits fit so many descriptors.
    fn fit(&mut self, descriptors: usize) -> Result<(), Failure>;
    /// Binds, or takes sockets: those that the service manager `passed`, or those of the server it succeeds.
    fn bind(self: Box<Self>, passed: Vec<OwnedFd>, pages: &mut Pages) -> Result<Box<dyn Bound>, Failure>;
}

/// What SIGHUP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It ends the process, as ever.
    Ends,
    /// Files are read again.
    Reloads,
}

/// A server that listens. Called on a thread that is kept to the processors of this server.
pub trait Bound {
    /// What SIGHUP does to it.
    fn hangup(&self) -> Hangup;
    /// Starts its threads. Who takes its place says so through `words`, with the server's `number`.
    fn start(
        self: Box<Self>,
        number: usize,
        words: &Sender<Word>,
        pages: &Pages,
    ) -> Result<Box<dyn Up>, Failure>;
}
