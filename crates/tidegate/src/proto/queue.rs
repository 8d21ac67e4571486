//! The unsent bytes of one connection: in memory, shared or copied, in files, and in pipes.

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

/// The buffer that a thread has sent last. Most answers are sent whole before the next is made, so a thread uses one
/// over and over: above a kilobyte the allocator takes longer for a new one than the copy into it.
mod spare_buffer {
    use std::cell::Cell;

    use bytes::BytesMut;

    use super::JOIN_BYTES;

    thread_local! {
        static SPARE: Cell<Option<BytesMut>> = const { Cell::new(None) };
    }

    /// Below this the allocator is as fast.
    const LEAST_BYTES: usize = 1024;

    /// A buffer with room for so many bytes, and at most a quarter more: a peer may be slow to take what lies in it.
    pub(super) fn take(bytes: usize) -> BytesMut {
        if bytes < LEAST_BYTES {
            return BytesMut::with_capacity(bytes);
        }
        let fits = |spare: &BytesMut| (bytes..=bytes + bytes / 4).contains(&spare.capacity());
        let spare = SPARE.try_with(Cell::take).ok().flatten().filter(fits);
        spare.unwrap_or_else(|| BytesMut::with_capacity(bytes))
    }

    /// Keeps a buffer for the next answer, if it is neither small nor large.
    pub(super) fn keep(mut sent: BytesMut) {
        sent.clear();
        let _ = sent.try_reclaim(sent.capacity() + 1); // what was sent in several steps counts as room again
        if (LEAST_BYTES..=JOIN_BYTES).contains(&sent.capacity()) {
            let _ = SPARE.try_with(|spare| spare.set(Some(sent))); // the thread ends
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

/// The list that a thread has last emptied. Most answers are taken before the next is made, so a thread uses one over
/// and over, and a connection that rests has none.
mod spare_list {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use super::UnsentChunks;

    thread_local! {
        static SPARE: Cell<Option<Box<UnsentChunks>>> = const { Cell::new(None) };
    }

    /// A longer list is not kept.
    const MOST_CHUNKS: usize = 64;

    pub(super) fn take() -> Box<UnsentChunks> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.unwrap_or_else(|| Box::new(UnsentChunks { chunks: VecDeque::with_capacity(1), bytes: 0 }))
    }

    /// Whether it would not be kept.
    pub(super) fn is_long(list: &UnsentChunks) -> bool {
        list.chunks.capacity() > MOST_CHUNKS
    }

    pub(super) fn keep(empty: Box<UnsentChunks>) {
        if !is_long(&empty) {
            let _ = SPARE.try_with(|spare| spare.set(Some(empty))); // the thread ends
        }
    }
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

    /// Takes at most `most` pieces, or one part of a file, for an operation that owns them until its completion; with
    /// [`FileSending::Among`] a part of a file may have up to this many pieces on each side.
    pub fn take(&mut self, most: usize, files: FileSending) -> Pieces {
        let pieces = self.take_some(most, files);
        self.give_back();
        pieces
    }

    fn take_some(&mut self, most: usize, files: FileSending) -> Pieces {
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
        let tail = std::iter::from_fn(|| self.pop_memory()).take(most).collect();
        Pieces::File { head, range, tail }
    }

    /// Takes everything into an empty queue, which the caller sends from and confirms to.
    pub(crate) fn take_all(&mut self, into: &mut Self) {
        let bytes = self.unsent.as_ref().map_or(0, |unsent| unsent.bytes);
        std::mem::swap(&mut self.unsent, &mut into.unsent);
        self.in_flight += bytes;
    }

    /// Takes pieces in memory, or one part of a file.
    fn take_alike(&mut self, most: usize) -> Pieces {
        if let Some(range) = self.pop_file() {
            return Pieces::File { head: Vec::new(), range, tail: Vec::new() };
        }
        debug_assert!(self.next_spliced().is_none(), "engines that take pieces are given no pipes");
        let first = self.pop_memory().unwrap_or_default();
        if most <= 1 || !self.front().is_some_and(Chunk::is_in_memory) {
            return Pieces::One(first);
        }
        let behind = self.unsent.as_ref().map_or(0, |unsent| unsent.chunks.len());
        let mut pieces = Vec::with_capacity(most.min(behind + 1));
        pieces.push(first);
        pieces.extend(std::iter::from_fn(|| self.pop_memory()).take(most - 1));
        Pieces::Many(pieces)
    }

    fn pop_memory(&mut self) -> Option<Bytes> {
        let chunks = &mut self.unsent.as_mut()?.chunks;
        let piece = match chunks.pop_front()? {
            Chunk::Shared(bytes) => bytes,
            Chunk::Copied(bytes) => bytes.freeze(),
            other => {
                chunks.push_front(other);
                return None;
            }
        };
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
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;

    fn content(queue: &SendQueue) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let n = queue.slices(&mut slices);
        slices[..n].iter().flat_map(|s| s.iter().copied()).collect()
    }

    #[test]
    fn pieces_leave_in_order_whatever_the_steps() {
        let mut queue = SendQueue::default();
        queue.push_copy(b"ab");
        queue.push_copy(b"cd");
        queue.push_shared(Bytes::from_static(b"efg"));
        queue.push_copy(b"h");
        assert_eq!(content(&queue), b"abcdefgh");
        let mut left = b"abcdefgh".to_vec();
        for step in [1, 3, 2, 2] {
            queue.confirm(step);
            left.drain(..step);
            assert_eq!(content(&queue), left);
            assert_eq!(queue.len(), left.len());
        }
        assert!(queue.is_empty() && queue.unsent.is_none());
    }

    #[test]
    fn pieces_that_are_written_together_are_one_chunk() {
        let mut queue = SendQueue::default();
        let (head, body) = (vec![b'h'; 150], vec![b'b'; 4096]);
        queue.push_copies([&head[..], &[], &body].into_iter());
        assert_eq!(queue.only_slice(), Some([head, body].concat().as_slice()));
        queue.push_copies([&b"x"[..], b"y"].into_iter());
        assert_eq!(
            (queue.only_slice().map(|all| all.len()), queue.len()),
            (Some(4248), 4248),
            "they are joined"
        );
        queue.push_copies([&[0; JOIN_BYTES][..], b"z"].into_iter());
        assert_eq!((queue.only_slice(), queue.len()), (None, 4248 + JOIN_BYTES + 1));
        queue.confirm(4248);
        assert_eq!(queue.only_slice().map(|all| all.len()), Some(JOIN_BYTES + 1));
        queue.push_copies([&[][..]].into_iter());
        assert_eq!(queue.len(), JOIN_BYTES + 1);
    }

    #[test]
    fn a_long_copy_is_freed_as_the_peer_takes_it() {
        let all: Vec<u8> = (0..3 * COPY_BYTES + 5).map(|at| (at % 251) as u8).collect();
        let (head, body) = all.split_at(7);
        let mut queue = SendQueue::default();
        queue.push_copies([head, body, &[]].into_iter());
        assert_eq!((content(&queue), queue.len()), (all.clone(), all.len()));
        let mut slices = [IoSlice::new(&[]); 16];
        let n = queue.slices(&mut slices);
        let lengths: Vec<usize> = slices[..n].iter().map(|slice| slice.len()).collect();
        assert_eq!(lengths, [COPY_BYTES, COPY_BYTES, COPY_BYTES, 5]);
        queue.confirm(3 * COPY_BYTES);
        assert_eq!(queue.only_slice(), Some(&all[3 * COPY_BYTES..]));
        let mut queue = SendQueue::default();
        queue.push_copies([&body[..COPY_BYTES - 7], head].into_iter());
        assert_eq!(queue.only_slice().map(<[u8]>::len), Some(COPY_BYTES), "no empty one behind it");
    }

    #[test]
    fn a_buffer_has_room_for_at_most_a_quarter_more_than_is_in_it() {
        for step in [1, 9, 700, 5_000] {
            let mut queue = SendQueue::default();
            while queue.len() + step <= JOIN_BYTES {
                queue.push_copy(&vec![1; step]);
                let Some(Chunk::Copied(buffer)) = queue.front() else { panic!("a copy") };
                let most = buffer.len() + buffer.len() / 4;
                assert!((buffer.len()..=most).contains(&buffer.capacity()), "{step}: {}", buffer.capacity());
            }
            assert!(queue.only_slice().is_some_and(|all| all.len() == queue.len()), "{step}: joined");
        }
    }

    /// Appends so many bytes, has them sent, and returns where they lay.
    fn sent_from(bytes: usize) -> *const u8 {
        let mut queue = SendQueue::default();
        queue.push_copy(&vec![1; bytes]);
        let at = queue.only_slice().unwrap().as_ptr();
        queue.confirm(1);
        queue.confirm(bytes - 1);
        at
    }

    #[test]
    fn a_buffer_that_was_sent_is_used_again_for_what_nearly_fills_it() {
        let spare = || spare_buffer::take(1600).capacity();
        sent_from(2000);
        assert!(sent_from(1800) == sent_from(1600), "it went back each time");
        assert_eq!(spare(), 2000);
        sent_from(2001);
        assert_eq!(spare(), 1600, "too large for so few");
        sent_from(JOIN_BYTES + 1);
        assert_eq!(spare_buffer::take(JOIN_BYTES).capacity(), JOIN_BYTES, "a large one is not kept");
        sent_from(2000);
        sent_from(1000);
        assert_eq!(spare(), 2000, "a small one is not kept in its place");
    }

    #[test]
    fn a_thread_of_one_connection_keeps_no_buffer() {
        let leave = [
            |queue: &mut SendQueue| {
                let mut taken = SendQueue::default();
                queue.take_all(&mut taken);
                taken.confirm_and_free(2000);
            },
            |queue: &mut SendQueue| assert_eq!(queue.copy_into(&mut [0; 2000]).unwrap(), 2000),
        ];
        for leave in leave {
            let mut queue = SendQueue::default();
            queue.push_copy(&[1; 2000]);
            leave(&mut queue);
            assert_eq!(spare_buffer::take(1100).capacity(), 1100);
        }
    }

    /// Three bytes of memory, five of a file, and three more.
    fn with_a_file() -> SendQueue {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut queue = SendQueue::default();
        queue.push_copy(b"abc");
        queue.push_file(FileRange::new(Arc::new(file), 2, 5));
        queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 0));
        queue.push_copy(b"xyz");
        queue
    }

