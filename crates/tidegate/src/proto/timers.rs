//! Deadlines of all connections of a thread: a hierarchical timing wheel.
//!
//! Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (SOSP 1987). Seven levels of 64 slots
//! with a tick of 1/64 ms reach two years; arming, moving and disarming cost a constant.
//! Deadlines fire up to one tick late, never early. Limits are rounded up to whole milliseconds
//! ([`Resolution::Millisecond`]), so that a thread wakes once for all that are due in one.

use std::time::{Duration, Instant};

use super::segments::Segments;

const LEVELS: usize = 7;
const SLOTS: u64 = 64;
const TICKS_PER_MS: u64 = 64;
const TICK_NS: u64 = 1_000_000 / TICKS_PER_MS;
const TICKS_PER_SECOND: u64 = 1_000 * TICKS_PER_MS;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    previous: u32,
    next: u32,
    /// When it fires; 0 means not armed.
    tick: u64,
}

// Every connection with a deadline has one.
const _: () = assert!(size_of::<Node>() <= 16);

/// How exactly a deadline is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// To one tick, 1/64 ms: costs a separate wake-up.
    Tick,
    /// To a millisecond, shared with all others of it.
    Millisecond,
}

/// A timing wheel with one possible deadline for each slot of a [`Table`](super::Table).
pub struct Timers {
    base: Instant,
    /// Everything up to this tick has fired.
    done: u64,
    heads: [[u32; SLOTS as usize]; LEVELS],
    occupied: [u64; LEVELS],
    nodes: Segments<Node>,
}

impl std::fmt::Debug for Timers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timers").finish_non_exhaustive()
    }
}

impl Timers {
    /// An empty wheel whose time begins at `base`.
    #[must_use]
    pub fn new(base: Instant) -> Self {
        Self {
            base,
            done: 0,
            heads: [[NONE; SLOTS as usize]; LEVELS],
            occupied: [0; LEVELS],
            nodes: Segments::default(),
        }
    }

    /// Ensures that `index` fires at `when`, rounded up to the resolution, or earlier: a no-op if an earlier deadline
    /// is armed.
    ///
    /// So deadlines that move with every byte cost nothing: the wheel fires at the old time, the owner sees that its
    /// deadline has moved, and arms again.
    #[inline]
    pub fn arm_no_later(&mut self, index: u32, when: Instant, resolution: Resolution) {
        let tick = self.tick_of(when, resolution);
        if !self.fires_by(index, tick) {
            self.arm_tick(index, tick);
        }
    }

    /// Whether `index` fires at `tick` (see [`tick_of`](Self::tick_of)) or before.
    #[inline]
    #[must_use]
    pub fn fires_by(&self, index: u32, tick: u64) -> bool {
        self.nodes.get(index as usize).is_some_and(|node| node.tick != 0 && node.tick <= tick)
    }

    /// Disarms a deadline.
    #[inline]
    pub fn disarm(&mut self, index: u32) {
        if self.nodes.get(index as usize).is_some_and(|n| n.tick != 0) {
            self.unlink(index);
        }
    }

    /// Advances time and appends every slot whose deadline has passed to `fired`.
    pub fn advance(&mut self, now: Instant, fired: &mut Vec<u32>) {
        let until = whole_ticks(now.saturating_duration_since(self.base));
        while self.done < until {
            // Nothing is due before that: skip to it.
            let Some(next) = self.next_tick().filter(|&next| next <= until) else {
                self.done = until;
                return;
            };
            self.done = next;
            for level in 1..LEVELS {
                if !self.done.is_multiple_of(SLOTS.pow(level as u32)) {
                    break;
                }
                self.spread(level);
            }
            let slot = (self.done % SLOTS) as usize;
            while self.heads[0][slot] != NONE {
                let index = self.heads[0][slot];
                self.unlink(index);
                fired.push(index);
            }
        }
    }

    /// How long a thread may sleep from `now` before it must check the timers; `None` means forever.
    #[must_use]
    pub fn sleep(&self, now: Instant) -> Option<Duration> {
        let tick = self.next_tick()?;
        let when = self.base + Duration::from_nanos(tick.saturating_mul(TICK_NS));
        Some(when.saturating_duration_since(now))
    }

    /// The first tick at which something fires or moves to a finer level.
    fn next_tick(&self) -> Option<u64> {
        (0..LEVELS).filter(|&level| self.occupied[level] != 0).map(|level| self.next_of(level)).min()
    }

