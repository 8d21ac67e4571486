//! Stream sockets: listen, accept, dial, receive, send, close.

use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use socket2::{SockRef, Socket, Type};
use windows_sys::Win32::Foundation::{
    ERROR_NETNAME_DELETED, ERROR_NO_SYSTEM_RESOURCES, ERROR_NOT_ENOUGH_MEMORY, ERROR_NOT_ENOUGH_QUOTA,
    ERROR_OPERATION_ABORTED, ERROR_WORKING_SET_QUOTA, HANDLE,
};
use windows_sys::Win32::Networking::WinSock::{
    SO_ACCEPTCONN, SO_EXCLUSIVEADDRUSE, WSAEHOSTUNREACH, WSAEMFILE, WSAENETDOWN, WSAENETRESET,
    WSAENETUNREACH, WSAENOBUFS, WSAENOTSOCK,
};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::descriptor::{AsRawFd, OwnedFd, RawFd};
use super::event::EventObject;
use super::extension;
use super::messages::Turns;
use super::poll::{PollSet, Readiness};
use super::timed_send::TimedSend;
use super::version;
use super::winsock::{option, set_option};
use crate::endpoint::Endpoint;
use crate::file::FileRange;
use crate::loopback::hasten_before;
pub use crate::terms::{Blocking, ListenOptions, More};

/// Whether this system can keep a connection back until its first data has arrived, for every way to accept. `AcceptEx`
/// can, but that is the model's own.
pub const DEFERS_ACCEPT: bool = false;

/// A listening stream socket.
///
/// Accepted sockets inherit the buffer sizes from it; `TCP_NODELAY` is set again on each.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    /// The fast path was asked for and refused.
    slow_loopback: Option<io::Error>,
    /// Winsock reports its connections to one event, or one window: threads share the event and take turns with their
    /// windows.
    arrival: Mutex<Option<Arc<EventObject>>>,
    turns: Turns,
    /// Connections accepted so far, by any thread.
    accepted: AtomicU64,
}

