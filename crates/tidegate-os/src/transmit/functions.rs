//! The functions, as the system hands them out, and the structures they take.

use std::ffi::c_void;
use std::io;

/// What the kernel says of an operation, and where in the file it begins (`OVERLAPPED`).
#[repr(C)]
pub struct RawOverlapped {
    pub(super) status: usize,
    pub(super) bytes: usize,
    pub(crate) offset: u32,
    pub(crate) offset_high: u32,
    pub(crate) event: *mut c_void,
}

/// What `TransmitFile` sends before and after the file (`TRANSMIT_FILE_BUFFERS`).
#[repr(C)]
pub struct FileBuffers {
    pub(crate) head: *const u8,
    pub(crate) head_bytes: u32,
    pub(crate) tail: *const u8,
    pub(crate) tail_bytes: u32,
}

/// One thing that `TransmitPackets` sends (`TRANSMIT_PACKETS_ELEMENT`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Element {
    pub(crate) flags: u32,
    pub(crate) bytes: u32,
    pub(crate) at: ElementStart,
    pub(super) file: *mut c_void,
}

/// Where an element's bytes begin.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ElementStart {
    /// In its file.
    pub(super) offset: i64,
    /// In memory.
    pub(super) memory: *const u8,
}

/// The element is in memory, or in a file (`TP_ELEMENT_MEMORY`, `TP_ELEMENT_FILE`).
pub(super) const IN_MEMORY: u32 = 1;
pub(super) const IN_FILE: u32 = 2;

/// Most bytes of one call: `TransmitFile` takes one less than an `i32` holds, all three parts together.
pub(super) const MOST_OF_A_CALL: usize = i32::MAX as usize - 1;

/// The end of the file was reached (`ERROR_HANDLE_EOF`).
pub(super) const END_OF_FILE: i32 = 38;

/// `TransmitFile`: socket, file, bytes of the file (0 would be all of it), bytes of each send (0: the system's choice),
/// operation, what is around it, flags.
pub type TransmitFile = unsafe extern "system" fn(
    usize,
    *mut c_void,
    u32,
    u32,
    *mut RawOverlapped,
    *const FileBuffers,
    u32,
) -> i32;

/// `TransmitPackets`: socket, elements and their number, bytes of each send (0: the system's choice), operation, flags.
pub type TransmitPackets =
    unsafe extern "system" fn(usize, *const Element, u32, u32, *mut RawOverlapped, u32) -> i32;

/// The functions that there are. The maker of a table vouches that each does what its namesake in `mswsock.h` is
/// documented to do.
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "each is named as in mswsock.h")]
pub struct Functions {
    pub transmit_file: Option<TransmitFile>,
    pub transmit_packets: Option<TransmitPackets>,
    /// Why the last call of this thread failed (`WSAGetLastError`).
    pub last_error: fn() -> io::Error,
}

impl Functions {
    /// Whether one of them is there.
    pub fn send_files(&self) -> bool {
        self.transmit_file.is_some() || self.transmit_packets.is_some()
    }
}
