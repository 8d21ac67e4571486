//! Events: what a thread can wait for besides sockets.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{CreateEventW, ResetEvent, SetEvent, WaitForSingleObject};

use super::winsock::milliseconds;

/// Who resets an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    Owner,
    /// The wait that it ends: one thread at a time.
    Wait,
}

/// An event. Closed when dropped.
#[derive(Debug)]
pub struct EventObject(HANDLE);

// SAFETY: a handle of the kernel, which any thread may use.
unsafe impl Send for EventObject {}
// SAFETY: as above.
unsafe impl Sync for EventObject {}

impl EventObject {
    /// A new one, not set, which stays set until it is reset.
    pub fn new() -> io::Result<Self> {
        Self::with(Reset::Owner)
    }

    /// A new one, not set, which wakes one thread each time it is set.
    pub fn for_one() -> io::Result<Self> {
        Self::with(Reset::Wait)
    }

    fn with(reset: Reset) -> io::Result<Self> {
        // SAFETY: no attributes and no name.
        let handle =
            unsafe { CreateEventW(std::ptr::null(), (reset == Reset::Owner).into(), 0, std::ptr::null()) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }

    /// Sets it.
    pub fn set(&self) {
        // SAFETY: the handle is open as long as `self`; setting an event does not fail.
        unsafe { SetEvent(self.0) };
    }

    /// Resets it.
    pub fn reset(&self) {
        // SAFETY: as above.
        unsafe { ResetEvent(self.0) };
    }

    /// Waits until it is set; whether it is.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        // SAFETY: as above.
        unsafe { WaitForSingleObject(self.0, milliseconds(timeout)) == WAIT_OBJECT_0 }
    }

    pub(super) fn handle(&self) -> HANDLE {
        self.0
    }
}

impl Drop for EventObject {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle.
        unsafe { CloseHandle(self.0) };
    }
}
