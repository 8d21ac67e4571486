//! The buffer that a thread has sent last. Most answers are sent whole before the next is made, so a thread uses one
//! over and over: above a kilobyte the allocator takes longer for a new one than the copy into it.

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