    #[test]
    fn a_part_of_a_file_is_handed_out_by_itself_and_in_its_place() {
        let mut queue = with_a_file();
        assert_eq!((queue.len(), content(&queue)), (11, b"abc".to_vec()));
        let take = |queue: &mut SendQueue| queue.take(9, FileSending::Alone);
        assert!(queue.next_file().is_none() && matches!(take(&mut queue), Pieces::One(b) if b == "abc"));
        assert!(queue.next_file().is_some_and(|range| range.len() == 5) && content(&queue).is_empty());
        let Pieces::File { head, range, tail } = take(&mut queue) else { panic!("a file") };
        assert_eq!((range.at(), range.len(), head.len(), tail.len()), (2, 5, 0, 0));
        assert!(matches!(take(&mut queue), Pieces::One(b) if b == "xyz"));
        queue.confirm(11);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_part_of_a_file_is_handed_out_among_the_bytes_around_it() {
        let mut queue = with_a_file();
        queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 4));
        let Pieces::File { head, range, tail } = queue.take(9, FileSending::Among) else { panic!("a file") };
        assert_eq!((head, range.len(), tail), (vec![Bytes::from("abc")], 5, vec![Bytes::from("xyz")]));
        assert_eq!((queue.len(), queue.in_flight), (15, 11));
        let Pieces::File { head, range, tail } = queue.take(9, FileSending::Among) else {
            panic!("the next")
        };
        assert_eq!((head.len(), range.len(), tail.len(), queue.has_unsent()), (0, 4, 0, false));
        queue.confirm(15);
        assert!(queue.is_empty());
        queue.push_copy(b"only bytes");
        assert!(matches!(queue.take(9, FileSending::Among), Pieces::One(b) if b == "only bytes"));
    }

    #[test]
    fn more_bytes_than_may_be_around_a_file_go_before_it() {
        let mut queue = SendQueue::default();
        ["a", "b", "c"].into_iter().for_each(|piece| queue.push_shared(Bytes::from_static(piece.as_bytes())));
        queue.push_file(FileRange::new(Arc::new(tempfile::tempfile().unwrap()), 0, 4));
        ["d", "e", "f"].into_iter().for_each(|piece| queue.push_shared(Bytes::from_static(piece.as_bytes())));
        assert!(matches!(queue.take(2, FileSending::Among), Pieces::Many(two) if two == ["a", "b"]));
        let Pieces::File { head, tail, .. } = queue.take(2, FileSending::Among) else { panic!("a file") };
        assert_eq!((head, tail), (vec![Bytes::from("c")], vec![Bytes::from("d"), Bytes::from("e")]));
        assert!(matches!(queue.take(2, FileSending::Among), Pieces::One(b) if b == "f"));
    }

    #[test]
    fn a_part_of_a_file_may_be_read_in_pieces() {
        let mut queue = with_a_file();
        queue.load(2).unwrap();
        assert_eq!(content(&queue), b"abc", "it is not next");
        queue.confirm(3);
        let mut all = Vec::new();
        while queue.has_unsent() {
            queue.load(2).unwrap();
            let piece = content(&queue);
            queue.confirm(1);
            all.push(piece[0]);
        }
        assert_eq!((all.as_slice(), queue.len()), (&b"23456xyz"[..], 0));
        let (mut queue, mut all) = (with_a_file(), [0; 20]);
        assert_eq!((queue.copy_into(&mut all).unwrap(), &all[..11]), (11, &b"abc23456xyz"[..]));
    }

    #[test]
    fn taken_pieces_count_until_they_are_confirmed() {
        let mut queue = SendQueue::default();
        queue.push_shared(Bytes::from_static(b"one"));
        queue.push_shared(Bytes::from_static(b"two"));
        queue.push_shared(Bytes::from_static(b"three"));
        let Pieces::Many(taken) = queue.take(2, FileSending::Alone) else { panic!("two pieces") };
        assert_eq!(taken, ["one", "two"]);
        assert_eq!((queue.len(), queue.has_unsent()), (11, true));
        queue.confirm(6);
        assert_eq!(queue.len(), 5);
        assert!(matches!(queue.take(2, FileSending::Alone), Pieces::One(b) if b == "three"));
        assert_eq!((queue.len(), queue.has_unsent()), (5, false));
        queue.confirm(5);
        assert!(queue.is_empty());
    }
}
