//! What is in a folder that is open (`fdopendir(3)`, `readdir(3)`).

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

#[cfg(not(target_os = "linux"))]
use libc::readdir;
#[cfg(target_os = "linux")]
use libc::readdir64 as readdir;

/// A folder that is being read; closed when dropped.
pub(super) struct Directory(NonNull<libc::DIR>);

/// Something in it, also `.` and `..`.
pub(super) struct DirEntry {
    pub(super) name: CString,
    /// It is a folder, and the file system says so without being asked for more.
    pub(super) is_folder: bool,
}

impl Directory {
    /// # Errors
    /// It is no folder, or there is no memory.
    pub(super) fn new(folder: OwnedFd) -> io::Result<Self> {
        // SAFETY: the descriptor is owned. The call takes it over if it succeeds, and then nobody else has it any more.
        let Some(directory) = NonNull::new(unsafe { libc::fdopendir(folder.as_raw_fd()) }) else {
            return Err(io::Error::last_os_error());
        };
        let _ = folder.into_raw_fd();
        Ok(Self(directory))
    }

    /// The next entry, in no order; `None` after the last.
    pub(super) fn next(&mut self) -> io::Result<Option<DirEntry>> {
        forget_error();
        // SAFETY: the directory is open, and borrowed exclusively.
        let Some(entry) = NonNull::new(unsafe { readdir(self.0.as_ptr()) }) else {
            return match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(0) => Ok(None),
                e => Err(e),
            };
        };
        let entry = entry.as_ptr();
        // SAFETY: what was returned stays until the next call, and is copied before. It may be shorter than its C type:
        // nothing refers to all of it, and the name ends with a zero.
        let (name, kind) =
            unsafe { (CStr::from_ptr((&raw const (*entry).d_name).cast()).to_owned(), (*entry).d_type) };
        Ok(Some(DirEntry { name, is_folder: kind == libc::DT_DIR }))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it afterwards.
        unsafe { libc::closedir(self.0.as_ptr()) };
    }
}

/// Sets the thread's `errno` to 0: only so does the end differ from an error (`readdir(3)`).
fn forget_error() {
    #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
    use libc::__errno as errno;
    #[cfg(any(target_os = "linux", target_os = "dragonfly"))]
    use libc::__errno_location as errno;
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    use libc::__error as errno;
    // SAFETY: it points to an integer of this thread, which lives as long as the thread.
    unsafe { *errno() = 0 };
}
