//! The unsent bytes of one connection: in memory, shared or copied, in files, and in pipes.

mod spare_buffer;
mod spare_list;

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tidegate_os::file::FileRange;

use super::spliced::Spliced;
use crate::policy::memory::{COPY_BYTES, SENT_BUFFER_BYTES};

#[derive(Debug)]
enum Chunk {
    Shared(Bytes),
    Copied(BytesMut),
    File(FileRange),
    /// Only where the socket can be spliced to, see [`Outbox::splice`](super::outbox::Outbox::splice).
    Spliced(Spliced),
}

impl Chunk {
    /// Its bytes in memory: all, or none for a file or a pipe.
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => bytes,
            Self::Copied(bytes) => bytes,
            Self::File(_) | Self::Spliced(_) => &[],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::File(range) => range.len(),
            Self::Spliced(spliced) => spliced.len(),
            memory => memory.as_slice().len(),
        }
    }

    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Shared(_) | Self::Copied(_))
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Shared(bytes) => bytes.advance(n),
            Self::Copied(bytes) => bytes.advance(n),
            Self::File(range) => range.advance(n),
            Self::Spliced(spliced) => spliced.advance(n),
        }
    }
}

/// Makes room for so many bytes more, and at most a quarter of all: peers may be slow to take them, and what a buffer
/// has is what a connection holds. (`BytesMut::reserve` doubles.)
fn make_room(buffer: &mut BytesMut, bytes: usize) {
    if !buffer.try_reclaim(bytes) {
        let needed = buffer.len() + bytes;
        let mut larger = BytesMut::with_capacity(needed + needed / 4);
        larger.extend_from_slice(buffer);
        *buffer = larger;
    }
}

/// Small copies are joined up to this size, so that many small writes become one piece.
const JOIN_BYTES: usize = SENT_BUFFER_BYTES;

/// What was not taken yet, in order.
#[derive(Debug)]
struct UnsentChunks {
    chunks: VecDeque<Chunk>,
    bytes: usize,
}

/// The unsent bytes of one connection. An empty queue owns no memory.
#[derive(Debug, Default)]
pub struct SendQueue {
    unsent: Option<Box<UnsentChunks>>,
    /// Bytes handed out by [`take`](Self::take) and not yet confirmed.
    in_flight: usize,
}

impl SendQueue {
    /// Moves bytes from the front into `into`; see [`LayerBuffer::take`](super::outbox::LayerBuffer::take).
    pub(super) fn copy_into(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < into.len() {
            self.load_spliced()?;
            let Some(front) = self.front() else { break };
            let room = &mut into[taken..];
            let n = match front {
                Chunk::File(range) => range.read(room)?,
                memory => {
                    let memory = memory.as_slice();
                    let n = memory.len().min(room.len());
                    room[..n].copy_from_slice(&memory[..n]);
                    n
                }
            };
            taken += n;
            self.confirm_and_free(n);
        }
        self.give_back();
        Ok(taken)
    }

