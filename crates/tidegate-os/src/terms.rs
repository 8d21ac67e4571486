//! The words in which sockets and memory are asked for: the same on every system. Each module has those that it takes.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::loopback::Loopback;

/// What to wait for, or what has happened, on one socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Data, end of stream or an error can be read; a listener can accept.
    pub readable: bool,
    /// The socket takes data, or the connection attempt has ended.
    pub writable: bool,
}

impl Readiness {
    /// Readable alone.
    pub const READ: Self = Self { readable: true, writable: false };
    /// Writable alone.
    pub const WRITE: Self = Self { readable: false, writable: true };

    /// Ready for what either is.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { readable: self.readable || other.readable, writable: self.writable || other.writable }
    }
}

/// How a call on a socket behaves when it would have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// The call sleeps.
    Waits,
    /// The call fails with [`WouldBlock`](std::io::ErrorKind::WouldBlock).
    Never,
}

/// Options a listener is created with. Those of TCP have no effect on a Unix socket; its buffers are not inherited from
/// the listener, so it is not given any.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Connections the kernel may hold before they are accepted; capped by the system.
    pub backlog: u32,
    /// Wait in the kernel for the first data of a connection, at most this long, before accepting it. On Windows the
    /// first data comes with the accept, where the model's accept can do that (`AcceptEx`).
    pub defer_accept: Option<Duration>,
    /// TCP Fast Open: connections that may be waiting with their first data before their handshake is over. Refused on
    /// Windows.
    pub fast_open: Option<NonZeroU32>,
    /// `SO_SNDBUF` of accepted sockets in bytes; `None` leaves the system's own tuning on.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF` of accepted sockets in bytes; `None` leaves the system's own tuning on.
    pub receive_buffer: Option<usize>,
    /// `SO_BUSY_POLL` of accepted sockets (`socket(7)`); `None` leaves it as the system has it. Refused where it is not
    /// Linux.
    pub busy_poll: Option<Duration>,
    /// How connections from this host go. Where the system cannot shorten their way they go through TCP, and the
    /// listener says why ([`slow_loopback`](crate::socket::Listener::slow_loopback)).
    pub loopback: Loopback,
}

impl ListenOptions {
    /// A queue of connections, and nothing else.
    #[must_use]
    pub const fn new(backlog: u32) -> Self {
        Self {
            backlog,
            defer_accept: None,
            fast_open: None,
            send_buffer: None,
            receive_buffer: None,
            busy_poll: None,
            loopback: Loopback::Tcp,
        }
    }
}

/// What follows a send. Makes a difference on Linux only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Nothing that is known: the bytes leave now.
    No,
    /// The socket is closed right away: the last bytes may wait for that and leave in one segment with the
    /// end of the stream (`MSG_MORE`, `send(2)`), which spares a packet and its acknowledgement.
    CloseFollows,
    /// More bytes are sent right away: these wait for them, and leave in one segment with the first of them
    /// (`MSG_MORE`).
    BytesFollow,
}

/// The most bytes that fit into one UDP datagram over IPv4 (RFC 768: 65,535 with 8 of its own header and 20 of IP).
pub const LARGEST_PAYLOAD: usize = 65_507;

/// What one receive may return where the kernel joins datagrams (`UDP_GRO`); elsewhere it is more than any datagram
/// has.
pub const LARGEST_JOINED: usize = 65_535;

/// Whether other sockets may be bound to the same port, each getting a part of the peers (`SO_REUSEPORT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSharing {
    /// This socket alone.
    Own,
    /// Several of this process. Refused on Windows, which does not share peers out.
    Shared,
}

/// Whether the kernel may hand over several datagrams of one peer as one (`UDP_GRO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Each for itself.
    Off,
    /// Datagrams of one size and peer come together; each arrival says where they end. Refused on Windows.
    On,
}

/// How a datagram socket is made.
#[derive(Clone, Copy, Debug)]
pub struct DatagramOptions {
    /// Whether calls sleep.
    pub blocking: Blocking,
    /// Whether the kernel joins what it receives.
    pub joining: Joining,
    /// `SO_RCVBUF` in bytes; `None` leaves what the system says.
    pub receive_buffer: Option<usize>,
    /// `SO_SNDBUF` in bytes; `None` leaves what the system says.
    pub send_buffer: Option<usize>,
    /// How long a sending call that sleeps may do so.
    pub send_timeout: Option<Duration>,
}

impl DatagramOptions {
    /// Calls that sleep or not, and nothing else.
    #[must_use]
    pub const fn new(blocking: Blocking) -> Self {
        Self { blocking, joining: Joining::Off, receive_buffer: None, send_buffer: None, send_timeout: None }
    }
}

/// Whether pages may be paged out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// Untouched pages cost nothing but a promise of memory; touched ones may be paged out.
    Pageable,
    /// All of them are in memory from the start and stay there. Counts towards RLIMIT_MEMLOCK; on Windows the working
    /// set is raised by as much first.
    Locked,
}
