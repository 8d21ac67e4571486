//! Replies of a datagram service: a bounded queue, in which replies of one size to one peer form one run.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::policy::datagram::ReplyLimits;

/// Where a [`DatagramService`](crate::DatagramService) puts its replies. They are sent, in order, when the service
/// returns.
#[derive(Debug)]
pub struct Replies {
    limits: ReplyLimits,
    bytes: Vec<u8>,
    runs: VecDeque<ReplyRun>,
    /// Datagrams in `runs`.
    waiting: usize,
    /// Bytes of the datagrams in `runs`.
    waiting_bytes: usize,
    lost: Lost,
}

/// Replies that go to the kernel as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyRun {
    /// The destination.
    pub to: SocketAddr,
    /// Their range in the block.
    start: usize,
    /// Their total size.
    pub length: usize,
    /// Size of each except the last.
    segment: usize,
    /// Their number.
    pub datagrams: usize,
}

impl ReplyRun {
    /// The segment size for the kernel, if there is more than one.
    #[must_use]
    pub fn cut(&self) -> Option<u16> {
        if self.datagrams > 1 { u16::try_from(self.segment).ok() } else { None }
    }

    /// Their range in the block of [`Replies::take`].
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.length
    }
}

/// Counts of replies that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The queue was full.
    pub full: u64,
    /// Longer than the largest datagram.
    pub too_long: u64,
}

impl Replies {
    /// An empty queue.
    #[must_use]
    pub(crate) fn new(limits: ReplyLimits) -> Self {
        Self {
            limits,
            bytes: Vec::new(),
            runs: VecDeque::new(),
            waiting: 0,
            waiting_bytes: 0,
            lost: Lost::default(),
        }
    }

    /// Replies with one datagram; copies the bytes. Returns whether it was queued: beyond the limit, or longer than the
    /// largest datagram (65,507 bytes), it is dropped and counted.
    pub fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        if bytes.len() > self.limits.longest() {
            self.lost.too_long += 1;
            return false;
        }
        if !self.limits.admits(self.waiting, self.waiting_bytes, bytes.len()) {
            self.lost.full += 1;
            return false;
        }
        let joined = self.runs.back_mut().filter(|run| run.takes(to, bytes.len(), &self.limits));
        match joined {
            Some(run) => {
                run.length += bytes.len();
                run.datagrams += 1;
            }
            None => self.runs.push_back(ReplyRun {
                to,
                start: self.bytes.len(),
                length: bytes.len(),
                segment: bytes.len(),
                datagrams: 1,
            }),
        }
        self.bytes.extend_from_slice(bytes);
        self.waiting += 1;
        self.waiting_bytes += bytes.len();
        true
    }

    /// Replies with datagrams of `segment` bytes each, of which the last may be shorter; returns the number queued.
    /// Cheaper than one by one where they are sent [joined](crate::policy::DatagramPath::Segments).
    pub fn send_joined(&mut self, to: SocketAddr, bytes: &[u8], segment: usize) -> usize {
        let segment = segment.max(1);
        let before = self.waiting;
        for part in bytes.chunks(segment.saturating_mul(self.limits.joined(segment))) {
            let datagrams = part.len().div_ceil(segment);
            let fits = self.waiting + datagrams <= self.limits.datagrams
                && self.waiting_bytes + part.len() <= self.limits.bytes
                && datagrams > 1;
            if !fits {
                for one in part.chunks(segment) {
                    self.send(to, one);
                }
                continue;
            }
            let start = self.bytes.len();
            self.runs.push_back(ReplyRun { to, start, length: part.len(), segment, datagrams });
            self.bytes.extend_from_slice(part);
            self.waiting += datagrams;
            self.waiting_bytes += part.len();
        }
        self.waiting - before
    }

    /// Number of queued replies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether so much is queued that it must be sent before the service is called again.
    #[must_use]
    pub(crate) fn wants_out(&self) -> bool {
        self.limits.wants_out(self.waiting, self.waiting_bytes)
    }

    /// The queued runs in order, with their bytes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ReplyRun, &[u8])> {
        self.runs.iter().map(|run| (run, &self.bytes[run.range()]))
    }

    /// Removes the first run, sent or not.
    pub(crate) fn pop(&mut self) -> Option<ReplyRun> {
        let run = self.runs.pop_front()?;
        self.waiting -= run.datagrams;
        self.waiting_bytes -= run.length;
        if self.runs.is_empty() {
            self.bytes.clear();
        }
        Some(run)
    }

    /// Takes everything: one block of bytes, and the runs in it.
    pub(crate) fn take(&mut self) -> (Vec<u8>, VecDeque<ReplyRun>) {
        (self.waiting, self.waiting_bytes) = (0, 0);
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.runs))
    }

    /// Returns and resets the counts of dropped replies.
    pub(crate) fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }
}

