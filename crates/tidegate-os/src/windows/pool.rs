//! Receive buffers: pieces of one stretch of pages, so that all of them can be locked at once.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::pages::{Pages, Residence};

/// A buffer out of a [`Pool`], with so many bytes received into it. Given back with [`Pool::recycle`].
#[derive(Debug)]
pub struct Buffer {
    pub(super) pool: PoolId,
    pub(super) index: u32,
    /// Where the received bytes begin.
    pub(super) from: u32,
    pub(super) filled: u32,
}

/// Which pool a buffer is of: unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolId(u32);

/// Buffers of equal size.
#[derive(Debug)]
pub(super) struct Pool {
    id: PoolId,
    pages: Pages,
    free: Vec<u32>,
    count: usize,
    bytes: usize,
}

impl Pool {
    pub(super) fn new(count: usize, bytes: usize, residence: Residence) -> io::Result<Self> {
        let pages = Pages::new(count.max(1) * bytes, residence)?;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = PoolId(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Self { id, pages, free: (0..count.max(1) as u32).rev().collect(), count: count.max(1), bytes })
    }

    /// One that nobody has; `None` when all are in use.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        self.free.pop().map(|index| Buffer { pool: self.id, index, from: 0, filled: 0 })
    }

    pub(super) fn id(&self) -> PoolId {
        self.id
    }

    /// Takes it back. One of another pool would be given out twice here.
    pub(super) fn recycle(&mut self, buffer: Buffer) {
        assert!(buffer.pool == self.id, "a buffer of another queue");
        self.free.push(buffer.index);
    }

    #[cfg(test)]
    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Leaves its memory where it is, for good: the kernel may still write there.
    pub(super) fn leak(&mut self) {
        self.pages.leak();
    }

    /// Buffers there are, and that nobody has.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.count, self.free.len())
    }

    /// Bytes of one.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where a buffer lies, for the kernel. The pages stay as long as the pool.
    pub(super) fn at(&self, buffer: &Buffer) -> *mut u8 {
        // A place inside the pages: `index` was given out by this pool.
        self.pages.as_ptr().wrapping_add(buffer.index as usize * self.bytes)
    }

    /// The whole of a buffer.
    pub(super) fn whole(&mut self, buffer: &Buffer) -> &mut [u8] {
        let from = buffer.index as usize * self.bytes;
        &mut self.pages[from..from + self.bytes]
    }

    /// What was received into it.
    pub(super) fn received(&self, buffer: &Buffer) -> &[u8] {
        assert!(buffer.pool == self.id, "a buffer of another queue");
        let from = buffer.index as usize * self.bytes + buffer.from as usize;
        &self.pages[from..from + buffer.filled as usize]
    }
}
