//! How many connections are let in, and how.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Policy;

/// Accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Connections the kernel holds before they are accepted; the system caps it (Linux `net.core.somaxconn`).
    /// Default 4,096.
    pub backlog: u32,
    /// Watermarks for accepts that are posted as operations. Default `None`: one operation without end (multishot), which
    /// needs neither. Only for completion models.
    pub posted: Option<PostedAccepts>,
    /// Sockets of connections that have ended which each I/O thread keeps to accept with again (`DisconnectEx`), rather than close and make
    /// anew. Default `None`: all are closed. Only on `iocp`; where the system cannot, they are closed, which is said once. Cost:
    /// a socket is ready only when its connection is gone for good, after TIME_WAIT where this end closed first, and counts
    /// until then; input that was not read is dropped without a reset.
    pub reuse: Option<NonZeroU32>,
    /// TCP Fast Open (RFC 7413): a client that was here before sends its first data with its SYN. This many connections may be
    /// waiting in that way. Default `None`: off. Linux only, and only where `net.ipv4.tcp_fastopen` has bit 2 set.
    pub fast_open: Option<NonZeroU32>,
    /// First data with the accept: the kernel keeps a new connection to itself until its first data has come, at most for
    /// about this long (whole seconds, rounded up by the kernel to its next SYN-ACK retransmission). Saves a wake-up for
    /// each connection, and silent ones cost the server nothing. Linux only (`TCP_DEFER_ACCEPT`, `tcp(7)`); ignored for
    /// services that [speak first](crate::Service::speaks_first). Default 1 s; `None` is off.
    ///
    /// Cost: connections that are kept back count towards `backlog`, so a client that opens many connections and
    /// then stays silent fills it; and one that has sent nothing yet when the listener is closed is reset.
    pub defer: Option<Duration>,
    /// Connections an I/O thread takes in a row before it looks at the others. Default 64.
    pub batch: usize,
}

impl Default for Accept {
    fn default() -> Self {
        Self {
            backlog: 4096,
            posted: None,
            reuse: None,
            fast_open: None,
            defer: Some(Duration::from_secs(1)),
            batch: 64,
        }
    }
}

/// Watermarks of outstanding accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostedAccepts {
    /// More are posted when fewer than this are outstanding.
    pub low: NonZeroU32,
    /// So many are then outstanding; twice as many, and more, up to the backlog, each time that all of them were
    /// used up at once: the server is behind. A thread of `overlapped` has events for two.
    pub high: NonZeroU32,
}

/// What happens to connections that come while the server is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// They wait in the kernel's backlog, unaccepted, until a connection closes.
    Wait,
    /// They are accepted and closed at once.
    Refuse,
}

/// How long the kernel may keep a new connection until its first data has come. Not with a fast path: the first data of a
/// connection that leaves TCP does not come by TCP.
#[must_use]
pub fn deferral(policy: &Policy) -> Option<Duration> {
    policy.accept.defer.filter(|_| policy.fast_path.is_none())
}

/// The answer to: may the next connection come in?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Accept and serve it.
    Admit,
    /// Do not accept for now.
    Wait,
    /// Accept it and close it.
    Refuse,
}

/// How long accepting rests after the process ran out of descriptors or memory, if no connection closes before.
pub const EXHAUSTION_PAUSE: Duration = Duration::from_millis(100);

/// How full a server is, seen from one of its I/O threads.
#[derive(Clone, Copy, Debug)]
pub struct Fullness {
    /// Connections the thread has open.
    pub open: usize,
    /// Connections it may have open.
    pub share: usize,
    /// Connections all threads have open.
    pub total: usize,
    /// Connections all of them may have open.
    pub most: usize,
}

/// May one more connection come in? A thread whose share is used up leaves it to the others, as long as there is room.
#[must_use]
pub fn admission(fullness: Fullness, when_full: WhenFull) -> Admission {
    let Fullness { open, share, total, most } = fullness;
    match when_full {
        _ if open < share => Admission::Admit,
        WhenFull::Refuse if total >= most => Admission::Refuse,
        WhenFull::Wait | WhenFull::Refuse => Admission::Wait,
    }
}

/// An I/O thread, as far as it matters for which of them serves the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Connections it was given so far.
    pub given: u64,
    /// Connections it has open, or is about to have.
    pub open: u64,
    /// Whether it may have one more.
    pub has_room: bool,
}

