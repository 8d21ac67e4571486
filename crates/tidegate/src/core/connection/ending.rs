//! How a connection ends: by its session, by its peer, by a time limit, by a stop.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Connection, Context, ReceiveSide, SendSide, State};
use crate::policy::stale;
use crate::service::{CloseReason, Flow, Mail};

impl Connection {
    pub(super) fn linger(&mut self, context: &Context<'_>) {
        self.state = State::Draining { lingering: true };
        self.moved = context.now;
        if self.send_side == SendSide::Open {
            self.send_side = SendSide::Finishing;
        }
    }

    pub(super) fn expired(&mut self, context: &Context<'_>) {
        self.full |= self.queue.len() >= context.policy.outbox.high; // the policy may be another one
        if self.wishes.wake.is_some_and(|at| at <= context.now) {
            self.wishes.wake = None;
            if self.state == State::Open {
                self.call(context, |session, out| session.on_mail(Mail::Timer, out));
            }
        }
        if let Some((_, why)) = self.limit(context.policy).filter(|&(at, _)| at <= context.now) {
            if why == CloseReason::Finished && self.rests() {
                return self.part(Flow::Close, context);
            }
            self.close(why, why != CloseReason::Finished && why != CloseReason::IdleTimeout, context);
        }
    }

    /// What follows from the state everything is in now.
    #[inline]
    pub(super) fn settle(&mut self, context: &Context<'_>) {
        if !self.queue.is_empty() {
            return;
        }
        let both_ended = self.send_side == SendSide::Finished && self.receive_side == ReceiveSide::Ended;
        let finished = match self.state {
            State::Open if !both_ended => return self.leave(context),
            State::Open => true,
            State::Draining { lingering } => both_ended || !lingering,
            State::Closing { .. } => false,
        };
        if finished {
            self.close(CloseReason::Finished, false, context);
        }
    }

    /// Ends a connection that was told to leave, between two messages. What its peer may be sending must not be met by a reset: a
    /// next request may be on its way, or here and not yet looked at, so for a moment it is waited for; and behind that one nothing
    /// is answered any more, but the peer gets to read what was.
    #[inline]
    pub(super) fn leave(&mut self, context: &Context<'_>) {
        if !self.wishes.leaving || self.is_busy() {
            return;
        }
        let recent = || self.moved.checked_add(stale::LAST_WORD).is_some_and(|at| context.now < at);
        if self.receive_side != ReceiveSide::Open {
            self.part(Flow::Close, context);
        } else if self.spoke {
            self.part(Flow::Linger, context);
        } else if !recent() {
            self.part(Flow::Close, context);
        }
    }

    /// Lets the session say a last word, unless it has finished sending, then ends the connection.
    #[cold]
    pub(super) fn part(&mut self, how: Flow, context: &Context<'_>) {
        let speaks = self.send_side == SendSide::Open;
        self.call(context, |session, out| {
            if speaks {
                session.on_leave(out);
            }
            how
        });
        if self.state == (State::Draining { lingering: false }) && self.queue.is_empty() {
            self.close(CloseReason::Finished, false, context);
        }
    }

    pub(super) fn close(&mut self, why: CloseReason, reset: bool, context: &Context<'_>) {
        if matches!(self.state, State::Closing { .. }) {
            return;
        }
        self.state = State::Closing { reset };
        self.queue.clear();
        self.input = Vec::new();
        context.counters.closed[why as usize].add(1);
        // What it could spoil by a panic is its own and goes with it.
        let _ = catch_unwind(AssertUnwindSafe(|| self.session.on_close(why)));
    }
}
