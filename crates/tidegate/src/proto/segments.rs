//! A list that grows without moving what is in it.

use std::ops::{Index, IndexMut};

/// Elements of one segment. Memory that was never written to is the kernel's, so the last segment costs what is in it.
const SEGMENT: usize = 1024;

/// A list in segments of equal size. A `Vec` that doubles copies all of it, and half of it may be empty.
pub(super) struct Segments<T>(Vec<Vec<T>>);

impl<T> Default for Segments<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Segments<T> {
    pub(super) fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * SEGMENT + last.len())
    }

    pub(super) fn push(&mut self, value: T) {
        match self.0.last_mut() {
            Some(last) if last.len() < SEGMENT => last.push(value),
            full => {
                // Few connections are no reason for a whole one.
                let mut next = if full.is_some() { Vec::with_capacity(SEGMENT) } else { Vec::new() };
                next.push(value);
                self.0.push(next);
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.0.get(index / SEGMENT)?.get(index % SEGMENT)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index / SEGMENT)?.get_mut(index % SEGMENT)
    }
}

impl<T> Index<usize> for Segments<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        &self.0[index / SEGMENT][index % SEGMENT]
    }
}

impl<T> IndexMut<usize> for Segments<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index / SEGMENT][index % SEGMENT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_it_keeps_its_place_when_it_grows() {
        let mut list = Segments::default();
        let most = 3 * SEGMENT + 1;
        for n in 0..most {
            assert_eq!(list.len(), n);
            list.push(n);
        }
        let first = &raw const list[0];
        let room: usize = list.0.iter().map(Vec::capacity).sum();
        assert_eq!((room, list.len()), (4 * SEGMENT, most));
        list.push(most);
        assert!(first == &raw const list[0]);
        list[SEGMENT] += 1;
        assert_eq!((list[SEGMENT], list.get(2 * SEGMENT - 1)), (SEGMENT + 1, Some(&(2 * SEGMENT - 1))));
        assert_eq!(list.get(most + 1), None);
        assert_eq!(list.get_mut(4 * SEGMENT), None);
    }
}
