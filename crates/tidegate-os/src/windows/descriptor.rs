//! What the system knows sockets by: handles of another kind, under the names that Unix has for descriptors.

use std::collections::HashMap;
use std::os::windows::io::AsRawSocket;
pub use std::os::windows::io::{
    AsSocket as AsFd, BorrowedSocket as BorrowedFd, OwnedSocket as OwnedFd, RawSocket as RawFd,
};

/// Something with a socket.
pub(super) trait AsRawFd {
    /// Its handle. Open as long as `self` is.
    fn as_raw_fd(&self) -> RawFd;
}

/// The socket of something that has one, under one name on every system.
#[inline]
pub fn borrowed(of: &impl AsFd) -> BorrowedFd<'_> {
    of.as_socket()
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
    pub fn insert(&mut self, socket: BorrowedFd<'_>, value: T) {
        self.0.insert(socket.as_raw_socket(), value);
    }

    /// Takes it out.
    pub fn remove(&mut self, socket: BorrowedFd<'_>) -> Option<T> {
        self.0.remove(&socket.as_raw_socket())
    }

    /// What is kept for the socket of this number.
    pub fn get(&self, fd: RawFd) -> Option<&T> {
        self.0.get(&fd)
    }
}
