//! Limits on accepting connections.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Policy;
use super::table::limits;

limits! {
/// Limits on accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accept, as "accept." of Policy, at |policy| Some(&mut policy.accept);
    parts {}

    /// The system caps it (Linux `net.core.somaxconn`).
    backlog: u32 = 4096 => {
        what: "Connections the kernel holds before they are accepted",
        cost: "kernel memory for each; too low: SYNs are dropped and clients retry after one second",
        option: "backlog",
        unit: Count,
        range: Within(1, i32::MAX as u128),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    /// First data arrives with the accept: this saves a wake-up for each connection, and silent connections cost the
    /// server nothing. Whole seconds, rounded up by the kernel to its next SYN-ACK retransmission. Linux only
    /// (`TCP_DEFER_ACCEPT`, `tcp(7)`); ignored for services that
    /// [speak first](crate::ServiceOptions::speaks_first), and on a Unix socket.
    defer: Option<Duration> = Some(Duration::from_secs(1)) => {
        what: "How long the kernel may hold a connection back until its first data arrives",
        cost: "silent connections fill the backlog for that long; when the server stops they are reset",
        option: "defer-accept",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: &[
            // Completion models on Windows use only whether it is set: posted accepts then wait for first data.
            (&[Blocking, Pool, Select, Poll, Epoll, Uring, Tokio, Overlapped, Iocp, Rio], Kept),
            (&[AsyncSelect, EventSelect], NoEffect("Windows has no deferred accepts")),
        ],
    }
    batch: usize = 64 => {
        what: "Connections a thread accepts in a row before it serves the others",
        cost: "higher: established connections wait longer in a burst",
        option: "accept-batch",
        unit: Count,
        range: Within(1, 65_536),
        change: Live,
        on: &[
            (READINESS, Kept),
            (&[Model::Uring], Kept),
            (
                &[Model::Overlapped, Model::Iocp, Model::Rio],
                NoEffect("it has as many accepts posted as `accept.posted` says"),
            ),
            (WITHOUT_LOOP, NoEffect("a dedicated thread or task accepts and does nothing else")),
        ],
    }
    posted: Option<PostedAccepts> = None => {
        what: "Posted accepts (LOW:HIGH): below low, post up to high; while all are used up, up to the backlog",
        cost: "an operation for each; too few: connections of a burst are accepted later",
        option: "posted-accepts",
        unit: Other("LOW:HIGH"),
        range: Any,
        change: WhileSet,
        on: &[
            (COMPLETION, Kept),
            (READINESS, Refused("it posts no accepts; set `accept.batch` and `accept.backlog` instead")),
            (WITHOUT_LOOP, Refused("it posts no accepts; set `accept.backlog` instead")),
        ],
        default_note: Some("one multishot accept"),
    }
    /// Uses `DisconnectEx` instead of closing a socket and creating a new one. Where the system does not support it the
    /// sockets are closed, which is logged once. A socket that was closed on this end first is ready only after
    /// TIME_WAIT.
    reuse: Option<NonZeroU32> = None => {
        what: "Sockets of ended connections that each thread keeps and reuses for accepts (iocp)",
        cost: "each counts until its connection is fully closed; unread input is dropped without a reset",
        option: "reuse-sockets",
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (&[Iocp], Kept),
            (READINESS, Refused("only iocp can reuse sockets for accepts; leave it out")),
            (WITHOUT_LOOP, Refused("only iocp can reuse sockets for accepts; leave it out")),
            (&[Uring, Overlapped, Rio], Refused("only iocp can reuse sockets for accepts; leave it out")),
        ],
        default_note: Some("sockets are closed"),
    }
    /// RFC 7413: a client that connected before sends its first data with its SYN. Linux only, and refused where
    /// `net.ipv4.tcp_fastopen` does not enable it for servers.
    fast_open: Option<NonZeroU32> = None => {
        what: "TCP Fast Open, with this many pending connections",
        cost: "first data may arrive twice (RFC 7413, section 2.1)",
        option: "fast-open",
        unit: Count,
        range: Any,
        change: Fixed,
        on: &[(EVERY, Kept)],
        default_note: Some("off"),
        unix_socket: Some("it has no handshake to shorten; leave it out"),
    }
}

