//! Limits on unsent output.

use std::time::Duration;

use super::Policy;
use super::table::limits;

limits! {
/// Watermarks of a connection's outbox, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxMarks, as "outbox." of Policy, at |policy| Some(&mut policy.outbox);
    parts {}

    /// Receiving resumes then, too.
    low: usize = 16 * 1024 => {
        what: "Unsent output at which the session is asked for more again",
        cost: "lower: more pauses",
        option: Some("outbox-low"),
        unit: Bytes,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
        relation: Some(Relation {
            holds: Below,
            other: "outbox.high",
            remedy: "the low watermark must lie below the high one",
        }),
    }
    high: usize = 64 * 1024 => {
        what: "Unsent output above which a connection stops receiving",
        cost: "each connection can hold this much, plus what one call of the session adds",
        option: Some("outbox-high"),
        unit: Bytes,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
}

/// Operations of one kind that one connection may have posted at once, at most.
pub const MOST_POSTED: usize = 32;

/// How long a silent connection keeps its permit to receive ([`Policy::max_receiving`](crate::Policy::max_receiving))
/// while others wait.
pub const RECEIVE_QUANTUM: Duration = Duration::from_millis(100);

/// How long a silent connection keeps its worker of `pool` while others wait.
pub const QUIET_QUANTUM: Duration = Duration::from_millis(1);

/// How long a `send` of `blocking` may sleep before mail, timers and commands are checked.
pub const SEND_QUANTUM: Duration = Duration::from_millis(200);

/// How long a dialling thread sleeps between checks whether to give up, on `blocking` and `pool`.
pub const DIAL_QUANTUM: Duration = Duration::from_millis(100);

/// Bytes of a file that are read at once, or sent by one operation whose progress is visible only at its end: a slow
/// reader must show progress more often than [`Policy::send_timeout`](crate::Policy::send_timeout) and
/// [`Policy::min_rate`](crate::Policy::min_rate) check for it.
pub const FILE_QUANTUM: usize = 64 * 1024;

/// Pieces of mail delivered by a thread before it polls its sockets and timers again.
pub const GROUP_QUANTUM: usize = 1024;

/// Pieces of mail delivered to one session before its own socket is polled, on models that have a queue for each
/// connection.
pub const MAIL_QUANTUM: usize = 64;

/// Timers of one session that fire before others are served.
pub const TIMER_QUANTUM: usize = 64;

/// Times a session is shown the rest of one input, if it asks for that ([`Consumed::again`](crate::Consumed::again)),
/// before others are served.
pub const INPUT_QUANTUM: usize = 64;
