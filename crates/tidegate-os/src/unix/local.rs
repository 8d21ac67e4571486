//! The files of Unix sockets: a listener leaves one behind, which the next bind trips over.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// Removes the file of a socket that nobody listens on any more, if there is one at `path`.
///
/// Fails with [`io::ErrorKind::AddrInUse`] if somebody does, and with [`io::ErrorKind::AlreadyExists`], the file
/// untouched, if it is no stream socket. Finding out is a connection that is closed at once.
pub fn make_way(path: &Path) -> io::Result<()> {
    let there = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    let exists = |what| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    if !there.file_type().is_socket() {
        return exists("there is something else than a socket at this path");
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(e) if e.raw_os_error() == Some(libc::EPROTOTYPE) => {
            exists("there is a socket of another kind at this path")
        }
        // A backlog that is full belongs to somebody, too.
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "a server listens on this socket")),
    }
}

/// The file of a listening Unix socket, removed when dropped, unless another one has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    mark: (u64, u64),
}

impl SocketFile {
    /// The file that is at `path` now.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), mark: mark(path)? })
    }

    /// Leaves the file where it is.
    pub fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

fn mark(path: &Path) -> io::Result<(u64, u64)> {
    let there = std::fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if mark(&self.path).is_ok_and(|there| there == self.mark) {
            let _ = std::fs::remove_file(&self.path); // gone already is as good
        }
    }
}
