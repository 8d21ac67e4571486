//! `select(2)` past `FD_SETSIZE`.
//!
//! The C type `fd_set` has 1,024 bits, but the system call takes any number: it reads and writes
//! `nfds` bits (`select(2)`, *Bugs*: the limit is glibc's, not the kernel's). [`BitSet`] grows.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

use super::call;
use crate::terms::Readiness;

/// A remark on how `select` works here.
pub const REMARK: &str = "beyond 1,024 descriptors, with larger bit sets";

/// The words of which the system makes an `fd_set`.
#[cfg(any(target_vendor = "apple", target_os = "netbsd", target_os = "openbsd"))]
type FdSetWord = u32;
#[cfg(not(any(target_vendor = "apple", target_os = "netbsd", target_os = "openbsd")))]
type FdSetWord = libc::c_ulong;

const WORD_BITS: usize = FdSetWord::BITS as usize;

/// A set of descriptors as `select(2)` wants it, of any size: descriptor 0 is the lowest bit of the first word.
#[derive(Clone, Default)]
pub struct BitSet {
    words: Vec<FdSetWord>,
}

/// The word of a descriptor, and its bit there.
fn place(fd: RawFd) -> (usize, FdSetWord) {
    let fd = fd as usize;
    (fd / WORD_BITS, 1 << (fd % WORD_BITS))
}

impl BitSet {
    /// Adds a descriptor.
    fn insert(&mut self, fd: RawFd) {
        self.grow(fd as usize + 1);
        let (at, bit) = place(fd);
        self.words[at] |= bit;
    }

    /// Takes a descriptor out.
    fn remove(&mut self, fd: RawFd) {
        self.grow(fd as usize + 1);
        let (at, bit) = place(fd);
        self.words[at] &= !bit;
    }

    fn grow(&mut self, nfds: usize) {
        let need = nfds.div_ceil(WORD_BITS);
        if self.words.len() < need {
            self.words.resize(need, 0);
        }
    }

    fn copy_from(&mut self, other: &BitSet, nfds: usize) {
        self.words.clear();
        self.words.extend_from_slice(&other.words);
        self.grow(nfds);
    }

    /// The members, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some((at * WORD_BITS + bit) as RawFd)
            })
        })
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
        let (readable, writable) = (&mut self.readable.words, &mut self.writable.words);
        assert!(self.nfds <= WORD_BITS * readable.len().min(writable.len()));
        // SAFETY: both sets hold at least `nfds` bits. Every descriptor in them was open when it was added; one that
        // was closed since is EBADF, or a stranger that is asked whether it is ready, and no more.
        let got = unsafe { select(self.nfds as i32, readable.as_mut_ptr(), writable.as_mut_ptr(), timeout) };
        match got {
            Ok(0) => {}
            Ok(n) => return Ok(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        readable.fill(0);
        writable.fill(0);
        Ok(0)
    }
}

/// The system call, with a time limit to the nanosecond (`pselect(2)`).
///
/// # Safety
/// Both sets are valid for reading and writing `nfds` bits, in whole words.
#[cfg(target_os = "linux")]
unsafe fn select(
    nfds: i32,
    readable: *mut FdSetWord,
    writable: *mut FdSetWord,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let timeout = timeout.map(call::timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: of the sets as the caller promises: the call touches `nfds` bits and not the whole C type. `timeout` is
    // null or points to a time that outlives the call; there are no third set and no signal mask.
    let got = unsafe {
        libc::pselect(nfds, readable.cast(), writable.cast(), null_mut(), timeout, std::ptr::null())
    };
    Ok(call::check(got)? as usize)
}

/// The system call, with a time limit to the microsecond above.
///
/// # Safety
/// Both sets are valid for reading and writing `nfds` bits, in whole words.
#[cfg(not(target_os = "linux"))]
unsafe fn select(
    nfds: i32,
    readable: *mut FdSetWord,
    writable: *mut FdSetWord,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    // Apple's function of the plain name refuses more than FD_SETSIZE.
    #[cfg(target_vendor = "apple")]
    unsafe extern "C" {
        #[link_name = "select$DARWIN_EXTSN$NOCANCEL"]
        fn unlimited_select(
            nfds: libc::c_int,
            readable: *mut libc::fd_set,
            writable: *mut libc::fd_set,
            broken: *mut libc::fd_set,
            timeout: *mut libc::timeval,
        ) -> libc::c_int;
    }
    #[cfg(not(target_vendor = "apple"))]
    use libc::select as unlimited_select;

    let mut timeout = timeout.map(|time| {
        // Darwin takes at most 100,000,000 s (`itimerfix`); a wait that ends early is waited again.
        let micros = time.min(Duration::from_secs(100_000_000)).as_nanos().div_ceil(1_000);
        libc::timeval { tv_sec: (micros / 1_000_000) as _, tv_usec: (micros % 1_000_000) as _ }
    });
    let timeout = timeout.as_mut().map_or(null_mut(), std::ptr::from_mut);
    // SAFETY: of the sets as the caller promises: the call touches `nfds` bits and not the whole C type. `timeout` is
    // null or points to a time that outlives the call; there is no third set.
    let got = unsafe { unlimited_select(nfds, readable.cast(), writable.cast(), null_mut(), timeout) };
    Ok(call::check(got)? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_lowest_first_and_leave() {
        let mut set = BitSet::default();
        let members = [0, 1, 31, 32, 63, 64, 1023, 1024, 5000];
        for fd in members.iter().rev() {
            set.insert(*fd);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        for fd in [0, 63, 5000, 9000] {
            set.remove(fd);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [1, 31, 32, 64, 1023, 1024]);
    }

    #[test]
    fn a_set_without_members_waits_for_the_time() {
        let begin = std::time::Instant::now();
        let time = Duration::from_micros(1_500);
        assert_eq!(SelectSet::default().wait(Some(time)).unwrap(), 0);
        assert!(begin.elapsed() >= time);
    }
}
