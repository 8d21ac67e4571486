//! What a send hands over: shared bytes, which live until the kernel has finished with them.

#[cfg(any(windows, test))]
use std::io;

use bytes::{Buf, Bytes};

#[cfg(target_os = "linux")]
use crate::file::FileRange;
#[cfg(any(windows, test))]
use crate::transmit::{Left, Parts, copy};

/// Bytes to send, owned by the sender until the completion came back.
#[derive(Debug)]
pub enum Payload {
    /// One piece.
    One(Bytes),
    /// Several pieces, sent as if they were one. At most [`Payload::MAX_PIECES`].
    Many(Vec<Bytes>),
    /// A part of a file: what was read of it, and what was not.
    #[cfg(target_os = "linux")]
    File {
        /// Comes first; mostly nothing.
        read: Bytes,
        /// What follows it.
        rest: FileRange,
    },
    /// A part of a file among bytes.
    #[cfg(any(windows, test))]
    Parts(Box<Parts>),
}

impl Payload {
    /// Most pieces in one send (`UIO_MAXIOV` is 1,024; more than this gains nothing).
    pub const MAX_PIECES: usize = 64;

    /// Its pieces that are in memory, in order; before a file, if there is one.
    #[inline]
    pub fn pieces(&self) -> &[Bytes] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
            #[cfg(target_os = "linux")]
            Self::File { read, .. } => std::slice::from_ref(read),
            #[cfg(any(windows, test))]
            Self::Parts(parts) => parts.head(),
        }
    }

    /// Copies from its front into `into`, and of a file reads into it; returns how many bytes that were.
    /// [`advance`](Self::advance) is the caller's.
    ///
    /// # Errors
    /// As [`Parts::copy_into`].
    #[cfg(any(windows, test))]
    pub(crate) fn copy_into(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Parts(parts) => parts.copy_into(into),
            bytes => Ok(copy(bytes.pieces(), into)),
        }
    }

    /// What is left of parts.
    #[cfg(any(windows, test))]
    pub(crate) fn left(left: Left) -> Option<Self> {
        match left {
            Left::Parts(parts) => Some(Self::Parts(Box::new(parts))),
            Left::Bytes(pieces) => Some(Self::Many(pieces)),
            Left::Nothing => None,
        }
    }

    /// Takes `n` bytes from the front; returns what is left, if anything.
    #[inline]
    pub fn advance(self, n: usize) -> Option<Self> {
        match self {
            Self::One(bytes) if n >= bytes.len() => None,
            other => other.rest_after(n),
        }
    }

    /// The same for one piece of more bytes than that, and for all else.
    fn rest_after(self, n: usize) -> Option<Self> {
        match self {
            Self::One(mut bytes) => {
                bytes.advance(n);
                Some(Self::One(bytes))
            }
            Self::Many(mut pieces) => {
                take(&mut pieces, n);
                (!pieces.is_empty()).then_some(Self::Many(pieces))
            }
            #[cfg(target_os = "linux")]
            Self::File { mut read, mut rest } => {
                let step = n.min(read.len());
                read.advance(step);
                rest.advance(n - step);
                (!read.is_empty() || !rest.is_empty()).then_some(Self::File { read, rest })
            }
            #[cfg(any(windows, test))]
            Self::Parts(parts) => Self::left(parts.advance(n)),
        }
    }
}

/// Takes `n` bytes, or all there are, from the front; returns how many.
pub(crate) fn take(pieces: &mut Vec<Bytes>, n: usize) -> usize {
    let (mut left, mut gone) = (n, 0);
    for piece in pieces.iter_mut() {
        let step = left.min(piece.len());
        piece.advance(step);
        left -= step;
        if !piece.is_empty() {
            break;
        }
        gone += 1;
    }
    pieces.drain(..gone);
    n - left
}
