//! Stream sockets: listen, accept, dial, receive, send, close. Here is what does not differ between systems.

use std::io;
use std::net::SocketAddr;
#[cfg(not(target_os = "linux"))]
use std::num::NonZeroU32;
use std::time::Duration;

use socket2::{SockRef, Socket};

use crate::descriptor::{AsFd, OwnedFd, borrowed};
use crate::endpoint::Endpoint;
use crate::file::FileRange;
use crate::poll::{Readiness, wait_pair};
pub use crate::system::socket::*;
pub use crate::terms::{Blocking, ListenOptions, More};

/// Whether this system can keep a connection back until its first data has arrived, for every way to accept. `AcceptEx`
/// of Windows can, but that is the model's own.
pub const DEFERS_ACCEPT: bool = cfg!(target_os = "linux");

impl Listener {
    /// Whether a connection waits to be accepted, as of now. A failure to find out counts as no.
    pub fn has_waiting(&self) -> bool {
        let looked = wait_pair(Some(borrowed(self)), Readiness::READ, None, Some(Duration::ZERO));
        looked.is_ok_and(|(ready, _)| ready.readable)
    }

    /// A second descriptor of the same socket, for another process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<Endpoint> {
        local_endpoint(&self.socket)
    }

    /// Whether [`accept`](Self::accept) waits.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        self.socket.set_nonblocking(blocking == Blocking::Never)
    }

    /// A second handle to it, for a library that brings its own loop. For TCP only; [`share`](Self::share) is for all.
    pub fn to_std(&self) -> io::Result<std::net::TcpListener> {
        Ok(self.socket.try_clone()?.into())
    }
}

/// What accepted sockets get from their listener.
pub(crate) fn inherited(socket: &Socket, options: &ListenOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    options.busy_poll.map_or(Ok(()), |time| busy_poll(socket, time))
}

#[cfg(not(target_os = "linux"))]
fn busy_poll(_: &Socket, _: Duration) -> io::Result<()> {
    Err(unsupported("polling the network card (SO_BUSY_POLL) is for Linux only: leave busy_poll out"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn fast_open(_: &Socket, queue: Option<NonZeroU32>) -> io::Result<()> {
    match queue {
        Some(_) => Err(unsupported("TCP Fast Open is for Linux only: leave it off")),
        None => Ok(()),
    }
}

pub(crate) fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl Stream {
    /// Opens a socket towards `to` and, with [`Blocking::Never`], returns while the connection is
    /// still being made: wait until it is writable, then ask [`take_error`](Self::take_error).
    ///
    /// `from` fixes the source address. With port 0 the port is chosen at connect time on Linux
    /// (`IP_BIND_ADDRESS_NO_PORT`), so that each source address has all ports.
    ///
    /// A Unix socket is connected, or not, when this returns; with [`Blocking::Never`] a full backlog of the other side
    /// is an error, as nobody would say when it has room (`connect(2)`, EAGAIN).
    pub fn dial(to: &Endpoint, from: Option<SocketAddr>, blocking: Blocking) -> io::Result<Self> {
        let stream = Self::unconnected(to, from)?;
        stream.connect(to, blocking)?;
        Ok(stream)
    }

    /// The error a connection attempt ended with, if any; clears it.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// The address of the other end. Not for Unix sockets.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        inet(self.socket.peer_addr()?)
    }

    /// Whether calls on it wait.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        self.socket.set_nonblocking(blocking == Blocking::Never)
    }

    /// Ends the sending side; the peer reads end of stream after what was sent.
    pub fn shutdown_send(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    /// Makes the coming close send a reset, which frees what the kernel still holds for sending.
    pub fn reset_on_close(&self) -> io::Result<()> {
        self.socket.set_linger(Some(Duration::ZERO))
    }

    /// The same socket for a library that brings its own loop. For TCP only; it turns into an [`OwnedFd`], too.
    pub fn into_std(self) -> std::net::TcpStream {
        self.socket.into()
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.socket.into()
    }
}

/// An endpoint as the system takes it. Fails if it cannot be one, such as a path that is too long.
pub fn raw_address(of: &Endpoint) -> io::Result<socket2::SockAddr> {
    of.sock_addr()
}

/// The address of this end of a connected socket; Unix sockets have none.
pub fn local_addr(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// The address of the other end of a connected socket.
pub fn peer_addr(socket: &impl AsFd) -> io::Result<SocketAddr> {
    inet(SockRef::from(socket).peer_addr()?)
}

/// Makes the coming close of `socket` send a reset. For sockets a library owns.
pub fn reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

pub(crate) fn inet(addr: socket2::SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| io::Error::other("not an IPv4 or IPv6 address"))
}

/// Whether [`send_file`] does without reading the file into memory of this process.
pub const SENDS_FILES: bool = cfg!(target_os = "linux");

/// Sends from a file, which is read first; may take less than all of it.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
#[cfg(not(target_os = "linux"))]
pub fn send_file(socket: &impl AsFd, range: &FileRange, _more: More) -> io::Result<usize> {
    send_copy(socket, range)
}

pub(crate) fn send_copy(socket: &impl AsFd, range: &FileRange) -> io::Result<usize> {
    SockRef::from(socket).send_with_flags(&beginning(range)?, NO_SIGNAL)
}

/// The beginning of a part of a file.
pub(crate) fn beginning(range: &FileRange) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; range.len().min(64 * 1024)];
    let n = range.read(&mut piece)?;
    piece.truncate(n);
    Ok(piece)
}

fn is_one_of(e: &io::Error, codes: &[i32]) -> bool {
    e.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Whether an error says that the process or the system ran out of descriptors or memory.
///
/// Such an error on accept is survived by waiting for a connection to close.
pub fn is_exhaustion(e: &io::Error) -> bool {
    is_out_of_descriptors(e) || is_out_of_memory(e)
}

/// Whether an error says that the process or the system ran out of descriptors.
pub fn is_out_of_descriptors(e: &io::Error) -> bool {
    is_one_of(e, NO_DESCRIPTORS)
}

/// Whether an error says that the system has no memory for an operation: it may have some later.
pub fn is_out_of_memory(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::OutOfMemory || is_one_of(e, NO_MEMORY)
}

/// Whether an error says that there is no buffer left, of the system or of what was provided to it.
pub fn is_out_of_buffers(e: &io::Error) -> bool {
    e.raw_os_error() == Some(NO_BUFFERS)
}

/// Whether an error says that an operation was asked to end, and did before it found anything.
pub fn is_cancelled(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Interrupted || e.raw_os_error() == Some(CANCELLED)
}

/// Whether a failed accept only concerns the one connection that went away meanwhile.
///
/// `accept(2)`: pending network errors of the new socket are passed on as errors of accept.
pub fn is_lost_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted) || is_one_of(e, LOST)
}
