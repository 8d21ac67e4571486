//! The limits of datagram servers; separate, because few limits of connections apply without connections.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use super::table::limits;
use super::{Effect, Limit, Limited, Policy, PolicyError, Wait};
use crate::model::Model;

/// The most bytes one datagram carries (RFC 768: 65,535 with 8 of its own header and 20 of IPv4).
pub const LARGEST_PAYLOAD: usize = 65_507;

/// The most bytes that one receive returns where the kernel joins datagrams.
const LARGEST_JOINED: usize = 65_535;

/// How datagrams pass through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatagramPath {
    /// One by one: a system call (`uring`: an operation) for each datagram.
    Plain,
    /// Several per call (`recvmmsg(2)`, `sendmmsg(2)`). Saves system calls, but each datagram is still processed alone.
    Batched,
    /// Several of one size and peer as one (`UDP_SEGMENT`, `UDP_GRO`; `udp(7)`): they pass through the kernel together.
    /// Sending this way needs a network device with checksum offload before Linux 6.11; without it, the kernel fails
    /// with `EIO`, which is counted and not corrected.
    Segments,
}

impl DatagramPath {
    /// All paths.
    pub const ALL: &'static [Self] = &[Self::Plain, Self::Batched, Self::Segments];

    /// Their names.
    const WORDS: &'static [&'static str] = &["plain", "batched", "gso"];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Batched => "batched",
            Self::Segments => "gso",
        }
    }
}

impl fmt::Display for DatagramPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not a [`DatagramPath`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseDatagramPathError {
    /// The unknown name.
    pub name: String,
}

impl fmt::Display for ParseDatagramPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown path {:?}; the paths are plain, batched and gso", self.name)
    }
}

impl std::error::Error for ParseDatagramPathError {}

impl FromStr for DatagramPath {
    type Err = ParseDatagramPathError;

    fn from_str(s: &str) -> Result<Self, ParseDatagramPathError> {
        let named = Self::ALL.iter().copied().find(|path| path.name() == s);
        named.ok_or_else(|| ParseDatagramPathError { name: s.to_owned() })
    }
}

/// The effect of what only the path `gso` of Linux does.
const JOINED: &[(&[Model], Effect)] = {
    use super::table::*;
    &[(&[Blocking, Pool, Select, Poll, Epoll, Uring, Tokio], Kept), (WINDOWS, NOT_JOINED)]
};

/// The effect of what joins datagrams, on a system that does not.
pub(crate) const NOT_JOINED: Effect = Effect::NoEffect("only Linux joins datagrams (path gso)");

/// The effect of what several datagrams of one call have, where each has its own.
pub(crate) const ONE_EACH: Effect = Effect::NoEffect("each call takes one datagram: only Linux has sendmmsg");

const NO_DATAGRAMS: Effect = Effect::NoEffect("it serves no datagrams");