    fn next_of(&self, level: usize) -> u64 {
        let unit = SLOTS.pow(level as u32);
        let current = self.done / unit;
        // Slots are visited from the one after the current; the current one is last, one rotation later.
        let start = (current + 1) % SLOTS;
        let ahead = self.occupied[level].rotate_right(start as u32).trailing_zeros();
        (current + 1 + u64::from(ahead)) * unit
    }

    /// The tick, counted from the base, at which a deadline at `when` fires.
    #[inline]
    #[must_use]
    pub fn tick_of(&self, when: Instant, resolution: Resolution) -> u64 {
        // Divisions of 128 bits are calls. A time that is five centuries ahead is never.
        let ahead_ns =
            u64::try_from(when.saturating_duration_since(self.base).as_nanos()).unwrap_or(u64::MAX);
        let ticks = match resolution {
            Resolution::Tick => ahead_ns.div_ceil(TICK_NS),
            Resolution::Millisecond => ahead_ns.div_ceil(1_000_000).saturating_mul(TICKS_PER_MS),
        };
        ticks.max(self.done + 1)
    }

    fn arm_tick(&mut self, index: u32, tick: u64) {
        let at = index as usize;
        while self.nodes.len() <= at {
            self.nodes.push(Node { previous: NONE, next: NONE, tick: 0 });
        }
        if self.nodes[at].tick != 0 {
            self.unlink(index);
        }
        self.nodes[at].tick = tick;
        self.link(index);
    }

    /// Level and slot of a tick, relative to `done`. Ticks past the last level wait in its last slot.
    fn place(&self, tick: u64) -> (usize, usize) {
        let ahead = tick - self.done;
        let level = (0..LEVELS).find(|&l| ahead < SLOTS.pow(l as u32 + 1));
        match level {
            Some(level) => (level, (tick / SLOTS.pow(level as u32) % SLOTS) as usize),
            None => {
                let unit = SLOTS.pow(LEVELS as u32 - 1);
                (LEVELS - 1, ((self.done / unit + SLOTS - 1) % SLOTS) as usize)
            }
        }
    }

