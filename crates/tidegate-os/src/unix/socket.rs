//! Stream sockets: listen, accept, dial, receive, send, close.

use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
use crate::socket::send_copy;
#[cfg(not(target_os = "linux"))]
use crate::socket::{fast_open, send_file};
use crate::socket::{inet, inherited, local_addr, unsupported};
use crate::terms::{Blocking, ListenOptions, More};

/// A listening stream socket.
///
/// Accepted sockets inherit `TCP_NODELAY` and the buffer sizes from it, so that accepting needs
/// no further system call (Linux `tcp(7)`; set again after accept where a system does not inherit).
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
}

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
        Ok(Self { socket })
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
        Ok(Self { socket })
    }

    /// Why [`Loopback::Fast`](crate::loopback::Loopback::Fast) could not be had: always.
    pub fn slow_loopback(&self) -> Option<String> {
        super::extension::hasten_loopback(&self.socket).err().map(|why| why.to_string())
    }

    /// Takes one connection; `blocking` says how the new socket behaves.
    pub fn accept(&self, blocking: Blocking) -> io::Result<(Stream, Option<SocketAddr>)> {
        accept(&self.socket, blocking)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `SO_BUSY_POLL`, in microseconds; a socket with it costs nothing more where there is no card to poll, as on loopback.
#[cfg(target_os = "linux")]
pub(crate) fn busy_poll(socket: &Socket, time: Duration) -> io::Result<()> {
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
pub(crate) fn fast_open(socket: &Socket, queue: Option<NonZeroU32>) -> io::Result<()> {
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
    Ok((Stream { socket: stream }, peer.as_socket()))
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
pub struct Stream {
    pub(crate) socket: Socket,
}

impl Stream {
    /// Connects a socket that is [`unconnected`](Self::unconnected); with [`Blocking::Never`] as [`dial`](Self::dial)
    /// does.
    pub fn connect(&self, to: &Endpoint, blocking: Blocking) -> io::Result<()> {
        self.set_blocking(blocking)?;
        match self.socket.connect(&to.sock_addr()?) {
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
                None => Ok(Self { socket }),
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
        Ok(Self { socket })
    }

    /// A socket bound to `from`, whose port is known from now on, to be [connected](Self::connect) to the same family.
    pub fn bound(from: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(socket2::Domain::for_address(from), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&from.into())?;
        Ok(Self { socket })
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(self.socket.local_addr()?)
    }

    /// How long a blocking send waits; `None` is for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.set_write_timeout(timeout)
    }

    /// Receives; 0 means that the peer finished sending.
    #[inline]
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(into)
    }

    /// Sends one buffer; may take less than all of it. Never raises SIGPIPE.
    #[inline]
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.send_with_flags(bytes, NO_SIGNAL)
    }

    /// Whether a TCP connection was reset, though a receive says that it has ended: the error of a socket is reported
    /// once. A send of nothing waits for nothing, and fails then. On a Unix socket it would also fail after the peer
    /// has closed.
    pub fn is_broken(&self) -> bool {
        local_addr(&self.socket).is_some() && self.send(&[]).is_err()
    }

    /// Sends several buffers in one call; may take less than all of them.
    #[inline]
    pub fn send_vectored(&self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        send_vectored(&self.socket, slices, more)
    }

    /// Sends from a file; may take less than all of it.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file has become shorter, and what the system says.
    pub fn send_file(&self, range: &FileRange, more: More) -> io::Result<usize> {
        send_file(&self.socket, range, more)
    }

    /// Ends the receiving side; wakes a thread that sleeps in a receive.
    pub fn shutdown_receive(&self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Read)
    }
}

impl From<OwnedFd> for Stream {
    fn from(fd: OwnedFd) -> Self {
        Self { socket: Socket::from(fd) }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether an address is one of this machine's own, here in this network namespace: only then can a socket be bound to
/// it.
pub fn is_local(addr: std::net::IpAddr) -> bool {
    std::net::UdpSocket::bind((addr, 0)).is_ok()
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
pub(crate) const NO_SIGNAL: i32 = 0; // the standard library ignores SIGPIPE
#[cfg(not(any(target_os = "macos", target_os = "ios")))]
pub(crate) const NO_SIGNAL: i32 = libc::MSG_NOSIGNAL;

#[cfg(target_os = "linux")]
const HOLD: i32 = libc::MSG_MORE;
#[cfg(not(target_os = "linux"))]
const HOLD: i32 = 0;

fn in_progress(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINPROGRESS) || e.kind() == io::ErrorKind::WouldBlock
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

/// `is_out_of_descriptors`.
pub(crate) const NO_DESCRIPTORS: &[i32] = &[libc::EMFILE, libc::ENFILE];
/// `is_out_of_memory`.
pub(crate) const NO_MEMORY: &[i32] = &[NO_BUFFERS];
/// `is_out_of_buffers`.
pub(crate) const NO_BUFFERS: i32 = libc::ENOBUFS;
/// `is_cancelled`.
pub(crate) const CANCELLED: i32 = libc::ECANCELED;

/// What a failed accept says of a connection that went away.
pub(crate) const LOST: &[i32] = &[
    libc::EPROTO,
    libc::ENETDOWN,
    libc::ENOPROTOOPT,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::EOPNOTSUPP,
    libc::ENETUNREACH,
    libc::EPERM,
];