limits! {
/// Every limit of a datagram server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DatagramPolicy, as "" of DatagramPolicy, at |policy| Some(policy);
    parts {}

    /// `None` is [`DatagramPath::default_on`](DatagramPath::default_on) the model. A path selected by name is never
    /// replaced by another.
    path: Option<DatagramPath> = None => {
        what: "How datagrams pass through the kernel: plain (one per call), batched (several per call), or gso (several of one size and peer as one)",
        cost: "batched saves system calls, gso most of the kernel's work; gso needs a network device that can do it",
        option: "path",
        unit: Words(DatagramPath::WORDS),
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("batched; plain on uring"),
    }
    /// With several, each has its own socket on the same port and the kernel distributes the peers (`SO_REUSEPORT`).
    threads: Option<NonZeroUsize> = None => {
        what: "I/O threads, each with its own socket; on pool, which has one socket, workers",
        cost: "buffers for each thread",
        option: "threads",
        unit: Count,
        range: Within(1, 1_024),
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("one for each processor; 256 for pool"),
    }
    /// On `uring` rounded up to a power of two. Without effect on the path `plain`, but on `uring`, `iocp` and
    /// `overlapped`.
    batch: usize = 64 => {
        what: "Datagrams of one receive or send call on the paths batched and gso; on uring, iocp and overlapped receive buffers of each thread",
        cost: "this many receive buffers for each thread, of which only touched pages use memory",
        option: "batch",
        unit: Count,
        range: Within(1, 1_024), // UIO_MAXIOV, the most that one call takes
        change: Fixed,
        on: &[
            (&[Blocking, Pool, Select, Poll, Epoll, Uring, Tokio, Overlapped, Iocp], Kept),
            (&[AsyncSelect, EventSelect], ONE_EACH),
            (&[Rio], NO_DATAGRAMS),
        ],
    }
    burst: usize = 16 => {
        what: "Receive calls in a row before a loop checks whether it is to stop",
        cost: "a stop waits for them",
        option: "burst",
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (&[Blocking, Pool, Select, Poll, Epoll, Tokio, AsyncSelect, EventSelect], Kept),
            (COMPLETION, NoEffect("the kernel receives on its own; what it has received is served in one go")),
        ],
    }
    /// The default is the most that UDP carries.
    largest_datagram: usize = LARGEST_PAYLOAD => {
        what: "Longest datagram accepted, in bytes; longer ones are dropped and counted",
        cost: "the size of a receive buffer (but 65535 on the path gso)",
        option: "largest-datagram",
        unit: Bytes,
        range: Within(1, LARGEST_PAYLOAD as u128),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    replies: usize = 8_192 => {
        what: "Replies of one thread that may be queued for the kernel; further ones are dropped and counted",
        cost: "too low: replies are lost when many arrive together",
        option: "replies",
        unit: Count,
        range: Within(1, 1 << 24),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    reply_bytes: usize = 1 << 20 => {
        what: "Bytes of the queued replies of one thread",
        cost: "memory of each thread",
        option: "reply-bytes",
        unit: Bytes,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: &[(EVERY, Kept)],
        relation: Some(Relation {
            holds: AtLeast(2),
            other: "largest_datagram",
            remedy: "two of the largest datagrams must fit, or a reply could be dropped; raise reply_bytes",
        }),
    }
    /// Only on the path `gso`. Every kernel with `UDP_SEGMENT` takes 64, from Linux 6.9 128.
    segments: usize = 64 => {
        what: "Datagrams that one send joins on the path gso",
        cost: "more than 64 needs Linux 6.9",
        option: "segments",
        unit: Count,
        range: Within(1, 128),
        change: Fixed,
        on: JOINED,
    }
    /// Only on the path `gso`. The default fits an MTU of 1,500 on IPv4 and IPv6. Longer replies are sent alone.
    segment_bytes: usize = 1_452 => {
        what: "Longest reply that is joined with others on the path gso: what fits the MTU",
        cost: "over the MTU the kernel refuses the send, which is counted",
        option: "segment-bytes",
        unit: Bytes,
        range: Within(1, LARGEST_PAYLOAD as u128),
        change: Fixed,
        on: JOINED,
    }
    /// Linux silently limits it to `net.core.rmem_max`.
    socket_receive_buffer: Option<usize> = None => {
        what: "SO_RCVBUF: what the kernel buffers while the server is busy",
        cost: "kernel memory; a datagram of 64 bytes takes about 768",
        option: "socket-receive-buffer",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("net.core.rmem_default"),
    }
    socket_send_buffer: Option<usize> = None => {
        what: "SO_SNDBUF",
        cost: "kernel memory",
        option: "socket-send-buffer",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("net.core.wmem_default"),
    }
    wait: Wait = Wait::Block => {
        what: "How an I/O thread waits: block, spin, or spin:TIME (spin that long, then block)",
        cost: "spinning saves wake-ups and uses one whole processor per thread",
        option: "wait",
        unit: Other("HOW"),
        range: TIME,
        change: Fixed,
        on: &[
            (LOOPS, Kept),
            (WITHOUT_LOOP, Refused("choose a model with an event loop, such as epoll")),
        ],
    }
    drain_timeout: Duration = Duration::from_secs(1) => {
        what: "How long a stop may take to serve datagrams that have arrived and to send their replies",
        cost: "the longest duration of a stop",
        option: "drain-timeout",
        unit: Time,
        range: TIME_OR_ZERO,
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    thread_stack_bytes: usize = 128 * 1024 => {
        what: "Stack of each thread of blocking and pool",
        cost: "address space; only touched pages use memory",
        option: "thread-stack-bytes",
        unit: Bytes,
        range: Within(64 * 1024, 64 << 20),
        change: Fixed,
        on: &[
            (&[Blocking, Pool], Kept),
            (LOOPS, NoEffect("its threads have a stack of a fixed size")),
            (&[Tokio], NoEffect("its threads have a stack of a fixed size")),
        ],
    }
}

impl Limited for DatagramPolicy {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl DatagramPolicy {
    /// Checks every limit against its range and the limits it relates to.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.check_under(&Policy::default()) // relates to no limit of connections
    }

    /// Datagrams of one receive or send call.
    pub(crate) fn per_call(&self, path: DatagramPath) -> usize {
        match path {
            DatagramPath::Plain => 1,
            DatagramPath::Batched | DatagramPath::Segments => self.batch,
        }
    }

    /// Bytes of one receive buffer.
    pub(crate) fn buffer_bytes(&self, path: DatagramPath) -> usize {
        match path {
            DatagramPath::Segments => LARGEST_JOINED,
            DatagramPath::Plain | DatagramPath::Batched => self.largest_datagram,
        }
    }

    /// Whether a datagram of this size is accepted.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.largest_datagram
    }

    /// The limits of the reply queue.
    pub(crate) fn reply_limits(&self, path: DatagramPath) -> ReplyLimits {
        let joins = path == DatagramPath::Segments;
        ReplyLimits {
            datagrams: self.replies,
            bytes: self.reply_bytes,
            segments: if joins { self.segments } else { 1 },
            segment_bytes: self.segment_bytes,
        }
    }
}

/// The bounds of a reply queue, and which replies it may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Replies that may be queued.
    pub datagrams: usize,
    /// Bytes of the queued replies.
    pub bytes: usize,
    /// Replies sent as one; 1 joins none.
    pub segments: usize,
    /// Longest reply that is joined with others.
    pub segment_bytes: usize,
}

