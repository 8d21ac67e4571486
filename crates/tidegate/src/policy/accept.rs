//! How many connections are let in, and how.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Policy;
use super::table::limits;

limits! {
/// Accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept, as "accept." of Policy, at |policy| Some(&mut policy.accept);
    parts {}

    /// The system caps it (Linux `net.core.somaxconn`).
    backlog: u32 = 4096 => {
        what: "Connections the kernel holds before they are accepted",
        cost: "kernel memory for each; too low: SYNs are dropped and clients retry after a second",
        option: Some("backlog"),
        unit: Count,
        range: Within(1, i32::MAX as u128),
        change: Fixed,
        on: &[(EVERY, Kept)],
    }
    /// First data with the accept: saves a wake-up for each connection, and silent ones cost the server nothing. Whole
    /// seconds, rounded up by the kernel to its next SYN-ACK retransmission. Linux only (`TCP_DEFER_ACCEPT`, `tcp(7)`);
    /// ignored for services that [speak first](crate::Service::speaks_first), and on a Unix socket.
    defer: Option<Duration> = Some(Duration::from_secs(1)) => {
        what: "How long the kernel may keep a connection until its first data has come",
        cost: "silent connections fill the backlog for that long; who has sent nothing when the server stops is reset",
        option: Some("defer-accept"),
        unit: Time,
        range: TIME,
        change: Fixed,
        on: &[
            (&[Blocking, Pool, Select, Poll, Epoll, Uring, Tokio], Kept),
            (WINDOWS, NoEffect("Windows has no deferred accepts")),
        ],
    }
    batch: usize = 64 => {
        what: "Connections a thread accepts in a row before it looks at the others",
        cost: "higher: established connections wait longer in a burst",
        option: Some("accept-batch"),
        unit: Count,
        range: Within(1, 65_536),
        change: Live,
        on: &[
            (READINESS, Kept),
            (COMPLETION, NoEffect("the kernel accepts, and completions come as many at a time as there are")),
            (WITHOUT_LOOP, NoEffect("a thread or task of its own accepts and does nothing else")),
        ],
    }
    posted: Option<PostedAccepts> = None => {
        what: "Keep so many accepts posted: up to high when fewer than low are, up to the backlog while all are used up",
        cost: "an operation for each; the fewer, the later who comes in a burst",
        option: Some("posted-accepts"),
        unit: Other("LOW:HIGH"),
        range: Any,
        change: WhileSet,
        on: &[
            (COMPLETION, Kept),
            (READINESS, Refused("it posts no accepts; set `accept.batch` and `accept.backlog` instead")),
            (WITHOUT_LOOP, Refused("it posts no accepts; set `accept.backlog` instead")),
        ],
        default_note: Some("one that never ends"),
    }
    /// `DisconnectEx`, rather than close and make anew. Where the system cannot, they are closed, which is said once. A
    /// socket whose end was closed here first is ready only after TIME_WAIT.
    reuse: Option<NonZeroU32> = None => {
        what: "Keep so many sockets of ended connections in each thread, to accept with again (iocp)",
        cost: "they count until their connection is gone for good; input that was not read is dropped without a reset",
        option: Some("reuse-sockets"),
        unit: Count,
        range: Within(1, 65_536),
        change: Fixed,
        on: &[
            (&[Iocp], Kept),
            (READINESS, Refused("only iocp accepts with sockets that it has; leave it out")),
            (WITHOUT_LOOP, Refused("only iocp accepts with sockets that it has; leave it out")),
            (&[Uring, Overlapped, Rio], Refused("only iocp accepts with sockets that it has; leave it out")),
        ],
        default_note: Some("they are closed"),
    }
    /// RFC 7413: a client that was here before sends its first data with its SYN. Linux only, and refused where
    /// `net.ipv4.tcp_fastopen` has it off for servers.
    fast_open: Option<NonZeroU32> = None => {
        what: "TCP Fast Open for this many waiting connections",
        cost: "first data may come twice (RFC 7413, section 2.1)",
        option: Some("fast-open"),
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

/// How long the kernel may keep a new connection until its first data has come. Not with a fast path: the first data of
/// a connection that leaves TCP does not come by TCP.
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

/// Single accepts that a thread of a completion model keeps posted while other threads do, too. The kernel wakes the
/// accept that waits longest: the fewer, the shorter are the turns; and a thread that is woken takes so many at once.
pub const ACCEPTS_IN_TURN: usize = 16;

/// Single accepts posted at once when the room is too small for an endless one, on completion models.
pub const ACCEPTS_NEAR_LIMIT: usize = 64;

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