impl Listener {
    /// Binds and listens, on TCP only. Port 0 lets the system pick one.
    pub fn bind(at: &Endpoint, options: &ListenOptions) -> io::Result<Self> {
        let (socket, addr) = open(at)?;
        set_exclusive(&socket)?;
        inherited(&socket, options)?; // buffer sizes count for the handshake: before it listens
        socket.bind(&addr.into())?;
        fast_open(options.fast_open)?;
        let listen = || socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX));
        let ((), slow) =
            hasten_before(options.loopback, |code, on| extension::give(&socket, code, on), listen)?;
        Ok(Self::new(socket, slow))
    }

    fn new(socket: Socket, slow_loopback: Option<io::Error>) -> Self {
        Self {
            socket,
            slow_loopback,
            arrival: Mutex::default(),
            turns: Turns::default(),
            accepted: AtomicU64::new(0),
        }
    }

    /// Why [`Loopback::Fast`](crate::loopback::Loopback::Fast) could not be had, if it was asked for.
    pub fn slow_loopback(&self) -> Option<String> {
        self.slow_loopback.as_ref().map(io::Error::to_string)
    }

    /// The event that is set when connections arrive, for one of those who wait for it.
    pub(super) fn arrival(&self) -> io::Result<Arc<EventObject>> {
        let mut arrival = self.arrival.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = &*arrival {
            return Ok(event.clone());
        }
        let event = Arc::new(EventObject::for_one()?);
        *arrival = Some(event.clone());
        Ok(event)
    }

    /// How many connections [`accept`](Self::accept) has returned, to any thread.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The windows that take turns at it.
    pub(super) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Takes over a socket that listens already, and gives it these options; other holders of the same socket see them
    /// too.
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`], the socket untouched, if it is not a listening TCP socket.
    pub fn adopt(fd: OwnedFd, options: &ListenOptions) -> io::Result<Self> {
        let socket = Socket::from(fd);
        check_listens(&socket)?;
        inherited(&socket, options)?;
        fast_open(options.fast_open)?;
        // It listens already; the option counts for what is accepted from now on (SIO_LOOPBACK_FAST_PATH, *Remarks*).
        let ((), slow) =
            hasten_before(options.loopback, |code, on| extension::give(&socket, code, on), || Ok(()))?;
        Ok(Self::new(socket, slow))
    }

    /// Whether a connection waits to be accepted, as of now. A failure to find out counts as no.
    pub fn has_waiting(&self) -> bool {
        let mut listener = PollSet::default();
        listener.push(self.as_socket(), Readiness::READ);
        listener.wait(Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }

    /// A second handle of the same socket.
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

    /// Takes one connection; `blocking` says how the new socket behaves.
    pub fn accept(&self, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
        let (socket, peer) = self.socket.accept()?;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        socket.set_nonblocking(blocking == Blocking::Never)?; // inherited otherwise
        socket.set_tcp_nodelay(true)?;
        Ok((Stream::new(socket), peer.as_socket()))
    }

    /// A second handle to it, for a library that brings its own loop.
    pub fn to_std(&self) -> io::Result<std::net::TcpListener> {
        Ok(self.socket.try_clone()?.into())
    }
}

impl AsSocket for Listener {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_socket()
    }
}

/// Without it another process could bind the same port and take connections away. `SO_REUSEADDR` means just that
/// here, and a port in TIME_WAIT can be bound anyway (*Using SO_REUSEADDR and SO_EXCLUSIVEADDRUSE*).
fn set_exclusive(socket: &Socket) -> io::Result<()> {
    set_option(socket, SO_EXCLUSIVEADDRUSE, &1i32)
}

/// What accepted sockets get from their listener.
fn inherited(socket: &Socket, options: &ListenOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    match options.busy_poll {
        Some(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "polling the network card (SO_BUSY_POLL) is for Linux only: leave busy_poll out",
        )),
        None => Ok(()),
    }
}

/// Whether a socket from elsewhere is what it is said to be.
fn check_listens(socket: &Socket) -> io::Result<()> {
    let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    match socket.r#type() {
        Err(e) if e.raw_os_error() == Some(WSAENOTSOCK) => return wrong("the handle is no socket"),
        Ok(Type::STREAM) => {}
        _ => return wrong("the socket is no stream socket"),
    }
    if socket.local_addr()?.as_socket().is_none() {
        return wrong("the socket is neither IPv4 nor IPv6");
    }
    if option(socket, SO_ACCEPTCONN)? == 0 {
        return wrong("the socket does not listen");
    }
    Ok(())
}

fn fast_open(queue: Option<NonZeroU32>) -> io::Result<()> {
    match queue {
        Some(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "TCP Fast Open is for Linux only: leave it off"))
        }
        None => Ok(()),
    }
}

/// Whether a send that took less than all has found out that there is no more room, and that room will be reported.
/// Network events report room only after a send was refused (`WSAEventSelect`, *FD_WRITE*).
pub const SHORT_SEND_MEANS_FULL: bool = false;

/// A connected stream socket, closed when dropped.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// For sends with a time limit. Dropped after the socket, whose close ends what is in flight.
    timed: OnceLock<TimedSend>,
}

impl Stream {
    fn new(socket: Socket) -> Self {
        Self { socket, timed: OnceLock::new() }
    }

    /// Opens a socket towards `to` and, with [`Blocking::Never`], returns while the connection is
    /// still being made: wait until it is writable, then ask [`take_error`](Self::take_error).
    ///
    /// `from` fixes the source address.
    pub fn dial(to: &Endpoint, from: Option<SocketAddr>, blocking: Blocking) -> io::Result<Self> {
        let stream = Self::unconnected(to, from)?;
        stream.connect(to, blocking)?;
        Ok(stream)
    }

    /// Connects a socket that is [`unconnected`](Self::unconnected); with [`Blocking::Never`] as [`dial`](Self::dial)
    /// does.
    pub fn connect(&self, to: &Endpoint, blocking: Blocking) -> io::Result<()> {
        self.set_blocking(blocking)?;
        match self.socket.connect(&to.sock_addr()?) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && blocking == Blocking::Never => Ok(()),
            outcome => outcome,
        }
    }

    /// A socket bound to `from` and ready to be connected to `to`, without connecting it.
    pub fn unconnected(to: &Endpoint, from: Option<SocketAddr>) -> io::Result<Self> {
        let (socket, _) = open(to)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = from {
            socket.bind(&from.into())?;
        }
        Ok(Self::new(socket))
    }

    /// The error a connection attempt ended with, if any; clears it.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        inet(self.socket.peer_addr()?)
    }

    /// Whether calls on it wait.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        self.socket.set_nonblocking(blocking == Blocking::Never)
    }

    /// How long a blocking send waits; `None` is for ever. Set once, before the first send. A send that took longer
    /// fails with [`io::ErrorKind::TimedOut`] and must be made again with the same bytes.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let Some(timeout) = timeout else { return Ok(()) };
        let again = || io::Error::new(io::ErrorKind::AlreadyExists, "the time limit of sends is set already");
        self.timed.set(TimedSend::new(timeout)?).map_err(|_| again())
    }

    /// Receives; 0 means that the peer finished sending.
    #[inline]
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match (&self.socket).read(into) {
            Ok(0) => confirm_end(self).map(|()| 0),
            received => received,
        }
    }

    /// Sends one buffer; may take less than all of it.
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.timed.get() {
            Some(timed) => timed.send(self.as_socket(), bytes),
            None => self.socket.send(bytes),
        }
    }

    /// Whether a connection was reset, though a receive says that it has ended: here each receive reports a reset.
    pub fn is_broken(&self) -> bool {
        false
    }

    /// Sends several buffers in one call; may take less than all of them.
    #[inline]
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], _more: More) -> io::Result<usize> {
        match self.timed.get() {
            // One of them: the call that waits for it again, when its time is over, has the same.
            Some(timed) => {
                let first = slices.iter().find(|slice| !slice.is_empty());
                timed.send(self.as_socket(), first.map_or(&[], |slice| slice))
            }
            None => self.socket.send_vectored(slices),
        }
    }

    /// Sends from a file, which is read first; may take less than all of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
    pub fn send_file(&self, range: &FileRange, _more: More) -> io::Result<usize> {
        self.send(&piece(range)?)
    }

    /// Ends the sending side; the peer reads end of stream after what was sent.
    pub fn shutdown_send(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    /// Ends the receiving side; wakes a thread that sleeps in a receive.
    pub fn shutdown_receive(&self) -> io::Result<()> {
        // A receive that begins from now on fails; one that sleeps already is not touched by that, and cancelled.
        let ended = self.socket.shutdown(std::net::Shutdown::Read);
        // SAFETY: the socket is open for the call. No operation of ours with an OVERLAPPED is lost by it: a timed send
        // has come back or is given up by the caller.
        unsafe { CancelIoEx(self.as_raw_fd() as HANDLE, std::ptr::null()) };
        ended
    }

    /// Makes the coming close send a reset, which frees what the kernel still holds for sending.
    pub fn reset_on_close(&self) -> io::Result<()> {
        self.socket.set_linger(Some(Duration::ZERO))
    }

    /// The same socket for a library that brings its own loop.
    pub fn into_std(self) -> std::net::TcpStream {
        self.socket.into()
    }
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self::new(Socket::from(fd))
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.socket.into()
    }
}

impl AsSocket for Stream {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_socket()
    }
}

/// A socket for one end of connections at, or to, this endpoint, and its address.
fn open(at: &Endpoint) -> io::Result<(Socket, SocketAddr)> {
    let addr = address(at)?;
    Ok((Socket::new(at.domain(), Type::STREAM, at.protocol())?, addr))
}

/// The address of an endpoint of a kind that this system has here.
pub(super) fn address(of: &Endpoint) -> io::Result<SocketAddr> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::Unsupported, why));
    match of {
        Endpoint::Tcp(addr) => Ok(*addr),
        Endpoint::Mptcp(_) => refused("Multipath TCP is for Linux only: use plain TCP"),
        Endpoint::Unix(_) | Endpoint::Abstract(_) => refused("Unix sockets are for Unix only here: use TCP"),
    }
}

/// Where a socket listens, or the near end of a connection.
pub fn local_endpoint(socket: &impl AsSocket) -> io::Result<Endpoint> {
    Ok(Endpoint::Tcp(inet(SockRef::from(socket).local_addr()?)?))
}

/// An endpoint as the system takes it. Fails if it cannot be one, such as a path that is too long.
pub fn raw_address(of: &Endpoint) -> io::Result<socket2::SockAddr> {
    of.sock_addr()
}

/// The address of this end of a connected socket; Unix sockets have none.
pub fn local_addr(socket: &impl AsSocket) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// The address of the other end of a connected socket.
pub fn peer_addr(socket: &impl AsSocket) -> io::Result<SocketAddr> {
    inet(SockRef::from(socket).peer_addr()?)
}

/// Makes the coming close of `socket` send a reset. For sockets a library owns.
pub fn reset_on_close(socket: &impl AsSocket) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// What a receive of no bytes means: the end of the stream, or an error.
///
/// Wine takes a reset off the socket while it waits for it, and then reports an end of the stream. It still knows
/// better when it is asked to send: even nothing.
pub fn confirm_end(socket: &impl AsSocket) -> io::Result<()> {
    if !version::is_wine() {
        return Ok(());
    }
    match SockRef::from(socket).send(&[]) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(e),
        _ => Ok(()), // the sending side may have been shut down
    }
}

/// Sends several buffers in one call; may take less than all of them. For sockets a library owns.
pub fn send_vectored(socket: &impl AsSocket, slices: &[IoSlice<'_>], _more: More) -> io::Result<usize> {
    SockRef::from(socket).send_vectored(slices)
}

/// Whether [`send_file`] does without reading the file into memory of this process.
pub const SENDS_FILES: bool = false;

/// Sends from a file, which is read first; may take less than all of it.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
pub fn send_file(socket: &impl AsSocket, range: &FileRange, _more: More) -> io::Result<usize> {
    SockRef::from(socket).send(&piece(range)?)
}

/// Its beginning.
fn piece(range: &FileRange) -> io::Result<Vec<u8>> {
    let mut piece = vec![0; range.len().min(64 * 1024)];
    let n = range.read(&mut piece)?;
    piece.truncate(n);
    Ok(piece)
}

fn inet(addr: socket2::SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| io::Error::other("not an IPv4 or IPv6 address"))
}

/// What says that memory ran out: of Winsock, and of the system underneath, which completions report.
const EXHAUSTED: [i32; 5] = [
    WSAENOBUFS,
    ERROR_NOT_ENOUGH_MEMORY as i32,
    ERROR_NO_SYSTEM_RESOURCES as i32,
    ERROR_NOT_ENOUGH_QUOTA as i32,
    ERROR_WORKING_SET_QUOTA as i32,
];

/// Whether an error says that the process or the system ran out of descriptors or memory.
///
/// Such an error on accept is survived by waiting for a connection to close.
pub fn is_exhaustion(e: &io::Error) -> bool {
    is_out_of_descriptors(e) || is_out_of_memory(e)
}

/// Whether an error says that the system has no memory for an operation: it may have some later.
pub fn is_out_of_memory(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::OutOfMemory || e.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code))
}

/// Whether an error says that the process or the system ran out of descriptors.
pub fn is_out_of_descriptors(e: &io::Error) -> bool {
    e.raw_os_error() == Some(WSAEMFILE)
}

/// What a failed accept says of a connection that went away.
const LOST: [i32; 6] = [
    WSAENETDOWN,
    WSAENETRESET,
    WSAENETUNREACH,
    WSAEHOSTUNREACH,
    ERROR_NETNAME_DELETED as i32,
    ERROR_OPERATION_ABORTED as i32,
];

/// Whether an error says that there is no buffer left, of the system or of what was provided to it.
pub fn is_out_of_buffers(e: &io::Error) -> bool {
    e.raw_os_error() == Some(WSAENOBUFS)
}

/// Whether an error says that an operation was asked to end, and did before it found anything.
pub fn is_cancelled(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Interrupted || e.raw_os_error() == Some(ERROR_OPERATION_ABORTED as i32)
}

/// Whether a failed accept only concerns the one connection that went away meanwhile.
pub fn is_lost_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted)
        || e.raw_os_error().is_some_and(|code| LOST.contains(&code))
}
