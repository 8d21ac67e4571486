//! All connections of one thread, under tokens that are never reused.

use super::segments::Segments;

/// Identifies one entry of a [`Table`]. A later entry in the same slot has another generation, so a late event,
/// completion or mail for a closed connection finds nothing instead of another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// Slot in the table.
    pub index: u32,
    /// How often the slot was used before.
    pub generation: u32,
}

impl Token {
    /// Packs it into one number, for a kernel interface that carries one.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Unpacks a number made by [`to_u64`](Self::to_u64).
    #[must_use]
    pub fn from_u64(n: u64) -> Self {
        Self { index: n as u32, generation: (n >> 32) as u32 }
    }
}

/// Generations stay below this, so that the highest bits of a token's number are free for other use.
const GENERATIONS: u32 = 1 << 24;

enum TableSlot<T> {
    Taken(T),
    /// Free; contains the next free slot, or `NONE`.
    Free(u32),
}

const NONE: u32 = u32::MAX;

/// A slab with generations: insert, look up and remove in constant time; slots are reused, last freed first. Growth
/// moves nothing.
pub struct Table<T> {
    slots: Segments<(u32, TableSlot<T>)>,
    free: u32,
    len: usize,
}

impl<T> std::fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Segments::default(), free: NONE, len: 0 }
    }
}

impl<T> Table<T> {
    /// Inserts a value and returns its token.
    ///
    /// # Panics
    /// With more than 2^32 - 1 entries, which no policy permits.
    pub fn insert(&mut self, value: T) -> Token {
        self.len += 1;
        if self.free == NONE {
            let index = u32::try_from(self.slots.len()).ok().filter(|&i| i != NONE).expect("a full table");
            self.slots.push((0, TableSlot::Taken(value)));
            return Token { index, generation: 0 };
        }
        let index = self.free;
        let (generation, slot) = &mut self.slots[index as usize];
        if let TableSlot::Free(next) = std::mem::replace(slot, TableSlot::Taken(value)) {
            self.free = next;
        }
        Token { index, generation: *generation }
    }

    /// The token the next [`insert`](Self::insert) will return.
    #[must_use]
    pub fn next_token(&self) -> Token {
        match self.slots.get(self.free as usize) {
            Some((generation, _)) => Token { index: self.free, generation: *generation },
            None => Token { index: self.slots.len() as u32, generation: 0 },
        }
    }

    /// The value under a token, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        match self.slots.get_mut(token.index as usize) {
            Some((generation, TableSlot::Taken(value))) if *generation == token.generation => Some(value),
            _ => None,
        }
    }

    /// The token of an occupied slot.
    #[must_use]
    pub fn token_at(&self, index: u32) -> Option<Token> {
        match self.slots.get(index as usize) {
            Some((generation, TableSlot::Taken(_))) => Some(Token { index, generation: *generation }),
            _ => None,
        }
    }

    /// Removes the value with this token.
    pub fn remove(&mut self, token: Token) -> Option<T> {
        self.get_mut(token)?;
        let (generation, slot) = &mut self.slots[token.index as usize];
        *generation = (*generation + 1) % GENERATIONS;
        let taken = std::mem::replace(slot, TableSlot::Free(self.free));
        self.free = token.index;
        self.len -= 1;
        match taken {
            TableSlot::Taken(value) => Some(value),
            TableSlot::Free(_) => None,
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens of all entries.
    #[must_use]
    pub fn tokens(&self) -> Vec<Token> {
        (0..self.slots.len() as u32).filter_map(|index| self.token_at(index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_a_removed_entry_finds_nothing_even_when_the_place_is_taken_again() {
        let mut table = Table::default();
        let first = table.insert("a");
        assert_eq!(table.remove(first), Some("a"));
        let second = table.insert("b");
        assert_eq!(first.index, second.index);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get_mut(second), Some(&mut "b"));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn tokens_survive_the_way_through_a_number() {
        let token = Token { index: 77, generation: 5 };
        assert_eq!(Token::from_u64(token.to_u64()), token);
    }
}
