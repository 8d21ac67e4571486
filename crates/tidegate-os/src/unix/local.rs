//! The files of Unix sockets: a listener leaves one behind, which the next bind trips over.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use socket2::{Domain, SockAddr, Socket, Type};

use super::call;

/// Removes the file of a socket that nobody has bound any more, if there is one at `path`.
///
/// Fails with [`io::ErrorKind::AddrInUse`] if somebody has, or another server is just doing the same, and with
/// [`io::ErrorKind::AlreadyExists`], the file untouched, if it is no stream socket.
pub fn make_way(path: &Path) -> io::Result<()> {
    if !is_left_behind(path)? {
        return Ok(());
    }
    let _one = RemovalLock::take(path)?;
    // Another server may have removed it and bound its own meanwhile.
    if is_left_behind(path)? { std::fs::remove_file(path) } else { Ok(()) }
}

/// Whether there is the file of a socket that nobody has bound; an error if there is anything else.
fn is_left_behind(path: &Path) -> io::Result<bool> {
    let there = match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        there => there?,
    };
    let exists = |what| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    if !there.file_type().is_socket() {
        return exists("there is something else than a socket at this path");
    }
    let probe = |kind| -> io::Result<()> {
        let socket = Socket::new(Domain::UNIX, kind, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    };
    // The kernels look for the socket that has bound the file first, and then at its kind. So a server that has bound
    // it and does not listen yet, which refuses connections as a dead one does, is found too.
    match probe(Type::DGRAM) {
        Err(e) if e.raw_os_error() == Some(libc::EPROTOTYPE) => return taken(BOUND),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
        // EPERM: it is connected to another one.
        Err(e) if e.raw_os_error() != Some(libc::EPERM) => return Err(e),
        _ => return exists("there is a socket of another kind at this path"),
    }
    // A kernel in user space may refuse at once what is of another kind (gVisor).
    match probe(Type::STREAM) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        // A backlog that is full belongs to somebody, too.
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => taken(BOUND),
    }
}

const BOUND: &str = "a server listens on this socket, or is about to";

fn taken<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::AddrInUse, why))
}

/// A file beside that of a socket, locked and removed again: of two servers that find the same dead socket, the slower
/// one must not remove the file that the other has made instead.
struct RemovalLock {
    path: PathBuf,
    /// Holds the lock, also if the process is killed, until it is closed.
    _file: File,
}

impl RemovalLock {
    fn take(socket: &Path) -> io::Result<Self> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".tidegate-lock");
        let path = PathBuf::from(path);
        let mut options = File::options();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path)?;
        // SAFETY: takes a descriptor, which is open.
        let locked = call::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) });
        let own = mark_of(&file.metadata()?);
        // If it is not there any more, the one who had it is done, or somebody has a new one.
        if locked.is_err() || mark(&path).ok() != Some(own) {
            return taken("another server is starting on this socket");
        }
        Ok(Self { path, _file: file })
    }
}

impl Drop for RemovalLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // one that stays is in nobody's way
    }
}

/// The file of a listening Unix socket, removed when dropped, unless another one has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    mark: Mark,
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

/// Device, inode, and when it was written last: a file system may give the inode again at once (ext4 does). Nobody
/// writes to these files, so that is when they were made; not every system and C library knows the creation itself.
type Mark = (u64, u64, Option<SystemTime>);

fn mark(path: &Path) -> io::Result<Mark> {
    Ok(mark_of(&std::fs::symlink_metadata(path)?))
}

fn mark_of(there: &Metadata) -> Mark {
    (there.dev(), there.ino(), there.modified().ok())
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if mark(&self.path).is_ok_and(|there| there == self.mark) {
            let _ = std::fs::remove_file(&self.path); // gone already is as good
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;
    use std::time::Duration;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::socket::{ListenOptions, Listener};

    fn bind(path: &Path) -> io::Result<Listener> {
        Listener::bind(&Endpoint::unix(path), &ListenOptions::new(16))
    }

    fn socket_at(path: &Path, kind: Type) -> Socket {
        let socket = Socket::new(Domain::UNIX, kind, None).unwrap();
        socket.bind(&SockAddr::unix(path).unwrap()).unwrap();
        socket
    }

    #[test]
    fn a_server_that_is_about_to_listen_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let starting = socket_at(&path, Type::STREAM);
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        starting.listen(1).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_socket_of_another_kind_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let other = socket_at(&path, Type::DGRAM);
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(other);
        bind(&path).expect("nobody has it any more");
    }

    #[test]
    fn of_servers_that_start_at_once_over_the_file_of_a_dead_one_one_has_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        for round in 0..300 {
            drop(UnixListener::bind(&path).unwrap());
            let start = Barrier::new(3);
            let start_one = || {
                start.wait();
                bind(&path)
            };
            let servers = std::thread::scope(|scope| {
                let threads = [(); 3].map(|()| scope.spawn(start_one));
                threads.map(|thread| thread.join().unwrap())
            });
            let one: Vec<_> = servers.iter().filter(|server| server.is_ok()).collect();
            assert_eq!(one.len(), 1, "in round {round}: {servers:?}");
            UnixStream::connect(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "left over");
        }
    }

    #[test]
    fn only_a_lock_that_is_held_keeps_a_server_from_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let held = RemovalLock::take(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
        drop(held);
        File::create(folder.path().join("socket.tidegate-lock")).unwrap(); // of a process that was killed
        bind(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_file_that_another_server_has_made_since_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(bind(&path).unwrap());
        let file = SocketFile::at(&path).unwrap();
        std::thread::sleep(Duration::from_millis(20)); // a file system has a clock that ticks
        for _ in 0..10 {
            let _next = bind(&path).unwrap();
            let again = SocketFile::at(&path).unwrap();
            drop(SocketFile { path: file.path.clone(), mark: file.mark });
            UnixStream::connect(&path).expect("it is there");
            again.keep();
        }
        drop(file);
        assert!(path.exists());
    }
}