/// Bytes of replies sent as one: what fits a packet of 65,535 bytes with the headers of IPv6.
const MOST_JOINED: usize = LARGEST_JOINED - 40 - 8;

impl ReplyLimits {
    /// Whether a queue with this content has room for one more.
    #[must_use]
    pub fn admits(&self, datagrams: usize, bytes: usize, more: usize) -> bool {
        datagrams < self.datagrams && bytes.saturating_add(more) <= self.bytes
    }

    /// Whether so much is queued that it is sent before anything else is served.
    #[must_use]
    pub fn wants_out(&self, datagrams: usize, bytes: usize) -> bool {
        datagrams >= self.datagrams.div_ceil(2) || bytes >= self.bytes / 2
    }

    /// Number of replies of this size that are sent as one.
    #[must_use]
    pub fn joined(&self, segment: usize) -> usize {
        if segment == 0 || segment > self.segment_bytes {
            return 1;
        }
        self.segments.min(MOST_JOINED / segment).max(1)
    }

    /// The longest datagram there is.
    #[must_use]
    pub fn longest(&self) -> usize {
        LARGEST_PAYLOAD
    }
}

/// How much of what arrived before a stop is still served: a flood must not delay the stop.
///
/// `queued` is the size of the socket's receive buffer (`SO_RCVBUF`); the kernel charges at least 256 bytes to it for
/// each datagram.
#[must_use]
pub fn receives_after_stop(queued: usize) -> usize {
    queued / 256 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_is_named_with_a_way_out() {
        assert_eq!(DatagramPolicy::default().check(), Ok(()));
        let policy = DatagramPolicy { reply_bytes: 100, ..DatagramPolicy::default() };
        let text = policy.check().unwrap_err().to_string();
        assert!(text.contains("reply_bytes") && text.contains("largest_datagram"), "{text}");
        let policy = DatagramPolicy { batch: 1_025, ..DatagramPolicy::default() };
        assert!(policy.check().unwrap_err().to_string().contains("batch"));
    }

    #[test]
    fn every_path_has_a_name_that_leads_back() {
        assert!(DatagramPath::ALL.iter().map(|path| path.name()).eq(DatagramPath::WORDS.iter().copied()));
        for &path in DatagramPath::ALL {
            assert_eq!(path.name().parse(), Ok(path));
        }
        let error = "fast".parse::<DatagramPath>().unwrap_err();
        assert_eq!(error.to_string(), "unknown path \"fast\"; the paths are plain, batched and gso");
    }

    #[test]
    fn what_is_too_long_for_a_packet_is_not_joined() {
        let limits = DatagramPolicy::default().reply_limits(DatagramPath::Segments);
        assert_eq!((limits.joined(64), limits.joined(1_452), limits.joined(1_453)), (64, 45, 1));
        assert_eq!(limits.joined(0), 1);
        assert_eq!(DatagramPolicy::default().reply_limits(DatagramPath::Batched).joined(64), 1);
    }
}
