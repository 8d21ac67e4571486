//! Every limit, in one visible place.
//!
//! A [`Policy`] is plain data with a default for each limit. [`Policy::check`] relates the limits to one
//! another when a server or client is built; a wrong combination is a [`PolicyError`] that names
//! both limits and what to do. Engines never read a limit and decide: they ask the functions beside
//! the limits ([`accept`], [`timeouts`], [`sends`]) or obey an action of the core.
//!
//! Everything that is known of a limit is one entry of a table ([`limit`]): name, default, range, relations, option and
//! key, what becomes of it on each model, whether it may change while a server runs. A limit that a model has no use
//! for is refused by name where relying on it would be a mistake, and listed as
//! [without effect](crate::Model::without_effect) elsewhere: there is no silent knob.

pub mod accept;
pub mod buffers;
mod change;
mod check;
pub mod datagram;
pub mod fast_path;
pub mod limit;
pub mod memory;
pub mod offload;
#[cfg(test)]
mod page;
pub mod sends;
pub mod setting;
mod table;
pub mod timeouts;
pub mod wait;

use fast_path::FAST_PATH;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

pub use accept::{Accept, PostedAccepts, WhenFull};
pub use buffers::ReceiveStyle;
pub(crate) use check::LONGEST;
pub use check::PolicyError;
pub use datagram::{DatagramPath, DatagramPolicy};
pub use fast_path::FastPath;
pub use limit::{Change, Effect, Idle, Limit, Limited, Range};
pub use memory::MemoryBound;
pub use offload::Offload;
pub use sends::OutboxMarks;
pub use setting::Unit;
use table::limits;
pub use timeouts::MinRate;
pub use wait::Wait;

