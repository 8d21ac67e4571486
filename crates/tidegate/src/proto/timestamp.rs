//! A point in time in half the bytes of an [`Instant`].

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A point in time in 8 bytes, also as an option: what every connection keeps.
///
/// Counts nanoseconds from an instant that all have in common, so it is exact, and reaches 292 years in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(NonZeroU64);

/// The first instant that was converted.
static EPOCH: OnceLock<Instant> = OnceLock::new();

/// What the epoch is as a number: a simulation may begin before it.
const AT_EPOCH: u64 = 1 << 63;

impl From<Instant> for Timestamp {
    #[inline]
    fn from(at: Instant) -> Self {
        let epoch = *EPOCH.get_or_init(|| at);
        let nanos = match at.checked_duration_since(epoch) {
            Some(after) => AT_EPOCH.saturating_add(nanos(after)),
            None => AT_EPOCH.saturating_sub(nanos(epoch.saturating_duration_since(at))),
        };
        Self(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }
}

impl From<Timestamp> for Instant {
    #[inline]
    fn from(Timestamp(nanos): Timestamp) -> Self {
        let epoch = *EPOCH.get().expect("an instant was converted before");
        match nanos.get().checked_sub(AT_EPOCH) {
            Some(after) => epoch + Duration::from_nanos(after),
            None => epoch - Duration::from_nanos(AT_EPOCH - nanos.get()),
        }
    }
}

/// Without a division of 128 bits, which is a call.
#[inline]
fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_comes_back_exactly_on_both_sides_of_the_epoch() {
        let now = Instant::now();
        let _ = Timestamp::from(now); // the epoch is about now, whichever test converts first
        for apart in [Duration::ZERO, Duration::from_nanos(1), Duration::new(10 * 365 * 86_400, 999_999_999)]
        {
            for at in [Some(now + apart), now.checked_sub(apart)].into_iter().flatten() {
                assert_eq!(Instant::from(Timestamp::from(at)), at, "{apart:?}");
            }
        }
        let [one, next] = [now, now + Duration::from_nanos(1)].map(Timestamp::from);
        assert!(one < next && one == Timestamp::from(now));
    }

    #[test]
    fn a_time_that_is_too_far_ahead_is_the_last_one() {
        let now = Instant::now();
        let never = now.checked_add(Duration::from_secs(1 << 36)).expect("two thousand years");
        assert_eq!(Timestamp::from(never), Timestamp(NonZeroU64::MAX));
        assert!(Instant::from(Timestamp::from(never)) > now + Duration::from_secs(1 << 32));
    }
}
