//! Datagram sockets: one datagram a call. What joins or batches them is for Linux.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use windows_sys::Win32::Foundation::{ERROR_OPERATION_ABORTED, HANDLE};
use windows_sys::Win32::Networking::WinSock::{SIO_UDP_CONNRESET, WSAEINTR, WSAEMSGSIZE, WSAENETRESET};
use windows_sys::Win32::System::IO::CancelIoEx;
use windows_sys::core::BOOL;

use super::descriptor::{AsRawFd, OwnedFd, RawFd};
use super::poll::{PollSet, Readiness};
use super::winsock::control;
use crate::datagram::{Arrival, OutgoingDatagram, prepare};
use crate::socket::unsupported;
use crate::terms::{DatagramOptions, LARGEST_JOINED, PortSharing};

/// A UDP socket.
#[derive(Debug)]
pub struct DatagramSocket {
    pub(crate) socket: Socket,
    /// A [`DatagramQueue`](super::overlapped::DatagramQueue) has it, or had.
    is_claimed: AtomicBool,
}

/// Whether several sockets can share a port and the datagrams that arrive there: `SO_REUSEADDR` delivers all of
/// them to one.
pub const SHARES_PORT: bool = false;

impl DatagramSocket {
    /// Binds. Port 0 lets the system pick one.
    pub fn bind(addr: SocketAddr, port: PortSharing, options: &DatagramOptions) -> io::Result<Self> {
        if port == PortSharing::Shared {
            return Err(unsupported("several sockets share a port on Unix only: use one thread"));
        }
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP))?;
        prepare(&socket, options)?;
        socket.bind(&addr.into())?;
        Ok(Self { socket, is_claimed: AtomicBool::new(false) })
    }

    /// A socket that talks to one peer only.
    pub fn connect(to: SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        prepare(&socket, options)?;
        socket.connect(&to.into())?;
        Ok(Self { socket, is_claimed: AtomicBool::new(false) })
    }

    /// Refuses: no socket is handed over here.
    pub fn adopt(_: OwnedFd, _: &DatagramOptions) -> io::Result<Self> {
        Err(unsupported("sockets are handed over on Unix only"))
    }

    /// Refuses, too.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Err(unsupported("sockets are handed over on Unix only"))
    }

    /// Refuses: see [`PortSharing::Shared`].
    pub fn share_port(&self) -> io::Result<()> {
        Err(unsupported("several sockets share a port on Unix only: use one thread"))
    }

    /// Wakes every thread that sleeps in a receive of this socket: it returns an [arrival](DatagramBuffer::get) from
    /// nobody.
    /// From now on calls take what has arrived, and do not sleep. (Its receiving side is not shut down: that would lose
    /// what has arrived.)
    pub fn wake_receivers(&self) {
        let _ = self.socket.set_nonblocking(true); // first: who begins to receive after this does not sleep
        // SAFETY: the socket is open for the call, and no operation of it has memory of ours.
        unsafe { CancelIoEx(self.socket.as_raw_socket() as HANDLE, std::ptr::null()) };
    }

    /// Receives one datagram into `inbox`, and returns that it is one.
    pub fn receive(&self, inbox: &mut DatagramBuffer, _most: usize) -> io::Result<usize> {
        inbox.got = false;
        loop {
            match self.socket.recv_from(&mut inbox.room) {
                Ok((bytes, from)) => inbox.note(bytes, from.as_socket()),
                Err(e) if is_report(&e) => continue,
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
        mut messages: impl Iterator<Item = OutgoingDatagram<'a>>,
    ) -> io::Result<usize> {
        let Some(message) = messages.next() else { return Ok(0) };
        if message.segment.is_some() {
            return Err(unsupported("the kernel cuts messages on Linux only"));
        }
        let sent = match message.to {
            Some(to) => self.socket.send_to(message.bytes, &to.into()),
            None => self.socket.send(message.bytes),
        };
        sent.map(|_| 1)
    }

    /// Waits until something can be received or sent, as `wanted`; whether it can.
    pub fn wait(&self, wanted: Readiness, timeout: Option<Duration>) -> io::Result<bool> {
        let mut set = PollSet::default();
        set.push(self.as_socket(), wanted);
        Ok(set.wait(timeout)? > 0)
    }

    /// Gives it to a queue of operations, for good: from then on what it reports is of that queue, so that a second one
    /// would free what is the first one's.
    pub(super) fn claim(&self) -> io::Result<()> {
        if self.is_claimed.swap(true, Ordering::Relaxed) {
            return Err(unsupported("the socket has a queue of operations, and cannot have a second one"));
        }
        Ok(())
    }

    /// Has no report of the system that an earlier datagram found nobody (`SIO_UDP_CONNRESET`). Where that is not
    /// taken, receives fail with such reports.
    pub(super) fn refuse_reports(&self) {
        let off: BOOL = 0;
        // SAFETY: nothing comes back.
        let _ = unsafe { control(&self.socket, SIO_UDP_CONNRESET, &off, &mut ()) };
    }

    /// Receives one datagram without waiting: how many of its bytes are in `into`, and who sent it. That is not known
    /// of one that is longer, whose rest is lost.
    pub(super) fn receive_into(&self, into: &mut [u8]) -> io::Result<(usize, Option<SocketAddr>)> {
        let length = into.len();
        // SAFETY: `recv_from` writes bytes, and nothing that would leave one uninitialised.
        let room = unsafe { &mut *(std::ptr::from_mut(into) as *mut [MaybeUninit<u8>]) };
        match self.socket.recv_from(room) {
            Ok((bytes, from)) => Ok((bytes, from.as_socket())),
            Err(e) if e.raw_os_error() == Some(WSAEMSGSIZE) => Ok((length, None)),
            Err(e) => Err(e),
        }
    }
}

/// Whether an error says that an earlier datagram did not get where it was to go: no news of the socket (`recvfrom`,
/// WSAECONNRESET and WSAENETRESET).
pub fn is_report(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::ConnectionReset || e.raw_os_error() == Some(WSAENETRESET)
}

/// After [`DatagramSocket::wake_receivers`].
fn is_woken(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| code == WSAEINTR || code == ERROR_OPERATION_ABORTED as i32)
}

impl AsSocket for DatagramSocket {
    fn as_socket(&self) -> BorrowedSocket<'_> {
        self.socket.as_socket()
    }
}

impl AsRawFd for DatagramSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_socket()
    }
}

/// Room for a received datagram.
pub struct DatagramBuffer {
    /// As long as a datagram can be: one that does not fit would be an error, without its sender.
    room: Vec<MaybeUninit<u8>>,
    bytes: Vec<u8>,
    each: usize,
    received: usize,
    from: Option<SocketAddr>,
    got: bool,
}

impl DatagramBuffer {
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

/// What one sending call needs besides the bytes: nothing here.
#[derive(Default)]
pub struct Outgoing(());
