//! Memory in whole pages, which can be kept from being paged out (`VirtualAlloc`, `VirtualLock`).

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

pub use crate::terms::Residence;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree, VirtualLock,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessWorkingSetSize, SetProcessWorkingSetSize,
};

/// Zeroed memory in whole pages; given back when dropped.
#[derive(Debug)]
pub struct Pages {
    at: NonNull<u8>,
    bytes: usize,
    #[cfg(test)]
    residence: Residence,
}

// SAFETY: plain memory that nobody else knows; shared and exclusive access follow the borrow of the owner.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `bytes` (more than none), rounded up to whole pages by the system.
    ///
    /// # Errors
    /// When there is no memory or address space; with [`Residence::Locked`] also when the working set cannot be raised
    /// by as much.
    pub fn new(bytes: usize, residence: Residence) -> io::Result<Self> {
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: fresh memory at an address the system picks overlaps nothing.
        let at = unsafe { VirtualAlloc(ptr::null(), bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) };
        let at = NonNull::new(at.cast()).ok_or_else(io::Error::last_os_error)?;
        let pages = Self {
            at,
            bytes,
            #[cfg(test)]
            residence,
        };
        if residence == Residence::Locked {
            raise_working_set(bytes)?;
            // SAFETY: locking changes neither the contents nor the mapping.
            let locked = unsafe { VirtualLock(pages.at.as_ptr().cast(), bytes) };
            if locked == 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(pages)
    }

    /// Whether they are locked.
    #[cfg(test)]
    pub(super) fn residence(&self) -> Residence {
        self.residence
    }

    /// The first byte, for a kernel interface that is given addresses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Leaves the memory where it is, for good, because the kernel may still write there; nothing is left of these.
    pub fn leak(&mut self) {
        self.bytes = 0;
    }
}

/// A process may lock as many pages as its minimum working set has, less a small overhead (`VirtualLock`, *Remarks*).
fn raise_working_set(bytes: usize) -> io::Result<()> {
    static RAISING: Mutex<()> = Mutex::new(()); // read and then written
    let _raising = RAISING.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut least, mut most) = (0, 0);
    // SAFETY: the handle of the process itself is always valid, and both places outlive the call.
    let known = unsafe { GetProcessWorkingSetSize(GetCurrentProcess(), &raw mut least, &raw mut most) };
    if known == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    let raised = unsafe { SetProcessWorkingSetSize(GetCurrentProcess(), least + bytes, most + bytes) };
    if raised == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are committed, zeroed by the system, for as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: reserved by `new` at this address, and no slice of it is alive: they borrow `self`. Frees the
            // lock too.
            unsafe { VirtualFree(self.at.as_ptr().cast(), 0, MEM_RELEASE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_can_be_written_to_the_last_byte() {
        let mut pages = Pages::new(3 * 4096, Residence::Pageable).unwrap();
        assert!(pages.iter().all(|&byte| byte == 0));
        pages[3 * 4096 - 1] = 7;
        assert_eq!(pages.last(), Some(&7));
    }

    #[test]
    fn no_pages_are_an_error() {
        assert!(Pages::new(0, Residence::Pageable).is_err());
    }

    #[test]
    fn leaked_pages_stay() {
        let mut pages = Pages::new(4096, Residence::Pageable).unwrap();
        let at = pages.as_ptr();
        pages.leak();
        assert!(pages.is_empty());
        drop(pages);
        // SAFETY: the memory of pages that were leaked is nobody's else.
        unsafe { at.write_volatile(7) };
    }

    #[test]
    fn pages_can_be_locked_past_the_first_working_set() {
        // A process begins with a minimum working set of about 200 KiB.
        let pages = Pages::new(4 << 20, Residence::Locked).unwrap();
        assert_eq!(pages.len(), 4 << 20);
    }
}
