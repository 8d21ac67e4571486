//! A byte ring between one writer and one reader that do not trust each other. Generic over its memory.
//!
//! Each side keeps its own position privately and only publishes it. It trusts nothing that the other side writes: each
//! time, it checks that the distance between the two positions is at most the capacity. An impossible distance is
//! [`Corrupt`], which ends the connection. So whatever the other side writes, no byte outside of the ring is touched.
//!
//! A side that is about to sleep sets its flag and checks the ring once more; a side that has moved its position checks
//! the other's flag. A full barrier separates the two steps on both sides, so at least one of them sees the other
//! (Dekker's algorithm). The side that sends the wake-up clears the flag, so each sleep is woken at most once.

mod memory;
#[cfg(all(test, tidegate_loom))]
mod model;

pub use memory::{Memory, Word};

use std::fmt;
use std::io::IoSlice;

/// The other side wrote impossible values: the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the other side corrupted the shared memory")
    }
}

impl std::error::Error for Corrupt {}

/// How the writer has ended the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Not ended.
    No,
    /// The writer has finished sending.
    Finished,
    /// The writer has closed the connection in order.
    Gone,
    /// The writer has reset the connection.
    Reset,
}

impl Ended {
    fn word(self) -> u32 {
        self as u32
    }

    fn of(word: u32) -> Result<Self, Corrupt> {
        [Self::No, Self::Finished, Self::Gone, Self::Reset]
            .into_iter()
            .find(|e| e.word() == word)
            .ok_or(Corrupt)
    }
}

/// The result of moving a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Moved {
    /// Bytes written or read.
    pub bytes: usize,
    /// The other side sleeps and must be woken.
    pub ring: bool,
}

/// The writing side.
#[derive(Debug)]
pub struct Writer<M> {
    memory: M,
    /// A power of two, at most [`MOST`].
    capacity: u32,
    tail: u32,
    /// Last value seen.
    head: u32,
}

/// The reading side.
#[derive(Debug)]
pub struct Reader<M> {
    memory: M,
    capacity: u32,
    head: u32,
}

/// The largest capacity: positions count bytes in 32 bits and wrap around, and full must differ from empty.
pub const MOST: usize = 1 << 30;

impl<M: Memory> Writer<M> {
    /// Creates the side for a new ring of `capacity` bytes, a power of two up to [`MOST`].
    pub fn new(memory: M, capacity: u32) -> Self {
        assert!(capacity.is_power_of_two() && capacity as usize <= MOST);
        Self { memory, capacity, tail: 0, head: 0 }
    }

    /// Free bytes.
    ///
    /// # Errors
    /// [`Corrupt`], as for all methods here.
    pub fn room(&mut self) -> Result<usize, Corrupt> {
        let head = self.memory.load(Word::Head);
        let room = self.capacity.checked_sub(self.tail.wrapping_sub(head)).ok_or(Corrupt)?;
        self.head = head; // trusted from here on
        Ok(room as usize)
    }

    /// Writes as much as fits, possibly nothing.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<Moved, Corrupt> {
        let wanted: usize = slices.iter().map(|s| s.len()).sum();
        let mut room = (self.capacity - self.tail.wrapping_sub(self.head)) as usize;
        if room < wanted {
            room = self.room()?;
        }
        let mut left = room.min(wanted);
        let bytes = left;
        for slice in slices {
            let piece = &slice[..left.min(slice.len())];
            self.put(piece);
            left -= piece.len();
        }
        if bytes == 0 {
            return Ok(Moved { bytes, ring: false });
        }
        self.memory.store(Word::Tail, self.tail);
        Ok(Moved { bytes, ring: must_ring(&self.memory, Word::ReaderSleeps) })
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = (self.tail & (self.capacity - 1)) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(self.capacity as usize - at));
        self.memory.write(at, first);
        if !second.is_empty() {
            self.memory.write(0, second);
        }
        self.tail = self.tail.wrapping_add(bytes.len() as u32);
    }

    /// Ends the stream after the bytes written. Returns whether the reader sleeps.
    pub fn end(&mut self, how: Ended) -> bool {
        self.memory.store(Word::Ended, how.word());
        must_ring(&self.memory, Word::ReaderSleeps)
    }

    /// Announces that this side is about to wait for room; `false` if there is some already.
    pub fn prepare_sleep(&mut self) -> Result<bool, Corrupt> {
        self.memory.store(Word::WriterSleeps, 1);
        self.memory.barrier();
        let sleeps = self.room()? == 0;
        if !sleeps {
            self.memory.store(Word::WriterSleeps, 0);
        }
        Ok(sleeps)
    }
}

impl<M: Memory> Reader<M> {
    /// Creates the side for a new ring of `capacity` bytes, a power of two up to [`MOST`].
    pub fn new(memory: M, capacity: u32) -> Self {
        assert!(capacity.is_power_of_two() && capacity as usize <= MOST);
        Self { memory, capacity, head: 0 }
    }

    /// Readable bytes.
    ///
    /// # Errors
    /// [`Corrupt`], as for all methods here.
    #[inline]
    pub fn available(&self) -> Result<usize, Corrupt> {
        // Who looks again and again has the line of the bytes beside that of the position when both arrive, not after.
        self.memory.prefetch(self.at());
        let used = self.memory.load(Word::Tail).wrapping_sub(self.head);
        if used > self.capacity { Err(Corrupt) } else { Ok(used as usize) }
    }

    /// Reads as much as is available and fits; possibly nothing.
    pub fn read(&mut self, into: &mut [u8]) -> Result<Moved, Corrupt> {
        let bytes = self.available()?.min(into.len());
        if bytes == 0 {
            return Ok(Moved { bytes, ring: false });
        }
        let at = self.at();
        let (first, second) = into[..bytes].split_at_mut(bytes.min(self.capacity as usize - at));
        self.memory.read(at, first);
        if !second.is_empty() {
            self.memory.read(0, second);
        }
        self.head = self.head.wrapping_add(bytes as u32);
        self.memory.store(Word::Head, self.head);
        Ok(Moved { bytes, ring: must_ring(&self.memory, Word::WriterSleeps) })
    }

    /// Where the next byte is.
    #[inline]
    fn at(&self) -> usize {
        (self.head & (self.capacity - 1)) as usize
    }

    /// How the writer has ended the stream. All bytes written before that are visible afterwards.
    #[inline]
    pub fn ended(&self) -> Result<Ended, Corrupt> {
        Ended::of(self.memory.load(Word::Ended))
    }

    /// Announces that this side is about to wait for bytes or the end; `false` if there is something already.
    pub fn prepare_sleep(&mut self) -> Result<bool, Corrupt> {
        self.memory.store(Word::ReaderSleeps, 1);
        self.memory.barrier();
        let sleeps = self.available()? == 0 && self.ended()? == Ended::No;
        if !sleeps {
            self.memory.store(Word::ReaderSleeps, 0);
        }
        Ok(sleeps)
    }
}

/// After a position has moved: takes the other side's sleep flag; returns whether it was set.
#[inline]
fn must_ring(memory: &impl Memory, sleeps: Word) -> bool {
    memory.barrier();
    memory.load(sleeps) != 0 && memory.swap(sleeps, 0) != 0
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
