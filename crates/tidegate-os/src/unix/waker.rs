//! Waking a loop that sleeps in a wait for sockets from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A descriptor that becomes readable when [`wake`](Self::wake) was called.
///
/// An eventfd on Linux, a socket pair elsewhere. Wake-ups that were not yet seen merge into one.
#[derive(Debug)]
pub struct Waker {
    read: OwnedFd,
    write: Option<OwnedFd>,
}

impl Waker {
    /// A new one, not woken.
    #[cfg(target_os = "linux")]
    pub fn new() -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        let read = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { read, write: None })
    }

    /// A new one, not woken.
    #[cfg(not(target_os = "linux"))]
    pub fn new() -> io::Result<Self> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { read: read.into(), write: Some(write.into()) })
    }

    /// Makes it readable.
    pub fn wake(&self) {
        // A full counter or pair (EAGAIN) means that it is readable already.
        let _ = rustix::io::write(self.write.as_ref().unwrap_or(&self.read), &1u64.to_ne_bytes());
    }

    /// Makes it unreadable until the next wake.
    pub fn clear(&self) {
        let mut sink = [0u8; 64];
        while matches!(rustix::io::read(&self.read, &mut sink), Ok(n) if n == sink.len()) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}
