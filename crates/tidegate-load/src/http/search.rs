//! Looking for a text in a body that comes in pieces.

use bytes::Bytes;
use memchr::memmem;

/// Whether a text has been seen. Keeps no more of the body than one byte less than the text.
pub(super) struct Search {
    text: Bytes,
    /// The end of what was looked at: a beginning of the text may be in it.
    tail: Vec<u8>,
    found: bool,
}

impl Search {
    pub(super) fn new(text: Bytes) -> Self {
        Self { text, tail: Vec::new(), found: false }
    }

    /// Looks at the next piece.
    pub(super) fn feed(&mut self, piece: &[u8]) {
        if self.found || piece.is_empty() {
            return;
        }
        let keep = self.text.len().saturating_sub(1);
        // First across the seam, then in the piece itself, which is not copied.
        let across = piece.len().min(keep);
        self.tail.extend_from_slice(&piece[..across]);
        self.found =
            memmem::find(&self.tail, &self.text).is_some() || memmem::find(piece, &self.text).is_some();
        if piece.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            let surplus = self.tail.len().saturating_sub(keep);
            self.tail.drain(..surplus);
        }
    }

    /// The body is over: whether the text was in it. The next body begins.
    pub(super) fn finish(&mut self) -> bool {
        self.tail.clear();
        std::mem::take(&mut self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_whatever_the_pieces() {
        let body = b"abababcab and so on";
        for (text, within) in
            [("ababc", true), ("on", true), ("a", true), ("abd", false), ("onx", false), ("abababc", true)]
        {
            for piece in 1..=body.len() {
                let mut search = Search::new(Bytes::from_static(text.as_bytes()));
                body.chunks(piece).for_each(|piece| search.feed(piece));
                assert_eq!(search.finish(), within, "{text} in pieces of {piece}");
                search.feed(b"x");
                assert!(!search.finish(), "bodies do not run into one another");
            }
        }
    }
}
