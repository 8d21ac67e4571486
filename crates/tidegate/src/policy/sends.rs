//! How much may be on its way out.

use std::time::Duration;

/// Watermarks of a connection's outbox, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxMarks {
    /// At or below this the session is asked for more, and receiving goes on. Default 16 KiB.
    pub low: usize,
    /// At or above this the connection receives nothing more. Default 64 KiB. A connection can hold this much
    /// plus what one call of the session adds.
    pub high: usize,
}

impl Default for OutboxMarks {
    fn default() -> Self {
        Self { low: 16 * 1024, high: 64 * 1024 }
    }
}

/// How long a connection that says nothing keeps its place in the [window](crate::Policy::window) while others wait.
pub const WINDOW_QUANTUM: Duration = Duration::from_millis(100);

/// Bytes of a file that are read at once, or sent by one operation whose progress shows only at its end: that of a slow reader has to show
/// more often than [`Policy::send_timeout`](crate::Policy::send_timeout) and [`Policy::min_rate`](crate::Policy::min_rate) look for it.
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
