//! The layout of the shared memory: a page of control words, then the bytes of both rings.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use tidegate_os::shared::{SharedMemory, full_fence};

use super::ring::{Memory, Reader, Word, Writer};

/// Bytes before the rings.
const HEAD: usize = 4096;
/// Magic number and layout version.
const MAGIC: u32 = 0x7464_6701;
const MAGIC_AT: usize = 0;
const STATE_AT: usize = 128;
/// Words of the ring from the dialler to the listener, and of the other.
const RINGS_AT: [usize; 2] = [512, 1536];

/// The outcome of an offer. Changed once, by the side that decides first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OfferState {
    /// Nobody has decided yet.
    Offered = 0,
    /// The listener accepted: the rings carry the connection.
    Taken = 1,
    /// The dialler withdrew: TCP carries the connection.
    Withdrawn = 2,
}

/// The end of the connection that this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The one that dialled, and made the memory.
    Dialler,
    /// The one that accepted.
    Listener,
}

/// The memory of one connection.
#[derive(Clone, Debug)]
pub struct Rings {
    memory: Arc<SharedMemory>,
    capacity: usize,
}

impl Rings {
    /// Creates a pair of rings of this size (a power of two), and the descriptor for the other side.
    ///
    /// # Errors
    /// No descriptor or memory is left, or the system has no `memfd_create`.
    pub fn create(capacity: usize) -> io::Result<(Self, OwnedFd)> {
        let (memory, fd) = SharedMemory::create(HEAD + 2 * capacity)?;
        memory.word(MAGIC_AT).store(MAGIC, Release);
        Ok((Self { memory: Arc::new(memory), capacity }, fd))
    }

    /// Maps memory created by another process, with rings of at most `most` bytes each.
    ///
    /// # Errors
    /// The memory has another layout, or its size is not sealed.
    pub fn open(fd: &OwnedFd, most: usize) -> io::Result<Self> {
        let wrong = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let memory = SharedMemory::open(fd, HEAD.saturating_add(most.saturating_mul(2)))?;
        let capacity = memory.bytes().saturating_sub(HEAD) / 2;
        if !capacity.is_power_of_two() || capacity > most || memory.bytes() != HEAD + 2 * capacity {
            return wrong("its size is not that of a pair of rings");
        }
        if memory.word(MAGIC_AT).load(Acquire) != MAGIC {
            return wrong("it is not laid out as this version expects");
        }
        Ok(Self { memory: Arc::new(memory), capacity })
    }

    /// Decides the outcome of the offer; `false` if it was decided already.
    #[must_use]
    pub fn decide(&self, state: OfferState) -> bool {
        let word = self.memory.word(STATE_AT);
        word.compare_exchange(OfferState::Offered as u32, state as u32, AcqRel, Acquire).is_ok()
    }

    /// Whether the listener accepted the offer.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.memory.word(STATE_AT).load(Acquire) == OfferState::Taken as u32
    }

    /// The two ring sides of this end.
    #[must_use]
    pub fn sides(&self, end: LinkEnd) -> (Reader<RingMemory>, Writer<RingMemory>) {
        let ring_memory = |which: usize| RingMemory {
            memory: self.memory.clone(),
            words: RINGS_AT[which],
            bytes: HEAD + which * self.capacity,
        };
        let (reads, writes) = match end {
            LinkEnd::Dialler => (1, 0),
            LinkEnd::Listener => (0, 1),
        };
        let capacity = self.capacity as u32; // at most `ring::MOST`
        (Reader::new(ring_memory(reads), capacity), Writer::new(ring_memory(writes), capacity))
    }
}

/// One ring.
#[derive(Debug)]
pub struct RingMemory {
    memory: Arc<SharedMemory>,
    words: usize,
    bytes: usize,
}

impl RingMemory {
    /// Words written by different sides are two cache lines apart: processors fetch lines in pairs.
    #[inline]
    fn offset(&self, word: Word) -> usize {
        self.words
            + match word {
                Word::Tail => 0,
                Word::Ended => 4, // beside the tail: a reader that spins looks at both
                Word::Head => 128,
                Word::ReaderSleeps => 256,
                Word::WriterSleeps => 384,
            }
    }
}

impl Memory for RingMemory {
    #[inline]
    fn load(&self, word: Word) -> u32 {
        self.memory.word(self.offset(word)).load(Acquire)
    }

    #[inline]
    fn store(&self, word: Word, value: u32) {
        self.memory.word(self.offset(word)).store(value, Release);
    }

    #[inline]
    fn swap(&self, word: Word, value: u32) -> u32 {
        self.memory.word(self.offset(word)).swap(value, AcqRel)
    }

    #[inline]
    fn barrier(&self) {
        full_fence();
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        self.memory.prefetch(self.bytes + at);
    }

    #[inline]
    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(self.bytes + at, into);
    }

    #[inline]
    fn write(&self, at: usize, from: &[u8]) {
        self.memory.write(self.bytes + at, from);
    }
}
