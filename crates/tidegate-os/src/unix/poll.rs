//! `poll(2)` over a set that lives as long as the loop.

pub use crate::terms::Readiness;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// A remark on how `poll` works here.
pub const REMARK: &str = "every Unix has it";

/// The array `poll(2)` takes, kept between calls.
#[derive(Debug, Default)]
pub struct PollSet {
    entries: Vec<libc::pollfd>,
}

impl PollSet {
    /// Adds a descriptor at the end and returns its position. To be taken out before it is closed.
    pub fn push(&mut self, fd: BorrowedFd<'_>, wanted: Readiness) -> usize {
        self.entries.push(entry(fd.as_raw_fd(), wanted));
        self.entries.len() - 1
    }

    /// Changes what is waited for at a position.
    pub fn set(&mut self, at: usize, wanted: Readiness) {
        let fd = self.entries[at].fd;
        self.entries[at] = entry(if fd < 0 { !fd } else { fd }, wanted);
    }

    /// Removes a position; the last entry takes its place.
    pub fn swap_remove(&mut self, at: usize) {
        self.entries.swap_remove(at);
    }

    /// Number of descriptors in the set.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the set has no descriptor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Waits; returns how many entries are ready. 0 after the timeout or a signal.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        wait_on(&mut self.entries, timeout)
    }

    /// What the last wait found at a position. A hang-up or an error counts as both.
    #[inline]
    pub fn ready(&self, at: usize) -> Readiness {
        found(&self.entries[at])
    }
}

fn wait_on(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    match wait_in_ms(entries, timeout) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        outcome => outcome,
    }
}

/// Waits in whole milliseconds; a signal is an error.
pub(super) fn wait_in_ms(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let ms = timeout
        .map_or(-1, |t| libc::c_int::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX));
    // SAFETY: pointer and length describe the slice; poll writes only `revents` within it.
    let n = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, ms) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

#[inline]
fn found(entry: &libc::pollfd) -> Readiness {
    let got = entry.revents;
    let broken = got & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0;
    Readiness { readable: broken || got & libc::POLLIN != 0, writable: broken || got & libc::POLLOUT != 0 }
}

/// A descriptor that waits for nothing is left out (negative, `poll(2)`): an error or a hang-up would be reported all
/// the same, again and again, to an owner that does not want to know yet.
fn entry(fd: RawFd, wanted: Readiness) -> libc::pollfd {
    let events = mask(wanted);
    libc::pollfd { fd: if events == 0 { !fd } else { fd }, events, revents: 0 }
}

/// What `poll(2)` is to wait for.
pub(super) fn mask(wanted: Readiness) -> libc::c_short {
    let mut mask = 0;
    if wanted.readable {
        mask |= libc::POLLIN;
    }
    if wanted.writable {
        mask |= libc::POLLOUT;
    }
    mask
}

/// Waits until a socket is ready for what is wanted, or `wake` is readable; what is `None` is not waited for.
///
/// For threads that own one connection and can be woken. Returns what the socket is ready for, and whether
/// it was woken.
pub fn wait_pair(
    socket: Option<BorrowedFd<'_>>,
    wanted: Readiness,
    wake: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<(Readiness, bool)> {
    let one = |fd: Option<BorrowedFd<'_>>, wanted| match fd {
        Some(fd) => entry(fd.as_raw_fd(), wanted),
        None => libc::pollfd { fd: -1, events: 0, revents: 0 }, // left out
    };
    let mut pair = [one(socket, wanted), one(wake, Readiness::READ)];
    let ready = wait_on(&mut pair, timeout)?;
    let woken = ready > 0 && pair[1].revents != 0;
    Ok((if ready > 0 { found(&pair[0]) } else { Readiness::default() }, woken))
}