    fn link(&mut self, index: u32) {
        let (level, slot) = self.place(self.nodes[index as usize].tick);
        let next = self.heads[level][slot];
        self.nodes[index as usize].previous = NONE;
        self.nodes[index as usize].next = next;
        if next != NONE {
            self.nodes[next as usize].previous = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Node { previous, next, .. } = self.nodes[index as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
        } else {
            self.unhead(index, next);
        }
        self.nodes[index as usize].tick = 0;
    }

    /// Replaces the head of the one list that begins with `index`.
    fn unhead(&mut self, index: u32, next: u32) {
        // The level of an entry falls as time passes, but it only moves in `spread`: compute where it is stored.
        let tick = self.nodes[index as usize].tick;
        let places = (0..LEVELS).map(|level| (level, (tick / SLOTS.pow(level as u32) % SLOTS) as usize));
        let last = (0..SLOTS as usize).map(|slot| (LEVELS - 1, slot));
        for (level, slot) in places.chain(last) {
            if self.heads[level][slot] == index {
                self.heads[level][slot] = next;
                if next == NONE {
                    self.occupied[level] &= !(1 << slot);
                }
                return;
            }
        }
    }

    /// Moves the entries of the level's current slot to finer levels.
    fn spread(&mut self, level: usize) {
        let slot = (self.done / SLOTS.pow(level as u32) % SLOTS) as usize;
        let mut index = std::mem::replace(&mut self.heads[level][slot], NONE);
        self.occupied[level] &= !(1 << slot);
        while index != NONE {
            let Node { next, tick, .. } = self.nodes[index as usize];
            // What is due in this very tick goes to the slot of level 0 that is emptied right after.
            self.nodes[index as usize].tick = tick.max(self.done);
            self.link(index);
            index = next;
        }
    }
}

/// The ticks that have passed after this time. A second is a whole number of them, so it takes no division of 128 bits,
/// which would be a call in every turn of a loop.
#[inline]
fn whole_ticks(time: Duration) -> u64 {
    let of_seconds = time.as_secs().saturating_mul(TICKS_PER_SECOND);
    of_seconds.saturating_add(u64::from(time.subsec_nanos()) / TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn of_two_roundings_the_one_that_fires_first_is_kept() {
        let base = Instant::now();
        let mut timers = Timers::new(base);
        let mut fired = Vec::new();
        timers.arm_no_later(1, base + us(5_999), Resolution::Millisecond); // fires at 6 ms
        timers.arm_no_later(1, base + us(6_500), Resolution::Tick); // would fire later
        timers.advance(base + ms(6), &mut fired);
        assert_eq!(fired, [1]);
        timers.arm_no_later(2, base + us(7_100), Resolution::Millisecond); // fires at 8 ms
        timers.arm_no_later(2, base + us(7_500), Resolution::Tick); // fires before that
        timers.advance(base + us(7_516), &mut fired);
        assert_eq!(fired, [1, 2]);
    }

    #[test]
    fn limits_of_one_millisecond_share_a_wake_up_and_wakes_are_exact() {
        let base = Instant::now();
        let mut timers = Timers::new(base);
        (0..10).for_each(|i| {
            timers.arm_no_later(i, base + us(5_000 + 90 * u64::from(i + 1)), Resolution::Millisecond)
        });
        assert_eq!(timers.sleep(base), Some(ms(6)), "one wake-up for all");
        let mut fired = Vec::new();
        timers.advance(base + us(5_999), &mut fired);
        assert!(fired.is_empty());
        timers.advance(base + ms(6), &mut fired);
        assert_eq!(fired.len(), 10);
        timers.arm_no_later(3, base + us(6_101), Resolution::Tick);
        let sleep = timers.sleep(base + ms(6)).unwrap();
        assert!((us(101)..us(101 + 16)).contains(&sleep), "{sleep:?}");
    }

    /// By division of all nanoseconds.
    fn ticks_by_nanoseconds(time: Duration) -> u128 {
        time.as_nanos() / u128::from(TICK_NS)
    }

    #[test]
    fn ticks_change_at_the_nanosecond_at_which_those_of_all_nanoseconds_do() {
        assert_eq!(TICKS_PER_SECOND * TICK_NS, 1_000_000_000);
        for second in [0, 1, 59, 86_400, 63_072_000] {
            for tick in [1, 2, 63, 64, TICKS_PER_SECOND - 1, TICKS_PER_SECOND] {
                let at = Duration::new(second, 0) + Duration::from_nanos(tick * TICK_NS);
                for time in [at - Duration::from_nanos(1), at, at + Duration::from_nanos(1)] {
                    assert_eq!(u128::from(whole_ticks(time)), ticks_by_nanoseconds(time), "{time:?}");
                }
            }
        }
        assert_eq!(whole_ticks(Duration::MAX), u64::MAX, "never, not soon");
    }

    proptest! {
        #[test]
        fn ticks_are_those_of_all_nanoseconds(seconds in 0u64..1 << 47, nanos in 0u32..1_000_000_000) {
            let time = Duration::new(seconds, nanos);
            prop_assert_eq!(u128::from(whole_ticks(time)), ticks_by_nanoseconds(time));
        }

        /// Whatever is armed, disarmed and waited for: each deadline fires once, at most a tick
        /// late and never early, and a thread that sleeps as told misses none.
        #[test]
        fn every_deadline_fires_on_time(
            steps in proptest::collection::vec((0u32..40, 1u64..400_000_000, 0u8..5), 1..200)
        ) {
            let base = Instant::now();
            let mut timers = Timers::new(base);
            let mut now = base;
            // When each fires, in ns from the base: what is armed with a rounding is due only then.
            let mut want = std::collections::BTreeMap::<u32, u128>::new();
            let since = |time: Instant| time.saturating_duration_since(base).as_nanos();
            let mut fired = Vec::new();
            let drain = |timers: &mut Timers, now, want: &mut std::collections::BTreeMap<u32, u128>, fired: &mut Vec<u32>| {
                timers.advance(now, fired);
                for index in fired.drain(..) {
                    let due = want.remove(&index).expect("fired but not armed");
                    assert!(due <= since(now), "early");
                }
                assert!(want.values().all(|&due| due > since(now)), "late");
            };
            for (index, delay, what) in steps {
                match what {
                    0 => { timers.disarm(index); want.remove(&index); }
                    1 => {
                        now += us(delay % 3_000_000);
                        drain(&mut timers, now, &mut want, &mut fired);
                    }
                    _ => {
                        let when = now + us(delay);
                        let (resolution, unit) = match what {
                            2 => (Resolution::Tick, u128::from(TICK_NS)),
                            _ => (Resolution::Millisecond, 1_000_000),
                        };
                        timers.arm_no_later(index, when, resolution);
                        let due = since(when).div_ceil(unit) * unit;
                        let earliest = want.entry(index).or_insert(due);
                        *earliest = due.min(*earliest);
                    }
                }
            }
            let mut turns = 0;
            while let Some(sleep) = timers.sleep(now) {
                now += sleep;
                drain(&mut timers, now, &mut want, &mut fired);
                turns += 1;
                prop_assert!(turns < 5_000, "spinning");
            }
            prop_assert!(want.is_empty());
        }
    }
}
