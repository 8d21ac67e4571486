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
pub(super) fn cancel(socket: &impl AsSocket, overlapped: &OVERLAPPED) {
    let socket = socket.as_socket().as_raw_socket();
    // SAFETY: the socket is open for the call. Of the OVERLAPPED only the address counts: if it is of no operation that
    // is in flight on this socket, nothing is found.
    unsafe { CancelIoEx(socket as HANDLE, overlapped) };
}

/// The family of a socket.
pub(super) fn domain(socket: &impl AsSocket) -> io::Result<Domain> {
    Ok(SockRef::from(socket).local_addr()?.domain())
}

/// Whether there is a socket with this handle.
#[cfg(test)]
pub(in crate::windows) fn is_open(socket: super::super::descriptor::RawFd) -> bool {
    // SAFETY: only its type is asked for, and nothing is done to what it names, which may be nobody's any more.
    let socket = unsafe { BorrowedSocket::borrow_raw(socket) };
    SockRef::from(&socket).r#type().is_ok()
}

pub(super) fn receive_now(socket: BorrowedSocket<'_>, into: &mut [u8]) -> io::Result<usize> {
    (&*SockRef::from(&socket)).read(into)
}

/// Makes an accepted socket an ordinary one (`SO_UPDATE_ACCEPT_CONTEXT`).
pub(super) fn update_accepted(socket: &Socket, listener: &impl AsSocket) -> io::Result<()> {
    set_option(socket, SO_UPDATE_ACCEPT_CONTEXT, &handle(listener.as_socket().as_raw_socket()))
}

/// Makes a connected socket an ordinary one (`SO_UPDATE_CONNECT_CONTEXT`).
pub(super) fn connected(socket: BorrowedSocket<'_>) -> io::Result<()> {
    let socket = handle(socket.as_raw_socket());
    // SAFETY: the socket is open for the call; the option has no value.
    check(unsafe { setsockopt(socket, SOL_SOCKET, SO_UPDATE_CONNECT_CONTEXT, std::ptr::null(), 0) })
}

/// For how long a socket has been connected; `None` if it is not.
pub(super) fn connected_for(socket: &Socket) -> Option<Duration> {
    let seconds = option(socket, SO_CONNECT_TIME).ok()?;
    (seconds != u32::MAX).then(|| Duration::from_secs(seconds.into()))
}
