//! A fair semaphore: a bounded number of permits, first in, first out.

use std::collections::VecDeque;

use super::Token;

/// The state of one connection in a [`FairSemaphore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermitState {
    /// It has not asked.
    #[default]
    Outside,
    /// It is queued.
    Waiting,
    /// It has a permit.
    Inside,
}

/// A bounded number of permits. Without a bound it costs one comparison.
#[derive(Debug)]
pub struct FairSemaphore {
    /// `usize::MAX` means unbounded.
    permits: usize,
    taken: usize,
    waiting: VecDeque<Token>,
}

impl FairSemaphore {
    /// Creates one with this many permits; `None` is unbounded.
    #[must_use]
    pub fn new(permits: Option<usize>) -> Self {
        Self { permits: permits.unwrap_or(usize::MAX), taken: 0, waiting: VecDeque::new() }
    }

    /// Whether it is bounded.
    #[inline]
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.permits != usize::MAX
    }

    /// Whether the queue is not empty.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether more are queued than there are free permits.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        self.waiting.len() > self.permits - self.taken
    }

    /// Permits that are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether a connection in this state has a permit, or could take one now.
    #[must_use]
    pub fn has_room_for(&self, state: PermitState) -> bool {
        match state {
            PermitState::Inside => true,
            PermitState::Outside => {
                !self.is_bounded() || (self.taken < self.permits && self.waiting.is_empty())
            }
            PermitState::Waiting => false,
        }
    }

    /// Takes a permit if one is free and the queue is empty, otherwise queues; returns whether the connection has one.
    #[inline]
    pub fn enter(&mut self, token: Token, state: &mut PermitState) -> bool {
        if !self.is_bounded() {
            return true;
        }
        if *state == PermitState::Outside {
            *state = if self.taken < self.permits && self.waiting.is_empty() {
                self.taken += 1;
                PermitState::Inside
            } else {
                self.waiting.push_back(token);
                PermitState::Waiting
            };
        }
        *state == PermitState::Inside
    }

    /// Takes one more permit of a bounded number, for one that has a permit and does not wait for others; returns
    /// whether it did.
    #[inline]
    pub fn enter_again(&mut self) -> bool {
        let has_room = self.has_room_for(PermitState::Outside);
        self.taken += usize::from(has_room);
        has_room
    }

    /// Releases a permit taken by [`enter_again`](Self::enter_again).
    #[inline]
    pub fn leave_again(&mut self) {
        self.taken -= 1;
    }

    /// Releases a permit, if there is one. A queued connection stays in the queue and is skipped later.
    #[inline]
    pub fn leave(&mut self, state: &mut PermitState) {
        if std::mem::take(state) == PermitState::Inside {
            self.taken -= 1;
        }
    }

    /// The next in the queue. The caller confirms with [`admit`](Self::admit) that it is still waiting.
    pub fn pop_next(&mut self) -> Option<Token> {
        if self.taken < self.permits { self.waiting.pop_front() } else { None }
    }

    /// Gives a permit to the one that [`pop_next`](Self::pop_next) returned; returns whether it was still waiting.
    pub fn admit(&mut self, state: &mut PermitState) -> bool {
        if *state != PermitState::Waiting {
            return false;
        }
        *state = PermitState::Inside;
        self.taken += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(index: u32) -> Token {
        Token { index, generation: 0 }
    }

    #[test]
    fn places_go_to_who_came_first_and_never_to_more_than_there_are() {
        let mut semaphore = FairSemaphore::new(Some(2));
        let mut permits = [PermitState::Outside; 4];
        let inside: Vec<bool> = (0..4).map(|i| semaphore.enter(token(i as u32), &mut permits[i])).collect();
        assert_eq!(inside, [true, true, false, false]);
        assert_eq!(semaphore.pop_next(), None);
        semaphore.leave(&mut permits[0]);
        assert!(!semaphore.enter(token(0), &mut permits[0]), "others came first");
        assert_eq!(semaphore.pop_next(), Some(token(2)));
        assert!(semaphore.admit(&mut permits[2]));
        assert_eq!(semaphore.pop_next(), None);
    }

    #[test]
    fn one_that_went_while_it_waited_is_skipped() {
        let mut semaphore = FairSemaphore::new(Some(1));
        let (mut first, mut second) = (PermitState::Outside, PermitState::Outside);
        semaphore.enter(token(1), &mut first);
        semaphore.enter(token(2), &mut second);
        semaphore.leave(&mut second);
        semaphore.leave(&mut first);
        assert_eq!(semaphore.pop_next(), Some(token(2)));
        assert!(!semaphore.admit(&mut second));
        assert!(semaphore.pop_next().is_none());
        assert!(semaphore.enter(token(3), &mut first));
    }

    #[test]
    fn without_a_bound_everybody_is_in() {
        let mut semaphore = FairSemaphore::new(None);
        let mut state = PermitState::Outside;
        assert!(semaphore.enter(token(1), &mut state) && state == PermitState::Outside);
    }
}
