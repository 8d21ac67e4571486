//! How much may be on its way out.

use std::time::Duration;

use super::Policy;
use super::table::limits;

limits! {
/// Watermarks of a connection's outbox, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxMarks, as "outbox." of Policy, at |policy| Some(&mut policy.outbox);
    parts {}

    /// Receiving goes on then, too.
    low: usize = 16 * 1024 => {
        what: "Unsent output at which a connection is asked for more again",
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
        what: "Unsent output above which a connection receives nothing more",
        cost: "a connection can hold this much, and what one call of the session adds",
        option: Some("outbox-high"),
        unit: Bytes,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
}

/// How long a connection that says nothing keeps its place in the [window](crate::Policy::window) while others wait.
pub const WINDOW_QUANTUM: Duration = Duration::from_millis(100);

/// How long a quiet connection keeps its worker of `pool` while others wait.
pub const QUIET_QUANTUM: Duration = Duration::from_millis(1);

/// How long a `send` of `blocking` may sleep before mail, timers and orders are looked at.
pub const SEND_QUANTUM: Duration = Duration::from_millis(200);

/// How long a thread that dials sleeps before it looks whether it is to give up, on `blocking` and `pool`.
pub const DIAL_QUANTUM: Duration = Duration::from_millis(100);

/// Bytes of a file that are read at once, or sent by one operation whose progress shows only at its end: that of a slow
/// reader has to show more often than [`Policy::send_timeout`](crate::Policy::send_timeout) and
/// [`Policy::min_rate`](crate::Policy::min_rate) look for it.
pub const FILE_QUANTUM: usize = 64 * 1024;

/// Pieces of mail that sessions of one thread are shown before the thread looks at its sockets and timers again.
pub const GROUP_QUANTUM: usize = 1024;

/// Pieces of mail that one session is shown before its own socket is looked at, on models that have a queue for each
/// connection.
pub const MAIL_QUANTUM: usize = 64;

/// Timers of one session that are told to it before others have their turn.
pub const TIMER_QUANTUM: usize = 64;

/// Times a session is shown the rest of one piece of input, if it asks for that
/// ([`Consumed::again`](crate::Consumed::again)), before others have their turn.
pub const INPUT_QUANTUM: usize = 64;
