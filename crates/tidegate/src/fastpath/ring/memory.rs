//! The memory of a ring.

/// The words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Total bytes written, modulo 2³². Written by the writer.
    Tail,
    /// How the stream ended. Written by the writer.
    Ended,
    /// Total bytes read, modulo 2³². Written by the reader.
    Head,
    /// The reader is about to sleep. Set by the reader, cleared by either side.
    ReaderSleeps,
    /// The writer is about to sleep. Set by the writer, cleared by either side.
    WriterSleeps,
}

/// The words and bytes of one ring, shared with the other side.
pub trait Memory {
    /// Loads a word (acquire).
    fn load(&self, word: Word) -> u32;
    /// Stores a word (release).
    fn store(&self, word: Word, value: u32);
    /// Swaps a word (acquire and release).
    fn swap(&self, word: Word, value: u32) -> u32;
    /// A sequentially consistent fence.
    fn barrier(&self);
    /// The bytes at this offset are probably read soon: a hint.
    fn prefetch(&self, at: usize) {
        let _ = at;
    }
    /// Copies bytes out, from an offset inside the ring; the range does not pass its end.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Copies bytes in, likewise.
    fn write(&self, at: usize, from: &[u8]);
}
