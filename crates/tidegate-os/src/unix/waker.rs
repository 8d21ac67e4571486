//! Waking a loop that sleeps in a wait for sockets from another thread.

use std::fs::File;
use std::io::{self, Read, Write};
#[cfg(target_os = "linux")]
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that becomes readable when [`wake`](Self::wake) was called.
///
/// An eventfd on Linux, a socket pair elsewhere. Wake-ups that were not yet seen merge into one.
#[derive(Debug)]
pub struct Waker {
    read: File,
    write: Option<File>,
}

impl Waker {
    /// A new one, not woken.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let fd = super::call::check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: eventfd just returned this descriptor and nobody else owns it.
        let read = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { read: read.into(), write: None })
    }

    /// A new one, not woken.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
        Ok(Self { read: read.into(), write: Some(write.into()) })
    }

    /// Makes it readable.
    pub fn wake(&self) {
        // A full counter or pair (EAGAIN) means that it is readable already.
        let mut end = self.write.as_ref().unwrap_or(&self.read);
        let _ = end.write(&1u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next wake.
    pub fn clear(&self) {
        let mut sink = [0u8; 64];
        while matches!((&self.read).read(&mut sink), Ok(n) if n == sink.len()) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
