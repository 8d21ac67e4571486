//! What the system knows sockets by: file descriptors. Windows has handles of sockets under the same names.

use std::os::fd::AsRawFd;
pub use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// The descriptor of something that has one, under one name on every system.
#[inline]
pub fn borrowed(of: &impl AsFd) -> BorrowedFd<'_> {
    of.as_fd()
}

/// Something for each of many descriptors. The system gives out the lowest number that is free, so it is an array.
#[derive(Debug)]
pub struct DescriptorMap<T>(Vec<Option<T>>);

impl<T> Default for DescriptorMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> DescriptorMap<T> {
    /// Keeps something for a descriptor, in place of what was there.
    pub fn insert(&mut self, fd: BorrowedFd<'_>, value: T) {
        let at = fd.as_raw_fd() as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(value);
    }

    /// Takes it out.
    pub fn remove(&mut self, fd: BorrowedFd<'_>) -> Option<T> {
        self.0.get_mut(fd.as_raw_fd() as usize)?.take()
    }

    /// What is kept for the descriptor of this number.
    #[inline]
    pub fn get(&self, fd: RawFd) -> Option<&T> {
        self.0.get(fd as usize)?.as_ref()
    }
}
