//! The rate limit of a member.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// A token bucket that stores one time: until when the lines so far are paid for (the generic cell rate algorithm,
/// ITU-T I.371, annex A).
#[derive(Debug, Default)]
pub(super) struct TokenBucket(Option<Instant>);

impl TokenBucket {
    /// Whether one more line is within the rate; if so, counts it.
    pub(super) fn allows(&mut self, per_s: Option<NonZeroU32>, burst: NonZeroU32, now: Instant) -> bool {
        let Some(per_s) = per_s else { return true };
        let each = Duration::from_secs(1) / per_s.get();
        let paid = self.0.map_or(now, |paid| paid.max(now));
        let Some(next) = paid.checked_add(each) else { return false };
        let within = next.duration_since(now) <= each.saturating_mul(burst.get());
        if within {
            self.0 = Some(next);
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let (rate, burst) = (NonZeroU32::new(10), NonZeroU32::new(3).unwrap());
        let mut pace = TokenBucket::default();
        let start = Instant::now();
        let said = |pace: &mut TokenBucket, ms| pace.allows(rate, burst, start + Duration::from_millis(ms));
        assert!(said(&mut pace, 0) && said(&mut pace, 0) && said(&mut pace, 0));
        assert!(!said(&mut pace, 0) && !said(&mut pace, 99));
        assert!(said(&mut pace, 100));
        assert!(!said(&mut pace, 100));
        let in_a_second = (101..1101).filter(|&ms| said(&mut pace, ms)).count();
        assert_eq!(in_a_second, 10);
        assert!(said(&mut pace, 60_000) && said(&mut pace, 60_000) && said(&mut pace, 60_000));
        assert!(!said(&mut pace, 60_000), "silence is saved up to the burst only");
        assert!((0..1000).all(|_| pace.allows(None, burst, start)));
    }
}
