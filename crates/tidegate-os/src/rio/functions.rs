//! The functions of Registered I/O, as the system hands them out, and the structures they take.

use std::ffi::c_void;
use std::io;

/// A part of registered memory (`RIO_BUF`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RioBuf {
    /// The registration.
    pub buffer: isize,
    /// Where it begins, from the beginning of what was registered.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

/// What became of a request (`RIORESULT`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RioResult {
    /// 0, or an error of Winsock.
    pub status: i32,
    /// Bytes moved.
    pub bytes: u32,
    /// What the request queue was made with.
    pub socket: u64,
    /// What the request was made with.
    pub request: u64,
}

/// How a completion queue reports that it is no longer empty: by a packet to a completion port
/// (`RIO_NOTIFICATION_COMPLETION` of type `RIO_IOCP_COMPLETION`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NotifyByPort {
    kind: i32,
    port: *mut c_void,
    key: usize,
    overlapped: *mut c_void,
}

impl NotifyByPort {
    /// A packet for `port` with this key and this OVERLAPPED, which tells who it is for.
    ///
    /// # Safety
    /// The port is open, and the OVERLAPPED is there, as long as the completion queue that is made with this.
    pub unsafe fn new(port: *mut c_void, key: usize, overlapped: *mut c_void) -> Self {
        const RIO_IOCP_COMPLETION: i32 = 2;
        Self { kind: RIO_IOCP_COMPLETION, port, key, overlapped }
    }
}

/// No registration, as a function says it (`RIO_INVALID_BUFFERID`).
pub(super) const NO_BUFFER: isize = 0xFFFF_FFFF;
/// No queue (`RIO_INVALID_CQ`, `RIO_INVALID_RQ`).
pub(super) const NO_QUEUE: isize = 0;
/// In place of a count: the completion queue is corrupt (`RIO_CORRUPT_CQ`).
pub(super) const CORRUPT: u32 = u32::MAX;

/// A request: queue, spans and their number, flags, context.
pub type RequestFn = unsafe extern "system" fn(isize, *const RioBuf, u32, u32, *const c_void) -> i32;

/// The functions. The maker of a table vouches that each does what its namesake in `mswsock.h` is documented to do.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "each is named as in mswsock.h")]
pub struct Functions {
    pub register_buffer: unsafe extern "system" fn(*const u8, u32) -> isize,
    pub deregister_buffer: unsafe extern "system" fn(isize),
    pub create_completion_queue: unsafe extern "system" fn(u32, *const NotifyByPort) -> isize,
    pub resize_completion_queue: unsafe extern "system" fn(isize, u32) -> i32,
    pub close_completion_queue: unsafe extern "system" fn(isize),
    pub create_request_queue:
        unsafe extern "system" fn(usize, u32, u32, u32, u32, isize, isize, *const c_void) -> isize,
    pub receive: RequestFn,
    pub send: RequestFn,
    pub dequeue_completion: unsafe extern "system" fn(isize, *mut RioResult, u32) -> u32,
    pub notify: unsafe extern "system" fn(isize) -> i32,
    /// Why the last call of this thread failed (`WSAGetLastError`).
    pub last_error: fn() -> io::Error,
}
