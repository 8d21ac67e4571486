//! The timers of one connection.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::shared::Waiter;

/// When a timer is due, and a number that tells it from others of that time.
pub(crate) type DueAt = (Instant, u64);

/// The timers of one connection. Most have one or none, which needs no allocation: hyper sets and cancels one for each
/// request.
#[derive(Default)]
pub(crate) struct ConnectionTimers {
    /// Before all of `later`. None is there without it.
    first: Option<(DueAt, Waiter)>,
    later: BTreeMap<DueAt, Waiter>,
    count: u64,
}

impl ConnectionTimers {
    /// Sets a timer; returns its number.
    pub(crate) fn add(&mut self, at: Instant, waiter: Waiter) -> u64 {
        self.count += 1;
        self.set((at, self.count), waiter);
        self.count
    }

    /// Sets the timer with this key; who has waited for it before.
    pub(crate) fn set(&mut self, key: DueAt, waiter: Waiter) -> Option<Waiter> {
        let Some((first, waits)) = &mut self.first else {
            self.first = Some((key, waiter));
            return None;
        };
        if *first == key {
            return Some(std::mem::replace(waits, waiter));
        }
        if *first < key {
            return self.later.insert(key, waiter);
        }
        let (key, waiter) = self.first.replace((key, waiter))?;
        self.later.insert(key, waiter)
    }

    /// Removes a timer; who has waited for it, if it is there.
    pub(crate) fn remove(&mut self, key: DueAt) -> Option<Waiter> {
        if self.first.as_ref().is_some_and(|&(first, _)| first == key) {
            self.pop()
        } else {
            self.later.remove(&key)
        }
    }

    /// When the first one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.first.as_ref().map(|&((at, _), _)| at)
    }

    /// Removes those that are due; who waits for them.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Waiter> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            due.extend(self.pop());
        }
        due
    }

    /// Who waits for any of them.
    pub(crate) fn into_waiters(self) -> impl Iterator<Item = Waiter> {
        self.first.map(|(_, waiter)| waiter).into_iter().chain(self.later.into_values())
    }

    fn pop(&mut self) -> Option<Waiter> {
        std::mem::replace(&mut self.first, self.later.pop_first()).map(|(_, waiter)| waiter)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn they_are_due_in_order_however_they_were_set_and_removed() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timers = ConnectionTimers::default();
        let ids: Vec<_> =
            [30, 10, 20, 10].map(|ms| (after(ms), timers.add(after(ms), Waiter::Session))).into();
        assert_eq!(timers.next(), Some(after(10)));
        assert!(timers.set(ids[2], Waiter::Session).is_some(), "it was there");
        assert!(timers.remove(ids[1]).is_some() && timers.remove(ids[1]).is_none());
        assert_eq!((timers.next(), timers.take_due(after(9)).len()), (Some(after(10)), 0));
        assert_eq!((timers.take_due(after(20)).len(), timers.next()), (2, Some(after(30))));
        assert!(timers.set((after(5), 9), Waiter::Session).is_none() && timers.next() == Some(after(5)));
        assert_eq!(timers.into_waiters().count(), 2);
    }
}
