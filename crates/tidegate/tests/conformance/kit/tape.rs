//! Reproducible bytes and choices.

use bytes::Bytes;

/// A small generator (SplitMix64: Steele, Lea and Flood, OOPSLA 2014) with a seed, so that every run is the same.
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A size from 1 to `1 << bits`: each order of magnitude is equally likely.
    pub fn size(&mut self, bits: u64) -> usize {
        let scale = 1 << self.below(bits + 1);
        (self.below(scale) + 1) as usize
    }
}

/// A prime, so that a piece that is lost, doubled or moved is not hidden by the repetition.
const PERIOD: usize = 65_521;

/// An endless sequence of bytes that is the same for the same seed.
#[derive(Clone)]
pub struct Tape {
    /// Two periods, so that a piece of up to one period lies in one.
    block: Bytes,
}

impl Tape {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut block: Vec<u8> = (0..PERIOD).map(|_| random.next() as u8).collect();
        block.extend_from_within(..);
        Self { block: block.into() }
    }

    /// At most `most` bytes from position `at` on.
    pub fn piece(&self, at: u64, most: usize) -> Bytes {
        let from = (at % PERIOD as u64) as usize;
        self.block.slice(from..from + most.min(PERIOD))
    }

    /// The first `n` bytes.
    pub fn first(&self, n: usize) -> Vec<u8> {
        self.block.iter().copied().take(PERIOD).cycle().take(n).collect()
    }

    /// Fails unless `bytes` are what lies from position `at` on.
    #[track_caller]
    pub fn check(&self, at: u64, bytes: &[u8]) {
        let mut at = at;
        for part in bytes.chunks(PERIOD) {
            assert!(self.piece(at, part.len()) == part, "other bytes than were sent, near {at}");
            at += part.len() as u64;
        }
    }
}
