//! What every use of Winsock needs.

use std::io;
use std::os::windows::io::{AsRawSocket, AsSocket};
use std::sync::LazyLock;
use std::time::Duration;

use windows_sys::Win32::Networking::WinSock::{
    SOCKET, SOCKET_ERROR, SOL_SOCKET, WSADATA, WSAGetLastError, WSAIoctl, WSAStartup, getsockopt, setsockopt,
};
use windows_sys::Win32::System::Threading::INFINITE;

use super::descriptor::RawFd;

/// The version of Winsock that is asked for: 2.2, the last there is.
const VERSION: u16 = 0x0202;

/// Starts Winsock; until then its calls fail with `WSANOTINITIALISED` (`WSAStartup`). The standard library does so
/// before its own first socket: only who makes a socket without it has to. It stays until the process ends.
pub(super) fn start() -> io::Result<()> {
    static STARTED: LazyLock<i32> = LazyLock::new(|| {
        let mut about = WSADATA::default();
        // SAFETY: `about` is written during the call only.
        unsafe { WSAStartup(VERSION, &raw mut about) }
    });
    if *STARTED == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(*STARTED)) }
}

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

/// Sets an option of a socket (`SOL_SOCKET`).
pub(super) fn set_option<T>(socket: &impl AsSocket, option: i32, value: &T) -> io::Result<()> {
    let (value, bytes) = (std::ptr::from_ref(value).cast(), size_of::<T>() as i32);
    // SAFETY: the socket is open for the call, and pointer and length describe the value.
    check(unsafe { setsockopt(handle(socket.as_socket().as_raw_socket()), SOL_SOCKET, option, value, bytes) })
}

/// An option of a socket that is a number of 32 bits (`SOL_SOCKET`).
pub(super) fn option(socket: &impl AsSocket, option: i32) -> io::Result<u32> {
    let (mut value, mut bytes) = (0u32, size_of::<u32>() as i32);
    let into = std::ptr::from_mut(&mut value).cast();
    // SAFETY: the socket is open for the call, and pointer and length describe `value`.
    check(unsafe {
        getsockopt(handle(socket.as_socket().as_raw_socket()), SOL_SOCKET, option, into, &raw mut bytes)
    })?;
    Ok(value)
}

/// Asks a socket for something by its code (`WSAIoctl`): `input` goes in, and `output` is what comes back.
///
/// Any bytes have to be a value of `O`.
pub(super) unsafe fn control<I, O>(
    socket: &impl AsSocket,
    code: u32,
    input: &I,
    output: &mut O,
) -> io::Result<()> {
    let (input_bytes, output_bytes) = (size_of::<I>() as u32, size_of::<O>() as u32);
    let (input, output) = (std::ptr::from_ref(input).cast(), std::ptr::from_mut(output).cast());
    let mut written = 0;
    // SAFETY: the socket is open for the call; pointers and lengths describe `input` and `output`, which do not
    // overlap; the caller answers for what is written there.
    check(unsafe {
        WSAIoctl(
            handle(socket.as_socket().as_raw_socket()),
            code,
            input,
            input_bytes,
            output,
            output_bytes,
            &raw mut written,
            std::ptr::null_mut(),
            None,
        )
    })
}
