//! What the system knows sockets by: handles of their own kind, under the names that Unix has for descriptors.

use std::collections::HashMap;
pub use std::os::windows::io::{
    AsSocket as AsFd, BorrowedSocket as BorrowedFd, OwnedSocket as OwnedFd, RawSocket as RawFd,
};

/// No socket (`INVALID_SOCKET`): `WSAPoll` leaves it out.
pub const NO_DESCRIPTOR: RawFd = RawFd::MAX;

/// Something with a socket.
pub trait AsRawFd {
    /// Its handle. Open as long as `self` is.
    fn as_raw_fd(&self) -> RawFd;
}

/// Something for each of many sockets. Their handles are no small numbers, so it is a hash map.
#[derive(Debug)]
pub struct DescriptorMap<T>(HashMap<RawFd, T>);

impl<T> Default for DescriptorMap<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> DescriptorMap<T> {
    /// Keeps something for a socket, in place of what was there.
    pub fn insert(&mut self, fd: RawFd, value: T) {
        self.0.insert(fd, value);
    }

    /// Takes it out.
    pub fn remove(&mut self, fd: RawFd) -> Option<T> {
        self.0.remove(&fd)
    }

    /// What is kept for a socket.
    pub fn get(&self, fd: RawFd) -> Option<&T> {
        self.0.get(&fd)
    }
}
