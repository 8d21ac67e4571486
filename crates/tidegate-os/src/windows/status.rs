//! How an operation ended, as an error of Winsock.

use std::io;

use windows_sys::Win32::Foundation::{
    ERROR_OPERATION_ABORTED, NTSTATUS, RtlNtStatusToDosError, STATUS_CANCELLED, STATUS_CONNECTION_ABORTED,
    STATUS_CONNECTION_DISCONNECTED, STATUS_CONNECTION_REFUSED, STATUS_CONNECTION_RESET,
    STATUS_HOPLIMIT_EXCEEDED, STATUS_HOST_UNREACHABLE, STATUS_INSUFFICIENT_RESOURCES, STATUS_IO_TIMEOUT,
    STATUS_LOCAL_DISCONNECT, STATUS_NETWORK_UNREACHABLE, STATUS_PORT_UNREACHABLE, STATUS_REMOTE_DISCONNECT,
};
use windows_sys::Win32::Networking::WinSock::{
    WSAECONNABORTED, WSAECONNREFUSED, WSAECONNRESET, WSAEHOSTUNREACH, WSAENETRESET, WSAENETUNREACH,
    WSAENOBUFS, WSAETIMEDOUT,
};

/// An operation that the kernel has not finished with.
pub(super) const PENDING: NTSTATUS = windows_sys::Win32::Foundation::STATUS_PENDING;

/// What `WSAGetOverlappedResult` would say, without a socket, which may be closed by then.
pub(super) fn outcome(status: NTSTATUS, bytes: usize) -> io::Result<usize> {
    if status >= 0 {
        return Ok(bytes);
    }
    let code = match status {
        STATUS_CANCELLED => ERROR_OPERATION_ABORTED as i32,
        STATUS_CONNECTION_RESET | STATUS_CONNECTION_DISCONNECTED | STATUS_REMOTE_DISCONNECT => WSAECONNRESET,
        STATUS_PORT_UNREACHABLE => WSAECONNRESET, // so Winsock says of datagrams (`WSARecvFrom`)
        STATUS_HOPLIMIT_EXCEEDED => WSAENETRESET,
        STATUS_CONNECTION_ABORTED | STATUS_LOCAL_DISCONNECT => WSAECONNABORTED,
        STATUS_CONNECTION_REFUSED => WSAECONNREFUSED,
        STATUS_NETWORK_UNREACHABLE => WSAENETUNREACH,
        STATUS_HOST_UNREACHABLE => WSAEHOSTUNREACH,
        STATUS_IO_TIMEOUT => WSAETIMEDOUT,
        STATUS_INSUFFICIENT_RESOURCES => WSAENOBUFS,
        // SAFETY: a pure function.
        other => unsafe { RtlNtStatusToDosError(other) as i32 },
    };
    Err(io::Error::from_raw_os_error(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_status_is_the_error_a_socket_would_give() {
        assert_eq!(outcome(0, 7).unwrap(), 7);
        let kind = |status| outcome(status, 0).unwrap_err().kind();
        assert_eq!(kind(STATUS_CONNECTION_RESET), ErrorKind::ConnectionReset);
        assert_eq!(kind(STATUS_CONNECTION_REFUSED), ErrorKind::ConnectionRefused);
        assert!(crate::socket::is_exhaustion(&outcome(STATUS_INSUFFICIENT_RESOURCES, 0).unwrap_err()));
        assert!(crate::socket::is_lost_connection(&outcome(STATUS_CANCELLED, 0).unwrap_err()));
        for report in [STATUS_PORT_UNREACHABLE, STATUS_HOPLIMIT_EXCEEDED] {
            assert!(crate::datagram::is_report(&outcome(report, 0).unwrap_err()));
        }
    }
}
