//! Bytes that carry the number of their connection: a stranger's are recognised wherever they appear, and named.

use std::ops::Range;

/// Which bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the client sends.
    Up,
    /// What the session sends.
    Down,
    /// What a session that speaks first says before it knows whom it speaks to; its number is the session's.
    Greeting,
}

impl Side {
    const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Greeting];
}

/// Bytes of one word of a tape.
pub const WORD: usize = 8;

const INDEX_BITS: u64 = 24;
const SIDE_BITS: u64 = 2;
/// A number below this has a tape.
const NUMBERS: u64 = 1 << (64 - INDEX_BITS - SIDE_BITS);

/// The endless byte sequence of one side of one connection: word *n* is number, side and *n*, put through a bijection.
#[derive(Clone, Copy, Debug)]
pub struct Tape {
    key: u64,
    number: u64,
    side: Side,
}

/// Where foreign bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub number: u64,
    pub side: Side,
    pub at: u64,
}

impl Tape {
    /// Of this connection, in a run with this key.
    pub fn new(key: u64, number: u64, side: Side) -> Self {
        assert!(number < NUMBERS, "a run has fewer connections");
        Self { key, number, side }
    }

    fn word(&self, index: u64) -> [u8; WORD] {
        let plain = (self.number << (INDEX_BITS + SIDE_BITS)) | ((self.side as u64) << INDEX_BITS) | index;
        mix(plain ^ self.key).to_le_bytes()
    }

    /// Its bytes in this range.
    pub fn bytes(&self, range: Range<u64>) -> Vec<u8> {
        let word = WORD as u64;
        let (first, last) = (range.start / word, range.end.div_ceil(word));
        let mut bytes: Vec<u8> = (first..last).flat_map(|index| self.word(index)).collect();
        bytes.truncate((range.end - first * word) as usize);
        bytes.drain(..(range.start - first * word) as usize);
        bytes
    }

    /// Says what is wrong unless `bytes` are what lies from `at` on.
    pub fn check(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let expected = self.bytes(at..at + bytes.len() as u64);
        let Some(wrong) = expected.iter().zip(bytes).position(|(a, b)| a != b) else { return Ok(()) };
        let whose = match owner(self.key, &bytes[wrong..]) {
            Some(Owner { number, side, at }) => format!("of connection {number} ({side:?}, byte {at})"),
            None => "of nobody".into(),
        };
        let (number, side, at) = (self.number, self.side, at + wrong as u64);
        Err(format!("connection {number} ({side:?}) got bytes {whose} at its byte {at}"))
    }
}

/// The connection that the first words of `bytes` belong to: two words of one tape in a row, at any offset.
pub fn owner(key: u64, bytes: &[u8]) -> Option<Owner> {
    (0..WORD).find_map(|skip| {
        let [first, second] = [skip, skip + WORD].map(|at| {
            let word = bytes.get(at..at + WORD)?;
            place(key, word.try_into().ok()?)
        });
        let (first, second) = (first?, second?);
        let follows = (first.number, first.side, first.at + WORD as u64);
        ((second.number, second.side, second.at) == follows).then_some(first)
    })
}

/// What a word says, if it is one of a tape.
pub fn place(key: u64, word: [u8; WORD]) -> Option<Owner> {
    let plain = unmix(u64::from_le_bytes(word)) ^ key;
    let side = (plain >> INDEX_BITS) & ((1 << SIDE_BITS) - 1);
    let at = (plain & ((1 << INDEX_BITS) - 1)) * WORD as u64;
    Some(Owner { number: plain >> (INDEX_BITS + SIDE_BITS), side: *Side::ALL.get(side as usize)?, at })
}

/// The finaliser of SplitMix64, which is a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Undoes [`mix`].
fn unmix(mut z: u64) -> u64 {
    z = (z ^ (z >> 31) ^ (z >> 62)).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    z ^ (z >> 30) ^ (z >> 60)
}

/// The inverse of an odd number modulo 2^64 (Newton: each step doubles the bits that are right).
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut step = 0;
    while step < 5 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

/// Foreign bytes are seen, and their owner is named.
pub fn a_strangers_bytes_are_named() {
    let (own, stranger) = (Tape::new(7, 3, Side::Down), Tape::new(7, 4, Side::Up));
    own.check(5, &own.bytes(5..500)).expect("its own bytes, from anywhere");
    for from in 1000..1000 + 2 * WORD as u64 {
        let mut bytes = own.bytes(0..100);
        bytes.extend(stranger.bytes(from..from + 40));
        let said = own.check(0, &bytes).expect_err("the last 40 bytes are a stranger's");
        assert!(said.contains("of connection 4 (Up"), "{said}");
    }
    let mut bytes = own.bytes(0..100);
    bytes[50] ^= 1;
    assert!(own.check(0, &bytes).is_err_and(|said| said.contains("of its own") || said.contains("byte 50")));
}
