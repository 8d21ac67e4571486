//! What to do when the kernel has no memory for a send or a receive (ENOBUFS, ENOMEM, WSAENOBUFS).
//!
//! Such a failure is not caused by the connection: its operation is retried, after a pause that grows. Meanwhile the
//! server asks the kernel for less: no connection is accepted, a connection has one send in flight, a receive that
//! failed is posted singly, and receives of the completion models of Windows pin no memory (zero-byte). Only if
//! operations keep failing for [`shed_after`](crate::Policy::shed_after), connections are closed, the longest idle
//! first.
use std::time::{Duration, Instant};

/// The first pause before an operation that failed for lack of memory is retried.
pub const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause: each is twice the one before.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The interval between closing batches of connections while memory is short.
pub const SHED_EVERY: Duration = Duration::from_secs(1);

/// The fraction of all connections closed at a time (at least one).
const SHED_PART: usize = 16;

/// The pause after this many failures in a row.
#[must_use]
pub fn pause(failures: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

/// How an engine responds to a lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relief {
    /// Nothing has changed.
    Nothing,
    /// Ask the kernel for less.
    Shrink,
    /// The same, and close some connections.
    Shed,
    /// A failed operation has succeeded, or none has failed for longer than any pause: ask for as much as before.
    Over,
}

/// Lack of memory, as observed by the connections of a thread, or of an engine without loops.
#[derive(Debug, Default)]
pub struct Pressure {
    failed: u64,
    recovered: u64,
    /// Since when operations have failed without any retry succeeding, and when the last one failed.
    since: Option<Instant>,
    last: Option<Instant>,
    /// The kernel is asked for less, since the last [`Relief::Over`].
    shrunk: bool,
}

impl Pressure {
    /// Takes the total of operations that failed for lack of memory, and of retries that succeeded.
    pub fn look(
        &mut self,
        failed: u64,
        recovered: u64,
        now: Instant,
        shed_after: Option<Duration>,
    ) -> Relief {
        let (fails, recovers) = (failed != self.failed, recovered != self.recovered);
        (self.failed, self.recovered) = (failed, recovered);
        // No retry happens later than this: an older shortage is a different one.
        let is_old = self.last.is_some_and(|last| last + 2 * LONGEST_PAUSE < now);
        if recovers || is_old {
            self.since = None;
        }
        if !fails {
            // Those that failed may also have closed since then.
            let is_over = self.shrunk && (recovers || is_old);
            self.shrunk &= !is_over;
            return if is_over { Relief::Over } else { Relief::Nothing };
        }
        (self.last, self.shrunk) = (Some(now), true);
        if recovers {
            return Relief::Shrink; // the order is unknown
        }
        let since = *self.since.get_or_insert(now);
        match shed_after {
            Some(after) if now >= since + after => {
                self.since = (now + SHED_EVERY).checked_sub(after).or(Some(now));
                Relief::Shed
            }
            _ => Relief::Shrink,
        }
    }
}

/// When connections were last closed for lack of memory, by any of the threads that share this.
#[derive(Debug, Default)]
pub struct LastShed(Option<Instant>);

impl LastShed {
    /// Whether a thread that is to close connections ([`Relief::Shed`]) may have it done now: one batch for all of
    /// them in each [`SHED_EVERY`].
    pub fn claim(&mut self, now: Instant) -> bool {
        let is_due = self.0.is_none_or(|last| now >= last + SHED_EVERY);
        if is_due {
            self.0 = Some(now);
        }
        is_due
    }
}

/// State of a connection that may have to be closed.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<T> {
    /// Its identity.
    pub which: T,
    /// Whether it is idle: between two messages, with nothing left to send.
    pub rests: bool,
    /// Time of its last traffic.
    pub moved: Instant,
}

