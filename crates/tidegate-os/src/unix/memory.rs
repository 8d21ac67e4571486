//! Mapping and locking memory (`mmap(2)`, `mlock(2)`), for [`Pages`](crate::pages::Pages).

use std::io;
use std::ptr::{self, NonNull};

use super::call::check;

/// Fresh zeroed memory; `ENOMEM` when there is none, or no address space.
pub(crate) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a fresh private mapping at an address the kernel picks overlaps nothing.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Keeps memory from being paged out; `ENOMEM` when RLIMIT_MEMLOCK is too low, `EPERM` when nothing may be locked.
pub(crate) fn lock(memory: &[u8]) -> io::Result<()> {
    // SAFETY: locking changes neither the contents nor the mapping.
    check(unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) }).map(drop)
}

/// Gives memory back.
///
/// # Safety
/// It is of [`map`], with this size, and nobody uses it from now on.
pub(crate) unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller answers for it.
    unsafe { libc::munmap(at.as_ptr().cast(), bytes) };
}
