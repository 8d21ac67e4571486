//! Which numbers have come back: each once, twice, or after a later one.

/// Numbers behind the highest that are remembered. What is older is taken as new.
const WINDOW: u64 = 1 << 20;

/// Remembers the last numbers.
pub(super) struct Tracker {
    /// One after the highest number seen.
    end: u64,
    bits: Vec<u64>,
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The next, or one after a gap.
    New,
    /// A new one, after a later one.
    Reordered,
    /// One that has been there.
    Again,
}

impl Tracker {
    pub(super) fn new() -> Self {
        Self { end: 0, bits: vec![0; (WINDOW / 64) as usize] }
    }

    pub(super) fn see(&mut self, number: u64) -> Seen {
        if number >= self.end {
            let gap = (number - self.end).min(WINDOW);
            for skipped in number - gap..number {
                self.clear(skipped);
            }
            self.end = number + 1;
            self.set(number);
            return Seen::New;
        }
        if self.end - number > WINDOW {
            return Seen::Reordered;
        }
        if self.set(number) { Seen::Again } else { Seen::Reordered }
    }

    /// Sets the bit of a number; whether it was set.
    fn set(&mut self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        let was = self.bits[word] & bit != 0;
        self.bits[word] |= bit;
        was
    }

    fn clear(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        self.bits[word] &= !bit;
    }

    fn place(number: u64) -> (usize, u64) {
        let at = number % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_late_ones_are_distinguished() {
        let mut tracker = Tracker::new();
        let seen: Vec<Seen> = [0, 1, 1, 4, 2, 2, 3, 0, 5].into_iter().map(|n| tracker.see(n)).collect();
        use Seen::{Again, New, Reordered};
        assert_eq!(seen, [New, New, Again, New, Reordered, Again, Reordered, Again, New]);
    }

    #[test]
    fn places_are_used_again_after_the_window() {
        let mut tracker = Tracker::new();
        tracker.see(3);
        assert_eq!(tracker.see(3 + WINDOW), Seen::New);
        assert_eq!(tracker.see(4 + WINDOW / 2), Seen::Reordered);
        assert_eq!(tracker.see(10 * WINDOW), Seen::New);
        assert_eq!(tracker.see(10 * WINDOW - 5), Seen::Reordered);
        assert_eq!(tracker.see(10 * WINDOW - 5), Seen::Again);
    }
}
