//! What is to be sent: bytes, a part of a file, and bytes again.

use std::io;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::file::FileRange;
use crate::payload::take;

/// A part of a file, with what is sent before it and after it.
#[derive(Debug)]
pub struct Parts {
    pub(super) head: Vec<Bytes>,
    pub(super) file: FileRange,
    pub(super) tail: Vec<Bytes>,
    /// Bytes of the file that the next operation takes at most, and when that begins.
    step: (usize, Option<Instant>),
    /// Bytes of it that the last one took, and when that began.
    taken: Option<(usize, Instant)>,
}

/// What is left of [`Parts`] after some of it was taken.
#[derive(Debug)]
pub enum Left {
    /// Something of the file, or all of it.
    Parts(Parts),
    /// Only what comes after the file.
    Bytes(Vec<Bytes>),
    /// Nothing.
    Nothing,
}

/// Bytes around a file that are put together, for a function that takes only one piece of them.
const JOIN_BYTES: usize = 64 * 1024;

impl Parts {
    /// These, in order.
    pub fn new(head: Vec<Bytes>, file: FileRange, tail: Vec<Bytes>) -> Self {
        Self { head, file, tail, step: (usize::MAX, None), taken: None }
    }

    /// Bytes of the file that one operation takes at most; it begins now.
    pub fn begin_step(&mut self, most: usize, now: Instant) {
        self.step = (most, Some(now));
        self.taken = None;
    }

    /// Bytes of the file that one operation takes at most.
    pub fn step(&self) -> usize {
        self.step.0
    }

    /// Bytes of the file that the last operation took, and when it began; none if that was refused.
    pub fn last_step(&self) -> Option<(usize, Instant)> {
        self.taken
    }

    /// The bytes before the file.
    pub fn head(&self) -> &[Bytes] {
        &self.head
    }

    /// Copies from the front into `into`, and reads what is of the file, no more than [one step](Self::step); returns
    /// how many bytes that were. What is before a file that cannot be read is copied by itself.
    ///
    /// # Errors
    /// As [`FileRange::read`], if the file is next.
    pub(crate) fn copy_into(&self, into: &mut [u8]) -> io::Result<usize> {
        let head = copy(&self.head, into);
        let most = self.step().min(into.len() - head);
        let file = match self.file.read(&mut into[head..head + most]) {
            Err(e) if head == 0 => return Err(e),
            outcome => outcome.unwrap_or(0),
        };
        let tail: &[Bytes] = if file == self.file.len() { &self.tail } else { &[] };
        Ok(head + file + copy(tail, &mut into[head + file..]))
    }

    /// Takes `n` bytes from the front.
    pub fn advance(mut self, n: usize) -> Left {
        let n = n - take(&mut self.head, n);
        let of_file = n.min(self.file.len());
        self.file.advance(of_file);
        self.taken = self.step.1.map(|begun| (of_file, begun));
        if !self.head.is_empty() || !self.file.is_empty() {
            return Left::Parts(self);
        }
        take(&mut self.tail, n - of_file);
        if self.tail.is_empty() { Left::Nothing } else { Left::Bytes(self.tail) }
    }

    /// Puts the pieces before the file together, and those after it, where they are few bytes.
    pub(super) fn join(&mut self) {
        join(&mut self.head);
        join(&mut self.tail);
    }
}

/// Bytes of all pieces.
pub(super) fn length(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Copies as many bytes of the pieces as fit; returns how many.
pub(crate) fn copy(pieces: &[Bytes], into: &mut [u8]) -> usize {
    let mut copied = 0;
    for piece in pieces {
        let fits = piece.len().min(into.len() - copied);
        into[copied..copied + fits].copy_from_slice(&piece[..fits]);
        copied += fits;
    }
    copied
}

fn join(pieces: &mut Vec<Bytes>) {
    if pieces.len() < 2 || length(pieces) > JOIN_BYTES {
        return;
    }
    let mut one = BytesMut::with_capacity(length(pieces));
    pieces.iter().for_each(|piece| one.extend_from_slice(piece));
    *pieces = vec![one.freeze()];
}
