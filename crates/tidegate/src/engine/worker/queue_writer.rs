//! Sending what is next in a queue, once for all engines that send from where the bytes lie.

use std::io::{self, IoSlice};

use tidegate_os::file::FileRange;
use tidegate_os::socket::More;
use tidegate_os::splice::{SplicePipe, cannot_splice};

use crate::policy::sends::FILE_QUANTUM;
use crate::proto::NextStep;
use crate::proto::queue::SendQueue;

/// The calls that a socket sends with.
pub(in crate::engine) trait Write {
    /// Whether it can send from a file; else the file is read first.
    fn sends_files(&self) -> bool;
    /// Sends; may take less than all.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize>;
    /// Sends from a file; may take less than all.
    fn write_file(&mut self, range: &FileRange, more: More) -> io::Result<usize>;
    /// Sends from a pipe; may take less than all. Only for what says that it splices before a connection is opened.
    fn write_spliced(&mut self, pipe: &mut SplicePipe, more: More) -> io::Result<usize> {
        let _ = (pipe, more);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What one call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Written {
    pub(in crate::engine) bytes: usize,
    /// It was less than what was given. Not known of a file or a pipe.
    pub(in crate::engine) short: bool,
}

/// Most pieces sent by one call.
const SLICES: usize = 64;

/// Sends once: from memory, or from a file or a pipe if that is next. `then` is what follows when all is sent. What was
/// taken is still in the queue.
#[inline]
pub(in crate::engine) fn write_next(
    mut to: impl Write,
    queue: &mut SendQueue,
    then: NextStep,
) -> io::Result<Written> {
    if queue.next_spliced().is_some() {
        match write_spliced(&mut to, queue, then) {
            Err(e) if cannot_splice(&e) => queue.load_spliced()?,
            outcome => return outcome,
        }
    }
    if queue.next_file().is_some() {
        if to.sends_files() {
            return write_file(to, queue, then);
        }
        queue.load(FILE_QUANTUM)?;
    }
    if let Some(only) = queue.only_slice() {
        return write_slices(to, &[IoSlice::new(only)], queue.len(), then);
    }
    let mut slices = [IoSlice::new(&[]); SLICES];
    let n = queue.slices(&mut slices);
    write_slices(to, &slices[..n], queue.len(), then)
}

/// Sends these out of `queued` bytes.
#[inline]
fn write_slices(
    mut to: impl Write,
    slices: &[IoSlice<'_>],
    queued: usize,
    then: NextStep,
) -> io::Result<Written> {
    let asked: usize = slices.iter().map(|slice| slice.len()).sum();
    let bytes = to.write_vectored(slices, more(asked, queued, then))?;
    Ok(Written { bytes, short: bytes < asked })
}

/// A pipe with all its slots full may hold less than the socket takes: only the next call shows.
fn write_spliced(to: &mut impl Write, queue: &mut SendQueue, then: NextStep) -> io::Result<Written> {
    let queued = queue.len();
    let Some(spliced) = queue.next_spliced() else { return Ok(Written { bytes: 0, short: false }) };
    let more = more(spliced.len(), queued, then);
    to.write_spliced(spliced.pipe()?, more).map(|bytes| Written { bytes, short: false })
}

/// What follows so many out of `queued` bytes.
#[inline]
fn more(asked: usize, queued: usize, then: NextStep) -> More {
    match then {
        _ if asked < queued => More::BytesFollow,
        NextStep::CloseAfterSend => More::CloseFollows,
        _ => More::No,
    }
}

/// A file yields less than was asked for also where it is cut into steps, and where it ends too early: only the next
/// call shows which.
fn write_file(mut to: impl Write, queue: &SendQueue, then: NextStep) -> io::Result<Written> {
    let Some(range) = queue.next_file() else { return Ok(Written { bytes: 0, short: false }) };
    let more = match then {
        NextStep::CloseAfterSend if range.len() == queue.len() => More::CloseFollows,
        _ => More::No,
    };
    to.write_file(range, more).map(|bytes| Written { bytes, short: false })
}
