//! A message: a number, two times, and a filling that is the same in all of them.
//!
//! | bytes | what |
//! |---|---|
//! | 0–7 | number, counted from 0 in each flow |
//! | 8–15 | when it was due, in nanoseconds from the begin of the run |
//! | 16–23 | when it left |
//! | 24– | the filling |
//!
//! Little-endian. Who receives it needs none of that: it is sent back as it is.

/// Bytes of number and times.
pub const HEAD_BYTES: usize = 24;

/// What is in front of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    pub(super) number: u64,
    pub(super) due_ns: u64,
    pub(super) left_ns: u64,
}

/// A block of messages of one size, to be sent from its front.
pub(super) struct Block {
    bytes: Vec<u8>,
    size: usize,
}

impl Block {
    pub(super) fn new(messages: usize, size: usize) -> Self {
        let bytes = (0..messages * size).map(|at| filling(at % size)).collect();
        Self { bytes, size }
    }

    /// Writes the heads of the first messages; returns their bytes.
    pub(super) fn fill(&mut self, heads: impl Iterator<Item = MessageHeader>) -> &[u8] {
        let mut filled = 0;
        for (message, head) in self.bytes.chunks_exact_mut(self.size).zip(heads) {
            message[..8].copy_from_slice(&head.number.to_le_bytes());
            message[8..16].copy_from_slice(&head.due_ns.to_le_bytes());
            message[16..HEAD_BYTES].copy_from_slice(&head.left_ns.to_le_bytes());
            filled += self.size;
        }
        &self.bytes[..filled]
    }

    /// What was received, if it is a message of this size with the right filling.
    pub(super) fn read(&self, message: &[u8]) -> Option<MessageHeader> {
        if message.len() != self.size || message[HEAD_BYTES..] != self.bytes[HEAD_BYTES..self.size] {
            return None;
        }
        let number = |at: usize| message[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
        Some(MessageHeader { number: number(0), due_ns: number(8), left_ns: number(16) })
    }
}

fn filling(at: usize) -> u8 {
    (at % 251) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_was_changed_is_noticed() {
        let mut block = Block::new(3, 40);
        let head = |number| MessageHeader { number, due_ns: 5, left_ns: u64::MAX };
        let bytes = block.fill((7..9).map(head)).to_vec();
        assert_eq!(bytes.len(), 80);
        assert_eq!((block.read(&bytes[..40]), block.read(&bytes[40..])), (Some(head(7)), Some(head(8))));
        let mut changed = bytes[..40].to_vec();
        changed[39] ^= 1;
        assert_eq!(block.read(&changed), None);
        assert_eq!((block.read(&bytes[..39]), block.read(&bytes[..41]), block.read(&[])), (None, None, None));
    }
}
