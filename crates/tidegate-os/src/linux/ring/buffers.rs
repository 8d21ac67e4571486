//! Provided buffers: a ring of free buffers shared with the kernel (`io_uring_register_buf_ring(3)`).

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

use super::{RingId, RingSetup};
use crate::pages::Pages;

/// A received buffer that is out of the ring: give it back with [`Ring::recycle`](super::Ring::recycle).
#[derive(Debug)]
#[must_use = "a buffer that is not recycled is lost to the ring"]
pub struct Buffer {
    id: u16,
    len: u32,
    ring: RingId,
}

impl Buffer {
    pub(super) fn new(id: u16, len: u32, ring: RingId) -> Self {
        Self { id, len, ring }
    }

    /// Bytes received into it.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing was received into it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The memory of all buffers and the ring that lists the free ones.
pub(super) struct Buffers {
    list: Pages,
    memory: Pages,
    count: u16,
    each: usize,
    tail: u16,
    ring: RingId,
}

impl Buffers {
    /// Maps the buffers and lists all of them as free in group `group`.
    pub(super) fn register(ring: &IoUring, setup: &RingSetup, group: u16, id: RingId) -> io::Result<Self> {
        let (count, residence) = (setup.buffers, setup.residence);
        assert!(count.is_power_of_two(), "the number of provided buffers is a power of two");
        let each = setup.buffer_bytes as usize;
        let list = Pages::new(usize::from(count) * size_of::<BufRingEntry>(), residence)?;
        let memory = Pages::new(each * usize::from(count), residence)?;
        let mut buffers = Self { list, memory, count, each, tail: 0, ring: id };
        let entries = buffers.entries();
        // SAFETY: `entries` is page-aligned memory for `count` entries that stays mapped until
        // after the ring is gone (`Ring` drops the ring first, and leaks these if it cannot).
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, count, group, 0) }?;
        for at in 0..count {
            buffers.give_back(Buffer::new(at, 0, id));
        }
        Ok(buffers)
    }

    #[inline]
    fn entries(&self) -> *mut BufRingEntry {
        self.list.as_ptr().cast()
    }

    #[inline]
    pub(super) fn bytes(&self, buffer: &Buffer) -> &[u8] {
        assert!(buffer.ring == self.ring, "a buffer of another ring");
        debug_assert!(buffer.id < self.count && buffer.len() <= self.each);
        let at = usize::from(buffer.id) * self.each;
        // SAFETY: the kernel picked `id` from this ring, as was just checked, wrote `len` bytes into it and does not
        // touch it again until it is given back, which needs `buffer` by value. `min` keeps the
        // slice inside the mapping whatever the kernel answered.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at), buffer.len().min(self.each)) }
    }

    #[inline]
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        assert!(buffer.ring == self.ring, "a buffer of another ring");
        let at = usize::from(self.tail & (self.count - 1));
        // SAFETY: `at` < `count` entries are mapped, and `id` is one of this ring's buffers, which nobody else has: it
        // came by value; the kernel reads this entry only after the tail below was published. Only the thread of the
        // ring writes the tail.
        unsafe {
            let entry = &mut *self.entries().add(at);
            entry.set_addr(self.memory.as_ptr().add(usize::from(buffer.id) * self.each) as u64);
            entry.set_len(self.each as u32);
            entry.set_bid(buffer.id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(self.entries()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }

    /// Keeps the mappings for ever, because the kernel may still write to them.
    pub(super) fn leak(&mut self) {
        self.list.leak();
        self.memory.leak();
    }
}