/// Watermarks of outstanding accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostedAccepts {
    /// More are posted when fewer than this are outstanding.
    pub low: NonZeroU32,
    /// Outstanding accepts after that; whenever all of them were used up in one batch, or a connection has found none
    /// (FD_ACCEPT), the server is behind: the number is at least doubled, up to the backlog. A thread of `overlapped`
    /// has at most 62, less its connections.
    pub high: NonZeroU32,
}

impl PostedAccepts {
    /// Between these marks; the low one must not be above the high one.
    #[must_use]
    pub fn new(low: NonZeroU32, high: NonZeroU32) -> Self {
        Self { low, high }
    }
}

/// What happens to new connections while the server is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// They wait in the kernel's backlog, unaccepted, until a connection closes.
    Wait,
    /// They are accepted and closed at once.
    Refuse,
}

/// The accept deferral in effect. None with a fast path: the first data of a connection that leaves TCP does not arrive
/// over TCP.
#[must_use]
pub fn deferral(policy: &Policy) -> Option<Duration> {
    policy.accept.defer.filter(|_| policy.fast_path.is_none())
}

/// Whether the next connection may be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Accept and serve it.
    Admit,
    /// Do not accept for now.
    Wait,
    /// Accept it and close it.
    Refuse,
}

/// How long accepting pauses after the process ran out of descriptors or memory, unless a connection closes first.
pub const EXHAUSTION_PAUSE: Duration = Duration::from_millis(100);

/// Single accepts that a thread of a completion model keeps posted while other threads do, too. The kernel wakes the
/// accept that has waited longest: with fewer, threads alternate more often; a thread that is woken takes up to this
/// many.
///
/// A lone thread of `uring` posts as many after more came at once than [`Accept::batch`]; while fewer come, one
/// multishot accept is cheaper (`benchmarks/http.md`).
pub const ACCEPT_QUANTUM: usize = 16;

/// Single accepts posted together when there is too little room for a multishot accept, on completion models.
pub const ACCEPTS_NEAR_LIMIT: usize = 64;

/// Accepts that a thread of `iocp` or `rio` keeps posted, where each takes one connection.
pub const ACCEPTS_POSTED: usize = 64;

/// How full a server is, as seen by one of its I/O threads.
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

/// Decides whether one more connection may be accepted. A thread whose share is used up leaves it to the others, as
/// long as there is room.
#[must_use]
pub fn admission(fullness: Fullness, when_full: WhenFull) -> Admission {
    let Fullness { open, share, total, most } = fullness;
    match when_full {
        _ if open < share => Admission::Admit,
        WhenFull::Refuse if total >= most => Admission::Refuse,
        WhenFull::Wait | WhenFull::Refuse => Admission::Wait,
    }
}

/// An I/O thread, as far as it matters for choosing which one serves the next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLoad {
    /// Connections assigned to it so far.
    pub given: u64,
    /// Connections it has open, or is about to open.
    pub open: u64,
    /// Whether it may have one more.
    pub has_room: bool,
}

/// How far ahead of the others a thread may be and still keep what it accepts, where connections are short. A hand-over
/// wakes another thread, which costs about as much as the accept: so the kernel's distribution is corrected, not
/// replaced.
const LEAD: u64 = 8;

/// Connections by which a thread may be ahead of the one with the fewest before it hands new ones to that one. While
/// most connections assigned to it are still open, connections are long-lived, a hand-over is cheap in comparison, and
/// threads stay balanced.
#[must_use]
pub fn lead(mine: ThreadLoad) -> u64 {
    if mine.open >= mine.given / 2 { 1 } else { LEAD }
}

/// The thread that serves the connection which thread `mine` has accepted and reserved a permit for: itself, unless it
/// is [ahead](lead) of the one with the fewest assigned connections, and that one has room.
#[must_use]
pub fn assignee(loads: &[ThreadLoad], mine: usize) -> usize {
    let with_room = loads.iter().enumerate().filter(|(_, load)| load.has_room);
    match (loads.get(mine), with_room.min_by_key(|(_, load)| load.given)) {
        (Some(own), Some((least, load))) if own.given >= load.given + lead(*own) => least,
        _ => mine,
    }
}

/// The part of `most` connections that may be accepted, if each of them may dial `dials` more.
#[must_use]
pub fn admitted(most: usize, dials: usize) -> usize {
    most / dials.saturating_add(1)
}

/// I/O threads, where the model starts `default` of them, and each connection may dial `dials` more. If the policy
/// leaves it open, there are no more than can have a share of everything that is divided among them.
#[must_use]
pub fn threads(policy: &Policy, default: usize, dials: usize) -> usize {
    let connections = admitted(policy.max_connections, dials);
    let permits = policy.fewest_permits().map_or(usize::MAX, |(_, permits)| permits);
    policy.threads.map_or(default.min(connections).min(permits), Into::into)
}

