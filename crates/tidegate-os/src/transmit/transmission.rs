//! One operation: how much of the parts it takes, what is handed to the kernel for it, and what came of it.

use std::ffi::c_void;
use std::io;

use bytes::Bytes;

use super::functions::{
    END_OF_FILE, Element, ElementStart, FileBuffers, Functions, IN_FILE, IN_MEMORY, MOST_OF_A_CALL,
    RawOverlapped,
};
use super::parts::{Left, Parts, length};
use crate::file::{FileRange, shorter};

/// An operation on its way: the parts, and what the kernel reads to find them.
pub struct Transmission {
    parts: Parts,
    /// Bytes before the file, of the file, and after it, that this operation takes.
    head: usize,
    file: usize,
    tail: usize,
    call: Call,
}

/// What the kernel reads until the operation has ended; on the heap, where it stays.
enum Call {
    Packets(Vec<Element>),
    File(Box<FileBuffers>),
}

/// How a step of sending parts begins.
pub enum TransmitStart {
    /// With the file in it.
    Transmission(Transmission),
    /// With what comes before the file, by itself: the functions take no such pieces.
    Head(Parts),
}

impl Transmission {
    /// Takes from the front of `parts` what one operation can have, and at most `most` bytes of the file.
    ///
    /// With `TransmitPackets` all pieces are separate elements. `TransmitFile` takes one piece before and one after
    /// the file: small ones are put together, others go without it.
    pub fn begin(mut parts: Parts, functions: &Functions, most: usize) -> TransmitStart {
        let packets = functions.transmit_packets.is_some();
        if !packets {
            parts.join();
        }
        let takes = |pieces: usize| packets || pieces < 2;
        let head = length(&parts.head);
        if !takes(parts.head.len()) || head >= MOST_OF_A_CALL || parts.file.is_empty() {
            return TransmitStart::Head(parts);
        }
        // Never 0, which would be the whole file.
        let file = parts.file.len().min(most.max(1)).min(MOST_OF_A_CALL - head);
        let ends = file == parts.file.len() && takes(parts.tail.len());
        let ends = ends && length(&parts.tail) <= MOST_OF_A_CALL - head - file;
        let after: &[Bytes] = if ends { &parts.tail } else { &[] };
        let call = if packets { packets_of(&parts, file, after) } else { buffers_of(&parts, after) };
        let tail = length(after);
        TransmitStart::Transmission(Self { parts, head, file, tail, call })
    }

    /// Whether it takes all there is.
    #[cfg(windows)]
    pub fn is_whole(&self) -> bool {
        self.bytes() == length(&self.parts.head) + self.parts.file.len() + length(&self.parts.tail)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.head + self.file + self.tail
    }

    /// Hands it to the kernel. As it is with overlapped operations, the error may say that it is pending.
    ///
    /// # Errors
    /// What the function said.
    ///
    /// # Safety
    /// The socket is open, and the operation is one of it. `self` and what `overlapped` points to stay until it has
    /// ended; they may be moved (`self`) only as a value, which leaves what the kernel reads in its place.
    pub unsafe fn start(
        &self,
        functions: &Functions,
        socket: usize,
        overlapped: *mut RawOverlapped,
    ) -> io::Result<()> {
        let done = match (&self.call, functions.transmit_packets, functions.transmit_file) {
            (Call::Packets(elements), Some(transmit), _) => {
                // SAFETY: the array has so many elements, each of which describes bytes, or a part of an open file,
                // that `self` holds; the rest is the caller's promise.
                unsafe { transmit(socket, elements.as_ptr(), elements.len() as u32, 0, overlapped, 0) }
            }
            (Call::File(around), _, Some(transmit)) => {
                let at = self.parts.file.at();
                // SAFETY: as above; nobody else has the OVERLAPPED yet.
                unsafe {
                    (*overlapped).offset = at as u32;
                    (*overlapped).offset_high = (at >> 32) as u32;
                    transmit(
                        socket,
                        handle(&self.parts.file),
                        self.file as u32,
                        0,
                        overlapped,
                        &raw const **around,
                        0,
                    )
                }
            }
            _ => return Err(io::ErrorKind::Unsupported.into()), // the table that it was made for had it
        };
        if done == 0 { Err((functions.last_error)()) } else { Ok(()) }
    }

    /// The parts of one that was not begun.
    #[cfg(windows)]
    pub fn give_back(self) -> Parts {
        self.parts
    }

    /// What became of it: bytes that were taken, and what is left of the parts.
    ///
    /// A file that has become shorter than it was said to be is an error: what came after it would be taken for its
    /// content.
    pub fn finish(self, outcome: io::Result<usize>) -> (io::Result<usize>, Left) {
        let taken = match outcome {
            Err(e) if e.raw_os_error() == Some(END_OF_FILE) => return (Err(shorter()), Left::Nothing),
            Err(e) => return (Err(e), Left::Nothing), // how much of it was taken is not known
            Ok(taken) => taken.min(self.bytes()),
        };
        let is_short = taken < self.bytes();
        if is_short && (taken <= self.head || self.tail > 0) {
            return (Err(shorter()), Left::Nothing);
        }
        (Ok(taken), self.parts.advance(taken))
    }
}

// SAFETY: the pointers are to bytes, and a file, that `parts` holds, and that any thread may read.
unsafe impl Send for Transmission {}

/// Elements for `TransmitPackets`, in order.
fn packets_of(parts: &Parts, file: usize, after: &[Bytes]) -> Call {
    let memory = |piece: &Bytes| Element {
        flags: IN_MEMORY,
        bytes: piece.len() as u32,
        at: ElementStart { memory: piece.as_ptr() },
        file: std::ptr::null_mut(),
    };
    let offset = i64::try_from(parts.file.at()).unwrap_or(i64::MAX);
    let element = Element {
        flags: IN_FILE,
        bytes: file as u32,
        at: ElementStart { offset },
        file: handle(&parts.file),
    };
    // An element without bytes is left out: of a file it would mean all of it.
    let pieces = |piece: &&Bytes| !piece.is_empty();
    let file = (file > 0).then_some(element);
    let head = parts.head.iter().filter(pieces).map(memory);
    Call::Packets(head.chain(file).chain(after.iter().filter(pieces).map(memory)).collect())
}

/// The pieces around the file for `TransmitFile`.
fn buffers_of(parts: &Parts, after: &[Bytes]) -> Call {
    let piece = |piece: Option<&Bytes>| match piece {
        Some(piece) => (piece.as_ptr(), piece.len() as u32),
        None => (std::ptr::null(), 0),
    };
    let (head, head_bytes) = piece(parts.head.first());
    let (tail, tail_bytes) = piece(after.first());
    Call::File(Box::new(FileBuffers { head, head_bytes, tail, tail_bytes }))
}

/// The file as the functions take it.
pub(super) fn handle(range: &FileRange) -> *mut c_void {
    #[cfg(windows)]
    return std::os::windows::io::AsRawHandle::as_raw_handle(range.file());
    #[cfg(not(windows))]
    return std::ptr::without_provenance_mut(std::os::fd::AsRawFd::as_raw_fd(range.file()) as usize);
}
