//! When an I/O thread waits a while before it looks for events again, so that one wake-up answers a batch
//! ([`Policy::coalesce`](crate::Policy::coalesce)); network cards call it interrupt coalescing.
//!
//! Pure: it is passed the time, and how many connections had work at each look. A thread that looked at `t0` does not
//! look again before `t0` + budget, so no event waits longer than the budget, and one that meets a thread which has
//! been idle for as long does not wait at all.
//!
//! A pause costs a wake-up, too, and saves as many as events come in it, less one. So there is none unless
//!
//! - the recent rate lets [more than one](EXPECTED) event be expected in what is left of the budget, and
//! - pauses have been seen to gather [more than a look without a pause](GAIN) brings. A client that waits for each
//!   answer seems to come at a high rate, and yet comes once in each pause. The two are compared again and again:
//!   after a failure at growing distances, after a success when it is [old](LONGEST).

use std::time::{Duration, Instant};

/// Events that must be expected in a pause.
const EXPECTED: f64 = 1.5;
/// How many times as many events as a look without a pause one with a pause must bring.
const GAIN: f64 = 1.5;
/// Looks without a pause before one is tried.
const PLAIN_LOOKS: u32 = 16;
/// Pauses after which it is given up if they have gathered next to nothing, and after which it is judged.
const FIRST_LOOKS: u32 = 8;
const LOOKS: u32 = 64;
/// In budgets: what the rate is averaged over, and the pause between attempts at first.
const WINDOW: u32 = 50;
/// In windows: the most that lies between two attempts, or between two comparisons.
const LONGEST: u32 = 100;
/// A pause for less than this part of the budget is not worth a timer.
const LEAST_PART: u32 = 4;

/// Decides how long an I/O thread pauses before it looks for events again.
#[derive(Debug)]
pub(in crate::engine) struct Coalescing {
    /// The most that is added to an event; zero for none.
    budget: Duration,
    /// When the thread last looked.
    looked: Instant,
    /// A pause comes before the next look.
    paused: bool,
    /// Events of the last [`WINDOW`] or so, older ones weighing less.
    recent: f64,
    /// What a look without a pause brings, and of how many it is the mean.
    plain: f64,
    plain_looks: u32,
    phase: CoalescingPhase,
    /// How long after the next failure it is tried again.
    distance: Duration,
}

#[derive(Debug)]
enum CoalescingPhase {
    /// No pauses before then.
    Plain { until: Instant },
    /// Pauses; what they gathered since they were last judged.
    Pausing { since: Instant, looks: u32, events: u64 },
}

impl Coalescing {
    /// Adds at most `budget` to any event; zero never pauses.
    pub(in crate::engine) fn new(budget: Duration, now: Instant) -> Self {
        Self {
            budget,
            looked: now,
            paused: false,
            recent: 0.0,
            plain: 0.0,
            plain_looks: 0,
            phase: CoalescingPhase::Plain { until: now },
            distance: budget * WINDOW,
        }
    }

    /// Whether it is on at all.
    #[inline]
    pub(in crate::engine) fn is_on(&self) -> bool {
        !self.budget.is_zero()
    }

    /// Whether pauses are being made: the next look may follow one.
    #[inline]
    pub(in crate::engine) fn is_pausing(&self) -> bool {
        matches!(self.phase, CoalescingPhase::Pausing { .. })
    }

    /// How long to pause from `now` before the next look.
    pub(in crate::engine) fn pause(&mut self, now: Instant) -> Duration {
        let left = self.budget.saturating_sub(now.saturating_duration_since(self.looked));
        if left.is_zero() || left < self.budget / LEAST_PART || self.expected(left) < EXPECTED {
            return Duration::ZERO;
        }
        if let CoalescingPhase::Plain { until } = self.phase {
            if now < until || self.plain_looks < PLAIN_LOOKS {
                return Duration::ZERO;
            }
            self.phase = CoalescingPhase::Pausing { since: now, looks: 0, events: 0 };
        }
        self.paused = true;
        left
    }

    /// The thread has looked, and so many connections had work.
    pub(in crate::engine) fn looked(&mut self, now: Instant, events: usize) {
        if !self.is_on() {
            return;
        }
        let passed = now.saturating_duration_since(self.looked).as_secs_f64();
        let kept = (-passed / self.window().as_secs_f64()).exp();
        self.recent = self.recent.mul_add(kept, events as f64);
        self.looked = now;
        let paused = std::mem::take(&mut self.paused);
        match &mut self.phase {
            CoalescingPhase::Plain { .. } if events > 0 => {
                self.plain_looks = self.plain_looks.saturating_add(1);
                self.plain += (events as f64 - self.plain) / f64::from(self.plain_looks.min(2 * PLAIN_LOOKS));
            }
            CoalescingPhase::Pausing { looks, events: sum, .. } if paused => {
                *looks += 1;
                *sum += events as u64;
                self.judge(now);
            }
            _ => {}
        }
    }

    /// Compares what pauses have gathered with what looks bring without.
    fn judge(&mut self, now: Instant) {
        let CoalescingPhase::Pausing { since, looks, events } = &mut self.phase else { return };
        let gain = *events as f64 / (f64::from(*looks) * self.plain);
        if *looks == FIRST_LOOKS && gain < GAIN.midpoint(1.0) || *looks >= LOOKS && gain < GAIN {
            self.phase = CoalescingPhase::Plain { until: now + self.distance };
            self.distance = (self.distance * 2).min(self.window() * LONGEST);
            self.plain_looks = 0;
        } else if *looks >= LOOKS {
            let is_old = now.saturating_duration_since(*since) >= self.budget * WINDOW * LONGEST;
            (*looks, *events) = (0, 0);
            self.distance = self.window();
            if is_old {
                self.phase = CoalescingPhase::Plain { until: now };
                self.plain_looks = 0;
            }
        }
    }

    /// Events to be expected in a time.
    fn expected(&self, time: Duration) -> f64 {
        self.recent * time.div_duration_f64(self.window())
    }

    fn window(&self) -> Duration {
        self.budget * WINDOW
    }
}

#[cfg(test)]
mod tests;
