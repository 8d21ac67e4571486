//! All limits, in one place.
//!
//! A [`Policy`] is plain data with a default and a setter for each limit. [`Policy::check`] checks the limits against
//! one another when a server or client is built; a wrong combination is a [`PolicyError`] that names both limits and
//! the remedy.
//!
//! All properties of a limit are one entry of a table ([`Limit`]): name, default, range, relations, option and key, its
//! effect on each model, whether it may change while a server runs. A limit that a model cannot enforce is refused by
//! name where relying on it would be a mistake, and listed as [without effect](crate::Model::without_effect) elsewhere:
//! no limit is ignored silently.

// Engines never read a limit and decide: they call the functions next to the limits (`accept`, `timeouts`, `sends` …)
// or carry out an action of `proto`.

// Tests of this crate and of services compare with its constants.
#[doc(hidden)]
pub mod accept;
mod buffers;
mod change;
mod check;
pub(crate) mod datagram;
mod fast_path;
pub(crate) mod limit;
pub(crate) mod memory;
mod offload;
pub(crate) mod pressure;
pub(crate) mod sends;
pub mod setting;
#[doc(hidden)]
pub mod table;
// As `accept`.
#[doc(hidden)]
pub mod timeouts;
pub(crate) mod wait;

use fast_path::FAST_PATH;
use sends::MOST_POSTED;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

pub use accept::{Accept, PostedAccepts, WhenFull};
pub use buffers::ReceiveStyle;
pub(crate) use check::LONGEST;
pub use check::PolicyError;
pub use datagram::{DatagramPath, DatagramPolicy, ParseDatagramPathError};
pub use fast_path::FastPath;
pub use limit::{Change, Effect, Idle, Limit, Limited, Range};
pub use memory::MemoryBound;
pub use offload::Offload;
pub use sends::OutboxMarks;
pub use setting::{ParseLimitError, Unit};
use table::limits;
use tidegate_os::process::page_bytes;
pub use timeouts::MinRate;
pub use wait::Wait;

