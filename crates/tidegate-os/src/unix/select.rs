//! `select(2)` past `FD_SETSIZE`.
//!
//! The C type `fd_set` has 1,024 bits, but the system call takes any number: it reads and writes
//! `nfds` bits (`select(2)`, *Bugs*: the limit is glibc's, not the kernel's). [`BitSet`] grows.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::{FdSetElement, FdSetIter, fd_set_insert, fd_set_num_elements, fd_set_remove};

use crate::terms::Readiness;

/// A remark on how `select` works here.
pub const REMARK: &str = "beyond 1,024 descriptors, with larger bit sets";

/// A set of descriptors as `select(2)` wants it, of any size.
#[derive(Clone, Default)]
pub struct BitSet {
    words: Vec<FdSetElement>,
}

impl BitSet {
    /// Adds a descriptor.
    fn insert(&mut self, fd: RawFd) {
        self.grow(fd as usize + 1);
        fd_set_insert(&mut self.words, fd);
    }

    /// Takes a descriptor out.
    fn remove(&mut self, fd: RawFd) {
        self.grow(fd as usize + 1);
        fd_set_remove(&mut self.words, fd);
    }

    fn grow(&mut self, nfds: usize) {
        let need = fd_set_num_elements(nfds, nfds as RawFd);
        if self.words.len() < need {
            self.words.resize(need, FdSetElement::default());
        }
    }

    fn copy_from(&mut self, other: &BitSet, nfds: usize) {
        self.words.clear();
        self.words.extend_from_slice(&other.words);
        self.grow(nfds);
    }

    /// The members, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> + '_ {
        FdSetIter::new(&self.words)
    }
}

/// The sets of one loop: what it waits for, and what the last wait found.
#[derive(Default)]
pub struct SelectSet {
    nfds: usize,
    want_read: BitSet,
    want_write: BitSet,
    /// Readable after the last wait.
    pub readable: BitSet,
    /// Writable after the last wait.
    pub writable: BitSet,
}

impl SelectSet {
    /// Sets what is waited for on a descriptor; nothing takes it out, which is to be done before it is closed.
    pub fn set(&mut self, fd: BorrowedFd<'_>, wanted: Readiness) {
        let fd = fd.as_raw_fd();
        self.nfds = self.nfds.max(fd as usize + 1);
        if wanted.readable {
            self.want_read.insert(fd)
        } else {
            self.want_read.remove(fd)
        }
        if wanted.writable { self.want_write.insert(fd) } else { self.want_write.remove(fd) }
    }

    /// Waits; returns how many bits are set in `readable` and `writable`. 0 after the timeout or
    /// a signal, and then both sets are empty.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        self.readable.copy_from(&self.want_read, self.nfds);
        self.writable.copy_from(&self.want_write, self.nfds);
        let timeout =
            timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        // SAFETY: both sets hold at least `nfds` bits. Every descriptor in them was open when it was added; one that
        // was closed since is EBADF, or a stranger that is asked whether it is ready, and no more.
        let got = unsafe {
            rustix::event::select(
                self.nfds as i32,
                Some(&mut self.readable.words),
                Some(&mut self.writable.words),
                None,
                timeout.as_ref(),
            )
        };
        match got {
            Ok(0) | Err(rustix::io::Errno::INTR) => {
                self.readable.words.fill(FdSetElement::default());
                self.writable.words.fill(FdSetElement::default());
                Ok(0)
            }
            Ok(n) => Ok(n as usize),
            Err(e) => Err(e.into()),
        }
    }
}
