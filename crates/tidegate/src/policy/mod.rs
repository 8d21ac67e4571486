//! Every limit, in one visible place.
//!
//! A [`Policy`] is plain data with a default for each limit. [`Policy::check`] relates the limits to one
//! another when a server or client is built; a wrong combination is a [`PolicyError`] that names
//! both limits and what to do. Engines never read a limit and decide: they ask the functions beside
//! the limits ([`accept`], [`timeouts`], [`sends`]) or obey an action of the core.
//!
//! A limit that a model has no use for is refused by name when it is set for that model: there is no silent knob.

pub mod accept;
pub mod buffers;
mod change;
mod check;
pub mod datagram;
pub mod fast_path;
pub mod memory;
pub mod offload;
pub mod sends;
pub mod timeouts;
pub mod wait;

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

pub use accept::{Accept, PostedAccepts, WhenFull};
pub use buffers::ReceiveStyle;
pub(crate) use check::LONGEST;
pub use check::PolicyError;
pub use datagram::{DatagramPath, DatagramPolicy};
pub use fast_path::FastPath;
pub use memory::MemoryBound;
pub use offload::Offload;
pub use sends::OutboxMarks;
pub use timeouts::MinRate;
pub use wait::Wait;

/// Every limit of a server or client.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Connections at once, over all I/O threads. Default 100,000; also bounded by what the system gives
    /// (descriptors). Each I/O thread has an equal share. Cost of an idle connection: see `docs/policy.md`.
    pub max_connections: usize,
    /// Accepting: backlog and watermarks.
    pub accept: Accept,
    /// What happens to a connection that comes while `max_connections` are open. Default [`WhenFull::Wait`].
    pub when_full: WhenFull,
    /// An accepted connection that has sent nothing for this long is closed. Default 30 s; `None` waits for ever.
    pub first_byte_timeout: Option<Duration>,
    /// A connection on which nothing moved in either direction for this long is closed. Default `None`.
    pub idle_timeout: Option<Duration>,
    /// A connection whose peer takes nothing for this long, while there is something to send, is reset. Default 30 s.
    pub send_timeout: Option<Duration>,
    /// How long [`Flow::Linger`](crate::Flow::Linger) waits for the peer to close. Default 2 s.
    pub linger_timeout: Duration,
    /// How long [`stop`](crate::Running::stop) lets connections finish before it resets them. Default 10 s.
    pub drain_timeout: Duration,
    /// A peer that is slower than this in the middle of a message, in either direction, is reset. Default `None`.
    /// Cost: 48 bytes for each connection that is in the middle of one.
    pub min_rate: Option<MinRate>,
    /// How a receive waits for data. Default [`ReceiveStyle::Posted`].
    pub receive: ReceiveStyle,
    /// Bytes of one receive buffer; a multiple of the page size. Default 16 KiB.
    pub buffer_bytes: usize,
    /// Receive buffers of each I/O thread, where the model pools them (`uring`: rounded up to a power of two,
    /// at most 32,768). Default 256. Readiness models need one.
    pub buffers: usize,
    /// Keep the buffer pool in memory (`mlock(2)`). Default off. Not on `blocking`, `pool` and `tokio`, which have no pool.
    /// Costs the whole pool at once, out of RLIMIT_MEMLOCK.
    pub lock_memory: bool,
    /// Bytes of input a session may leave unconsumed before the connection is closed. Default 64 KiB.
    pub input_bytes: usize,
    /// Low and high watermark of what a connection has to send.
    pub outbox: OutboxMarks,
    /// Sends of the whole server that the kernel has not finished with; further ones wait their turn, first in first
    /// out. Each connection has at most one. Default `None`: no limit. Each I/O thread has an equal share. Not on `blocking`,
    /// `pool` (their threads are the limit) and `tokio`.
    pub outstanding_sends: Option<NonZeroU32>,
    /// How many connections, first in first out, may receive at once. Default `None`: all. One that has had an answer, or has
    /// been silent for 100 ms, makes room for the next. Each I/O thread has an equal share. Not on `blocking`, `pool` and `tokio`.
    pub window: Option<NonZeroUsize>,
    /// Receives, and sends, one connection may do in a row before the others get their turn. Default 8.
    pub drain_budget: usize,
    /// I/O threads. Default `None`: one for each processor this process may run on. `pool` has its own default
    /// (256); `blocking` has two for each connection.
    pub threads: Option<NonZeroUsize>,
    /// Bytes of stack of each thread of `blocking` and `pool`. Default 128 KiB; only touched pages cost memory.
    pub thread_stack_bytes: usize,
    /// Events or completions taken from the kernel at once. Default 256.
    pub events_per_wait: usize,
    /// How an I/O thread waits. Default [`Wait::Block`], the only one for `blocking`, `pool` and `tokio`.
    pub wait: Wait,
    /// How long a wait in the kernel polls the queue of the network card before it sleeps (`SO_BUSY_POLL` of accepted sockets, `EPIOCSPARAMS` of
    /// `epoll`, `IORING_REGISTER_NAPI` of `uring`), 1 µs to 1 s. Default `None`: off. Cost: a processor, for that time in each wait; it takes
    /// `CAP_NET_ADMIN`. Without a card (loopback, Unix sockets) nothing is polled. On `blocking`, `pool`, `select`, `poll`, `epoll` and
    /// `uring`; `select` and `poll` poll when they receive, and while they wait only if `net.core.busy_poll` is set; a client has it on
    /// `epoll` and `uring`.
    pub busy_poll: Option<Duration>,
    /// Shared memory in place of TCP for connections to a tidegate on the same host that has it too; the others stay with TCP.
    /// Default `None`: off. On `select`, `poll`, `epoll` and `pool`. A listener with it does not defer accepts
    /// ([`Accept::defer`]). Cost: two rings of memory for each connection that uses it.
    ///
    /// On Windows it is an option of the sockets instead (`SIO_LOOPBACK_FAST_PATH`), on every model; who connects may be any program that
    /// sets it. Where that is refused connections are plain TCP, which is said once.
    pub fast_path: Option<FastPath>,
    /// Long work away from the I/O threads ([`Outbox::offload`](crate::Outbox::offload)).
    pub offload: Offload,
    /// Pieces of mail and dials that may wait for one I/O thread. Default 1,000,000.
    pub mail_queue: usize,
    /// `SO_SNDBUF` of accepted sockets in bytes. Default `None`: the system tunes it.
    pub socket_send_buffer: Option<usize>,
    /// `SO_RCVBUF` of accepted sockets in bytes. Default `None`: the system tunes it. 0 is not a buffer size on
    /// Linux (it takes its own minimum).
    pub socket_receive_buffer: Option<usize>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_connections: 100_000,
            accept: Accept::default(),
            when_full: WhenFull::Wait,
            first_byte_timeout: Some(Duration::from_secs(30)),
            idle_timeout: None,
            send_timeout: Some(Duration::from_secs(30)),
            linger_timeout: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(10),
            min_rate: None,
            receive: ReceiveStyle::Posted,
            buffer_bytes: 16 * 1024,
            buffers: 256,
            lock_memory: false,
            input_bytes: 64 * 1024,
            outbox: OutboxMarks::default(),
            outstanding_sends: None,
            window: None,
            drain_budget: 8,
            threads: None,
            thread_stack_bytes: 128 * 1024,
            events_per_wait: 256,
            wait: Wait::Block,
            busy_poll: None,
            fast_path: None,
            offload: Offload::default(),
            mail_queue: 1_000_000,
            socket_send_buffer: None,
            socket_receive_buffer: None,
        }
    }
}

impl Policy {
    /// The high-throughput strategy of the source: few connections at once, large buffers, many operations on a
    /// window of the established connections, busy ones refused.
    #[must_use]
    pub fn throughput() -> Self {
        Self {
            max_connections: 10_000,
            when_full: WhenFull::Refuse,
            buffer_bytes: 64 * 1024,
            outbox: OutboxMarks { low: 64 * 1024, high: 256 * 1024 },
            ..Self::default()
        }
    }

    /// The maximum-connections strategy of the source: very many connections, each with next to nothing pinned.
    #[must_use]
    pub fn connections() -> Self {
        Self {
            max_connections: 1_000_000,
            buffer_bytes: 4 * 1024,
            input_bytes: 16 * 1024,
            outbox: OutboxMarks { low: 4 * 1024, high: 16 * 1024 },
            ..Self::default()
        }
    }
}
