//! The list that a thread has last emptied. Most answers are taken before the next is made, so a thread uses one over
//! and over, and a connection that rests has none.

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