/// The share of `total` connections that I/O thread `index` of `threads` may have open.
#[must_use]
pub fn share(total: usize, index: usize, threads: usize) -> usize {
    total / threads + usize::from(index < total % threads)
}

/// The same where a thread may have `each` and is filled before the next one is started.
#[must_use]
pub fn filled(total: usize, index: usize, each: usize) -> usize {
    total.saturating_sub(index.saturating_mul(each)).min(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_total() {
        for (total, threads) in [(10, 3), (2, 4), (100_000, 7)] {
            assert_eq!((0..threads).map(|i| share(total, i, threads)).sum::<usize>(), total);
        }
        assert_eq!([0, 1, 2, 3].map(|i| filled(130, i, 62)), [62, 62, 6, 0]);
    }

    #[test]
    fn every_thread_has_a_share_of_everything_and_more_threads_than_permits_are_refused() {
        use std::num::NonZeroUsize;

        let policy = Policy::default();
        let sends = |n| Policy { outstanding_sends: NonZeroU32::new(n), ..policy.clone() };
        let receiving = Policy { max_receiving: NonZeroUsize::new(2), ..sends(7) };
        assert_eq!(threads(&policy, 64, 0), 64);
        assert_eq!(threads(&Policy { max_connections: 9, ..policy.clone() }, 64, 2), 3);
        assert_eq!([1, 63, 64, 65].map(|n| threads(&sends(n), 64, 0)), [1, 63, 64, 64]);
        assert_eq!(threads(&receiving, 64, 0), 2);
        for (permits, name) in [(sends(3), "outstanding_sends"), (receiving, "max_receiving")] {
            let four = Policy { threads: NonZeroUsize::new(4), ..permits.clone() };
            let text = four.check().unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("`threads` (4)"), "{text}");
            let two = Policy { threads: NonZeroUsize::new(2), ..permits.clone() };
            assert_eq!((two.check(), permits.check_permits(2)), (Ok(()), Ok(())));
            let text = permits.check_permits(4).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("at least 4"), "{text}");
        }
        assert_eq!(policy.check_permits(usize::MAX), Ok(()));
    }

    #[test]
    fn a_full_server_waits_or_refuses_as_configured() {
        let full = Fullness { open: 10, share: 10, total: 20, most: 20 };
        assert_eq!(admission(Fullness { open: 9, ..full }, WhenFull::Wait), Admission::Admit);
        assert_eq!(admission(full, WhenFull::Wait), Admission::Wait);
        assert_eq!(admission(full, WhenFull::Refuse), Admission::Refuse);
    }

    #[test]
    fn a_thread_ahead_hands_on_to_the_one_with_the_fewest() {
        let load = |given, open| ThreadLoad { given, open, has_room: true };
        let brief = |given| load(given, 0);
        assert_eq!(assignee(&[brief(107), brief(100), brief(104)], 0), 0, "not ahead by enough");
        assert_eq!(assignee(&[brief(108), brief(100), brief(104)], 0), 1);
        assert_eq!(
            assignee(&[brief(108), brief(100), brief(104)], 1),
            1,
            "the last one keeps what it accepts"
        );
        assert_eq!(assignee(&[brief(108), ThreadLoad { has_room: false, ..brief(0) }, brief(100)], 0), 2);
        assert_eq!(
            assignee(&[brief(108), ThreadLoad { has_room: false, ..brief(0) }], 0),
            0,
            "nobody has room"
        );
        assert_eq!(assignee(&[brief(5)], 0), 0);
    }

    #[test]
    fn threads_whose_connections_stay_keep_step() {
        let load = |given, open| ThreadLoad { given, open, has_room: true };
        assert_eq!(assignee(&[load(3, 3), load(3, 3)], 0), 0);
        assert_eq!(assignee(&[load(4, 4), load(3, 3)], 0), 1);
        assert_eq!(assignee(&[load(4, 1), load(3, 3)], 0), 0, "most of its connections have gone");
    }

    #[test]
    fn a_thread_that_accepts_all_keeps_its_share() {
        for (threads, stay) in [(2, true), (4, false), (16, true), (16, false)] {
            let mut loads = vec![ThreadLoad { given: 0, open: 0, has_room: true }; threads];
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
