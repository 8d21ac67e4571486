//! What a ring is made of.

/// The words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Bytes written in all, modulo 2³². Written by the writer.
    Tail,
    /// How the stream has ended. Written by the writer.
    Ended,
    /// Bytes read in all, modulo 2³². Written by the reader.
    Head,
    /// The reader is about to sleep. Set by the reader, taken back by either.
    ReaderSleeps,
    /// The writer is about to sleep. Set by the writer, taken back by either.
    WriterSleeps,
}

/// The words and bytes of one ring, which the other side sees too.
pub trait Memory {
    /// Reads a word, and with it sees everything that was done before it was stored (acquire).
    fn load(&self, word: Word) -> u32;
    /// Writes a word; whoever reads it sees everything that was done before (release).
    fn store(&self, word: Word, value: u32);
    /// Exchanges a word, with the effects of both.
    fn swap(&self, word: Word, value: u32) -> u32;
    /// Nothing before it is reordered with anything after it (sequentially consistent fence).
    fn barrier(&self);
    /// Copies bytes out, from a place inside the ring; the range does not pass its end.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Copies bytes in, likewise.
    fn write(&self, at: usize, from: &[u8]);
}
