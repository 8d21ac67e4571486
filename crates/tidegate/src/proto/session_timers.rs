//! The timers of one session: one without a key, and any number with keys.

use std::collections::BTreeMap;
use std::time::Instant;

use super::outbox::SessionState;
use crate::proto::session::Mail;

/// Owner of a timer: the number of layers around it, and its key, so that keys of different layers do not collide. A
/// part of a session that does not know the session's keys (a link) has none: its timer is [`Mail::Wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerId {
    pub(super) layer: u32,
    pub(super) key: Option<u64>,
}

/// When a timer is due, and a sequence number that orders timers with equal times.
type TimerKey = (Instant, u64);

/// The timers with keys.
#[derive(Debug, Default)]
pub(super) struct KeyedTimers {
    by_time: BTreeMap<TimerKey, TimerId>,
    by_id: BTreeMap<TimerId, TimerKey>,
    /// Number of timers ever set.
    count: u64,
}

/// A timer that is due.
pub(super) struct Fired {
    pub(super) mail: Mail,
    /// Its owner.
    pub(super) layer: u32,
}

impl SessionState {
    /// Sets a timer, replacing the one with the same key.
    pub(super) fn set_timer(&mut self, id: TimerId, when: Instant) {
        let keyed = self.rare_mut().keyed.get_or_insert_default();
        keyed.count += 1;
        let due = (when, keyed.count);
        if let Some(before) = keyed.by_id.insert(id, due) {
            keyed.by_time.remove(&before);
        }
        keyed.by_time.insert(due, id);
    }

    /// Cancels a timer; `false` if there is none with this key.
    pub(super) fn cancel_timer(&mut self, id: TimerId) -> bool {
        let Some(keyed) = self.keyed() else { return false };
        let due = keyed.by_id.remove(&id);
        due.is_some_and(|due| keyed.by_time.remove(&due).is_some())
    }

    /// When the first one is due.
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let wake = self.wake.map(Instant::from);
        match &self.rare().keyed {
            None => wake,
            Some(keyed) => [wake, keyed.next()].into_iter().flatten().min(),
        }
    }

    /// Removes the first one if it is due.
    pub(super) fn fire_timer(&mut self, now: Instant) -> Option<Fired> {
        let at = self.next_timer().filter(|&at| at <= now)?;
        if self.wake == Some(at.into()) {
            self.wake = None;
            return Some(Fired { mail: Mail::Timer, layer: 0 });
        }
        let keyed = self.keyed()?;
        let (_, id) = keyed.by_time.pop_first()?;
        keyed.by_id.remove(&id);
        Some(Fired { mail: id.key.map_or(Mail::Wake, Mail::KeyedTimer), layer: id.layer })
    }

    fn keyed(&mut self) -> Option<&mut KeyedTimers> {
        self.rare.as_mut()?.keyed.as_deref_mut()
    }
}

impl KeyedTimers {
    fn next(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|(&(at, _), _)| at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn id(key: u64) -> TimerId {
        TimerId { layer: 0, key: Some(key) }
    }

    /// What fires by `now`: keys and layers; the timer without a key as 0.
    fn fired(timers: &mut SessionState, now: Instant) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        while let Some(Fired { mail, layer }) = timers.fire_timer(now) {
            match mail {
                Mail::KeyedTimer(key) => all.push((key, layer)),
                _ => all.push((0, layer)),
            }
        }
        all
    }

    #[test]
    fn they_fire_in_order_of_time_and_then_as_they_were_set() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timers = SessionState::default();
        for (key, ms) in [(5, 20), (4, 10), (3, 20), (2, 30), (1, 10)] {
            timers.set_timer(id(key), after(ms));
        }
        timers.wake = Some(after(20).into());
        assert_eq!((timers.next_timer(), fired(&mut timers, after(9))), (Some(after(10)), vec![]));
        assert_eq!(fired(&mut timers, after(29)), [(4, 0), (1, 0), (0, 0), (5, 0), (3, 0)]);
        assert_eq!(timers.next_timer(), Some(after(30)));
        assert_eq!((fired(&mut timers, after(30)), timers.next_timer()), (vec![(2, 0)], None));
    }

    #[test]
    fn a_later_call_replaces_one_and_what_was_taken_back_never_fires() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timers = SessionState::default();
        assert!(!timers.cancel_timer(id(1)));
        timers.set_timer(id(1), after(10));
        timers.set_timer(id(1), after(30));
        timers.set_timer(id(2), after(20));
        timers.set_timer(id(3), after(15));
        assert!(timers.cancel_timer(id(3)) && !timers.cancel_timer(id(3)));
        assert_eq!(fired(&mut timers, after(19)), []);
        assert_eq!(fired(&mut timers, after(40)), [(2, 0), (1, 0)]);
        let keyed = timers.keyed().unwrap();
        assert!(keyed.by_time.is_empty() && keyed.by_id.is_empty());
    }
}
