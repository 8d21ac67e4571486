//! How an I/O thread waits for events.

use std::time::{Duration, Instant};

/// How an I/O thread waits for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Sleep until something happens: costs a wake-up (45 to 60 µs on the machines measured), and no CPU while idle.
    Block,
    /// Poll continuously: no wake-up, and one whole processor for each thread.
    Spin,
    /// Poll for this long after the last event, then sleep.
    SpinThenBlock(Duration),
}

/// Whether an idle thread whose last event was at `active` polls again instead of sleeping.
#[inline]
#[must_use]
pub fn spins(wait: Wait, active: Instant, now: Instant) -> bool {
    match wait {
        Wait::Block => false,
        Wait::Spin => true,
        Wait::SpinThenBlock(limit) => now.saturating_duration_since(active) < limit,
    }
}