    /// Bytes that the kernel has not yet confirmed.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.unsent.as_ref().map_or(0, |unsent| unsent.bytes) + self.in_flight
    }

    /// Whether all bytes were confirmed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight == 0 && !self.has_unsent()
    }

    /// Whether there are bytes that were not yet taken.
    #[inline]
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.unsent.as_ref().is_some_and(|unsent| unsent.bytes > 0)
    }

    fn front(&self) -> Option<&Chunk> {
        self.unsent.as_ref()?.chunks.front()
    }

    /// The list, to which so many bytes are about to be added.
    #[inline]
    fn grows_by(&mut self, bytes: usize) -> &mut VecDeque<Chunk> {
        let unsent = self.unsent.get_or_insert_with(spare_list::take);
        unsent.bytes += bytes;
        &mut unsent.chunks
    }

    /// Gives an empty list back to the thread.
    #[inline]
    fn give_back(&mut self) {
        if let Some(empty) = self.unsent.take_if(|unsent| unsent.chunks.is_empty()) {
            spare_list::keep(empty);
        }
    }

    #[inline]
    pub(super) fn push_copy(&mut self, bytes: &[u8]) {
        self.push_copies(std::iter::once(bytes));
    }

    /// Appends a copy of the pieces, in one chunk up to [`COPY_BYTES`].
    pub(super) fn push_copies<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]> + Clone) {
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        if bytes == 0 {
            return;
        }
        let chunks = self.grows_by(bytes);
        match chunks.back_mut() {
            Some(Chunk::Copied(tail)) if tail.len() + bytes <= JOIN_BYTES => {
                make_room(tail, bytes);
                pieces.for_each(|piece| tail.extend_from_slice(piece));
            }
            _ => push_buffers(chunks, bytes, pieces),
        }
    }

    pub(super) fn push_shared(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.grows_by(bytes.len()).push_back(Chunk::Shared(bytes));
        }
    }

    pub(super) fn push_file(&mut self, range: FileRange) {
        if !range.is_empty() {
            self.grows_by(range.len()).push_back(Chunk::File(range));
        }
    }

    pub(super) fn push_spliced(&mut self, spliced: Spliced) {
        if !spliced.is_empty() {
            self.grows_by(spliced.len()).push_back(Chunk::Spliced(spliced));
        }
    }

    /// The part of a file that is next, if any.
    #[inline]
    #[must_use]
    pub fn next_file(&self) -> Option<&FileRange> {
        match self.front() {
            Some(Chunk::File(range)) => Some(range),
            _ => None,
        }
    }

    /// The pipe that is next, if any, to send from it.
    #[inline]
    pub(crate) fn next_spliced(&mut self) -> Option<&mut Spliced> {
        match self.unsent.as_mut()?.chunks.front_mut() {
            Some(Chunk::Spliced(spliced)) => Some(spliced),
            _ => None,
        }
    }

    /// If a pipe is next, reads its bytes into memory.
    ///
    /// # Errors
    /// What the system says of the pipe.
    pub(crate) fn load_spliced(&mut self) -> io::Result<()> {
        if self.next_spliced().is_some()
            && let Some(unsent) = &mut self.unsent
            && let Some(Chunk::Spliced(spliced)) = unsent.chunks.pop_front()
        {
            unsent.chunks.push_front(Chunk::Shared(spliced.read()?));
        }
        Ok(())
    }

    /// If a part of a file is next, reads at most `most` bytes of it into memory. For engines that cannot send from
    /// files.
    ///
    /// # Errors
    /// The file cannot be read, or was truncated.
    pub(crate) fn load(&mut self, most: usize) -> io::Result<()> {
        let Some(unsent) = &mut self.unsent else { return Ok(()) };
        let Some(Chunk::File(range)) = unsent.chunks.front_mut() else { return Ok(()) };
        let mut piece = BytesMut::zeroed(range.len().min(most));
        let n = range.read(&mut piece)?;
        piece.truncate(n);
        range.advance(n);
        if range.is_empty() {
            unsent.chunks.pop_front();
        }
        unsent.chunks.push_front(Chunk::Copied(piece));
        Ok(())
    }

    /// Fills `into` with the pieces at the front that are in memory; returns their number. For engines that send
    /// without copying and then confirm.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let chunks = self.unsent.iter().flat_map(|unsent| &unsent.chunks);
        let mut n = 0;
        for (slot, chunk) in into.iter_mut().zip(chunks.take_while(|chunk| chunk.is_in_memory())) {
            *slot = IoSlice::new(chunk.as_slice());
            n += 1;
        }
        n
    }

    /// The content if it is one piece in memory, which most responses are.
    #[inline]
    pub fn only_slice(&self) -> Option<&[u8]> {
        let chunks = &self.unsent.as_ref()?.chunks;
        let only = chunks.front().filter(|front| chunks.len() == 1 && front.is_in_memory())?;
        Some(only.as_slice())
    }

    /// Takes up to `most` of what is in memory, or one part of a file, for an operation that owns it until its
    /// completion; with [`FileSending::Among`] a part of a file may have up to `most` on each side. A piece that is too
    /// long is cut, without a copy.
    pub fn take(&mut self, most: TakeLimits, files: FileSending) -> Pieces {
        let pieces = self.take_some(most, files);
        self.give_back();
        pieces
    }

    fn take_some(&mut self, most: TakeLimits, files: FileSending) -> Pieces {
        let pieces = self.take_alike(most);
        if files != FileSending::Among {
            return pieces;
        }
        let (head, range) = match pieces {
            Pieces::File { range, .. } => (Vec::new(), range),
            memory => match self.pop_file() {
                Some(range) => (memory.into_vec(), range),
                None => return memory,
            },
        };
        let mut room = most.bytes;
        let tail = std::iter::from_fn(|| self.pop_memory(&mut room)).take(most.pieces).collect();
        Pieces::File { head, range, tail }
    }

    /// Takes everything into an empty queue, which the caller sends from and confirms to.
    pub(crate) fn take_all(&mut self, into: &mut Self) {
        let bytes = self.unsent.as_ref().map_or(0, |unsent| unsent.bytes);
        std::mem::swap(&mut self.unsent, &mut into.unsent);
        self.in_flight += bytes;
    }

    /// Takes pieces in memory, or one part of a file.
    fn take_alike(&mut self, most: TakeLimits) -> Pieces {
        if let Some(range) = self.pop_file() {
            return Pieces::File { head: Vec::new(), range, tail: Vec::new() };
        }
        debug_assert!(self.next_spliced().is_none(), "engines that take pieces are given no pipes");
        let mut room = most.bytes;
        let first = self.pop_memory(&mut room).unwrap_or_default();
        if most.pieces <= 1 || room == 0 || !self.front().is_some_and(Chunk::is_in_memory) {
            return Pieces::One(first);
        }
        let behind = self.unsent.as_ref().map_or(0, |unsent| unsent.chunks.len());
        let mut pieces = Vec::with_capacity(most.pieces.min(behind + 1));
        pieces.push(first);
        pieces.extend(std::iter::from_fn(|| self.pop_memory(&mut room)).take(most.pieces - 1));
        Pieces::Many(pieces)
    }

    /// The next piece, or so much of it as there is room for.
    fn pop_memory(&mut self, room: &mut usize) -> Option<Bytes> {
        if *room == 0 {
            return None;
        }
        let chunks = &mut self.unsent.as_mut()?.chunks;
        let mut piece = match chunks.pop_front()? {
            Chunk::Shared(bytes) => bytes,
            Chunk::Copied(bytes) => bytes.freeze(),
            other => {
                chunks.push_front(other);
                return None;
            }
        };
        if piece.len() > *room {
            chunks.push_front(Chunk::Shared(piece.split_off(*room)));
        }
        *room -= piece.len();
        self.hand_out(piece.len());
        Some(piece)
    }

    fn pop_file(&mut self) -> Option<FileRange> {
        self.next_file()?;
        let Some(Chunk::File(range)) = self.unsent.as_mut()?.chunks.pop_front() else { return None };
        self.hand_out(range.len());
        Some(range)
    }

    fn hand_out(&mut self, bytes: usize) {
        if let Some(unsent) = &mut self.unsent {
            unsent.bytes -= bytes;
        }
        self.in_flight += bytes;
    }

    /// Confirms `n` bytes: first those that were [taken](Self::take), otherwise from the front. The thread keeps the last
    /// buffer.
    pub(crate) fn confirm(&mut self, n: usize) {
        let also_of_the_list = n > self.in_flight;
        self.remove(n, spare_buffer::keep);
        if also_of_the_list {
            self.give_back();
        }
    }

    /// The same where the thread may be the connection's own, which keeps no buffer while that is idle. A short list
    /// stays for what is [taken](Self::take_all) next.
    pub(crate) fn confirm_and_free(&mut self, n: usize) {
        self.remove(n, drop);
        let _ = self.unsent.take_if(|unsent| unsent.chunks.is_empty() && spare_list::is_long(unsent));
    }

    #[inline]
    fn remove(&mut self, n: usize, sent_whole: impl Fn(BytesMut)) {
        let flown = n.min(self.in_flight);
        self.in_flight -= flown;
        let Some(unsent) = &mut self.unsent else { return };
        let mut n = (n - flown).min(unsent.bytes);
        unsent.bytes -= n;
        while n > 0 {
            let Some(front) = unsent.chunks.front_mut() else { return };
            let length = front.len();
            if n < length {
                front.advance(n);
                return;
            }
            n -= length;
            if let Some(Chunk::Copied(sent)) = unsent.chunks.pop_front() {
                sent_whole(sent);
            }
        }
    }

    /// Drops everything that was not taken.
    pub(super) fn clear(&mut self) {
        self.unsent = None;
    }
}

