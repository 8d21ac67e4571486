//! What every use of Winsock needs.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{SOCKET, SOCKET_ERROR, WSAGetLastError};
use windows_sys::Win32::System::Threading::INFINITE;

use super::descriptor::RawFd;

/// A handle as Winsock's functions take it.
pub(super) fn handle(fd: RawFd) -> SOCKET {
    fd as SOCKET
}

/// What Winsock says went wrong last on this thread.
pub(super) fn last_error() -> io::Error {
    // SAFETY: no arguments.
    io::Error::from_raw_os_error(unsafe { WSAGetLastError() })
}

/// The outcome of a call that returns 0 or `SOCKET_ERROR`.
pub(super) fn check(outcome: i32) -> io::Result<()> {
    if outcome == SOCKET_ERROR { Err(last_error()) } else { Ok(()) }
}

/// A time limit in milliseconds, rounded up; without one, `INFINITE`.
pub(super) fn milliseconds(timeout: Option<Duration>) -> u32 {
    timeout.map_or(INFINITE, |t| u32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(INFINITE - 1))
}
