//! The connections of a loop that go through shared memory. No call of the kernel reports them while both sides are awake: the loop
//! looks at their memory itself, and has them wake it before it sleeps.

use std::time::{Duration, Instant};

use tidegate_sys::poll::Readiness;

use super::Wire;
use super::entry::Entry;
use crate::core::{Table, Token};
use crate::service::Session;

/// While shared memory is looked at again and again, the kernel is asked this often.
const KERNEL_EVERY: Duration = Duration::from_micros(20);

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// Not at all: do not even ask the kernel.
    Skip,
    /// For the kernel, so long at most; `None` is for ever.
    Wait(Option<Duration>),
}

/// Connections through shared memory that are awake: they would not wake the loop.
#[derive(Default)]
pub(super) struct Rings {
    awake: Vec<Token>,
    /// What was seen at the last look.
    pub(super) ready: Vec<(Token, Readiness)>,
    /// When the kernel was last asked.
    asked: Option<Instant>,
}

impl Rings {
    /// A connection has had a turn: it is awake.
    pub(super) fn list<S, W>(&mut self, token: Token, entry: &mut Entry<S, W>) {
        if !std::mem::replace(&mut entry.looked_at, true) {
            self.awake.push(token);
        }
    }

    /// Looks at the memory of those that are awake, before the loop waits as `rest` says. If it is to sleep they are put to
    /// sleep first.
    pub(super) fn before<S: Session, W: Wire>(
        &mut self,
        rest: Option<Duration>,
        now: Instant,
        table: &mut Table<Entry<S, W>>,
    ) -> Rest {
        if self.awake.is_empty() {
            return Rest::Wait(rest);
        }
        let sleeps = rest != Some(Duration::ZERO);
        self.look(sleeps, table);
        if sleeps && self.ready.is_empty() {
            return Rest::Wait(rest);
        }
        let due = self.asked.is_none_or(|at| now.saturating_duration_since(at) >= KERNEL_EVERY);
        if !due {
            return Rest::Skip;
        }
        self.asked = Some(now);
        Rest::Wait(Some(Duration::ZERO))
    }

    fn look<S: Session, W: Wire>(&mut self, sleeps: bool, table: &mut Table<Entry<S, W>>) {
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