limits! {
/// Every limit of a server or client.
///
/// A default with what is to differ: each limit has a setter of its name, and the fields may be set, too.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Policy, policy::OutboxMarks};
///
/// let mut policy = Policy::default()
///     .max_connections(500)
///     .idle_timeout(Some(Duration::from_secs(60)))
///     .outbox(OutboxMarks::default().low(4 * 1024).high(16 * 1024));
/// policy.accept.backlog = 128;
/// policy.check()?;
/// # Ok::<(), tidegate::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Policy, as "" of Policy, at |policy| Some(policy);

    parts {
        /// Accepting: backlog and watermarks.
        accept: Accept,
        /// Low and high watermark of a connection's unsent output.
        outbox: OutboxMarks,
        /// Offloaded jobs ([`Outbox::offload`](crate::Outbox::offload)).
        offload: Offload,
    }

    /// The default of `pool` is 256; `blocking` has two threads for each connection. Servers on `event-select` and
    /// `overlapped`, whose threads hold 62 connections, start one more whenever all are full, unless a number is given.
    threads: Option<NonZeroUsize> = None => {
        what: "I/O threads; on models with an event loop, connections are balanced between them",
        cost: "a stack and buffers for each thread",
        option: "threads",
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (LOOPS, Kept),
            (&[Pool, Tokio], Kept),
            (&[Blocking], NoEffect("it has two threads for each connection: `max_connections` bounds them")),
        ],
        default_note: Some("one for each processor; 256 for pool; more as they fill on event-select and overlapped"),
        relation: Some(Relation {
            holds: AtMost,
            other: "max_connections",
            remedy: "threads without connections are idle; use at most one thread per connection",
        }),
    }
    max_connections: usize = 100_000 => {
        what: "Maximum connections, divided equally among the I/O threads; checked before accept",
        cost: "too low: `when_full` happens; too high: memory",
        option: "max-connections",
        unit: Count,
        range: Within(1, 16_000_000),
        change: Live,
        on: &[(EVERY, Kept)],
        default_note: Some("100000, lowered to what the descriptor limit allows"),
    }
    /// Counts a socket and its operations in the kernel when idle, as measured (4 KiB), and socket buffers of a fixed
    /// size. Buffers that the system tunes are bounded by `net.ipv4.tcp_mem` for all sockets together.
    kernel_memory: Option<usize> = None => {
        what: "Kernel memory budget for max-connections: sockets, operations, and socket buffers of a fixed size",
        cost: "too low: a max-connections that exceeds it is refused, and the default is lowered",
        option: "kernel-memory",
        unit: Bytes,
        range: Within(1 << 20, 1 << 50),
        change: Live,
        on: &[(EVERY, Kept)],
        default_note: Some("no budget"),
    }
    when_full: WhenFull = WhenFull::Wait => {
        what: "When max-connections is reached: wait (in the kernel's backlog) or refuse (accept and close)",
        cost: "waiting clients see latency, refused ones an error",
        option: "when-full",
        unit: Words(WhenFull::WORDS),
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    first_byte_timeout: Option<Duration> = Some(Duration::from_secs(30)) => {
        what: "Close an accepted connection that has sent nothing for this long",
        cost: "slow clients are disconnected",
        option: "first-byte-timeout",
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
        relation: Some(Relation {
            holds: AtMost,
            other: "idle_timeout",
            remedy: "a silent connection would be closed as idle first; make `first_byte_timeout` the shorter one",
        }),
    }
    idle_timeout: Option<Duration> = None => {
        what: "Close a connection without traffic in either direction for this long",
        cost: "clients must reconnect",
        option: "idle-timeout",
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
        default_note: Some("75s for http and files, none for the others"),
    }
    send_timeout: Option<Duration> = Some(Duration::from_secs(30)) => {
        what: "Reset a connection whose peer accepts none of the pending output for this long",
        cost: "stalled downloads are aborted",
        option: "send-timeout",
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// The peer may fall behind by [`MinRate::grace`]; each byte is worth 1/rate seconds, and at most the grace is
    /// accumulated.
    min_rate: Option<MinRate> = None => {
        what: "Minimum rate of a peer in mid-message, in bytes per second, in either direction; slower peers are reset",
        cost: "48 bytes for each connection in mid-message; legitimate but very slow clients are disconnected",
        option: "min-rate",
        unit: Rate,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// A failed operation is retried, first after 10 ms and finally every second; only if none of the failed ones has
    /// succeeded for this long, a sixteenth of the connections is closed each second, the longest idle first.
    shed_after: Option<Duration> = Some(Duration::from_secs(5)) => {
        what: "Close idle connections when sends or receives have failed for lack of kernel memory for this long",
        cost: "shorter: connections are lost that could have recovered; none: connections are never closed for it",
        option: "shed-after",
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// For [`Flow::Linger`](crate::Flow::Linger).
    linger_timeout: Duration = Duration::from_secs(2) => {
        what: "How long to wait for the peer to close after a final response that it may not have read yet",
        cost: "a connection slot for that long",
        option: "linger-timeout",
        unit: Time,
        range: TIME_OR_ZERO,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// A connection that was accepted or had traffic within the last second has the rest of that second for one more
    /// request; output that a session sends on its own does not extend it.
    drain_timeout: Duration = Duration::from_secs(10) => {
        what: "How long a stop waits for connections to finish before it resets them",
        cost: "the longest duration of a stop",
        option: "drain-timeout",
        unit: Time,
        range: TIME_OR_ZERO,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// On `uring` and `rio` a receive buffer of the pool; on `blocking` one for each connection; otherwise one for each
    /// thread.
    buffer_bytes: usize = whole_pages(16 * 1024) => {
        what: "Bytes of one receive buffer, a multiple of the page size",
        cost: "memory, for each thread (blocking: each connection); smaller: more receives for large input",
        option: "buffer-bytes",
        unit: Bytes,
        range: Pages(16 << 20),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    /// `uring` rounds it up to a power of two; on `overlapped` it is limited to the number of connections of a thread.
    buffers: usize = 256 => {
        what: "Receive buffers in the pool of each thread",
        cost: "`buffers` x `buffer_bytes`; too few: receives end with ENOBUFS and are re-armed",
        option: "buffers",
        unit: Count,
        range: Within(1, 32_768),
        change: Fixed,
        on: &[
            (COMPLETION, Kept),
            (READINESS, NoEffect("it has no pool: each thread receives into one buffer")),
            (&[Pool, Tokio], NoEffect("it has no pool: each thread receives into one buffer")),
            (&[Blocking], NoEffect("it has no pool: each connection has one buffer")),
        ],
    }
    /// `mlock(2)`: the whole pool, checked before anything starts.
    lock_memory: bool = false => {
        what: "Keep the receive buffers in memory (mlock)",
        cost: "the whole pool counts towards RLIMIT_MEMLOCK",
        option: "lock-memory",
        unit: Switch,
        range: Any,
        change: Fixed,
        on: &[
            (LOOPS, Kept),
            (WITHOUT_LOOP, Refused("it has no buffer pool; choose epoll or uring")),
        ],
    }
    receive: ReceiveStyle = ReceiveStyle::Posted => {
        what: "How a receive waits for data: posted (a buffer is ready) or zero-byte (idle connections pin no buffer)",
        cost: "zero-byte: one more call for each receive",
        option: "receive",
        unit: Words(ReceiveStyle::WORDS),
        range: Any,
        change: Fixed,
        on: &[
            (&[Overlapped, Iocp, Rio], Kept),
            (READINESS, NoEffect("idle connections pin no buffer in either mode")),
            (&[Uring, Pool, Tokio], NoEffect("idle connections pin no buffer in either mode")),
            (&[Blocking], Refused("each of its threads owns a buffer; choose another model")),
        ],
    }
    /// Beyond it the session may send a last response ([`Session::on_input_limit`](crate::Session::on_input_limit)), or
    /// the connection is reset.
    input_bytes: usize = 64 * 1024 => {
        what: "Bytes of input that a session may leave unconsumed",
        cost: "bytes for each connection that holds a partial message",
        option: "input-bytes",
        unit: Bytes,
        range: Within(1, 1 << 30),
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// Their bytes leave in order, and what completes out of order is followed up in order. `iocp` and `overlapped`
    /// post more than one; `rio` does not, nor does `uring`: io_uring keeps no order among several sends, and one
    /// has up to 64 pieces. On the other models a send is over when its call returns.
    posted_sends: usize = 1 => {
        what: "Sends of one connection that may be in flight at once, where the model can have more than one",
        cost: "memory of the kernel for each; output written while one is in flight is not gathered",
        option: "posted-sends",
        unit: Count,
        range: Within(1, MOST_POSTED as u128),
        change: Fixed,
        on: &[
            (&[Overlapped, Iocp], Kept),
            (&[Uring], NoEffect("io_uring keeps no order among several sends: a connection has one, of up to 64 pieces")),
            (&[Rio], NoEffect("a connection has one send, from one registered buffer")),
            (READINESS, NoEffect("a send is over when its call returns")),
            (WITHOUT_LOOP, NoEffect("a send is over when its call returns")),
        ],
    }
    /// `iocp` posts more than one, as long as each has a buffer: with zero-byte receives
    /// ([`receive`](Self::receive)) it has no effect. One receive of `uring` brings buffer after buffer; on
    /// `overlapped` each has one of the 64 events that its thread can wait for.
    posted_receives: usize = 1 => {
        what: "Receives of one connection that may be posted at once, where the model can have more than one",
        cost: "a buffer for each, also on idle connections",
        option: "posted-receives",
        unit: Count,
        range: Within(1, MOST_POSTED as u128),
        change: Fixed,
        on: &[
            (&[Iocp], Kept),
            (&[Uring], NoEffect("one receive brings buffer after buffer")),
            (&[Overlapped], NoEffect("each would take one of the 64 events that its thread can wait for")),
            (&[Rio], NoEffect("a connection has one receive: a posted request cannot be cancelled")),
            (READINESS, NoEffect("no receive is posted: it receives when there is data")),
            (WITHOUT_LOOP, NoEffect("no receive is posted: it receives when there is data")),
        ],
    }
    /// Each connection has at most [`posted_sends`](Self::posted_sends). One slow reader holds a permit until
    /// `send_timeout`. Each I/O thread has an equal share, and so at least one permit: fewer than
    /// [`threads`](Self::threads) are refused, and where that is not set no more threads are started than there are
    /// permits.
    outstanding_sends: Option<NonZeroU32> = None => {
        what: "Outstanding sends of the whole server; further ones wait, first in, first out",
        cost: "responses wait while all permits are taken",
        option: "outstanding-sends",
        unit: Count,
        range: Any,
        change: Live,
        on: &[
            (LOOPS, Kept),
            (
                WITHOUT_LOOP,
                Refused(
                    "its threads or the tokio runtime send; choose epoll or uring, or limit `threads` and \
                     `max_connections`",
                ),
            ),
        ],
        default_note: Some("no limit"),
        relation: Some(Relation {
            holds: AtLeast(1),
            other: "threads",
            remedy: "each I/O thread needs its own permit; use fewer threads",
        }),
    }
    /// While others wait, a connection that was answered gives its permit to the next, and asks for one again when it
    /// has something to receive: silent connections hold none. Any other gives it up after 100 ms. Each I/O thread has
    /// an equal share, as of [`outstanding_sends`](Self::outstanding_sends).
    max_receiving: Option<NonZeroUsize> = None => {
        what: "Connections that may receive at once, first in, first out (the throughput strategy)",
        cost: "the others wait",
        option: "max-receiving",
        unit: Count,
        range: Any,
        change: Live,
        on: &[
            (&[Select, Poll, Epoll, Uring, AsyncSelect, EventSelect, Overlapped, Iocp], Kept),
            (WITHOUT_LOOP, Refused("choose epoll or uring; on pool the number of threads is this limit")),
            (&[Rio], Refused("a posted request cannot be cancelled; choose iocp")),
        ],
        default_note: Some("all"),
        relation: Some(Relation {
            holds: AtLeast(1),
            other: "threads",
            remedy: "each I/O thread needs its own permit; use fewer threads",
        }),
    }
    /// `uring` counts the bytes of receives, in buffers of [`buffer_bytes`](Self::buffer_bytes), since Linux 6.17;
    /// before that the kernel decides, and fills up to 32 buffers in a row.
    drain_budget: usize = 8 => {
        what: "Receives and sends of one connection in a row before others are served",
        cost: "lower: fairer, more bookkeeping",
        option: "drain-budget",
        unit: Count,
        range: Within(1, 65_536),
        change: Live,
        on: &[
            (READINESS, Kept),
            (&[Pool, Tokio, Uring], Kept),
            (&[Overlapped, Iocp], Kept), // receives that follow one which has waited without a buffer
            (&[Rio], NoEffect("completions are handled one by one, in order")),
            (&[Blocking], NoEffect("the kernel schedules its threads")),
        ],
    }
    /// A service that [needs more](crate::ServiceOptions::stack_bytes) than the default has it; one that needs more
    /// than is set here does not start on these models.
    thread_stack_bytes: Option<usize> = None => {
        what: "Stack of each thread of blocking and pool",
        cost: "address space; only touched pages use memory",
        option: "thread-stack-bytes",
        unit: Bytes,
        range: Within(64 * 1024, 64 << 20),
        change: Fixed,
        on: &[
            (&[Blocking, Pool], Kept),
            (LOOPS, NoEffect("its threads have 2 MiB, or what the service needs")),
            (&[Tokio], NoEffect("its threads have 2 MiB, or what the service needs")),
        ],
        default_note: Some("128KiB, or what the service needs"),
    }
    events_per_wait: usize = 256 => {
        what: "Events or completions per wait",
        cost: "higher: fewer system calls under load, timers fire later",
        option: "events-per-wait",
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (&[Epoll, Uring, AsyncSelect, Iocp, Rio], Kept),
            (&[Select, Poll], NoEffect("each wait reports everything that is ready")),
            (&[EventSelect, Overlapped], NoEffect("each wait reports everything that is ready, of at most 64 events")),
            (&[Blocking], NoEffect("its threads wait for one connection each")),
            (&[Pool], NoEffect("a worker waits for one connection; idle ones are watched 64 at a time")),
            (&[Tokio], NoEffect("the tokio runtime decides")),
        ],
    }
    wait: Wait = Wait::Block => {
        what: "How an I/O thread waits: block, spin, or spin:TIME (spin that long, then block)",
        cost: "spinning saves wake-ups and uses one whole processor per thread",
        option: "wait",
        unit: Other("HOW"),
        range: TIME,
        change: Live,
        on: &[
            (LOOPS, Kept),
            (WITHOUT_LOOP, Refused("choose a model with an event loop, such as epoll")),
        ],
    }
    /// After a batch a thread waits again only when this much time has passed since its last wait; one that was idle
    /// for longer answers immediately. It pauses only where that has been seen to gather events. With `uring` the
    /// kernel itself waits for more (Linux 6.12), elsewhere the thread sleeps.
    coalesce: Duration = Duration::ZERO => {
        what: "Maximum delay added so that one wake-up serves several requests (interrupt coalescing)",
        cost: "up to this much latency while requests are frequent enough; 0 is off",
        option: "coalesce",
        unit: Time,
        range: Within(0, 10_000_000),
        change: Live,
        on: &[
            (&[Select, Poll, Epoll, Uring], Kept),
            (WITHOUT_LOOP, Refused("choose a model with an event loop, such as epoll")),
            (WINDOWS, Refused("Windows threads cannot sleep for microseconds; choose epoll or uring on Linux")),
        ],
        default_note: Some("off"),
        relation: Some(Relation {
            holds: Alone,
            other: "wait",
            remedy: "a spinning thread has no wake-ups to save; set one of the two",
        }),
    }
    /// `SO_BUSY_POLL` of accepted sockets, `EPIOCSPARAMS` of `epoll`, `IORING_REGISTER_NAPI` of `uring`. Without a
    /// network card (loopback, Unix sockets) nothing is polled. `select` and `poll` busy-poll when they receive, and
    /// while they wait only if `net.core.busy_poll` is set; a client has it on `epoll` and `uring`. Not tested with a
    /// network card.
    busy_poll: Option<Duration> = None => {
        what: "How long a wait busy-polls the network card's queue before it sleeps",
        cost: "CPU for that time in each wait; requires CAP_NET_ADMIN",
        option: "busy-poll",
        unit: Time,
        range: Within(1_000, 1_000_000_000),
        change: Fixed,
        on: &[
            (&[Blocking, Pool, Select, Poll, Epoll, Uring], Kept),
            (&[Tokio], Refused("choose epoll or uring on Linux")),
            (WINDOWS, Refused("choose epoll or uring on Linux")),
        ],
        unix_socket: Some("no network card is involved; leave it out"),
        of_client: Some((&[Epoll, Uring], "a client has it on epoll and uring only; choose one of them")),
    }
    /// A listener with it does not defer accepts ([`Accept::defer`]). On Windows it is a socket option instead
    /// (`SIO_LOOPBACK_FAST_PATH`), on every model; the peer may be any program that sets it. If the system refuses it,
    /// connections use plain TCP, which is logged once.
    fast_path: Option<FastPath> = None => {
        what: "Shared memory instead of TCP for connections to a tidegate on this host that also sets this option",
        cost: "two memory rings for each connection that uses it",
        option: "fast-path",
        unit: Switch,
        range: Any,
        change: Fixed,
        on: FAST_PATH,
    }
    mail_queue: usize = 1_000_000 => {
        what: "Queued messages and dials per I/O thread",
        cost: "memory while producers are faster than the thread; when full, `MailboxError::Full`",
        option: "mail-queue",
        unit: Count,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    socket_send_buffer: Option<usize> = None => {
        what: "SO_SNDBUF of accepted sockets",
        cost: "a fixed size disables the kernel's autotuning",
        option: "socket-send-buffer",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("autotuned by the system"),
        unix_socket: Some(NO_BUFFER_SIZES),
    }
    /// 0 is not a buffer size on Linux: the kernel uses its minimum (about 2 KiB).
    socket_receive_buffer: Option<usize> = None => {
        what: "SO_RCVBUF of accepted sockets",
        cost: "a fixed size disables the kernel's autotuning",
        option: "socket-receive-buffer",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("autotuned by the system"),
        unix_socket: Some(NO_BUFFER_SIZES),
    }
}

/// Rounds up to whole pages: the system pins whole pages. Most systems have pages of 4 KiB, some of 16 or 64.
// Configurations of this project round with it.
#[doc(hidden)]
#[must_use]
pub fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(page_bytes())
}

/// Why socket buffer sizes are refused on a Unix socket.
const NO_BUFFER_SIZES: &str = "accepted Unix sockets do not inherit buffer sizes (unix(7)); leave it out, or set \
    net.core.wmem_default";

impl Limited for Policy {
    const TABLE: &'static [&'static [Limit<Self>]] =
        &[Self::ROWS, Accept::ROWS, OutboxMarks::ROWS, Offload::ROWS, MinRate::ROWS, FastPath::ROWS];
}

impl Policy {
    /// The book's high-throughput strategy: few connections, large buffers, many operations on some of the established
    /// connections; connections above the limit are refused. 100 connections receive at once, first in, first out, each
    /// with four receives and four sends posted where the model can keep their order, and 200 sends are outstanding at
    /// most. [`Model::kept_limits`](crate::Model::kept_limits) leaves out what a model cannot have.
    #[must_use]
    pub fn throughput() -> Self {
        Self {
            max_connections: 10_000,
            when_full: WhenFull::Refuse,
            buffer_bytes: whole_pages(64 * 1024),
            outbox: OutboxMarks { low: 64 * 1024, high: 256 * 1024 },
            posted_sends: 4,
            posted_receives: 4,
            max_receiving: NonZeroUsize::new(100),
            outstanding_sends: NonZeroU32::new(200),
            ..Self::default()
        }
    }

    /// The book's maximum-connections strategy: very many connections, each with almost no pinned memory. No receive
    /// takes a buffer before there is data. As with [`throughput`](Self::throughput), a model may not keep all of it.
    #[must_use]
    pub fn connections() -> Self {
        Self {
            max_connections: 1_000_000,
            receive: ReceiveStyle::ZeroByte,
            buffer_bytes: whole_pages(4 * 1024),
            input_bytes: 16 * 1024,
            outbox: OutboxMarks { low: 4 * 1024, high: 16 * 1024 },
            ..Self::default()
        }
    }
}
