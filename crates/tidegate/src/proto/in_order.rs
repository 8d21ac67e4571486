//! Operations of one kind on one connection: posted in one order, completed in any, and followed up in the first.

use crate::policy::sends::MOST_POSTED;

/// The number of an operation in the order in which they were posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence(u8);

/// They are counted modulo this: none is taken for another.
const SEQUENCES: u8 = 64;

const _: () = assert!(MOST_POSTED < SEQUENCES as usize);

impl Sequence {
    /// Bits of [`to_bits`](Self::to_bits) that may be set.
    pub const BITS: u32 = SEQUENCES.trailing_zeros();

    /// As a number, for the key of an operation.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.into()
    }

    /// From a key; higher bits are left out.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self((bits % u64::from(SEQUENCES)) as u8)
    }
}

/// Outcomes of operations that completed before an earlier one.
pub type Early<T> = Vec<(Sequence, T)>;

/// The operations of one kind on one connection that were posted and not followed up. The outcomes of those that
/// completed too early are kept elsewhere: few connections have any.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceWindow {
    /// The number of the next to be followed up.
    due: Sequence,
    /// How many were not followed up.
    pending: u8,
    /// How many of those have completed.
    early: u8,
}

impl SequenceWindow {
    /// One more is posted; its number.
    #[inline]
    pub fn begin(&mut self) -> Sequence {
        let sequence = Sequence((self.due.0 + self.pending) % SEQUENCES);
        self.pending += 1;
        sequence
    }

    /// Operations that were not followed up yet.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.into()
    }

    /// Operations that have not completed.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> usize {
        usize::from(self.pending - self.early)
    }

    /// One has completed, with this number or, where there is one at most, with none. Its outcome, if it is to be
    /// followed up now; more may be [due](Self::take_due) after it.
    #[inline]
    pub fn complete<'a, T: 'a>(
        &mut self,
        sequence: Option<Sequence>,
        outcome: T,
        early: impl FnOnce() -> &'a mut Early<T>,
    ) -> Option<T> {
        match sequence {
            Some(sequence) if sequence != self.due => {
                early().push((sequence, outcome));
                self.early += 1;
                None
            }
            _ => {
                self.follow_up();
                Some(outcome)
            }
        }
    }

    #[inline]
    fn follow_up(&mut self) {
        self.due = Sequence((self.due.0 + 1) % SEQUENCES);
        self.pending -= 1;
    }

    /// The outcome that has waited for the one before it.
    #[inline]
    pub fn take_due<T>(&mut self, early: &mut Early<T>) -> Option<T> {
        let at = early.iter().position(|(sequence, _)| *sequence == self.due)?;
        let (_, outcome) = early.swap_remove(at);
        self.early -= 1;
        self.follow_up();
        Some(outcome)
    }
}

/// A [`SequenceWindow`] with its early outcomes.
#[derive(Debug)]
pub struct InOrder<T> {
    window: SequenceWindow,
    early: Early<T>,
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self { window: SequenceWindow::default(), early: Vec::new() }
    }
}

impl<T> InOrder<T> {
    /// See [`SequenceWindow::begin`].
    pub fn begin(&mut self) -> Sequence {
        self.window.begin()
    }

    /// See [`SequenceWindow::pending`].
    #[must_use]
    pub fn pending(&self) -> usize {
        self.window.pending()
    }

    /// See [`SequenceWindow::in_flight`].
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    /// See [`SequenceWindow::complete`].
    pub fn complete(&mut self, sequence: Option<Sequence>, outcome: T) -> Option<T> {
        self.window.complete(sequence, outcome, || &mut self.early)
    }

    /// See [`SequenceWindow::take_due`].
    pub fn take_due(&mut self) -> Option<T> {
        self.window.take_due(&mut self.early)
    }

    /// The outcomes that nobody follows up any more.
    pub fn abandon(&mut self) -> impl Iterator<Item = T> {
        std::mem::take(&mut self.early).into_iter().map(|(_, outcome)| outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_followed_up_in_the_order_of_their_operations_whatever_that_of_completion_is() {
        let mut order = InOrder::default();
        let mut done = Vec::new();
        for round in 0..50_u32 {
            let sequences: Vec<_> = (0..4).map(|n| (order.begin(), 4 * round + n)).collect();
            assert_eq!((order.pending(), order.in_flight()), (4, 4));
            for at in [[2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3]][round as usize % 3] {
                let (sequence, number) = sequences[at];
                let mut next = order.complete(Some(sequence), number);
                while let Some(number) = next {
                    done.push(number);
                    next = order.take_due();
                }
            }
            assert_eq!((order.pending(), order.in_flight()), (0, 0));
        }
        assert_eq!(done, (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn what_came_too_early_is_not_in_flight_and_not_lost() {
        let mut order = InOrder::default();
        let [first, second, third] = [order.begin(), order.begin(), order.begin()];
        assert_eq!(order.complete(Some(third), 3), None);
        assert_eq!(order.complete(Some(second), 2), None);
        assert_eq!((order.pending(), order.in_flight(), order.take_due()), (3, 1, None));
        assert_eq!(Sequence::from_bits(first.to_bits() | 1 << Sequence::BITS), first);
        let mut left: Vec<_> = order.abandon().collect();
        left.sort_unstable();
        assert_eq!(left, [2, 3]);
    }

    #[test]
    fn more_than_may_be_posted_have_different_turns() {
        let mut order = InOrder::<()>::default();
        let sequences: Vec<_> = (0..MOST_POSTED).map(|_| order.begin()).collect();
        assert!(sequences.iter().enumerate().all(|(at, sequence)| !sequences[..at].contains(sequence)));
        assert_eq!(order.pending(), MOST_POSTED);
    }
}
