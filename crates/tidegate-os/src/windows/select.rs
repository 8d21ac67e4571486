//! `select` past `FD_SETSIZE`.
//!
//! Winsock's `fd_set` is a counted array of handles. Its 64 places are a constant of the header, not of the call, which
//! reads `fd_count` of them. [`SelectSet`] has its arrays.

use std::collections::HashMap;
use std::io;
use std::os::windows::io::AsRawSocket;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{FD_SET, SOCKET, TIMEVAL, select};

use super::descriptor::{BorrowedFd, RawFd};
use super::poll::Readiness;
use super::winsock::{check, handle};

/// A remark on how `select` works here.
pub const REMARK: &str = "beyond the 64 sockets of fd_set, with larger sets";

/// A set of sockets as `select` wants it, of any size: the count, then the handles.
#[derive(Clone)]
pub struct SocketSet {
    /// The first word holds the count.
    words: Vec<SOCKET>,
}

impl Default for SocketSet {
    fn default() -> Self {
        Self { words: vec![0] }
    }
}

impl SocketSet {
    fn clear(&mut self) {
        self.words.clear();
        self.words.push(0);
    }

    fn push(&mut self, fd: RawFd) {
        self.words.push(handle(fd));
        self.words[0] += 1; // little-endian: the low half is `fd_count`
    }

    fn count(&self) -> usize {
        (self.words[0] as u32 as usize).min(self.words.len() - 1)
    }

    /// The members.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.words[1..].iter().take(self.count()).map(|&socket| socket as RawFd)
    }

    fn as_mut_ptr(&mut self) -> *mut FD_SET {
        if self.count() == 0 { std::ptr::null_mut() } else { self.words.as_mut_ptr().cast() }
    }
}

fn clear(a: &mut SocketSet, b: &mut SocketSet, c: &mut SocketSet) {
    a.clear();
    b.clear();
    c.clear();
}

/// The sets of one loop: what it waits for, and what the last wait found.
#[derive(Default)]
pub struct SelectSet {
    wanted: HashMap<RawFd, Readiness>,
    /// A connection attempt that failed is an exception here, not writable.
    failed: SocketSet,
    /// Readable after the last wait.
    pub readable: SocketSet,
    /// Writable after the last wait.
    pub writable: SocketSet,
}

impl SelectSet {
    /// Sets what is waited for on a socket; nothing takes it out, which is to be done before it is closed.
    pub fn set(&mut self, fd: BorrowedFd<'_>, wanted: Readiness) {
        if wanted == Readiness::default() {
            self.wanted.remove(&fd.as_raw_socket());
        } else {
            self.wanted.insert(fd.as_raw_socket(), wanted);
        }
    }

    /// Waits; returns how many sockets are in `readable` and `writable`. 0 after the timeout, and then both
    /// sets are empty.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let Self { wanted, failed, readable, writable } = self;
        clear(failed, readable, writable);
        for (&fd, wants) in wanted.iter() {
            if wants.readable {
                readable.push(fd);
            }
            if wants.writable {
                writable.push(fd);
                failed.push(fd);
            }
        }
        // Rounded up to a millisecond, which the system's timers have at best.
        let timeout = timeout.map(|t| t.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i64);
        let timeout =
            timeout.map(|ms| TIMEVAL { tv_sec: (ms / 1000) as i32, tv_usec: (ms % 1000 * 1000) as i32 });
        let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: each set is laid out as FD_SET (a count of 32 bits, padding, handles) and holds as many handles as
        // its count says; select only ever lowers the count and moves handles within it. `limit` outlives the call.
        let n =
            unsafe { select(0, readable.as_mut_ptr(), writable.as_mut_ptr(), failed.as_mut_ptr(), limit) };
        let outcome = check(n);
        if outcome.is_err() || n == 0 {
            clear(failed, readable, writable);
            return outcome.map(|()| 0);
        }
        for fd in failed.iter() {
            if !writable.words[1..=writable.count()].contains(&handle(fd)) {
                writable.words.truncate(1 + writable.count());
                writable.push(fd);
            }
        }
        Ok(n as usize)
    }
}