/// Selects the connections to close: idle ones, the longest idle first. If none is idle, the one without traffic for
/// the longest time.
pub fn victims<T>(all: impl IntoIterator<Item = Candidate<T>>) -> impl Iterator<Item = T> {
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|one| (!one.rests, one.moved));
    let resting = all.iter().filter(|one| one.rests).count();
    let most = all.len().div_ceil(SHED_PART).min(resting.max(1));
    all.into_iter().take(most).map(|one| one.which)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Option<Duration> = Some(Duration::from_secs(5));

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let pauses: Vec<_> = (1..10).map(|n| pause(n).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn connections_are_closed_only_when_nothing_else_has_helped_for_long_enough() {
        let start = Instant::now();
        let at = |s: f64| start + Duration::from_secs_f64(s);
        let mut pressure = Pressure::default();
        assert_eq!(pressure.look(0, 0, at(0.0), AFTER), Relief::Nothing);
        assert_eq!(pressure.look(1, 0, at(0.0), AFTER), Relief::Shrink);
        assert_eq!(pressure.look(1, 0, at(1.0), AFTER), Relief::Nothing, "nothing new");
        for (failed, s) in [(2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0), (6, 4.9)] {
            assert_eq!(pressure.look(failed, 0, at(s), AFTER), Relief::Shrink);
        }
        assert_eq!(pressure.look(9, 0, at(5.0), AFTER), Relief::Shed);
        assert_eq!(pressure.look(10, 0, at(5.9), AFTER), Relief::Shrink, "the memory has to come back first");
        assert_eq!(pressure.look(11, 0, at(6.0), AFTER), Relief::Shed);
        assert_eq!(pressure.look(11, 1, at(6.5), AFTER), Relief::Over);
        assert_eq!(pressure.look(12, 1, at(6.6), AFTER), Relief::Shrink, "a new lack");
        assert_eq!(
            pressure.look(13, 1, at(60.0), AFTER),
            Relief::Shrink,
            "another one: nobody waits so long"
        );
    }

    #[test]
    fn it_is_over_also_after_a_failure_and_a_success_in_one_look() {
        let start = Instant::now();
        let at = |s: f64| start + Duration::from_secs_f64(s);
        let mut pressure = Pressure::default();
        assert_eq!(pressure.look(1, 1, at(0.0), AFTER), Relief::Shrink, "either may have been the last");
        assert_eq!(pressure.look(1, 1, at(0.1), AFTER), Relief::Nothing);
        assert_eq!(pressure.look(1, 2, at(0.2), AFTER), Relief::Over);
        assert_eq!(pressure.look(1, 3, at(0.3), AFTER), Relief::Nothing, "once is enough");
        assert_eq!(pressure.look(2, 3, at(0.4), AFTER), Relief::Shrink);
        assert_eq!(pressure.look(3, 4, at(0.5), AFTER), Relief::Shrink);
        assert_eq!(pressure.look(3, 5, at(0.6), AFTER), Relief::Over);
    }

    #[test]
    fn it_is_over_when_those_that_failed_are_gone() {
        let start = Instant::now();
        for recovered in [0, 1] {
            let mut pressure = Pressure::default();
            assert_eq!(pressure.look(1, recovered, start, AFTER), Relief::Shrink);
            let last_retry = start + 2 * LONGEST_PAUSE;
            assert_eq!(pressure.look(1, recovered, last_retry, AFTER), Relief::Nothing);
            let later = last_retry + Duration::from_millis(1);
            assert_eq!(pressure.look(1, recovered, later, AFTER), Relief::Over);
            assert_eq!(pressure.look(1, recovered, later + LONGEST_PAUSE, AFTER), Relief::Nothing);
        }
    }

    #[test]
    fn without_that_limit_nothing_is_closed() {
        let start = Instant::now();
        let mut pressure = Pressure::default();
        for n in 0..100 {
            assert_ne!(pressure.look(n, 0, start + Duration::from_secs(n), None), Relief::Shed);
        }
    }

    #[test]
    fn the_longest_idle_are_closed_first_and_few_at_a_time() {
        let start = Instant::now();
        let one = |which: u64, rests| Candidate { which, rests, moved: start + Duration::from_secs(which) };
        let crowd = || (0..40).rev().map(|n| one(n, n != 0));
        assert_eq!(victims(crowd()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(victims([one(3, false), one(2, false), one(9, true)]).collect::<Vec<_>>(), [9]);
        assert_eq!(victims([one(3, false), one(2, false)]).collect::<Vec<_>>(), [2]);
        assert_eq!(victims::<u64>([]).count(), 0);
    }
}
