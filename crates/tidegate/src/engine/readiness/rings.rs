//! The connections of a loop that go through shared memory. No call of the kernel reports them while both sides are
//! awake: the loop looks at their memory itself, and has them wake it before it sleeps.

use std::time::{Duration, Instant};

use tidegate_os::poll::Readiness;

use super::Transport;
use super::entry::ReadinessEntry;
use crate::proto::{Table, Token};

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
pub(super) enum WaitMode {
    /// Not at all: do not even ask the kernel.
    Skip,
    /// For the kernel, so long at most; `None` is for ever.
    Wait(Option<Duration>),
}

/// Connections through shared memory that are awake: they would not wake the loop.
#[derive(Default)]
pub(super) struct AwakeLinks {
    awake: Vec<Token>,
    /// What was seen at the last look.
    pub(super) ready: Vec<(Token, Readiness)>,
    /// When the kernel is asked again, and how long that is from one time to the next.
    ask_at: Option<Instant>,
    every: Duration,
    /// Turns after which the loop looks after the rest; 0 unless it spins.
    turns: usize,
}

impl AwakeLinks {
    /// A connection has had a turn: it is awake.
    pub(super) fn list<W>(&mut self, token: Token, entry: &mut ReadinessEntry<W>) {
        if !std::mem::replace(&mut entry.looked_at, true) {
            self.awake.push(token);
        }
    }

    /// Looks at the memory of those that are awake, before the loop waits as `rest` says. If it is to sleep they are
    /// put to sleep first; if it spins, and is not `busy` with something else, it spins here.
    pub(super) fn before<W: Transport>(
        &mut self,
        rest: Option<Duration>,
        busy: bool,
        now: Instant,
        table: &mut Table<ReadinessEntry<W>>,
    ) -> WaitMode {
        self.turns = 0;
        if self.awake.is_empty() {
            return WaitMode::Wait(rest);
        }
        let sleeps = rest != Some(Duration::ZERO);
        self.look(sleeps, table);
        if sleeps && self.ready.is_empty() {
            return WaitMode::Wait(rest);
        }
        if !sleeps && !busy {
            self.turns = TURNS;
            self.spin(table);
        }
        if self.ask_at.is_some_and(|at| now < at) {
            return WaitMode::Skip;
        }
        self.ask_at = Some(now + self.every);
        WaitMode::Wait(Some(Duration::ZERO))
    }

    /// So many turns were taken, and nothing is ready: if the loop only spins, looks for the next ones at once.
    pub(super) fn look_after<W: Transport>(&mut self, turns: usize, table: &mut Table<ReadinessEntry<W>>) {
        if turns < self.turns {
            self.spin(table);
        }
    }

    /// Looks until something is ready, or for long enough.
    fn spin<W: Transport>(&mut self, table: &mut Table<ReadinessEntry<W>>) {
        for _ in 0..LOOKS / self.awake.len().max(1) {
            if !self.ready.is_empty() {
                return;
            }
            self.look(false, table);
        }
    }

    /// The kernel was asked, and had so much to say.
    #[inline]
    pub(super) fn asked(&mut self, events: usize) {
        self.every =
            if events > 0 { KERNEL_OFTEN } else { (self.every * 2).clamp(KERNEL_OFTEN, KERNEL_RARELY) };
    }

    fn look<W: Transport>(&mut self, sleeps: bool, table: &mut Table<ReadinessEntry<W>>) {
        let ready = &mut self.ready;
        self.awake.retain(|&token| {
            let Some(entry) = table.get_mut(token) else { return false };
            let wants = entry.wants();
            let sees = if sleeps { entry.stream.prepare_sleep(wants) } else { entry.stream.look(wants) };
            let something = sees.readable || sees.writable;
            if something {
                ready.push((token, sees));
            }
            entry.looked_at = something || !sleeps;
            entry.looked_at
        });
    }
}