/// How far ahead of the others a thread still keeps what it accepts, where connections come and go. A hand-over wakes
/// another thread, which costs about as much as the accept: this way the kernel's choice is corrected, and not made
/// again each time.
const LEAD: u64 = 8;

/// Connections by which a thread may be ahead of the one with the fewest before it hands new ones to that one. While
/// most of what it was given is still open, connections stay, a hand-over costs little beside them, and threads keep
/// step.
#[must_use]
pub fn lead(mine: Load) -> u64 {
    if mine.open >= mine.given / 2 { 1 } else { LEAD }
}

/// The thread that serves the connection which thread `mine` has accepted and has a place for: itself, unless it is
/// [ahead](lead) of the one that was given the fewest and has room.
#[must_use]
pub fn assignee(loads: &[Load], mine: usize) -> usize {
    let with_room = loads.iter().enumerate().filter(|(_, load)| load.has_room);
    match (loads.get(mine), with_room.min_by_key(|(_, load)| load.given)) {
        (Some(own), Some((least, load))) if own.given >= load.given + lead(*own) => least,
        _ => mine,
    }
}

/// Of `most` connections those that may be accepted, if each of them may dial `dials` more.
#[must_use]
pub fn admitted(most: usize, dials: usize) -> usize {
    most / dials.saturating_add(1)
}

/// The share of `total` connections that I/O thread `index` of `threads` may have open.
#[must_use]
pub fn share(total: usize, index: usize, threads: usize) -> usize {
    total / threads + usize::from(index < total % threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_total() {
        for (total, threads) in [(10, 3), (2, 4), (100_000, 7)] {
            assert_eq!((0..threads).map(|i| share(total, i, threads)).sum::<usize>(), total);
        }
    }

    #[test]
    fn a_full_server_waits_or_refuses_as_told() {
        let full = Fullness { open: 10, share: 10, total: 20, most: 20 };
        assert_eq!(admission(Fullness { open: 9, ..full }, WhenFull::Wait), Admission::Admit);
        assert_eq!(admission(full, WhenFull::Wait), Admission::Wait);
        assert_eq!(admission(full, WhenFull::Refuse), Admission::Refuse);
    }

    #[test]
    fn who_is_ahead_hands_on_to_whoever_was_given_the_fewest() {
        let load = |given, open| Load { given, open, has_room: true };
        let brief = |given| load(given, 0);
        assert_eq!(assignee(&[brief(107), brief(100), brief(104)], 0), 0, "not ahead by enough");
        assert_eq!(assignee(&[brief(108), brief(100), brief(104)], 0), 1);
        assert_eq!(
            assignee(&[brief(108), brief(100), brief(104)], 1),
            1,
            "the last one keeps what it accepts"
        );
        assert_eq!(assignee(&[brief(108), Load { has_room: false, ..brief(0) }, brief(100)], 0), 2);
        assert_eq!(assignee(&[brief(108), Load { has_room: false, ..brief(0) }], 0), 0, "nobody has room");
        assert_eq!(assignee(&[brief(5)], 0), 0);
    }

    #[test]
    fn threads_whose_connections_stay_keep_step() {
        let load = |given, open| Load { given, open, has_room: true };
        assert_eq!(assignee(&[load(3, 3), load(3, 3)], 0), 0);
        assert_eq!(assignee(&[load(4, 4), load(3, 3)], 0), 1);
        assert_eq!(assignee(&[load(4, 1), load(3, 3)], 0), 0, "most of its connections have gone");
    }

    #[test]
    fn whoever_accepts_all_of_them_ends_up_with_its_part() {
        for (threads, stay) in [(2, true), (4, false), (16, true), (16, false)] {
            let mut loads = vec![Load { given: 0, open: 0, has_room: true }; threads];
            for _ in 0..10_000 {
                let to = assignee(&loads, 0);
                loads[to].given += 1;
                loads[to].open += u64::from(stay);
            }
            let given = || loads.iter().map(|load| load.given);
            let (most, least) = (given().max().unwrap(), given().min().unwrap());
            assert!(most - least <= LEAD, "{threads} threads: {least} to {most}");
        }
    }

    #[test]
    fn a_full_thread_refuses_nobody_while_another_has_room() {
        let here = Fullness { open: 10, share: 10, total: 15, most: 20 };
        assert_eq!(admission(here, WhenFull::Refuse), Admission::Wait);
    }
}
