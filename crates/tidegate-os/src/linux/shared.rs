//! Memory that two processes share: a sealed file without a name (`memfd_create(2)`), mapped by both.
//!
//! The other process may be hostile. It can write anything into the memory at any time; so everything here is read by
//! copying or as an atomic word, and never twice in the belief that it stayed the same. It cannot take the memory away
//! (which would end this process with SIGBUS): that the size is sealed is checked before anything is mapped.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use std::sync::atomic::{Ordering::SeqCst, fence};

use crate::unix::call::check;

const SIZE_IS_FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory shared with another process; unmapped when dropped. It is gone when both have let go of it, however they end.
#[derive(Debug)]
pub struct SharedMemory {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: through `&self` the memory is only touched as atomic words, or by copies whose result may be any bytes at
// all.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes `bytes` of zeroed memory, and the descriptor to give to the other process.
    ///
    /// # Errors
    /// No descriptor or memory is left, or the system has no `memfd_create` (Linux 3.17).
    pub fn create(bytes: usize) -> io::Result<(Self, OwnedFd)> {
        let file = unnamed_file()?;
        file.set_len(bytes as u64)?;
        let fd = OwnedFd::from(file);
        // SAFETY: no pointers, and the descriptor is borrowed for the call.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SIZE_IS_FIXED) })?;
        Ok((Self::map(&fd, bytes)?, fd))
    }

    /// Maps memory that another process made, if its size cannot change and is at most `most` bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if it is anything else.
    pub fn open(fd: &OwnedFd, most: usize) -> io::Result<Self> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        // SAFETY: no pointers, and the descriptor is borrowed for the call.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) });
        let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if seals.map_err(|_| wrong("not a memfd"))? & needed != needed {
            return Err(wrong("its size is not sealed"));
        }
        // SAFETY: integers only: all zeroes are a value.
        let mut facts: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: `facts` is valid for writing one `stat64` during the call.
        check(unsafe { libc::fstat64(fd.as_raw_fd(), &raw mut facts) })?;
        let bytes = usize::try_from(facts.st_size).unwrap_or(0);
        if bytes == 0 || bytes > most {
            return Err(wrong("its size is not one that is allowed"));
        }
        Self::map(fd, bytes)
    }

    fn map(fd: &OwnedFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address the kernel picks overlaps nothing. The size of the file is sealed (both
        // callers have seen to that), so every page of it stays backed.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
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

    /// Asks the processor to fetch the cache line of byte `at`, without waiting for it. Only a hint: nothing is read, and
    /// any `at` may be given. No effect but on x86-64.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing that the program sees, and does not fault, wherever it points.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.as_ptr().wrapping_add(at).cast()) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    #[inline]
    fn check(&self, at: usize, bytes: usize) {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "a range outside of shared memory");
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size, and nothing borrows from it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A sequentially consistent fence, between accesses to [`SharedMemory`] and other atomic words.
///
/// On x86-64 a locked instruction in place of the `mfence` that [`fence`](std::sync::atomic::fence) becomes: it orders the same for memory that is
/// cached as usual, in half of the time (Intel's manual, volume 3, "Memory Ordering", lists both).
#[inline]
pub fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: adds nothing to a word of this thread's own stack, below what is in use, within the 128 bytes that the
    // x86-64 ABI keeps for the function that runs. No `nomem`: the compiler moves no access across it.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp - 64], 0", options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(SeqCst);
}

/// An empty file without a name, which can be sealed. Old C libraries have no function for it (glibc before 2.27).
fn unnamed_file() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name ends with a zero and lives as long as the program; the result is checked before it is owned.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"tidegate".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: memfd_create just returned this descriptor and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::{Acquire, Release};

    #[test]
    fn both_mappings_are_the_same_memory() {
        let (here, fd) = SharedMemory::create(8192).unwrap();
        let there = SharedMemory::open(&fd, 8192).unwrap();
        drop(fd);
        here.write(4096, b"over there");
        here.word(128).store(7, Release);
        let mut seen = [0; 10];
        there.read(4096, &mut seen);
        assert_eq!((there.word(128).load(Acquire), &seen, there.bytes()), (7, b"over there", 8192));
    }

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
        let open = unnamed_file().unwrap();
        open.set_len(8192).unwrap();
        assert!(SharedMemory::open(&open.into(), 8192).unwrap_err().to_string().contains("not sealed"));
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert!(SharedMemory::open(&file, 8192).is_err());
        let (_, large) = SharedMemory::create(16384).unwrap();
        assert!(SharedMemory::open(&large, 8192).unwrap_err().to_string().contains("size"));
        assert!(File::from(large).set_len(4096).is_err(), "it is sealed");
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_range_that_would_wrap_around_is_outside() {
        SharedMemory::create(4096).unwrap().0.read(usize::MAX, &mut [0; 2]);
    }
}
