//! The limits of datagram servers; separate, because few limits of connections apply without connections.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;

use super::check::{LONGEST, within};
use super::{PolicyError, Wait};

/// The most bytes one datagram carries (RFC 768: 65,535 with 8 of its own header and 20 of IPv4).
pub const LARGEST_PAYLOAD: usize = 65_507;

/// The most bytes that one receive returns where the kernel joins datagrams.
const LARGEST_JOINED: usize = 65_535;

/// How datagrams pass through the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    pub const ALL: [Self; 3] = [Self::Plain, Self::Batched, Self::Segments];

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

impl FromStr for DatagramPath {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == s)
            .ok_or_else(|| format!("unknown path {s:?}; the paths are plain, batched and gso"))
    }
}

/// Every limit of a datagram server.
#[derive(Clone, Debug, PartialEq)]
pub struct DatagramPolicy {
    /// How datagrams pass through the kernel. Default `None`: [`DatagramPath::default_on`](DatagramPath::default_on)
    /// the model. A path selected by name is never replaced by another.
    pub path: Option<DatagramPath>,
    /// I/O threads. Default `None`: one for each processor; 256 on `pool`. With several, each has its own socket on the
    /// same port and the kernel distributes the peers (`SO_REUSEPORT`); on `pool` all receive from one socket.
    pub threads: Option<NonZeroUsize>,
    /// Receives or sends per system call on the paths other than plain; on `uring` receive buffers of each thread,
    /// rounded up to a power of two. Default 64. Cost: this many receive buffers for each thread, of which only touched
    /// pages use memory.
    pub batch: usize,
    /// Receive calls in a row before a loop checks whether it is to stop. Default 16.
    pub burst: usize,
    /// Longest datagram accepted, in bytes; a longer one is dropped and counted. Default 65,507, the most that UDP
    /// carries. Cost: the size of a receive buffer (but 65,535 on the path gso).
    pub largest_datagram: usize,
    /// Replies of one thread that may be queued for the kernel; further ones are dropped and counted. Default 8,192.
    pub replies: usize,
    /// Bytes of the queued replies of one thread. Default 1 MiB; at least two of the largest datagrams.
    pub reply_bytes: usize,
    /// Datagrams that one send joins on the path gso. Default 64, which every kernel with `UDP_SEGMENT` takes (128 from
    /// Linux 6.9).
    pub segments: usize,
    /// Longest datagram that is joined with others for sending, in bytes; one that exceeds the device's MTU cannot be.
    /// Default 1,452, for an MTU of 1,500 on IPv4 and IPv6. Longer replies are sent alone.
    pub segment_bytes: usize,
    /// `SO_RCVBUF` in bytes: what the kernel buffers while the server is busy. Default `None`: `net.core.rmem_default`.
    /// Linux silently limits it to `net.core.rmem_max`.
    pub socket_receive_buffer: Option<usize>,
    /// `SO_SNDBUF` in bytes. Default `None`: `net.core.wmem_default`.
    pub socket_send_buffer: Option<usize>,
    /// How an I/O thread waits. Default [`Wait::Block`], the only one for `blocking`, `pool` and `tokio`.
    pub wait: Wait,
    /// How long a stop may take to serve datagrams that have arrived and to send their replies. Default 1 s.
    pub drain_timeout: Duration,
    /// Bytes of stack of each thread of `blocking` and `pool`. Default 128 KiB.
    pub thread_stack_bytes: usize,
}

impl Default for DatagramPolicy {
    fn default() -> Self {
        Self {
            path: None,
            threads: None,
            batch: 64,
            burst: 16,
            largest_datagram: LARGEST_PAYLOAD,
            replies: 8_192,
            reply_bytes: 1 << 20,
            segments: 64,
            segment_bytes: 1_452,
            socket_receive_buffer: None,
            socket_send_buffer: None,
            wait: Wait::Block,
            drain_timeout: Duration::from_secs(1),
            thread_stack_bytes: 128 * 1024,
        }
    }
}

impl DatagramPolicy {
    /// Checks every limit against its range and the limits it relates to.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self) -> Result<(), PolicyError> {
        within("batch", self.batch, 1, 1_024)?; // UIO_MAXIOV, the most that one call takes
        within("burst", self.burst, 1, 65_536)?;
        within("largest_datagram", self.largest_datagram, 1, LARGEST_PAYLOAD)?;
        within("replies", self.replies, 1, 1 << 24)?;
        within("reply_bytes", self.reply_bytes, 1, 1 << 30)?;
        within("segments", self.segments, 1, 128)?;
        within("segment_bytes", self.segment_bytes, 1, LARGEST_PAYLOAD)?;
        within("thread_stack_bytes", self.thread_stack_bytes, 64 * 1024, 64 << 20)?;
        if let Some(threads) = self.threads {
            within("threads", threads.get(), 1, 1_024)?;
        }
        if self.drain_timeout > LONGEST {
            let must = "at most a century".into();
            return Err(PolicyError::Range {
                name: "drain_timeout",
                value: format!("{:?}", self.drain_timeout),
                must,
            });
        }
        if self.reply_bytes < 2 * self.largest_datagram {
            return Err(PolicyError::Conflict {
                name: "reply_bytes",
                value: self.reply_bytes.to_string(),
                other: "largest_datagram",
                other_value: self.largest_datagram.to_string(),
                remedy: "two of the largest datagrams must fit, or a reply could be dropped; raise reply_bytes",
            });
        }
        Ok(())
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
        for path in DatagramPath::ALL {
            assert_eq!(path.name().parse(), Ok(path));
        }
        assert!("mmsg".parse::<DatagramPath>().unwrap_err().contains("batched"));
    }

    #[test]
    fn what_is_too_long_for_a_packet_is_not_joined() {
        let limits = DatagramPolicy::default().reply_limits(DatagramPath::Segments);
        assert_eq!((limits.joined(64), limits.joined(1_452), limits.joined(1_453)), (64, 45, 1));
        assert_eq!(limits.joined(0), 1);
        assert_eq!(DatagramPolicy::default().reply_limits(DatagramPath::Batched).joined(64), 1);
    }
}
