//! Memory that two processes share: a sealed file without a name (`memfd_create(2)`), mapped by both.
//!
//! The other process may be hostile. It can write anything into the memory at any time; so everything here is read by
//! copying or as an atomic word, and never twice in the belief that it stayed the same. It cannot take the memory away
//! (which would end this process with SIGBUS): that the size is sealed is checked before anything is mapped.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const SIZE_IS_FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory shared with another process; unmapped when dropped. It is gone when both have let go of it, however they end.
#[derive(Debug)]
pub struct Shared {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread.
unsafe impl Send for Shared {}
// SAFETY: through `&self` the memory is only touched as atomic words, or by copies whose result may be any bytes at
// all.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes `bytes` of zeroed memory, and the descriptor to give to the other process.
    ///
    /// # Errors
    /// No descriptor or memory is left, or the system has no `memfd_create` (Linux 3.17).
    pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create("tidegate", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SIZE_IS_FIXED)?;
        Ok((Self::map(&fd, bytes)?, fd))
    }

    /// Maps memory that another process made, if its size cannot change and is at most `most` bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is anything else.
    pub fn open(fd: &OwnedFd, most: usize) -> io::Result<Self> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let seals = fcntl_get_seals(fd).map_err(|_| wrong("not a memfd"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(wrong("its size is not sealed"));
        }
        let bytes = usize::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if bytes == 0 || bytes > most {
            return Err(wrong("its size is not one that is allowed"));
        }
        Self::map(fd, bytes)
    }

    fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address the kernel picks overlaps nothing. The size of the file is sealed (both
        // callers have seen to that), so every page of it stays backed.
        let at = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        }?;
        NonNull::new(at.cast()).map(|at| Self { at, bytes }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The word at byte `at`, which must be a multiple of 4 inside the memory.
    ///
    /// # Panics
    /// It is not: a mistake of the caller, for places come from a layout and never from the other process.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(
            at.is_multiple_of(4) && at < self.bytes && self.bytes - at >= 4,
            "a word outside of shared memory"
        );
        // SAFETY: in bounds and aligned (the mapping begins at a page), and mapped for as long as `self` lives. Nothing
        // in this process touches these bytes other than atomically: copies go to other places of the layout.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// Copies bytes out. What the other process writes at the same time may come out mixed.
    ///
    /// # Panics
    /// The range is not inside the memory: a mistake of the caller.
    #[inline]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        // SAFETY: in bounds; `into` is private memory, so the two do not overlap. What the other process writes
        // meanwhile, what is copied is bytes, of which every value is valid, and they are looked at only in the copy.
        unsafe { ptr::copy_nonoverlapping(self.at.as_ptr().add(at), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// The range is not inside the memory: a mistake of the caller.
    #[inline]
    pub fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        // SAFETY: in bounds; `from` is private memory, so the two do not overlap. No reference into the mapping exists
        // but to atomic words, which the layout keeps apart from what is copied.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.at.as_ptr().add(at), from.len()) }
    }

    #[inline]
    fn check(&self, at: usize, bytes: usize) {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "a range outside of shared memory");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nothing borrows from it any more.
        unsafe {
            let _ = munmap(self.at.as_ptr().cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::{Acquire, Release};

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (here, fd) = Shared::create(8192).unwrap();
        let there = Shared::open(&fd, 8192).unwrap();
        drop(fd);
        here.write(4096, b"over there");
        here.word(128).store(7, Release);
        let mut seen = [0; 10];
        there.read(4096, &mut seen);
        assert_eq!((there.word(128).load(Acquire), &seen, there.bytes()), (7, b"over there", 8192));
    }

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, 8192).unwrap();
        assert!(Shared::open(&open, 8192).unwrap_err().to_string().contains("not sealed"));
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(Shared::open(&file, 8192).is_err());
        let (_, large) = Shared::create(16384).unwrap();
        assert!(Shared::open(&large, 8192).unwrap_err().to_string().contains("size"));
        assert!(ftruncate(&large, 4096).is_err(), "it is sealed");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_range_that_would_wrap_around_is_outside() {
        Shared::create(4096).unwrap().0.read(usize::MAX, &mut [0; 2]);
    }
}
