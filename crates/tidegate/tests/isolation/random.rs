//! Choices that a seed decides.

/// A generator with the few questions that plans ask.
pub struct Random(fastrand::Rng);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }

    /// A size from 1 to `1 << bits`: each order of magnitude is equally likely.
    pub fn size(&mut self, bits: u64) -> usize {
        let scale = 1 << self.below(bits + 1);
        (self.below(scale) + 1) as usize
    }

    /// One of `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
