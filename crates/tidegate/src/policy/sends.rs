//! Limits on unsent output.

use std::time::Duration;

use super::Policy;
use super::table::limits;

limits! {
/// Watermarks of a connection's outbox, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxMarks, as "outbox." of Policy, at |policy| Some(&mut policy.outbox);
    parts {}

    /// Receiving resumes then, too.
    low: usize = 16 * 1024 => {
        what: "Unsent output at which the session is asked for more again",
        cost: "lower: more pauses",
        option: "outbox-low",
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
        option: "outbox-high",
        unit: Bytes,
        range: Any,
        change: Live,
        on: &[(EVERY, Kept)],
    }
}

/// Operations of one kind that one connection may have posted at once, at most.
pub const MOST_POSTED: usize = 32;

/// How long a connection in the middle of a message, or with an answer that its peer does not read, keeps its permit to
/// receive ([`Policy::max_receiving`](crate::Policy::max_receiving)) while others wait.
pub const RECEIVE_QUANTUM: Duration = Duration::from_millis(100);

/// How long a silent connection keeps its worker of `pool` while others wait.
pub const QUIET_QUANTUM: Duration = Duration::from_millis(1);

/// How long a `send` of `blocking` may sleep before mail, timers and commands are checked.
pub const SEND_QUANTUM: Duration = Duration::from_millis(200);

/// How long a dialling thread sleeps between checks whether to give up, on `blocking` and `pool`.
pub const DIAL_QUANTUM: Duration = Duration::from_millis(100);

/// Bytes of a file that are read at once, or sent by the first operation whose progress is visible only at its end: a
/// slow reader must show progress more often than [`Policy::send_timeout`](crate::Policy::send_timeout) and
/// [`Policy::min_rate`](crate::Policy::min_rate) check for it.
pub const FILE_QUANTUM: usize = 64 * 1024;

/// Bytes that one splice moves from a socket into a pipe, and the room of the pipe.
pub const SPLICE_QUANTUM: usize = 64 * 1024;

/// A splice of fewer bytes is the last one of a bulk: copying is cheaper for small messages.
pub const SPLICE_LEAST: usize = 16 * 1024;

/// Pipes for splicing that one I/O thread may have at once, if there are descriptors for them.
pub const MOST_PIPES: usize = 64;

/// How long one operation on a file may take whose progress is visible only at its end.
const FILE_TIME: Duration = Duration::from_millis(250);

/// The most by which such operations grow from one to the next: a peer's socket buffer says little about its pace.
const FILE_GROWTH: usize = 8;

/// Bytes of a file for the next operation whose progress is visible only at its end, after one of so many bytes took
/// so long: as many as the peer takes in a quarter of a second, and [`FILE_QUANTUM`] first.
#[cfg_attr(not(any(windows, test)), expect(dead_code, reason = "elsewhere the kernel reports progress"))]
#[must_use]
pub fn file_step(last: Option<(usize, Duration)>) -> usize {
    let Some((bytes, time)) = last else { return FILE_QUANTUM };
    let in_time = bytes as u128 * FILE_TIME.as_nanos() / time.as_nanos().max(1);
    let most = bytes.max(FILE_QUANTUM).saturating_mul(FILE_GROWTH);
    usize::try_from(in_time).unwrap_or(usize::MAX).clamp(FILE_QUANTUM, most)
}

/// Pieces of mail delivered by a thread before it polls its sockets and timers again.
pub const GROUP_QUANTUM: usize = 1024;

/// Of these, pieces delivered after one event before the next one of its batch.
pub const EVENT_QUANTUM: usize = 4;

/// Pieces of mail delivered to one session before its own socket is polled, on models that have a queue for each
/// connection.
pub const MAIL_QUANTUM: usize = 64;

/// Timers of one session that fire before others are served.
pub const TIMER_QUANTUM: usize = 64;

/// Times a session is shown the rest of one input, if it asks for that ([`Consumed::again`](crate::Consumed::again)),
/// before others are served.
pub const INPUT_QUANTUM: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: usize = 1 << 30;

    /// Operations for [`FILE`] to a peer that takes so many bytes a second, and the longest of them.
    fn operations(bytes_per_s: f64) -> (usize, Duration) {
        let (mut left, mut last, mut count, mut longest) = (FILE, None, 0, Duration::ZERO);
        while left > 0 {
            let bytes = file_step(last).min(left);
            let time = Duration::from_secs_f64(bytes as f64 / bytes_per_s);
            (left, last, count, longest) = (left - bytes, Some((bytes, time)), count + 1, longest.max(time));
        }
        (count, longest)
    }

    #[test]
    fn a_large_file_is_few_operations_and_none_hides_a_slow_reader() {
        let (count, longest) = operations(1e9);
        assert!(count <= 10 && longest <= FILE_TIME, "{count}, {longest:?}");
        let (count, longest) = operations(1e7);
        assert!(count <= 450 && longest <= FILE_TIME, "{count}, {longest:?}");
        assert_eq!(operations(1e5).0, FILE / FILE_QUANTUM);
    }

    #[test]
    fn who_becomes_slower_is_given_less_at_once() {
        assert_eq!(file_step(Some((64 << 20, 16 * FILE_TIME))), 4 << 20);
        assert_eq!(file_step(Some((64 << 20, Duration::ZERO))), 512 << 20);
        assert_eq!(file_step(Some((1, Duration::from_secs(9)))), FILE_QUANTUM);
    }
}