limits! {
/// Every limit of a server or client.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy, as "" of Policy, at |policy| Some(policy);

    parts {
        /// Accepting: backlog and watermarks.
        accept: Accept,
        /// Low and high watermark of what a connection has to send.
        outbox: OutboxMarks,
        /// Long work away from the I/O threads ([`Outbox::offload`](crate::Outbox::offload)).
        offload: Offload,
    }

    /// `pool` has its own default (256); `blocking` has two for each connection.
    threads: Option<NonZeroUsize> = None => {
        what: "I/O threads; on loops whichever accepts hands connections on, so that each serves as many",
        cost: "a stack and buffers for each",
        option: Some("threads"),
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (LOOPS, Kept),
            (&[Pool, Tokio], Kept),
            (&[Blocking], NoEffect("it has two threads for each connection: `max_connections` bounds them")),
        ],
        default_note: Some("one for each processor; 256 for pool"),
        relation: Some(Relation {
            holds: AtMost,
            other: "max_connections",
            remedy: "a thread without a connection has nothing to do; use at most one thread per connection",
        }),
    }
    max_connections: usize = 100_000 => {
        what: "Connections at once, shared equally among the I/O threads; taken before accept",
        cost: "too low: `when_full` happens; too high: memory",
        option: Some("max-connections"),
        unit: Count,
        range: Within(1, 16_000_000),
        change: Live,
        on: &[(EVERY, Kept)],
        default_note: Some("100000, lowered to what the descriptor limit allows"),
    }
    when_full: WhenFull = WhenFull::Wait => {
        what: "When max-connections is reached: wait (in the kernel's backlog) or refuse (accept and close)",
        cost: "waiting clients see latency, refused ones an error",
        option: Some("when-full"),
        unit: Words(WhenFull::WORDS),
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    first_byte_timeout: Option<Duration> = Some(Duration::from_secs(30)) => {
        what: "Close an accepted connection that has sent nothing for this long",
        cost: "slow clients are cut",
        option: Some("first-byte-timeout"),
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
        what: "Close a connection on which nothing moved in either direction for this long",
        cost: "clients must reconnect",
        option: Some("idle-timeout"),
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
        default_note: Some("75s for http and files, none for the others"),
    }
    send_timeout: Option<Duration> = Some(Duration::from_secs(30)) => {
        what: "Reset a connection whose peer takes nothing of what is to be sent for this long",
        cost: "a stalled download is cut",
        option: Some("send-timeout"),
        unit: Time,
        range: TIME,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// It may fall behind by [`MinRate::grace`]; each byte is worth 1/rate seconds, and no more than the grace is saved
    /// up.
    min_rate: Option<MinRate> = None => {
        what: "Reset a peer that is slower than this in the middle of a message, either way, in bytes a second",
        cost: "48 bytes for each connection in mid-message; legitimate but very slow clients are cut",
        option: Some("min-rate"),
        unit: Rate,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// For [`Flow::Linger`](crate::Flow::Linger).
    linger_timeout: Duration = Duration::from_secs(2) => {
        what: "How long to wait for the peer to close after a last answer that it may not yet have read",
        cost: "a place in the table for that long",
        option: Some("linger-timeout"),
        unit: Time,
        range: TIME_OR_ZERO,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// A connection that was accepted, or on which something moved, within the last second has the rest of it for one
    /// more request; what a session goes on sending of its own does not prolong that.
    drain_timeout: Duration = Duration::from_secs(10) => {
        what: "How long a stop lets connections finish before it resets them",
        cost: "how long a stop takes at worst",
        option: Some("drain-timeout"),
        unit: Time,
        range: TIME_OR_ZERO,
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// On `uring` and `rio` a receive buffer of the pool; on `blocking` one for each connection; else one for each
    /// thread.
    buffer_bytes: usize = 16 * 1024 => {
        what: "Bytes of one receive buffer, a multiple of 4096",
        cost: "memory: one for each thread (blocking: each connection); smaller: more receives for large input",
        option: Some("buffer-bytes"),
        unit: Bytes,
        range: MultipleOf(4096, 16 << 20, 4096, "a page is the least the system pins"),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    /// `uring` rounds it up to a power of two; on `overlapped` it is no more than a thread has connections.
    buffers: usize = 256 => {
        what: "Receive buffers in the pool of each thread",
        cost: "`buffers` x `buffer_bytes`; too few: receives end with ENOBUFS and are armed again",
        option: Some("buffers"),
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
    /// `mlock(2)`: the whole pool at once, checked before anything starts.
    lock_memory: bool = false => {
        what: "Keep the receive buffers in memory (mlock)",
        cost: "the whole pool at once, out of RLIMIT_MEMLOCK",
        option: Some("lock-memory"),
        unit: Switch,
        range: Any,
        change: Fixed,
        on: &[
            (LOOPS, Kept),
            (WITHOUT_LOOP, Refused("it has no pool of buffers; choose epoll or uring")),
        ],
    }
    receive: ReceiveStyle = ReceiveStyle::Posted => {
        what: "How a receive waits for data: posted (a buffer is ready) or zero-byte (an idle connection pins none)",
        cost: "zero-byte: one more call for each receive",
        option: Some("receive"),
        unit: Words(ReceiveStyle::WORDS),
        range: Any,
        change: Fixed,
        on: &[
            (&[Overlapped, Iocp, Rio], Kept),
            (READINESS, NoEffect("an idle connection pins no buffer there in either style")),
            (&[Uring, Pool, Tokio], NoEffect("an idle connection pins no buffer there in either style")),
            (&[Blocking], Refused("each of its threads has a buffer; choose any other model")),
        ],
    }
    /// At more the session says a last word ([`Session::on_input_limit`](crate::Session::on_input_limit)), or the
    /// connection is reset.
    input_bytes: usize = 64 * 1024 => {
        what: "Bytes of input that a session may leave unconsumed",
        cost: "bytes for each connection that holds a partial message",
        option: Some("input-bytes"),
        unit: Bytes,
        range: Within(1, 1 << 30),
        change: Live,
        on: &[(EVERY, Kept)],
    }
    /// Each connection has at most one. One slow reader holds a place until `send_timeout`.
    outstanding_sends: Option<NonZeroU32> = None => {
        what: "Sends of the whole server that the kernel has not finished with; others wait, first in, first out",
        cost: "an answer waits while the places are taken",
        option: Some("outstanding-sends"),
        unit: Count,
        range: Any,
        change: Live,
        on: &[
            (LOOPS, Kept),
            (
                WITHOUT_LOOP,
                Refused(
                    "its threads or the library do the sending; choose epoll or uring, or limit `threads` and \
                     `max_connections`",
                ),
            ),
        ],
        default_note: Some("no limit"),
    }
    /// One that has had an answer, or has been silent for 100 ms, makes room for the next. Each I/O thread has an equal
    /// share.
    window: Option<NonZeroUsize> = None => {
        what: "Connections that may receive at once, first in, first out (the throughput strategy)",
        cost: "the others wait for their turn",
        option: Some("window"),
        unit: Count,
        range: Any,
        change: Live,
        on: &[
            (&[Select, Poll, Epoll, Uring, AsyncSelect, EventSelect, Overlapped, Iocp], Kept),
            (WITHOUT_LOOP, Refused("choose epoll or uring; on pool the number of threads is the window")),
            (&[Rio], Refused("a request cannot be taken back; choose iocp")),
        ],
        default_note: Some("all"),
    }
    drain_budget: usize = 8 => {
        what: "Receives and sends of one connection in a row before others get their turn",
        cost: "lower: fairer, more bookkeeping",
        option: Some("drain-budget"),
        unit: Count,
        range: Within(1, 65_536),
        change: Live,
        on: &[
            (READINESS, Kept),
            (&[Pool, Tokio], Kept),
            (COMPLETION, NoEffect("completions are taken one by one, in the order in which they come")),
            (&[Blocking], NoEffect("the kernel schedules its threads")),
        ],
    }
    thread_stack_bytes: usize = 128 * 1024 => {
        what: "Stack of each thread of blocking and pool",
        cost: "address space; only touched pages are memory",
        option: Some("thread-stack-bytes"),
        unit: Bytes,
        range: Within(64 * 1024, 64 << 20),
        change: Fixed,
        on: &[
            (&[Blocking, Pool], Kept),
            (LOOPS, NoEffect("its threads have the stacks that the standard library gives")),
            (&[Tokio], NoEffect("its threads have the stacks that the library gives")),
        ],
    }
    events_per_wait: usize = 256 => {
        what: "Events or completions taken from the kernel at once",
        cost: "higher: fewer system calls under load, later timers",
        option: Some("events-per-wait"),
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (&[Epoll, Uring, AsyncSelect, Iocp, Rio], Kept),
            (&[Select, Poll], NoEffect("each wait reports all that is ready")),
            (&[EventSelect, Overlapped], NoEffect("each wait reports all that is ready, of 64 events at most")),
            (&[Blocking], NoEffect("its threads wait for one connection each")),
            (&[Pool], NoEffect("a worker waits for one connection; whoever rests is watched 64 at a time")),
            (&[Tokio], NoEffect("the library takes as many as it likes")),
        ],
    }
    wait: Wait = Wait::Block => {
        what: "How an I/O thread waits: block, spin, or spin:TIME to spin for so long and then block",
        cost: "spinning saves the wake-up and uses a processor wholly for each thread",
        option: Some("wait"),
        unit: Other("HOW"),
        range: TIME,
        change: Live,
        on: &[
            (LOOPS, Kept),
            (WITHOUT_LOOP, Refused("choose a model with a loop of its own, such as epoll")),
        ],
    }
    /// `SO_BUSY_POLL` of accepted sockets, `EPIOCSPARAMS` of `epoll`, `IORING_REGISTER_NAPI` of `uring`. Without a card
    /// (loopback, Unix sockets) nothing is polled. `select` and `poll` poll when they receive, and while they wait only
    /// if `net.core.busy_poll` is set; a client has it on `epoll` and `uring`. Not run on a card.
    busy_poll: Option<Duration> = None => {
        what: "How long a wait in the kernel polls the queue of the network card before it sleeps",
        cost: "a processor, for that time in each wait; it takes CAP_NET_ADMIN",
        option: Some("busy-poll"),
        unit: Time,
        range: Within(1_000, 1_000_000_000),
        change: Fixed,
        on: &[
            (&[Blocking, Pool, Select, Poll, Epoll, Uring], Kept),
            (&[Tokio], Refused("choose epoll or uring on Linux")),
            (WINDOWS, Refused("choose epoll or uring on Linux")),
        ],
        unix_socket: Some("there is no network card behind it; leave it out"),
    }
    /// A listener with it does not defer accepts ([`Accept::defer`]). On Windows it is an option of the sockets instead
    /// (`SIO_LOOPBACK_FAST_PATH`), on every model; who connects may be any program that sets it. Where that is refused
    /// connections are plain TCP, which is said once.
    fast_path: Option<FastPath> = None => {
        what: "Shared memory in place of TCP for connections with a tidegate on this host that has this option too",
        cost: "two rings of memory for each connection that uses it",
        option: Some("fast-path"),
        unit: Switch,
        range: Any,
        change: Fixed,
        on: FAST_PATH,
    }
    mail_queue: usize = 1_000_000 => {
        what: "Pieces of mail and dials that may wait for one I/O thread",
        cost: "memory when a producer outruns the thread; then `MailboxError::Full`",
        option: Some("mail-queue"),
        unit: Count,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    socket_send_buffer: Option<usize> = None => {
        what: "SO_SNDBUF of accepted sockets",
        cost: "fixing it turns the kernel's own tuning off",
        option: Some("socket-send-buffer"),
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("the system tunes it"),
        unix_socket: Some(NO_BUFFER_SIZES),
    }
    /// 0 is not a buffer size on Linux: it takes its own minimum (about 2 KiB).
    socket_receive_buffer: Option<usize> = None => {
        what: "SO_RCVBUF of accepted sockets",
        cost: "fixing it turns the kernel's own tuning off",
        option: Some("socket-receive-buffer"),
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("the system tunes it"),
        unix_socket: Some(NO_BUFFER_SIZES),
    }
}

/// Why a Unix socket has no buffer sizes.
const NO_BUFFER_SIZES: &str =
    "its listener does not pass buffer sizes on (unix(7)); leave it out, or set net.core.wmem_default";

impl Limited for Policy {
    const TABLE: &'static [&'static [Limit<Self>]] =
        &[Self::ROWS, Accept::ROWS, OutboxMarks::ROWS, Offload::ROWS, MinRate::ROWS, FastPath::ROWS];
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
