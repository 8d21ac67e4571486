//! Time limits of connections.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::Policy;
use super::limit::{Effect, Limit, TIME};
use super::setting::{PolicyField, Unit};
use super::table::{EVERY, row};
use crate::types::CloseReason;

/// The minimum rate of a peer in the middle of a message.
///
/// A peer starts with `grace`, and gets 1/`bytes_per_s` seconds more for each byte, but never more than `grace` in
/// total: so one byte a second does not keep a connection alive, and a fast beginning does not compensate for a long
/// pause later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MinRate {
    /// Bytes per second, in each direction, while there is something to receive or to send.
    pub bytes_per_s: NonZeroU32,
    /// How long a peer may fall behind.
    pub grace: Duration,
}

const _: () = super::limit::declares_every_model(MinRate::ROWS);

impl MinRate {
    /// The default grace.
    pub const GRACE: Duration = Duration::from_secs(5);

    /// This rate, and the default grace.
    #[must_use]
    pub fn new(bytes_per_s: NonZeroU32) -> Self {
        Self { bytes_per_s, grace: Self::GRACE }
    }

    /// Sets [`grace`](#structfield.grace).
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// The row of its grace. That of the rate is [`Policy::min_rate`].
    pub(super) const ROWS: &'static [Limit<Policy>] = &[{
        let mut grace = row::<Policy>(
            "min_rate.grace",
            "How long a peer may be below the minimum rate",
            "a trickling peer is disconnected that much later",
            |policy| policy.min_rate.as_mut().map(|rate| &mut rate.grace as &mut dyn PolicyField),
        );
        grace.option = "min-rate-grace";
        grace.unit = Unit::Time;
        grace.range = TIME;
        grace.on = &[(EVERY, Effect::Kept)];
        grace.needs = Some(("min_rate", "1"));
        grace
    }];

    /// The time at which a peer that was due at `due` (`None`: begins now) exceeds its grace, after `bytes` more were
    /// transferred.
    #[must_use]
    pub fn due(&self, due: Option<Instant>, bytes: usize, now: Instant) -> Instant {
        let furthest = now + self.grace;
        let Some(due) = due else { return furthest };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / u64::from(self.bytes_per_s.get());
        due.checked_add(Duration::from_nanos(nanos)).map_or(furthest, |due| due.min(furthest))
    }
}

/// When a connection's peer exceeds the grace of [`MinRate`], in each direction; `None` where nothing is pending.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// The peer is in the middle of sending something.
    pub receive: Option<Instant>,
    /// The peer has something to receive.
    pub send: Option<Instant>,
}

/// How long after its last traffic, or its accept, a connection may send one more request when the server stops.
pub const LAST_WORD: Duration = Duration::from_secs(1);

/// Past events of a connection from which its time limits follow.
#[derive(Clone, Copy, Debug)]
pub struct Past {
    /// Accepted, and nothing was received yet.
    pub silent: bool,
    /// Last traffic in either direction, or when the connection was established.
    pub moved: Instant,
    /// When the peer last accepted data; `None` while there is nothing to send.
    pub taken: Option<Instant>,
    /// Against the minimum rate.
    pub pace: Pace,
}

/// No time limit that starts now can expire before this, except lingering, which is short and rare.
#[must_use]
pub fn soonest(policy: &Policy) -> Duration {
    let grace = policy.min_rate.map(|rate| rate.grace);
    let limits = [policy.send_timeout, policy.first_byte_timeout, policy.idle_timeout, grace];
    limits.into_iter().flatten().min().unwrap_or(Duration::MAX)
}

/// The earliest time limit that applies, and why it closes the connection.
#[must_use]
pub fn limit(policy: &Policy, past: Past) -> Option<(Instant, CloseReason)> {
    let due = |since: Instant, after: Option<Duration>, why| {
        after.and_then(|a| since.checked_add(a)).map(|at| (at, why))
    };
    let send = past.taken.and_then(|taken| due(taken, policy.send_timeout, CloseReason::SendTimeout));
    let first = if past.silent {
        due(past.moved, policy.first_byte_timeout, CloseReason::FirstByteTimeout)
    } else {
        None
    };
    let idle = due(past.moved, policy.idle_timeout, CloseReason::IdleTimeout);
    let slow = [past.pace.receive, past.pace.send].into_iter().flatten().min();
    let slow = slow.map(|at| (at, CloseReason::MinRate));
    [send, first, idle, slow].into_iter().flatten().min_by_key(|&(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_falls_behind_and_a_fast_beginning_does_not_pay_for_a_silence() {
        let rate = MinRate { bytes_per_s: NonZeroU32::new(100).unwrap(), grace: Duration::from_secs(5) };
        let start = Instant::now();
        let after = |s: f64| start + Duration::from_secs_f64(s);
        let mut due = rate.due(None, 0, start);
        for second in 1..=5 {
            assert!(due > after(f64::from(second) - 0.1), "within its grace");
            due = rate.due(Some(due), 1, after(f64::from(second)));
        }
        assert!(due < after(5.1), "one byte a second is worth 10 ms each");
        let rich = rate.due(Some(after(5.0)), 1 << 30, after(1.0));
        assert_eq!(rich, after(6.0));
    }
}
