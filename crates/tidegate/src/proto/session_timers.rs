//! The timers of one session: one without a key, and any number with keys.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::proto::session::Mail;

/// The timers of a session. Without keyed timers it costs a pointer for them.
#[derive(Debug, Default)]
pub(super) struct SessionTimers {
    /// The timer without a key.
    wake: Option<Instant>,
    keyed: Option<Box<Keyed>>,
}

/// Owner of a timer: the number of layers around it, and its key, so that keys of different layers do not collide. A
/// part of a session that does not know the session's keys (a link) has none: its timer is [`Mail::Wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerId {
    pub(super) layer: u32,
    pub(super) key: Option<u64>,
}

/// When a timer is due, and a sequence number that orders timers with equal times.
type TimerKey = (Instant, u64);

#[derive(Debug, Default)]
struct Keyed {
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

impl SessionTimers {
    pub(super) fn wake_at(&mut self, when: Option<Instant>) {
        self.wake = when;
    }

    /// Sets a timer, replacing the one with the same key.
    pub(super) fn set(&mut self, id: TimerId, when: Instant) {
        let keyed = self.keyed.get_or_insert_default();
        keyed.count += 1;
        let due = (when, keyed.count);
        if let Some(before) = keyed.by_id.insert(id, due) {
            keyed.by_time.remove(&before);
        }
        keyed.by_time.insert(due, id);
    }

    /// Cancels a timer; `false` if there is none with this key.
    pub(super) fn cancel(&mut self, id: TimerId) -> bool {
        let Some(keyed) = &mut self.keyed else { return false };
        let due = keyed.by_id.remove(&id);
        due.is_some_and(|due| keyed.by_time.remove(&due).is_some())
    }

    /// When the first one is due.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        match &self.keyed {
            None => self.wake,
            Some(keyed) => [self.wake, keyed.next()].into_iter().flatten().min(),
        }
    }

    /// Removes the first one if it is due.
    pub(super) fn fire(&mut self, now: Instant) -> Option<Fired> {
        let at = self.next().filter(|&at| at <= now)?;
        if self.wake == Some(at) {
            self.wake = None;
            return Some(Fired { mail: Mail::Timer, layer: 0 });
        }
        let keyed = self.keyed.as_mut()?;
        let (_, id) = keyed.by_time.pop_first()?;
        keyed.by_id.remove(&id);
        Some(Fired { mail: id.key.map_or(Mail::Wake, Mail::KeyedTimer), layer: id.layer })
    }
}

impl Keyed {
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
    fn fired(timers: &mut SessionTimers, now: Instant) -> Vec<(u64, u32)> {
        let mut all = Vec::new();
        while let Some(Fired { mail, layer }) = timers.fire(now) {
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
        let mut timers = SessionTimers::default();
        for (key, ms) in [(5, 20), (4, 10), (3, 20), (2, 30), (1, 10)] {
            timers.set(id(key), after(ms));
        }
        timers.wake_at(Some(after(20)));
        assert_eq!((timers.next(), fired(&mut timers, after(9))), (Some(after(10)), vec![]));
        assert_eq!(fired(&mut timers, after(29)), [(4, 0), (1, 0), (0, 0), (5, 0), (3, 0)]);
        assert_eq!(timers.next(), Some(after(30)));
        assert_eq!((fired(&mut timers, after(30)), timers.next()), (vec![(2, 0)], None));
    }

    #[test]
    fn a_later_call_replaces_one_and_what_was_taken_back_never_fires() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut timers = SessionTimers::default();
        assert!(!timers.cancel(id(1)));
        timers.set(id(1), after(10));
        timers.set(id(1), after(30));
        timers.set(id(2), after(20));
        timers.set(id(3), after(15));
        assert!(timers.cancel(id(3)) && !timers.cancel(id(3)));
        assert_eq!(fired(&mut timers, after(19)), []);
        assert_eq!(fired(&mut timers, after(40)), [(2, 0), (1, 0)]);
        let keyed = timers.keyed.unwrap();
        assert!(keyed.by_time.is_empty() && keyed.by_id.is_empty());
    }

    #[test]
    fn a_layer_and_the_session_inside_have_keys_of_their_own() {
        let start = Instant::now();
        let mut timers = SessionTimers::default();
        let inside = TimerId { layer: 1, key: Some(7) };
        timers.set(inside, start);
        timers.set(id(7), start);
        timers.set(id(8), start);
        assert!(timers.cancel(id(8)));
        assert_eq!(fired(&mut timers, start), [(7, 1), (7, 0)]);
    }
}
