//! Whose processes are at the two ends of a Unix socket, as Linux tells it.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::call::check;

/// The user that the process at the other end ran as when it connected, or listened (`SO_PEERCRED`).
pub fn user_of(socket: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of_val(&peer) as libc::socklen_t;
    let at = (&raw mut peer).cast();
    // SAFETY: `at` is valid for writing `bytes` bytes during the call, and any are integers.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut bytes)
    })?;
    Ok(peer.uid)
}

/// The user that this process runs as.
#[must_use]
pub fn own_user() -> u32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::geteuid() }
}
