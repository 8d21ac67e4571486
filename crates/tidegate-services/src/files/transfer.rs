//! A response sent in steps: parts of a file, appended as the outbox has room.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tidegate::system::file::read_cached;
use tidegate::{FileRange, Outbox};

use super::range::ByteRange;
use super::store::Content;
use crate::http::session::Answered;

/// Bytes of a file appended at once, and read at once if they are not in memory.
const WINDOW_BYTES: u64 = 1 << 20;

/// What is left to send.
#[derive(Debug)]
pub(super) struct Transfer {
    content: Content,
    segments: VecDeque<Segment>,
    reading: ReadAhead,
}

/// Whether the next bytes of the file are read before they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadAhead {
    /// Not checked yet.
    Unknown,
    /// A job reads them.
    UnderWay,
    /// Read: they are in the page cache, or cannot be.
    Done,
}

/// The next bytes to send.
#[cfg(feature = "http2")]
#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Bytes),
    File(FileRange),
}

#[derive(Debug)]
pub(super) enum Segment {
    Bytes(Bytes),
    Part(ByteRange),
}

impl Transfer {
    pub(super) fn new(content: &Content) -> Self {
        Self { content: content.clone(), segments: VecDeque::with_capacity(2), reading: ReadAhead::Unknown }
    }

    /// The same with these bytes in front.
    pub(super) fn behind(mut self, head: Bytes) -> Self {
        self.segments.push_front(Segment::Bytes(head));
        self
    }

    pub(super) fn push(&mut self, segment: Segment) {
        self.segments.push_back(segment);
    }

    /// Bytes in memory.
    #[cfg(feature = "http2")]
    pub(super) fn of(bytes: Bytes) -> Self {
        let length = bytes.len() as u64;
        let mut transfer = Self::new(&Content::Memory(bytes));
        transfer.push(Segment::Part(ByteRange { first: 0, bytes: length }));
        transfer
    }

    /// What is left, in bytes.
    #[cfg(feature = "http2")]
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.segments.iter().map(|segment| match segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::Part(part) => part.bytes,
        });
        bytes.sum()
    }

    /// Takes the next piece; of a file no more than so many bytes.
    #[cfg(feature = "http2")]
    pub(super) fn next(&mut self, most: u64) -> Option<Piece> {
        loop {
            let piece = match (self.segments.front_mut()?, &self.content) {
                (Segment::Bytes(bytes), _) => Piece::Bytes(std::mem::take(bytes)),
                (Segment::Part(part), Content::Memory(body)) => {
                    let from = part.first as usize;
                    Piece::Bytes(body.slice(from..from + part.bytes as usize))
                }
                (Segment::Part(part), Content::File(file)) if part.bytes > 0 => {
                    let step = part.bytes.min(most);
                    let range = FileRange::new(file.clone(), part.first, step as usize);
                    part.first += step;
                    part.bytes -= step;
                    return Some(Piece::File(range));
                }
                (Segment::Part(_), Content::File(_)) => Piece::Bytes(Bytes::new()),
            };
            self.segments.pop_front();
            if !matches!(&piece, Piece::Bytes(bytes) if bytes.is_empty()) {
                return Some(piece);
            }
        }
    }

    /// Whether a job reads the next bytes.
    pub(super) fn waits(&self) -> bool {
        self.reading == ReadAhead::UnderWay
    }

    /// The job has finished.
    pub(super) fn was_read(&mut self) {
        self.reading = ReadAhead::Done;
    }

    /// Appends as much as the outbox has room for.
    pub(super) fn feed(&mut self, out: &mut Outbox<'_>) -> Answered {
        loop {
            let Some(segment) = self.segments.front_mut() else { return Answered::Whole };
            match segment {
                // A head is sent together with what follows it.
                Segment::Bytes(bytes) => out.share(std::mem::take(bytes)),
                Segment::Part(part) if part.bytes == 0 => {}
                Segment::Part(_) if out.is_full() => return Answered::UnderWay,
                Segment::Part(part) => match &self.content {
                    Content::Memory(body) => {
                        let from = part.first as usize;
                        out.share(body.slice(from..from + part.bytes as usize));
                    }
                    Content::File(file) => {
                        let step = part.bytes.min(WINDOW_BYTES);
                        if self.reading == ReadAhead::Unknown {
                            self.reading = warm(file, part.first, step, out);
                        }
                        if self.reading == ReadAhead::UnderWay {
                            return Answered::UnderWay;
                        }
                        self.reading = ReadAhead::Unknown;
                        out.file(FileRange::new(file.clone(), part.first, step as usize));
                        part.first += step;
                        part.bytes -= step;
                        if part.bytes > 0 {
                            continue;
                        }
                    }
                },
            }
            self.segments.pop_front();
        }
    }
}

/// Ensures that sending these bytes does not block an I/O thread on the disk. Only the last byte is checked: the kernel
/// reads files ahead, from front to end.
fn warm(file: &Arc<File>, at: u64, bytes: u64, out: &mut Outbox<'_>) -> ReadAhead {
    let cold = read_cached(file, &mut [0], at + bytes - 1);
    if !matches!(&cold, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
        return ReadAhead::Done;
    }
    let mut range = FileRange::new(file.clone(), at, bytes as usize);
    let job = move || {
        let mut buffer = vec![0; 64 * 1024];
        while !range.is_empty() {
            // A read error shows when it is sent.
            let Ok(n) = range.read(&mut buffer) else { return };
            range.advance(n);
        }
    };
    // If the job queue is full, the bytes are read while they are sent.
    if out.offload(job).is_ok() { ReadAhead::UnderWay } else { ReadAhead::Done }
}
