//! Lack of kernel memory: failed operations are retried later.

use std::time::Instant;

use super::{Connection, Context, Direction};
use crate::policy::pressure::pause;

/// Operations of a connection that failed for lack of memory and have not succeeded since.
#[derive(Debug, Default)]
pub(in crate::proto) struct Shortage {
    /// Until when each direction pauses.
    until: [Option<Instant>; 2],
    failures: u32,
}

impl Connection {
    /// Whether this direction pauses, because the kernel had no memory.
    #[inline]
    #[must_use]
    pub fn is_short(&self, direction: Direction) -> bool {
        self.rare().shortage.as_ref().is_some_and(|shortage| shortage.until[direction as usize].is_some())
    }

    /// When it retries next, if it pauses.
    #[inline]
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.rare().shortage.as_ref()?.until.into_iter().flatten().min()
    }

    #[cold]
    pub(super) fn runs_short(&mut self, direction: Direction, context: &Context<'_>) {
        let shortage = self.rare_mut().shortage.get_or_insert_default();
        shortage.failures = shortage.failures.saturating_add(1);
        shortage.until[direction as usize] = Some(context.now + pause(shortage.failures));
    }

    /// Ends the pauses that have expired. The time limits start anew, because the peer was not the cause.
    #[cold]
    pub(super) fn try_again(&mut self, context: &Context<'_>) {
        let Some(rare) = &mut self.state_of_session.rare else { return };
        let Some(shortage) = &mut rare.shortage else { return };
        for until in &mut shortage.until {
            if until.is_some_and(|at| at <= context.now) {
                *until = None;
                (self.moved, self.taken) = (context.timestamp, context.timestamp);
            }
        }
    }

    /// Traffic was possible: if no direction pauses any more, the shortage is over.
    #[cold]
    pub(super) fn recovers(&mut self, context: &Context<'_>) {
        if self.retry_at().is_none() {
            self.rare_mut().shortage = None;
            context.counters.recovered.add(1);
        }
    }
}
