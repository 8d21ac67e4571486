//! A table of functions that replaces the system's: it keeps the rules of `TransmitFile` and `TransmitPackets`,
//! breaks off where the caller does not, and remembers what it was asked for. The tests say when an operation ends, and
//! how.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io;

use super::functions::{Element, FileBuffers, Functions, IN_FILE, IN_MEMORY, MOST_OF_A_CALL, RawOverlapped};

/// One thing that was to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Memory(Vec<u8>),
    /// Descriptor, place, bytes.
    File(usize, u64, u32),
}

#[derive(Default)]
struct Kernel {
    /// Of each call.
    calls: Vec<Vec<Asked>>,
    /// The next call fails with this.
    refusal: Option<i32>,
    error: i32,
    /// Operations that have not ended.
    pending: Vec<*mut RawOverlapped>,
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::default();
}

fn with<T>(run: impl FnOnce(&mut Kernel) -> T) -> T {
    KERNEL.with_borrow_mut(run)
}

/// `WSA_IO_PENDING`.
pub(super) const PENDING: i32 = 997;
const SOCKET: usize = 77;
pub(super) const A_SOCKET: usize = SOCKET;

impl Kernel {
    fn begin(&mut self, socket: usize, asked: Vec<Asked>, overlapped: *mut RawOverlapped) -> i32 {
        assert_eq!(socket, SOCKET);
        if let Some(code) = self.refusal.take() {
            self.error = code;
            return 0;
        }
        self.calls.push(asked);
        self.pending.push(overlapped);
        self.error = PENDING;
        0
    }
}

/// # Safety
/// `at` has so many bytes.
unsafe fn memory(at: *const u8, bytes: u32) -> Asked {
    // SAFETY: as promised.
    Asked::Memory(unsafe { std::slice::from_raw_parts(at, bytes as usize) }.to_vec())
}

unsafe extern "system" fn transmit_file(
    socket: usize,
    file: *mut c_void,
    bytes: u32,
    each: u32,
    overlapped: *mut RawOverlapped,
    around: *const FileBuffers,
    flags: u32,
) -> i32 {
    assert!(bytes > 0, "0 is all of the file");
    assert_eq!((each, flags), (0, 0));
    // SAFETY: the caller gives both, and nobody else has them.
    let (around, place) = unsafe { (&*around, &*overlapped) };
    let total = [around.head_bytes, bytes, around.tail_bytes].iter().map(|&n| n as usize).sum::<usize>();
    assert!(total <= MOST_OF_A_CALL, "{total} bytes");
    let at = u64::from(place.offset_high) << 32 | u64::from(place.offset);
    let mut asked = Vec::new();
    if around.head_bytes > 0 {
        // SAFETY: the caller's pieces.
        asked.push(unsafe { memory(around.head, around.head_bytes) });
    }
    asked.push(Asked::File(file.addr(), at, bytes));
    if around.tail_bytes > 0 {
        // SAFETY: the caller's pieces.
        asked.push(unsafe { memory(around.tail, around.tail_bytes) });
    }
    with(|kernel| kernel.begin(socket, asked, overlapped))
}

unsafe extern "system" fn transmit_packets(
    socket: usize,
    elements: *const Element,
    count: u32,
    each: u32,
    overlapped: *mut RawOverlapped,
    flags: u32,
) -> i32 {
    assert_eq!((each, flags), (0, 0));
    // SAFETY: the caller's array.
    let elements = unsafe { std::slice::from_raw_parts(elements, count as usize) };
    let asked = elements.iter().map(|element| {
        assert!(element.bytes > 0, "0 is all of the file");
        match element.flags {
            // SAFETY: the flag says which of the two it is, and the caller's piece has so many bytes.
            IN_MEMORY => unsafe { memory(element.at.memory, element.bytes) },
            // SAFETY: the flag says which of the two it is.
            IN_FILE => Asked::File(element.file.addr(), unsafe { element.at.offset } as u64, element.bytes),
            other => panic!("flags {other}"),
        }
    });
    let asked = asked.collect();
    with(|kernel| kernel.begin(socket, asked, overlapped))
}

/// Which functions a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Has {
    File,
    Packets,
    Neither,
}

/// The table. The kernel behind it is that of the calling thread, and new.
pub(super) fn table(has: Has) -> Functions {
    with(|kernel| *kernel = Kernel::default());
    Functions {
        transmit_file: (has == Has::File).then_some(transmit_file),
        transmit_packets: (has == Has::Packets).then_some(transmit_packets),
        last_error: || io::Error::from_raw_os_error(with(|kernel| kernel.error)),
    }
}

/// The next call is refused with this error.
pub(super) fn refuse(code: i32) {
    with(|kernel| kernel.refusal = Some(code));
}

/// What was asked for since this was looked at last, call by call.
pub(super) fn calls() -> Vec<Vec<Asked>> {
    with(|kernel| std::mem::take(&mut kernel.calls))
}

/// Operations that the kernel still has.
pub(super) fn under_way() -> usize {
    with(|kernel| kernel.pending.len())
}

/// The oldest operation ends.
pub(super) fn end() {
    with(|kernel| _ = kernel.pending.remove(0));
}
