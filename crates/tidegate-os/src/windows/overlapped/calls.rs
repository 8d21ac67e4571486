//! Single calls on the sockets of operations.

use std::io::{self, Read};
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{
    SO_CONNECT_TIME, SO_UPDATE_ACCEPT_CONTEXT, SO_UPDATE_CONNECT_CONTEXT, SOL_SOCKET, WSABUF, setsockopt,
};
use windows_sys::Win32::System::IO::{CancelIoEx, OVERLAPPED};

use super::super::descriptor::RawFd;
use super::super::winsock::{check, handle, option, set_option};
use super::Payload;

pub(super) fn describe(payload: &Payload, slices: &mut [WSABUF; Payload::MAX_PIECES]) -> u32 {
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(payload.pieces()) {
        *slice = WSABUF { len: piece.len() as u32, buf: piece.as_ptr().cast_mut() };
        count += 1;
    }
    count
}

/// Asks for an operation to be ended. It may have ended already, or end well all the same.
pub(super) fn cancel(socket: RawFd, overlapped: &OVERLAPPED) {
    // SAFETY: the OVERLAPPED is one of an operation in the table; if it is no longer in flight, nothing is found.
    unsafe { CancelIoEx(socket as HANDLE, overlapped) };
}

/// The family of a socket.
pub(super) fn domain(socket: &impl AsSocket) -> io::Result<Domain> {
    Ok(SockRef::from(socket).local_addr()?.domain())
}

/// Whether there is a socket with this handle.
#[cfg(test)]
pub(in crate::windows) fn is_open(socket: RawFd) -> bool {
    // Only looked at: what it names may be nobody's any more.
    with_socket(socket, |socket| SockRef::from(socket).r#type().is_ok())
}

/// Uses a socket that somebody else owns.
pub(super) fn with_socket<T>(socket: RawFd, run: impl FnOnce(&BorrowedSocket<'_>) -> T) -> T {
    // SAFETY: the owner keeps it open: operations forget their socket when it is closed.
    run(&unsafe { BorrowedSocket::borrow_raw(socket) })
}

pub(super) fn receive_now(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    with_socket(socket, |socket| (&*SockRef::from(socket)).read(into))
}

/// See [`confirm_end`](super::super::socket::confirm_end).
pub(super) fn confirm_end(socket: RawFd) -> io::Result<()> {
    with_socket(socket, |socket| super::super::socket::confirm_end(socket))
}

/// Makes an accepted socket an ordinary one (`SO_UPDATE_ACCEPT_CONTEXT`).
pub(super) fn update_accepted(socket: &Socket, listener: &impl AsSocket) -> io::Result<()> {
    set_option(socket, SO_UPDATE_ACCEPT_CONTEXT, &handle(listener.as_socket().as_raw_socket()))
}

/// Makes a connected socket an ordinary one (`SO_UPDATE_CONNECT_CONTEXT`).
pub(super) fn connected(socket: RawFd) -> io::Result<()> {
    // SAFETY: the option has no value.
    check(unsafe { setsockopt(handle(socket), SOL_SOCKET, SO_UPDATE_CONNECT_CONTEXT, std::ptr::null(), 0) })
}

/// For how long a socket has been connected; `None` if it is not.
pub(super) fn connected_for(socket: &Socket) -> Option<Duration> {
    let seconds = option(socket, SO_CONNECT_TIME).ok()?;
    (seconds != u32::MAX).then(|| Duration::from_secs(seconds.into()))
}