/// Appends a copy of the pieces, which have so many bytes, in buffers of at most [`COPY_BYTES`]: a peer that takes a
/// long answer slowly frees each as it goes.
fn push_buffers<'a>(chunks: &mut VecDeque<Chunk>, mut bytes: usize, pieces: impl Iterator<Item = &'a [u8]>) {
    let mut buffer = spare_buffer::take(bytes.min(COPY_BYTES));
    for mut piece in pieces {
        while buffer.len() + piece.len() > COPY_BYTES {
            let (fits, later) = piece.split_at(COPY_BYTES - buffer.len());
            buffer.extend_from_slice(fits);
            piece = later;
            bytes -= buffer.len();
            let next = spare_buffer::take(bytes.min(COPY_BYTES));
            chunks.push_back(Chunk::Copied(std::mem::replace(&mut buffer, next)));
        }
        buffer.extend_from_slice(piece);
    }
    chunks.push_back(Chunk::Copied(buffer));
}

/// What one operation may have of what is in memory.
#[derive(Clone, Copy, Debug)]
pub struct TakeLimits {
    /// Pieces.
    pub pieces: usize,
    /// Bytes.
    pub bytes: usize,
}

/// How an engine sends parts of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSending {
    /// Reads them, and sends the bytes.
    Read,
    /// Sends each by itself.
    Alone,
    /// Sends them together with the bytes before and after them.
    Among,
}

/// The result of [`SendQueue::take`].
#[derive(Debug)]
pub enum Pieces {
    /// One piece.
    One(Bytes),
    /// Several, in order.
    Many(Vec<Bytes>),
    /// A part of a file; with the pieces around it, if [`FileSending::Among`] is set.
    File {
        /// Pieces before it.
        head: Vec<Bytes>,
        /// The part.
        range: FileRange,
        /// Pieces after it.
        tail: Vec<Bytes>,
    },
}

impl Pieces {
    /// The pieces that are in memory; before a file, if there is one.
    fn into_vec(self) -> Vec<Bytes> {
        match self {
            Self::One(piece) => vec![piece],
            Self::Many(pieces) | Self::File { head: pieces, .. } => pieces,
        }
    }
}

#[cfg(test)]
mod tests;
