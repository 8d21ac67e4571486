//! Where sockets cannot be spliced: there is no pipe of this kind.

use std::convert::Infallible;
use std::io;

use crate::terms::More;

/// Whether sockets can be spliced on this system.
pub const SPLICES: bool = false;

/// There is none.
#[derive(Debug)]
pub struct SplicePipe(Infallible);

impl SplicePipe {
    /// Fails.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`], always.
    pub fn new(_capacity: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes that lie in it.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// Whether nothing lies in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// Moves bytes from a socket into it.
    ///
    /// # Errors
    /// None.
    pub fn fill_from<S>(&mut self, _socket: &S, _most: usize) -> io::Result<usize> {
        match self.0 {}
    }

    /// Moves what lies in it into a socket.
    ///
    /// # Errors
    /// None.
    pub fn drain_to<S>(&mut self, _socket: &S, _more: More) -> io::Result<usize> {
        match self.0 {}
    }

    /// Reads what lies in it into memory.
    ///
    /// # Errors
    /// None.
    pub fn read_all(&mut self) -> io::Result<Vec<u8>> {
        match self.0 {}
    }
}

/// Whether a splice failed because there is none.
#[must_use]
pub fn cannot_splice(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Unsupported
}
