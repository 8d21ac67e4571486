//! `WSAPoll` over a set that lives as long as the loop.

use std::io;
use std::os::windows::io::AsRawSocket;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{
    INVALID_SOCKET, POLLERR, POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM, WSAPOLLFD, WSAPoll,
};

use super::descriptor::{BorrowedFd, RawFd};
use super::winsock::{check, handle};
pub use crate::terms::Readiness;

/// A remark on how `poll` works here.
pub const REMARK: &str =
    "WSAPoll; before Windows 10 2004 it does not report that a connection attempt failed";

/// The array `WSAPoll` takes, kept between calls.
#[derive(Default)]
pub struct PollSet {
    entries: Vec<WSAPOLLFD>,
    /// Who each entry is: one that waits for nothing is left out of the array.
    sockets: Vec<RawFd>,
}

impl PollSet {
    /// Adds a socket at the end and returns its position. To be taken out before it is closed.
    pub fn push(&mut self, fd: BorrowedFd<'_>, wanted: Readiness) -> usize {
        let fd = fd.as_raw_socket();
        self.entries.push(entry(fd, wanted));
        self.sockets.push(fd);
        self.entries.len() - 1
    }

    /// Changes what is waited for at a position.
    pub fn set(&mut self, at: usize, wanted: Readiness) {
        self.entries[at] = entry(self.sockets[at], wanted);
    }

    /// Removes a position; the last entry takes its place.
    pub fn swap_remove(&mut self, at: usize) {
        self.entries.swap_remove(at);
        self.sockets.swap_remove(at);
    }

    /// Number of sockets in the set.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the set has no socket.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Waits; returns how many entries are ready. 0 after the timeout.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        wait_on(&mut self.entries, timeout)
    }

    /// What the last wait found at a position. A hang-up or an error counts as both.
    #[inline]
    pub fn ready(&self, at: usize) -> Readiness {
        found(&self.entries[at])
    }
}

impl std::fmt::Debug for PollSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollSet").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

fn wait_on(entries: &mut [WSAPOLLFD], timeout: Option<Duration>) -> io::Result<usize> {
    let ms = timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: pointer and length describe the slice; WSAPoll writes only `revents` within it.
    let n = unsafe { WSAPoll(entries.as_mut_ptr(), entries.len() as u32, ms) };
    check(n)?;
    Ok(n as usize)
}

#[inline]
fn found(entry: &WSAPOLLFD) -> Readiness {
    if entry.fd == INVALID_SOCKET {
        return Readiness::default(); // left out, and reported as such
    }
    let got = entry.revents;
    let broken = got & (POLLHUP | POLLERR | POLLNVAL) != 0;
    Readiness { readable: broken || got & POLLRDNORM != 0, writable: broken || got & POLLWRNORM != 0 }
}

/// A socket that waits for nothing is left out: an error or a hang-up would be reported all the same, again and
/// again, to an owner that does not want to know yet.
fn entry(fd: RawFd, wanted: Readiness) -> WSAPOLLFD {
    let events = mask(wanted);
    WSAPOLLFD { fd: if events == 0 { INVALID_SOCKET } else { handle(fd) }, events, revents: 0 }
}

fn mask(wanted: Readiness) -> i16 {
    let mut mask = 0;
    if wanted.readable {
        mask |= POLLRDNORM;
    }
    if wanted.writable {
        mask |= POLLWRNORM;
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
        Some(fd) => entry(fd.as_raw_socket(), wanted),
        None => WSAPOLLFD { fd: INVALID_SOCKET, events: 0, revents: 0 }, // left out
    };
    let mut pair = [one(wake, Readiness::READ), one(socket, wanted)];
    let wants = usize::from(pair[1].events != 0);
    let ready = wait_on(&mut pair[..1 + wants], timeout)?;
    let woken = ready > 0 && pair[0].revents != 0;
    Ok((if ready > 0 { found(&pair[1]) } else { Readiness::default() }, woken))
}
