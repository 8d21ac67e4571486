//! Stream sockets: listen, accept, dial, receive, send, close.

use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
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
use super::timed_send::TimedSend;
use super::version;
use super::winsock::{option, set_option};
use crate::endpoint::Endpoint;
use crate::file::FileRange;
use crate::loopback::hasten_before;
use crate::socket::{beginning, fast_open, inet, inherited};
use crate::terms::{Blocking, ListenOptions, More};

/// A listening stream socket.
///
/// Accepted sockets inherit the buffer sizes from it; `TCP_NODELAY` is set again on each.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
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
        fast_open(&socket, options.fast_open)?;
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
        fast_open(&socket, options.fast_open)?;
        // It listens already; the option counts for what is accepted from now on (SIO_LOOPBACK_FAST_PATH, *Remarks*).
        let ((), slow) =
            hasten_before(options.loopback, |code, on| extension::give(&socket, code, on), || Ok(()))?;
        Ok(Self::new(socket, slow))
    }

    /// Takes one connection; `blocking` says how the new socket behaves.
    pub fn accept(&self, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
        let (socket, peer) = self.socket.accept()?;
        self.accepted.fetch_add(1, Ordering::Relaxed);
        socket.set_nonblocking(blocking == Blocking::Never)?; // inherited otherwise
        socket.set_tcp_nodelay(true)?;
        Ok((Stream::new(socket), peer.as_socket()))
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

/// Whether a send that took less than all has found out that there is no more room, and that room will be reported.
/// Network events report room only after a send was refused (`WSAEventSelect`, *FD_WRITE*).
pub const SHORT_SEND_MEANS_FULL: bool = false;

/// A connected stream socket, closed when dropped.
#[derive(Debug)]
pub struct Stream {
    pub(crate) socket: Socket,
    /// For sends with a time limit. Dropped after the socket, whose close ends what is in flight.
    timed: OnceLock<TimedSend>,
}

impl Stream {
    fn new(socket: Socket) -> Self {
        Self { socket, timed: OnceLock::new() }
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
        self.send(&beginning(range)?)
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
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self::new(Socket::from(fd))
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

/// What says that memory ran out: of Winsock, and of the system underneath, which completions report.
pub(crate) const NO_MEMORY: &[i32] = &[
    NO_BUFFERS,
    ERROR_NOT_ENOUGH_MEMORY as i32,
    ERROR_NO_SYSTEM_RESOURCES as i32,
    ERROR_NOT_ENOUGH_QUOTA as i32,
    ERROR_WORKING_SET_QUOTA as i32,
];

/// What a failed accept says of a connection that went away.
pub(crate) const LOST: &[i32] = &[
    WSAENETDOWN,
    WSAENETRESET,
    WSAENETUNREACH,
    WSAEHOSTUNREACH,
    ERROR_NETNAME_DELETED as i32,
    ERROR_OPERATION_ABORTED as i32,
];

/// `is_out_of_descriptors`.
pub(crate) const NO_DESCRIPTORS: &[i32] = &[WSAEMFILE];
/// `is_out_of_buffers`.
pub(crate) const NO_BUFFERS: i32 = WSAENOBUFS;
/// `is_cancelled`.
pub(crate) const CANCELLED: i32 = ERROR_OPERATION_ABORTED as i32;

/// Nothing raises a signal here.
pub(crate) const NO_SIGNAL: i32 = 0;
