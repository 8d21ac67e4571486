//! Memory that is registered once and given out in pieces.

use std::io;

use super::functions::{Functions, NO_BUFFER, RioBuf};
use crate::pages::{Pages, Residence};
use crate::payload::Payload;

/// A piece of registered memory, with so many bytes received into it. Given back with
/// [`Requests::recycle`](super::Requests::recycle).
#[derive(Debug)]
pub struct RioBuffer {
    /// The registration that it is a piece of.
    pub(super) of: isize,
    pub(super) index: u32,
    pub(super) filled: u32,
}

/// Pieces of equal size of one registration.
pub(super) struct RioBuffers {
    functions: Functions,
    id: isize,
    pages: Pages,
    free: Vec<u32>,
    count: usize,
    bytes: usize,
}

impl RioBuffers {
    pub(super) fn new(
        functions: Functions,
        count: usize,
        bytes: usize,
        residence: Residence,
    ) -> io::Result<Self> {
        let count = count.max(2); // one for each direction
        let all = u32::try_from(count * bytes).map_err(|_| {
            let why = "registered memory of a thread has to be below 4 GiB: use fewer or smaller buffers";
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let pages = Pages::new(count * bytes, residence)?;
        // SAFETY: the pages are as long as is said, and stay until the registration is given back (`drop`).
        let id = unsafe { (functions.register_buffer)(pages.as_ptr(), all) };
        if id == NO_BUFFER {
            return Err((functions.last_error)());
        }
        Ok(Self { functions, id, pages, free: (0..count as u32).rev().collect(), count, bytes })
    }

    pub(super) fn take(&mut self) -> Option<RioBuffer> {
        self.free.pop().map(|index| RioBuffer { of: self.id, index, filled: 0 })
    }

    /// Takes it back. A piece of another registration would be given out twice here.
    pub(super) fn give_back(&mut self, buffer: RioBuffer) {
        assert!(buffer.of == self.id, "a buffer of another queue");
        self.free.push(buffer.index);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn from(&self, buffer: &RioBuffer) -> usize {
        buffer.index as usize * self.bytes
    }

    /// The whole of a buffer, as the kernel knows it.
    pub(super) fn whole(&self, buffer: &RioBuffer) -> RioBuf {
        RioBuf { buffer: self.id, offset: self.from(buffer) as u32, length: self.bytes as u32 }
    }

    /// As much of it as is filled.
    pub(super) fn part(&self, buffer: &RioBuffer) -> RioBuf {
        RioBuf { length: buffer.filled, ..self.whole(buffer) }
    }

    /// Fills it with as much of a payload as it takes; what is of a file is read where it is to lie.
    ///
    /// # Errors
    /// A part of a file is next, and cannot be read.
    pub(super) fn fill(&mut self, buffer: &mut RioBuffer, payload: &Payload) -> io::Result<()> {
        let from = self.from(buffer);
        buffer.filled = payload.copy_into(&mut self.pages[from..from + self.bytes])? as u32;
        Ok(())
    }

    pub(super) fn received(&self, buffer: &RioBuffer) -> &[u8] {
        assert!(buffer.of == self.id, "a buffer of another queue");
        let from = self.from(buffer);
        &self.pages[from..from + buffer.filled as usize]
    }

    /// Leaves the memory registered and in place for ever: the kernel may still write there.
    pub(super) fn leak(&mut self) {
        self.pages.leak();
        self.id = NO_BUFFER;
    }
}

impl Drop for RioBuffers {
    fn drop(&mut self) {
        if self.id != NO_BUFFER {
            // SAFETY: registered by `new`, and no request that is under way has a piece of it: see `Requests`.
            unsafe { (self.functions.deregister_buffer)(self.id) };
        }
    }
}
