//! How often something is said that others can bring about.

use std::time::{Duration, Instant};

/// Lets a few through at once, and then one now and then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seldom {
    burst: u32,
    each: Duration,
    /// When all of the burst is there again.
    full: Option<Instant>,
}

impl Seldom {
    /// So many at once, and one more in each such time.
    pub(crate) fn new(burst: u32, each: Duration) -> Self {
        Self { burst, each, full: None }
    }

    /// Whether one may pass.
    pub(crate) fn lets(&mut self, now: Instant) -> bool {
        let full = self.full.map_or(now, |full| full.max(now)) + self.each;
        let may = full.saturating_duration_since(now) <= self.each * self.burst;
        if may {
            self.full = Some(full);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pass_at_once_and_then_one_now_and_then() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut seldom = Seldom::new(3, second);
        let mut passed = |at| (0..10).filter(|_| seldom.lets(at)).count();
        assert_eq!([passed(start), passed(start + second / 2), passed(start + second)], [3, 0, 1]);
        assert_eq!(passed(start + 100 * second), 3);
    }
}
