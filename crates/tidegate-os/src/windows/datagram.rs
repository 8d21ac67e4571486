//! Datagram sockets: one datagram a call. What joins or batches them is for Linux.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Foundation::{ERROR_OPERATION_ABORTED, HANDLE};
use windows_sys::Win32::Networking::WinSock::WSAEINTR;
use windows_sys::Win32::System::IO::CancelIoEx;

use super::descriptor::{AsRawFd, OwnedFd, RawFd};
use super::poll::{PollSet, Readiness};
use super::socket::Blocking;
pub use crate::terms::{DatagramOptions, Joining, LARGEST_JOINED, LARGEST_PAYLOAD, PortSharing};

/// A UDP socket.
#[derive(Debug)]
pub struct DatagramSocket(Socket);

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// Whether several sockets can share a port and the datagrams that arrive there: `SO_REUSEADDR` delivers all of
/// them to one.
pub const SHARES_PORT: bool = false;

impl DatagramSocket {
    /// Binds. Port 0 lets the system pick one.
    pub fn bind(addr: SocketAddr, port: PortSharing, options: &DatagramOptions) -> io::Result<Self> {
        if port == PortSharing::Shared {
            return Err(refused("several sockets share a port on Unix only: use one thread"));
        }
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        prepare(&socket, options)?;
        socket.bind(&addr.into())?;
        Ok(Self(socket))
    }

    /// A socket that talks to one peer only.
    pub fn connect(to: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        prepare(&socket, options)?;
        socket.connect(&to.into())?;
        Ok(Self(socket))
    }

    /// Refuses: no socket is handed over here.
    pub fn adopt(_: OwnedFd, _: &DatagramOptions) -> io::Result<Self> {
        Err(refused("sockets are handed over on Unix only"))
    }

    /// Refuses, too.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Err(refused("sockets are handed over on Unix only"))
    }

    /// Refuses: see [`PortSharing::Shared`].
    pub fn share_port(&self) -> io::Result<()> {
        Err(refused("several sockets share a port on Unix only: use one thread"))
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()?.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    }

    /// Bytes of kernel memory that may wait to be received (`SO_RCVBUF`).
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.0.recv_buffer_size()
    }

    /// Wakes every thread that sleeps in a receive of this socket: it returns an [arrival](Inbox::get) from nobody.
    /// From now on calls take what has arrived, and do not sleep. (Its receiving side is not shut down: that would lose
    /// what has arrived.)
    pub fn wake_receivers(&self) {
        let _ = self.0.set_nonblocking(true); // first: who begins to receive after this does not sleep
        // SAFETY: the socket is open for the call, and no operation of it has memory of ours.
        unsafe { CancelIoEx(self.0.as_raw_socket() as HANDLE, std::ptr::null()) };
    }

    /// Receives one datagram into `inbox`, and returns that it is one.
    pub fn receive(&self, inbox: &mut Inbox, _most: usize) -> io::Result<usize> {
        inbox.got = false;
        loop {
            match self.0.recv_from(&mut inbox.room) {
                Ok((bytes, from)) => inbox.note(bytes, from.as_socket()),
                // An earlier datagram found nobody: no news of this socket (`recvfrom`, WSAECONNRESET).
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => continue,
                Err(e) if is_woken(&e) => inbox.note(0, None),
                Err(e) => return Err(e),
            }
            return Ok(1);
        }
    }

    /// Sends the first message and returns that it was taken.
    pub fn send<'a>(
        &self,
        _: &mut Outgoing,
        mut messages: impl Iterator<Item = Message<'a>>,
    ) -> io::Result<usize> {
        let Some(message) = messages.next() else { return Ok(0) };
        if message.segment.is_some() {
            return Err(refused("the kernel cuts messages on Linux only"));
        }
        let sent = match message.to {
            Some(to) => self.0.send_to(message.bytes, &to.into()),
            None => self.0.send(message.bytes),
        };
        sent.map(|_| 1)
    }

    /// Waits until something can be received or sent, as `wanted`; whether it can.
    pub fn wait(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<bool> {
        let mut set = PollSet::default();
        set.push(self.as_socket(), wanted);
        Ok(set.wait(timeout)? > 0)
    }

    /// A second handle to it, for a library that brings its own loop.
    pub fn to_std(&self) -> io::Result<std::net::UdpSocket> {
        Ok(self.0.try_clone()?.into())
    }
}

/// After [`DatagramSocket::wake_receivers`].
fn is_woken(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| code == WSAEINTR || code == ERROR_OPERATION_ABORTED as i32)
}

impl AsSocket for DatagramSocket {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.0.as_socket()
    }
}

impl AsRawFd for DatagramSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_socket()
    }
}

fn prepare(socket: &Socket, options: &DatagramOptions) -> io::Result<()> {
    if options.joining == Joining::On {
        return probe_segments();
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    socket.set_write_timeout(options.send_timeout)?;
    socket.set_nonblocking(options.blocking == Blocking::Never)
}

/// Whether several datagrams are sent and received as one: not here.
pub fn probe_segments() -> io::Result<()> {
    Err(refused("datagrams are joined and cut on Linux only"))
}

/// What one receive brought.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Who sent it; `None` after [`DatagramSocket::wake_receivers`].
    pub from: Option<SocketAddr>,
    /// What was received.
    pub bytes: &'a [u8],
    /// Its length.
    pub segment: usize,
    /// It was longer than the room for it; the rest is lost.
    pub truncated: bool,
}

/// Room for a received datagram.
pub struct Inbox {
    /// As long as a datagram can be: one that does not fit would be an error, without its sender.
    room: Vec<MaybeUninit<u8>>,
    bytes: Vec<u8>,
    each: usize,
    received: usize,
    from: Option<SocketAddr>,
    got: bool,
}

impl Inbox {
    /// Room for one datagram of `each` bytes, however many are asked for: there is one a call.
    pub fn new(_count: usize, each: usize) -> Self {
        let room = vec![MaybeUninit::new(0); LARGEST_JOINED];
        Self { room, bytes: Vec::with_capacity(each), each, received: 0, from: None, got: false }
    }

    fn note(&mut self, received: usize, from: Option<SocketAddr>) {
        let kept = received.min(self.each);
        self.bytes.clear();
        // SAFETY: all of `room` is initialised, from the start on.
        self.bytes.extend(self.room[..kept].iter().map(|byte| unsafe { byte.assume_init() }));
        (self.received, self.from, self.got) = (received, from, true);
    }

    /// Number `at` of what the last receive brought.
    pub fn get(&self, at: usize) -> Option<Arrival<'_>> {
        (at == 0 && self.got).then_some(Arrival {
            from: self.from,
            bytes: &self.bytes,
            segment: self.bytes.len(),
            truncated: self.received > self.each,
        })
    }
}

/// One thing to send.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// For whom; `None` on a connected socket.
    pub to: Option<SocketAddr>,
    /// All bytes.
    pub bytes: &'a [u8],
    /// Bytes of each datagram if there are several. Refused here.
    pub segment: Option<u16>,
}

/// What one sending call needs besides the bytes: nothing here.
#[derive(Default)]
pub struct Outgoing(());
