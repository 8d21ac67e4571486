//! Clock offsets between hosts.
//!
//! The start uses each host's *monotonic* clock; its offset to ours comes from the fastest of several round trips (as
//! NTP uses the sample with the least delay: RFC 5905, section 10). Wall clocks are only compared: a wrong one makes
//! logs of that host misleading, and the run reports it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The clock values of a host, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Since its process began.
    pub mono_ns: i64,
    /// Since 1970.
    pub wall_ns: i64,
}

impl Reading {
    /// The wall clock at the start of the process; changes only if the clock is set.
    pub(crate) fn origin_ns(self) -> i64 {
        self.wall_ns - self.mono_ns
    }
}

/// The clocks of this host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// Added to the wall clock, and to be added once a load has begun: for tests of clocks that are wrong.
    ahead_ns: i64,
    jump_ns: i64,
}

impl Clock {
    /// From now on; the wall clock is shown so many seconds ahead, and so many more once it has
    /// [`jumped`](Self::jumped).
    pub(crate) fn new(ahead_s: f64, jump_s: f64) -> Self {
        Self { origin: Instant::now(), ahead_ns: (ahead_s * 1e9) as i64, jump_ns: (jump_s * 1e9) as i64 }
    }

    /// After somebody has set the wall clock.
    pub(crate) fn jumped(self) -> Self {
        Self { ahead_ns: self.ahead_ns.saturating_add(self.jump_ns), ..self }
    }

    pub(crate) fn read(&self) -> Reading {
        self.reading(SystemTime::now(), Instant::now())
    }

    fn reading(&self, wall: SystemTime, mono: Instant) -> Reading {
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
        Reading { mono_ns: self.mono_ns(mono), wall_ns: wall.saturating_add(self.ahead_ns) }
    }

    pub(crate) fn mono_ns(&self, at: Instant) -> i64 {
        at.saturating_duration_since(self.origin).as_nanos() as i64
    }

    /// The moment at which [`Reading::mono_ns`] is so much; the beginning if that is before.
    pub(crate) fn at(&self, mono_ns: i64) -> Option<Instant> {
        self.origin.checked_add(Duration::from_nanos(mono_ns.max(0) as u64))
    }
}

/// One round trip: what we read before, what the other read, what we read after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSample {
    pub(crate) before: Reading,
    pub(crate) other: Reading,
    pub(crate) after: Reading,
}

/// The offsets of another host's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Distance {
    /// Its monotonic clock minus ours.
    pub(crate) mono_ns: i64,
    /// Its wall clock minus ours.
    pub(crate) wall_ns: i64,
    /// The round trip of this sample; its error is at most half of that.
    pub(crate) round_trip_ns: i64,
}

/// Computes them from the fastest of several round trips; `None` without samples.
pub(crate) fn distance(trips: &[ClockSample]) -> Option<Distance> {
    let length = |trip: &ClockSample| trip.after.mono_ns - trip.before.mono_ns;
    let best = trips.iter().min_by_key(|trip| length(trip))?;
    let half = length(best) / 2;
    Some(Distance {
        mono_ns: best.other.mono_ns - (best.before.mono_ns + half),
        wall_ns: best.other.wall_ns - (best.before.wall_ns + half),
        round_trip_ns: length(best),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_set_moves_the_origin_and_no_start() {
        let clock = Clock::new(0.0, 2.0);
        let (wall, now) = (SystemTime::now(), Instant::now());
        let (before, after) = (clock.reading(wall, now), clock.jumped().reading(wall, now));
        assert_eq!(after.origin_ns() - before.origin_ns(), 2_000_000_000);
        assert_eq!(clock.at(1_000), clock.jumped().at(1_000));
        assert_eq!(clock.mono_ns(now), clock.jumped().mono_ns(now));
    }

    #[test]
    fn the_quickest_round_trip_decides() {
        let read = |ns: i64| Reading { mono_ns: ns, wall_ns: 1_000_000 + ns };
        let trip = |at: i64, there: i64, back: i64| ClockSample {
            before: read(at),
            // Its monotonic clock began 500 ns after ours, and its wall clock is 7,000 ns ahead.
            other: Reading { mono_ns: at + there - 500, wall_ns: 1_007_000 + at + there },
            after: read(at + there + back),
        };
        // Slow and lopsided ones say nonsense and are not listened to.
        let trips = [trip(0, 9_000, 100), trip(20_000, 50, 50), trip(40_000, 10, 4_000)];
        let found = distance(&trips).unwrap();
        assert_eq!(found, Distance { mono_ns: -500, wall_ns: 7_000, round_trip_ns: 100 });
        assert_eq!(distance(&[]), None);
    }
}