impl ReplyRun {
    /// Whether one more reply may join the run. None can after a shorter one, which marks the end.
    fn takes(&self, to: SocketAddr, bytes: usize, limits: &ReplyLimits) -> bool {
        self.to == to
            && bytes > 0
            && bytes <= self.segment
            && self.length == self.segment * self.datagrams
            && self.datagrams < limits.joined(self.segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: ReplyLimits = ReplyLimits { datagrams: 10, bytes: 1_000, segments: 4, segment_bytes: 100 };

    fn peer(n: u16) -> SocketAddr {
        ([127, 0, 0, 1], n).into()
    }

    fn runs(replies: &Replies) -> Vec<(usize, usize)> {
        replies.iter().map(|(run, bytes)| (run.datagrams, bytes.len())).collect()
    }

    #[test]
    fn replies_of_one_size_to_one_peer_are_joined_up_to_a_shorter_one() {
        let mut replies = Replies::new(LIMITS);
        for length in [8, 8, 5, 8, 8, 8, 8, 8] {
            assert!(replies.send(peer(1), &vec![7; length]));
        }
        replies.send(peer(2), &[7; 8]);
        assert_eq!(runs(&replies), [(3, 21), (4, 32), (1, 8), (1, 8)]);
        assert_eq!(replies.iter().next().and_then(|(run, _)| run.cut()), Some(8));
        assert_eq!(replies.iter().last().and_then(|(run, _)| run.cut()), None);
    }

    #[test]
    fn an_empty_reply_and_a_long_one_go_alone() {
        let mut replies = Replies::new(LIMITS);
        for length in [8, 0, 0, 101, 101] {
            assert!(replies.send(peer(1), &vec![7; length]));
        }
        assert_eq!(runs(&replies), [(1, 8), (1, 0), (1, 0), (1, 101), (1, 101)]);
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut replies = Replies::new(LIMITS);
        let taken = (0..15).filter(|_| replies.send(peer(1), b"x")).count();
        assert_eq!((taken, replies.len(), replies.take_lost()), (10, 10, Lost { full: 5, too_long: 0 }));
        replies.take();
        assert!(replies.send(peer(1), &[0; 900]) && !replies.send(peer(1), &[0; 101]));
        assert!(!replies.send(peer(1), &[0; 65_508]));
        assert_eq!(replies.take_lost(), Lost { full: 1, too_long: 1 });
    }

    #[test]
    fn joined_replies_are_cut_where_the_limits_say_and_dropped_beyond_them() {
        let mut replies = Replies::new(LIMITS);
        assert_eq!(replies.send_joined(peer(1), &[1; 45], 10), 5);
        assert_eq!(runs(&replies), [(4, 40), (1, 5)]);
        assert_eq!(replies.send_joined(peer(1), &[2; 80], 10), 5);
        assert_eq!(replies.take_lost().full, 3);
    }

    proptest! {
        /// Whatever is joined, cutting it again gives back what was taken, in order.
        #[test]
        fn nothing_is_lost_doubled_or_reordered(sends in prop::collection::vec((0u16..3, 0usize..120), 0..40)) {
            let mut replies = Replies::new(LIMITS);
            let mut taken = Vec::new();
            for (at, (to, length)) in sends.into_iter().enumerate() {
                let bytes = vec![at as u8; length];
                if replies.send(peer(to), &bytes) {
                    taken.push((peer(to), bytes));
                }
            }
            let mut cut = Vec::new();
            for (run, bytes) in replies.iter() {
                prop_assert!(run.datagrams <= LIMITS.segments);
                match run.cut() {
                    Some(size) => cut.extend(bytes.chunks(size.into()).map(|b| (run.to, b.to_vec()))),
                    None => cut.push((run.to, bytes.to_vec())),
                }
            }
            prop_assert_eq!(&cut, &taken);
            let popped: usize = std::iter::from_fn(|| replies.pop()).map(|run| run.datagrams).sum();
            prop_assert_eq!((popped, replies.len()), (taken.len(), 0));
        }
    }
}
