//! Stream sockets: listen, accept, dial, receive, send, close.

use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::num::NonZeroU32;
#[cfg(target_os = "linux")]
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Protocol, SockRef, Socket, Type};

#[cfg(target_os = "linux")]
use super::datagram::{Name, address};
use super::{call, local};
use crate::endpoint::Endpoint;
#[cfg(target_os = "linux")]
use crate::file;
use crate::file::FileRange;
pub use crate::terms::{Blocking, ListenOptions, More};

/// Whether this system can keep a connection back until its first data has arrived.
pub const DEFERS_ACCEPT: bool = cfg!(target_os = "linux");

/// A listening stream socket.
///
/// Accepted sockets inherit `TCP_NODELAY` and the buffer sizes from it, so that accepting needs
/// no further system call (Linux `tcp(7)`; set again after accept where a system does not inherit).
#[derive(Debug)]
pub struct Listener(Socket);

impl Listener {
    /// Binds and listens. Port 0 lets the system pick one. The file of a Unix socket that nobody has bound any more is
    /// replaced ([`local::make_way`]); it gets the rights that `umask(2)` leaves, and who may write to it may connect.
    pub fn bind(at: &Endpoint, options: &ListenOptions) -> io::Result<Self> {
        let socket = open(at)?;
        if let Some(path) = at.path() {
            local::make_way(path)?;
        }
        if !at.is_unix() {
            socket.set_reuse_address(true)?;
            inherited(&socket, options)?; // buffer sizes count for the handshake: before it listens
        }
        socket.bind(&at.sock_addr()?)?;
        if !at.is_unix() {
            defer_accept(&socket, options.defer_accept)?;
            fast_open(&socket, options.fast_open)?;
        }
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Self(socket))
    }

    /// Takes over a socket that listens already, and gives it these options; other holders of the same socket see them
    /// too.
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`], the socket untouched, if it is not a listening TCP or Unix stream
    /// socket.
    pub fn adopt(fd: OwnedFd, options: &ListenOptions) -> io::Result<Self> {
        let at = check_listens(&fd)?;
        let socket = Socket::from(fd);
        if !at.is_unix() {
            inherited(&socket, options)?;
            // Somebody else may have set it: no deferring has to be said, too.
            defer_accept(&socket, Some(options.defer_accept.unwrap_or_default()))?;
            fast_open(&socket, options.fast_open)?;
        }
        // On a socket that listens this only changes the backlog.
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Self(socket))
    }

    /// Why [`Loopback::Fast`](crate::loopback::Loopback::Fast) could not be had: always.
    pub fn slow_loopback(&self) -> Option<String> {
        super::extension::hasten_loopback(&self.0).err().map(|why| why.to_string())
    }

    /// Whether a connection waits to be accepted, as of now. A failure to find out counts as no.
    pub fn has_waiting(&self) -> bool {
        let listener = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        call::poll(&mut [listener], Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }

    /// A second descriptor of the same socket, for another process.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<Endpoint> {
        local_endpoint(&self.0)
    }

    /// Whether [`accept`](Self::accept) waits.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        self.0.set_nonblocking(blocking == Blocking::Never)
    }

    /// Takes one connection; `blocking` says how the new socket behaves.
    pub fn accept(&self, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
        accept(&self.0, blocking)
    }

    /// A second handle to it, for a library that brings its own loop. For TCP only; [`share`](Self::share) is for all.
    pub fn to_std(&self) -> io::Result<std::net::TcpListener> {
        Ok(self.0.try_clone()?.into())
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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
    options.busy_poll.map_or(Ok(()), |time| busy_poll(socket, time))
}

/// `SO_BUSY_POLL`, in microseconds; a socket with it costs nothing more where there is no card to poll, as on loopback.
#[cfg(target_os = "linux")]
fn busy_poll(socket: &Socket, time: Duration) -> io::Result<()> {
    let micros = libc::c_int::try_from(time.as_micros()).unwrap_or(libc::c_int::MAX);
    set_int_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, micros).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => {
            let why = "SO_BUSY_POLL takes CAP_NET_ADMIN: run as root, or leave busy_poll out";
            io::Error::new(io::ErrorKind::PermissionDenied, why)
        }
        Some(libc::ENOPROTOOPT) => {
            unsupported("this kernel has no SO_BUSY_POLL (CONFIG_NET_RX_BUSY_POLL): leave busy_poll out")
        }
        _ => e,
    })
}

#[cfg(not(target_os = "linux"))]
fn busy_poll(_: &Socket, _: Duration) -> io::Result<()> {
    Err(unsupported("polling the network card (SO_BUSY_POLL) is for Linux only: leave busy_poll out"))
}

/// Whether a descriptor from elsewhere is what it is said to be: `SO_TYPE`, `SO_ACCEPTCONN` (`socket(7)`) and its
/// family.
fn check_listens(fd: &OwnedFd) -> io::Result<Endpoint> {
    let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    let socket = SockRef::from(fd);
    let Ok(kind) = socket.r#type() else { return wrong("the descriptor is no socket") };
    if kind != Type::STREAM {
        return wrong("the socket is no stream socket");
    }
    // Apple's systems have the option's name and no more: there the first accept fails.
    #[cfg(not(target_vendor = "apple"))]
    if !is_listening(fd)? {
        return wrong("the socket does not listen");
    }
    local_endpoint(fd)
}

/// `SO_ACCEPTCONN`.
#[cfg(not(target_vendor = "apple"))]
fn is_listening(socket: &OwnedFd) -> io::Result<bool> {
    let mut listens: libc::c_int = 0;
    let mut bytes = size_of_val(&listens) as libc::socklen_t;
    let at = (&raw mut listens).cast();
    // SAFETY: `at` is valid for writing `bytes` bytes during the call, and any are an integer.
    call::check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN, at, &raw mut bytes)
    })?;
    Ok(listens != 0)
}

/// Where a socket listens, or the near end of a connection.
pub fn local_endpoint(socket: &impl AsFd) -> io::Result<Endpoint> {
    let near = SockRef::from(socket);
    let addr = near.local_addr()?;
    if let Some(addr) = addr.as_socket() {
        return Ok(if is_multipath(&near) { Endpoint::Mptcp(addr) } else { Endpoint::Tcp(addr) });
    }
    #[cfg(target_os = "linux")]
    if let Some(name) = addr.as_abstract_namespace() {
        return Ok(Endpoint::Abstract(name.into()));
    }
    match addr.as_pathname() {
        Some(path) => Ok(Endpoint::unix(path)),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the socket is neither IP nor a Unix socket with a name",
        )),
    }
}

#[cfg(target_os = "linux")]
fn is_multipath(socket: &SockRef<'_>) -> bool {
    socket.protocol().is_ok_and(|protocol| protocol == Some(Protocol::MPTCP))
}

#[cfg(not(target_os = "linux"))]
fn is_multipath(_: &SockRef<'_>) -> bool {
    false
}

/// A socket for one end of connections at, or to, this endpoint.
fn open(at: &Endpoint) -> io::Result<Socket> {
    let opened = Socket::new(at.domain(), Type::STREAM, at.protocol());
    match at {
        Endpoint::Mptcp(_) => opened.map_err(no_multipath),
        _ => opened,
    }
}

#[cfg(target_os = "linux")]
fn no_multipath(e: io::Error) -> io::Error {
    // mptcp(7): EPROTONOSUPPORT is a kernel built without it, ENOPROTOOPT one where it was turned off.
    match e.raw_os_error() {
        Some(libc::EPROTONOSUPPORT | libc::EINVAL) => {
            unsupported("this kernel is built without Multipath TCP (CONFIG_MPTCP): use plain TCP")
        }
        Some(libc::ENOPROTOOPT) => {
            unsupported("Multipath TCP is turned off here: sysctl -w net.mptcp.enabled=1, or use plain TCP")
        }
        _ => e,
    }
}

#[cfg(not(target_os = "linux"))]
fn no_multipath(_: io::Error) -> io::Error {
    unsupported("Multipath TCP is for Linux only: use plain TCP")
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

#[cfg(target_os = "linux")]
fn defer_accept(socket: &Socket, wait: Option<Duration>) -> io::Result<()> {
    if let Some(wait) = wait {
        // Part of a second would be rounded to none, which is off.
        let least = u64::from(!wait.is_zero());
        let seconds = libc::c_int::try_from(wait.as_secs().max(least)).unwrap_or(libc::c_int::MAX);
        set_int_option(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn defer_accept(_: &Socket, _: Option<Duration>) -> io::Result<()> {
    Ok(())
}

/// `TCP_FASTOPEN`, `tcp(7)`. The option is accepted where the system has it turned off, so that is looked at first.
#[cfg(target_os = "linux")]
fn fast_open(socket: &Socket, queue: Option<NonZeroU32>) -> io::Result<()> {
    const SERVER: u32 = 2;
    let Some(queue) = queue else { return Ok(()) };
    let on = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen");
    let on = on.ok().and_then(|bits| bits.trim().parse::<u32>().ok()).unwrap_or(0);
    if on & SERVER == 0 {
        return Err(io::Error::other(
            "TCP Fast Open is off for servers here: sysctl -w net.ipv4.tcp_fastopen=3, or leave it off",
        ));
    }
    let queue = libc::c_int::try_from(queue.get()).unwrap_or(libc::c_int::MAX);
    set_int_option(socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, queue)
}

#[cfg(not(target_os = "linux"))]
fn fast_open(_: &Socket, queue: Option<NonZeroU32>) -> io::Result<()> {
    match queue {
        Some(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "TCP Fast Open is for Linux only: leave it off"))
        }
        None => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn accept(socket: &Socket, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
    let flags = match blocking {
        Blocking::Waits => libc::SOCK_CLOEXEC,
        Blocking::Never => libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
    };
    let mut peer: Name = [0; size_of::<Name>()];
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    let at = peer.as_mut_ptr().cast();
    // SAFETY: `at` is valid for writing `bytes` bytes during the call; a longer address is cut.
    let fd = call::check(unsafe { libc::accept4(socket.as_raw_fd(), at, &raw mut bytes, flags) })?;
    // SAFETY: accept4 just returned this descriptor and nobody else owns it.
    let stream = Stream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((stream, address(&peer[..(bytes as usize).min(size_of::<Name>())])))
}

#[cfg(not(target_os = "linux"))]
fn accept(socket: &Socket, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
    let (stream, peer) = socket.accept()?;
    stream.set_nonblocking(blocking == Blocking::Never)?;
    stream.set_tcp_nodelay(true)?;
    Ok((Stream(stream), peer.as_socket()))
}

/// Segments that a TCP connection has sent and received so far (`TCP_INFO`, `tcp(7)`): they do not change while its
/// bytes go another way.
///
/// # Errors
/// It is no TCP socket.
#[cfg(target_os = "linux")]
pub fn segments(socket: &impl AsFd) -> io::Result<(u32, u32)> {
    // A structure that grows with the kernel, and of which the C library knows more or less; its beginning is fixed
    // (linux/tcp.h).
    const OUT: usize = 34;
    let mut info = [0_u32; 64];
    let mut bytes = size_of_val(&info) as libc::socklen_t;
    let at = info.as_mut_ptr().cast();
    // SAFETY: `at` is valid for writing `bytes` bytes, and any bytes are numbers.
    match unsafe {
        libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut bytes)
    } {
        0 => Ok((info[OUT], info[OUT + 1])),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether a send that took less than all has found out that there is no more room, and that room will be reported
/// (`epoll(7)`, *Questions and answers*, 9).
pub const SHORT_SEND_MEANS_FULL: bool = true;

/// A connected stream socket, closed when dropped.
#[derive(Debug)]
pub struct Stream(Socket);

impl Stream {
    /// Opens a socket towards `to` and, with [`Blocking::Never`], returns while the connection is
    /// still being made: wait until it is writable, then ask [`take_error`](Self::take_error).
    ///
    /// `from` fixes the source address. With port 0 the port is chosen at connect time
    /// (`IP_BIND_ADDRESS_NO_PORT` on Linux), so that each source address has all ports.
    ///
    /// A Unix socket is connected, or not, when this returns; with [`Blocking::Never`] a full backlog of the other side
    /// is an error, as nobody would say when it has room (`connect(2)`, EAGAIN).
    pub fn dial(to: &Endpoint, from: Option<SocketAddr>, blocking: Blocking) -> io::Result<Self> {
        let stream = Self::unconnected(to, from)?;
        stream.connect(to, blocking)?;
        Ok(stream)
    }

    /// Connects a socket that is [`unconnected`](Self::unconnected); with [`Blocking::Never`] as [`dial`](Self::dial)
    /// does.
    pub fn connect(&self, to: &Endpoint, blocking: Blocking) -> io::Result<()> {
        self.set_blocking(blocking)?;
        match self.0.connect(&to.sock_addr()?) {
            Err(e) if to.is_unix() && e.kind() == io::ErrorKind::WouldBlock => {
                let full = "the backlog of the Unix socket is full: raise the backlog of its server";
                Err(io::Error::new(io::ErrorKind::ConnectionRefused, full))
            }
            Err(e) if in_progress(&e) && blocking == Blocking::Never => Ok(()),
            outcome => outcome,
        }
    }

    /// A socket bound to `from` and ready to be connected to `to`, without connecting it.
    pub fn unconnected(to: &Endpoint, from: Option<SocketAddr>) -> io::Result<Self> {
        let socket = open(to)?;
        if to.is_unix() {
            return match from {
                Some(from) => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("a connection to {to} cannot come from {from}: leave the source address out"),
                )),
                None => Ok(Self(socket)),
            };
        }
        socket.set_tcp_nodelay(true)?;
        if let Some(from) = from {
            #[cfg(target_os = "linux")]
            if from.port() == 0 {
                set_int_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
            }
            socket.bind(&from.into())?;
        }
        Ok(Self(socket))
    }

    /// A socket bound to `from`, whose port is known from now on, to be [connected](Self::connect) to the same family.
    pub fn bound(from: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(socket2::Domain::for_address(from), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&from.into())?;
        Ok(Self(socket))
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(self.0.local_addr()?)
    }

    /// The error a connection attempt ended with, if any; clears it.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.0.take_error()
    }

    /// The address of the other end. Not for Unix sockets.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        inet(self.0.peer_addr()?)
    }

    /// Whether calls on it wait.
    pub fn set_blocking(&self, blocking: Blocking) -> io::Result<()> {
        self.0.set_nonblocking(blocking == Blocking::Never)
    }

    /// How long a blocking send waits; `None` is for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_write_timeout(timeout)
    }

    /// Receives; 0 means that the peer finished sending.
    #[inline]
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// Sends one buffer; may take less than all of it. Never raises SIGPIPE.
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_with_flags(bytes, NO_SIGNAL)
    }

    /// Whether a TCP connection was reset, though a receive says that it has ended: the error of a socket is reported
    /// once. A send of nothing waits for nothing, and fails then. On a Unix socket it would also fail after the peer
    /// has closed.
    pub fn is_broken(&self) -> bool {
        local_addr(&self.0).is_some() && self.send(&[]).is_err()
    }

    /// Sends several buffers in one call; may take less than all of them.
    #[inline]
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        send_vectored(&self.0, slices, more)
    }

    /// Sends from a file; may take less than all of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
    pub fn send_file(&self, range: &FileRange, more: More) -> io::Result<usize> {
        send_file(&self.0, range, more)
    }

    /// Ends the sending side; the peer reads end of stream after what was sent.
    pub fn shutdown_send(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    /// Ends the receiving side; wakes a thread that sleeps in a receive.
    pub fn shutdown_receive(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Read)
    }

    /// Makes the coming close send a reset, which frees what the kernel still holds for sending.
    pub fn reset_on_close(&self) -> io::Result<()> {
        self.0.set_linger(Some(Duration::ZERO))
    }

    /// The same socket for a library that brings its own loop. For TCP only; it turns into an [`OwnedFd`], too.
    pub fn into_std(self) -> std::net::TcpStream {
        self.0.into()
    }
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self(Socket::from(fd))
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.0.into()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An endpoint as the system takes it. Fails if it cannot be one, such as a path that is too long.
pub fn raw_address(of: &Endpoint) -> io::Result<socket2::SockAddr> {
    of.sock_addr()
}

/// Whether an address is one of this machine's own, here in this network namespace: only then can a socket be bound to
/// it.
pub fn is_local(addr: std::net::IpAddr) -> bool {
    std::net::UdpSocket::bind((addr, 0)).is_ok()
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

/// Sends several buffers in one call; may take less than all of them. For sockets a library owns, too.
#[inline]
pub fn send_vectored(socket: &impl AsFd, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
    let flags = match more {
        More::No => NO_SIGNAL,
        More::CloseFollows | More::BytesFollow => NO_SIGNAL | HOLD,
    };
    match slices {
        [one] => SockRef::from(socket).send_with_flags(one, flags),
        many => SockRef::from(socket).send_vectored_with_flags(many, flags),
    }
}

/// Whether [`send_file`] does without reading the file into memory of this process.
pub const SENDS_FILES: bool = cfg!(target_os = "linux");

/// Most bytes one call takes from a file, so that others get their turn, and a call that waits returns now and then.
#[cfg(target_os = "linux")]
const FILE_STEP: usize = 1 << 20;

/// Sends from a file without copying it through this process (`sendfile(2)`); may take less than all of it.
///
/// `sendfile` has no flags. What a close is to follow is held back by an option of the socket (`TCP_CORK`, `tcp(7)`),
/// which ends with the close; no other kind of `more` makes a difference.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
#[cfg(target_os = "linux")]
pub fn send_file(socket: &impl AsFd, range: &FileRange, more: More) -> io::Result<usize> {
    if more == More::CloseFollows && range.len() <= FILE_STEP {
        // A hint, and a Unix socket has no segments that it could join.
        let _ = SockRef::from(socket).set_tcp_cork(true);
    }
    let mut at = libc::off64_t::try_from(range.at()).unwrap_or(libc::off64_t::MAX);
    let (socket_fd, file) = (socket.as_fd().as_raw_fd(), range.file().as_raw_fd());
    // SAFETY: `at` is valid for reading and writing one offset during the call, and both descriptors are borrowed.
    let sent = unsafe { libc::sendfile64(socket_fd, file, &raw mut at, range.len().min(FILE_STEP)) };
    match call::count(sent) {
        Ok(0) if !range.is_empty() => Err(file::shorter()),
        Ok(n) => Ok(n),
        // The file is of a kind that cannot (sendfile(2): EINVAL).
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => send_copy(socket, range),
        Err(e) => Err(e),
    }
}

/// Sends from a file, which is read first; may take less than all of it.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
#[cfg(not(target_os = "linux"))]
pub fn send_file(socket: &impl AsFd, range: &FileRange, _more: More) -> io::Result<usize> {
    send_copy(socket, range)
}

fn send_copy(socket: &impl AsFd, range: &FileRange) -> io::Result<usize> {
    let mut piece = vec![0; range.len().min(64 * 1024)];
    let n = range.read(&mut piece)?;
    SockRef::from(socket).send_with_flags(&piece[..n], NO_SIGNAL)
}

/// Whether calls on `socket` wait. For sockets a library owns.
pub fn set_blocking(socket: &impl AsFd, blocking: Blocking) -> io::Result<()> {
    let mut never = libc::c_int::from(blocking == Blocking::Never);
    // One system call; fcntl(2) takes two.
    // SAFETY: FIONBIO reads one int, and `never` outlives the call.
    call::check(unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::FIONBIO, &raw mut never) }).map(drop)
}

/// What a receive of no bytes means: the end of the stream. (Elsewhere it may be an error.)
#[inline]
pub fn confirm_end(_: &impl AsFd) -> io::Result<()> {
    Ok(())
}

#[cfg(any(target_os = "macos", target_os = "ios"))]
const NO_SIGNAL: i32 = 0; // the standard library ignores SIGPIPE
#[cfg(not(any(target_os = "macos", target_os = "ios")))]
const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;

#[cfg(target_os = "linux")]
const HOLD: i32 = libc::MSG_MORE;
#[cfg(not(target_os = "linux"))]
const HOLD: i32 = 0;

fn in_progress(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINPROGRESS) || e.kind() == io::ErrorKind::WouldBlock
}

fn inet(addr: socket2::SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket().ok_or_else(|| io::Error::other("not an IPv4 or IPv6 address"))
}

#[cfg(target_os = "linux")]
fn set_int_option(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call, and pointer and length describe `value`.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether an error says that the process or the system ran out of descriptors or memory.
///
/// Such an error on accept is survived by waiting for a connection to close.
pub fn is_exhaustion(e: &io::Error) -> bool {
    is_out_of_descriptors(e) || is_out_of_memory(e)
}

/// Whether an error says that the process or the system ran out of descriptors.
pub fn is_out_of_descriptors(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether an error says that the system has no memory for an operation: it may have some later.
pub fn is_out_of_memory(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::OutOfMemory || e.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether an error says that there is no buffer left, of the system or of what was provided to it.
pub fn is_out_of_buffers(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether an error says that an operation was asked to end, and did before it found anything.
pub fn is_cancelled(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Interrupted || e.raw_os_error() == Some(libc::ECANCELED)
}

/// Whether a failed accept only concerns the one connection that went away meanwhile.
///
/// `accept(2)`: pending network errors of the new socket are passed on as errors of accept.
pub fn is_lost_connection(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionReset | Interrupted)
        || matches!(
            e.raw_os_error(),
            Some(
                libc::EPROTO
                    | libc::ENETDOWN
                    | libc::ENOPROTOOPT
                    | libc::EHOSTDOWN
                    | libc::EHOSTUNREACH
                    | libc::EOPNOTSUPP
                    | libc::ENETUNREACH
                    | libc::EPERM
            )
        )
}
