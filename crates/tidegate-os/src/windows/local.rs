//! The files of Unix sockets: there are none here, because nothing listens on a path
//! ([`Listener::bind`](crate::socket::Listener::bind) refuses it).

use std::io;
use std::path::Path;

/// The file of a listening Unix socket: there is none.
#[derive(Debug)]
pub struct SocketFile(());

impl SocketFile {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn at(_: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Leaves the file where it is.
    pub fn keep(self) {}
}
