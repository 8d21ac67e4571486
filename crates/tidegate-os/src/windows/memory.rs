//! Mapping and locking memory (`VirtualAlloc`, `VirtualLock`), for [`Pages`](crate::pages::Pages).

use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_READWRITE, VirtualAlloc, VirtualFree, VirtualLock,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessWorkingSetSize, SetProcessWorkingSetSize,
};

/// Fresh zeroed memory.
pub(crate) fn map(bytes: usize) -> io::Result<NonNull<u8>> {
    if bytes == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: fresh memory at an address the system picks overlaps nothing.
    let at = unsafe { VirtualAlloc(ptr::null(), bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) };
    NonNull::new(at.cast()).ok_or_else(io::Error::last_os_error)
}

/// Keeps memory from being paged out, if the working set can be raised by as much.
pub(crate) fn lock(memory: &[u8]) -> io::Result<()> {
    raise_working_set(memory.len())?;
    // SAFETY: locking changes neither the contents nor the mapping.
    let locked = unsafe { VirtualLock(memory.as_ptr().cast(), memory.len()) };
    if locked == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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

/// Gives memory back, and its lock.
///
/// # Safety
/// It is of [`map`], with this size, and nobody uses it from now on.
pub(crate) unsafe fn unmap(at: NonNull<u8>, _bytes: usize) {
    // SAFETY: the caller answers for it; all that was reserved at this address is released.
    unsafe { VirtualFree(at.as_ptr().cast(), 0, MEM_RELEASE) };
}
