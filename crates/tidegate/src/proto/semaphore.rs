//! A bounded number of places, given out first in, first out.

use std::collections::VecDeque;

use super::Token;

/// Where one connection stands with a [`FairSemaphore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PermitState {
    /// It has asked for nothing.
    #[default]
    Outside,
    /// It is in the queue.
    Waiting,
    /// It has a place.
    Inside,
}

/// A bounded number of places. Without a bound it costs one comparison.
#[derive(Debug)]
pub struct FairSemaphore {
    /// `usize::MAX` is no bound.
    places: usize,
    taken: usize,
    waiting: VecDeque<Token>,
}

impl FairSemaphore {
    /// With so many places; `None` is without bound.
    #[must_use]
    pub fn new(places: Option<usize>) -> Self {
        Self { places: places.unwrap_or(usize::MAX), taken: 0, waiting: VecDeque::new() }
    }

    /// Whether there is a bound at all.
    #[inline]
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.places != usize::MAX
    }

    /// Whether somebody waits for a place.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether somebody in this place has one, or could take one now.
    #[must_use]
    pub fn has_room_for(&self, place: PermitState) -> bool {
        match place {
            PermitState::Inside => true,
            PermitState::Outside => {
                !self.is_bounded() || (self.taken < self.places && self.waiting.is_empty())
            }
            PermitState::Waiting => false,
        }
    }

    /// Takes a place if one is free and nobody came before, else queues; whether the connection has a place now.
    #[inline]
    pub fn enter(&mut self, token: Token, place: &mut PermitState) -> bool {
        if !self.is_bounded() {
            return true;
        }
        if *place == PermitState::Outside {
            *place = if self.taken < self.places && self.waiting.is_empty() {
                self.taken += 1;
                PermitState::Inside
            } else {
                self.waiting.push_back(token);
                PermitState::Waiting
            };
        }
        *place == PermitState::Inside
    }

    /// Gives a place back, if there was one. Who waited is left in the queue, and skipped when its turn comes.
    #[inline]
    pub fn leave(&mut self, place: &mut PermitState) {
        if std::mem::take(place) == PermitState::Inside {
            self.taken -= 1;
        }
    }

    /// The next that may come in. The caller confirms with [`admit`](Self::admit) that it is still waiting.
    pub fn pop_next(&mut self) -> Option<Token> {
        if self.taken < self.places { self.waiting.pop_front() } else { None }
    }

    /// Gives a place to one that [`pop_next`](Self::pop_next) named; whether it was still waiting.
    pub fn admit(&mut self, place: &mut PermitState) -> bool {
        if *place != PermitState::Waiting {
            return false;
        }
        *place = PermitState::Inside;
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
        let mut window = FairSemaphore::new(Some(2));
        let mut places = [PermitState::Outside; 4];
        let inside: Vec<bool> = (0..4).map(|i| window.enter(token(i as u32), &mut places[i])).collect();
        assert_eq!(inside, [true, true, false, false]);
        assert_eq!(window.pop_next(), None);
        window.leave(&mut places[0]);
        assert!(!window.enter(token(0), &mut places[0]), "others came first");
        assert_eq!(window.pop_next(), Some(token(2)));
        assert!(window.admit(&mut places[2]));
        assert_eq!(window.pop_next(), None);
    }

    #[test]
    fn one_that_went_while_it_waited_is_skipped() {
        let mut window = FairSemaphore::new(Some(1));
        let (mut first, mut second) = (PermitState::Outside, PermitState::Outside);
        window.enter(token(1), &mut first);
        window.enter(token(2), &mut second);
        window.leave(&mut second);
        window.leave(&mut first);
        assert_eq!(window.pop_next(), Some(token(2)));
        assert!(!window.admit(&mut second));
        assert!(window.pop_next().is_none());
        assert!(window.enter(token(3), &mut first));
    }

    #[test]
    fn without_a_bound_everybody_is_in() {
        let mut window = FairSemaphore::new(None);
        let mut place = PermitState::Outside;
        assert!(window.enter(token(1), &mut place) && place == PermitState::Outside);
    }
}
