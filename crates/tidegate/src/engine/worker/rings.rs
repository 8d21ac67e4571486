//! The connections of a loop that go through shared memory. No call of the kernel reports them while both sides are
//! awake: the loop looks at their memory itself, and has them wake it before it sleeps.

use std::time::{Duration, Instant};

use tidegate_os::poll::Readiness;

/// While shared memory is looked at again and again, the kernel is asked so often: rarely if it has had nothing to say
/// for a while.
const KERNEL_OFTEN: Duration = Duration::from_micros(10);
const KERNEL_RARELY: Duration = Duration::from_micros(200);
/// Looks in a row, over all connections, before the loop looks at its clock and its commands: half a microsecond.
const LOOKS: usize = 64;
/// Turns of connections in a row before that, if there is nothing else to do: a few microseconds, if sessions are as
/// fast as the memory. The clock, the timers and the commands cost as much as a message does.
const TURNS: usize = 16;

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum WaitMode {
    /// Not at all: do not even ask the kernel.
    Skip,
    /// For the kernel, so long at most; `None` is for ever.
    Wait(Option<Duration>),
}

/// Connections through shared memory that are awake: they would not wake the loop. `K` names one.
pub(in crate::engine) struct AwakeLinks<K> {
    awake: Vec<K>,
    /// What was seen at the last look.
    pub(in crate::engine) ready: Vec<(K, Readiness)>,
    /// When the kernel is asked again, and how long that is from one time to the next.
    ask_at: Option<Instant>,
    every: Duration,
    /// Turns after which the loop looks after the rest; 0 unless it spins.
    turns: usize,
}

/// What one is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Look {
    /// The loop stays awake.
    Awake,
    /// The loop is about to sleep: if nothing is ready, the memory is to wake it.
    BeforeSleep,
}

impl Look {
    /// Whether a connection that was looked at stays awake.
    #[inline]
    pub(in crate::engine) fn keeps_awake(self, sees: Readiness) -> bool {
        self == Self::Awake || sees.readable || sees.writable
    }
}

impl<K> Default for AwakeLinks<K> {
    fn default() -> Self {
        Self { awake: Vec::new(), ready: Vec::new(), ask_at: None, every: Duration::ZERO, turns: 0 }
    }
}

impl<K: Clone> AwakeLinks<K> {
    /// A connection is awake, and was not.
    pub(in crate::engine) fn wake(&mut self, key: K) {
        self.awake.push(key);
    }

    /// Forgets the connections that `gone` names.
    #[allow(dead_code, reason = "for loops whose names keep a connection alive: those of Linux")]
    pub(in crate::engine) fn forget(&mut self, gone: impl Fn(&K) -> bool) {
        self.awake.retain(|key| !gone(key));
        self.ready.retain(|(key, _)| !gone(key));
    }

    /// Looks at the memory of those that are awake, before the loop waits as `rest` says. If it is to sleep they are
    /// put to sleep first; if it spins, and is not `busy` with something else, it spins here.
    ///
    /// `look` looks at one, and says what is ready of what it waits for; `None` if it is awake no longer.
    #[inline]
    pub(in crate::engine) fn before(
        &mut self,
        rest: Option<Duration>,
        busy: bool,
        now: Instant,
        mut look: impl FnMut(&K, Look) -> Option<Readiness>,
    ) -> WaitMode {
        self.turns = 0;
        if self.awake.is_empty() {
            return WaitMode::Wait(rest);
        }
        let sleeps = rest != Some(Duration::ZERO);
        self.look(if sleeps { Look::BeforeSleep } else { Look::Awake }, &mut look);
        if sleeps && self.ready.is_empty() {
            return WaitMode::Wait(rest);
        }
        if !sleeps && !busy {
            self.turns = TURNS;
            self.spin(&mut look);
        }
        if self.ask_at.is_some_and(|at| now < at) {
            return WaitMode::Skip;
        }
        self.ask_at = Some(now + self.every);
        WaitMode::Wait(Some(Duration::ZERO))
    }

    /// So many turns were taken: if the loop only spins, and may take more before it looks after the rest, looks for the
    /// next ones at once. Returns whether there are any; otherwise the batch ends.
    #[inline]
    pub(in crate::engine) fn look_after(
        &mut self,
        turns: usize,
        mut look: impl FnMut(&K, Look) -> Option<Readiness>,
    ) -> bool {
        if turns >= self.turns {
            return false;
        }
        self.spin(&mut look);
        !self.ready.is_empty()
    }

    /// Looks until something is ready, or for long enough.
    fn spin(&mut self, look: &mut impl FnMut(&K, Look) -> Option<Readiness>) {
        for _ in 0..LOOKS / self.awake.len().max(1) {
            if !self.ready.is_empty() {
                return;
            }
            self.look(Look::Awake, look);
        }
    }

    /// The kernel was asked, and had so much to say.
    #[inline]
    pub(in crate::engine) fn asked(&mut self, events: usize) {
        self.every =
            if events > 0 { KERNEL_OFTEN } else { (self.every * 2).clamp(KERNEL_OFTEN, KERNEL_RARELY) };
    }

    fn look(&mut self, how: Look, look: &mut impl FnMut(&K, Look) -> Option<Readiness>) {
        let ready = &mut self.ready;
        self.awake.retain(|key| {
            let Some(sees) = look(key, how) else { return false };
            if sees.readable || sees.writable {
                ready.push((key.clone(), sees));
            }
            how.keeps_awake(sees)
        });
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    /// A loop that spins, and has looked at so many connections, all of which are ready.
    fn spinning(connections: usize) -> AwakeLinks<usize> {
        let mut links = AwakeLinks::default();
        (0..connections).for_each(|key| links.wake(key));
        let mode = links.before(Some(Duration::ZERO), false, Instant::now(), look);
        assert_eq!((mode, links.ready.len()), (WaitMode::Wait(Some(Duration::ZERO)), connections));
        links
    }

    fn look(_: &usize, _: Look) -> Option<Readiness> {
        Some(Readiness::READ)
    }

    #[test]
    fn a_batch_ends_after_its_turns_though_more_are_ready() {
        let mut links = spinning(300);
        assert!(links.look_after(TURNS - 1, look));
        assert!(!links.look_after(TURNS, look));
        assert!(!links.look_after(256, look));
        assert!(!links.ready.is_empty(), "they have their turns in the next batch");
    }
}
