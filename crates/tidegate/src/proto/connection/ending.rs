//! How a connection ends: by its session, by its peer, by a time limit, by a stop.

use super::super::panics::contain;
use super::{Connection, Context, ReceiveSide, SendSide, State};
use crate::policy::sends::TIMER_QUANTUM;
use crate::policy::timeouts;
use crate::service::{CloseReason, Flow};

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
        for _ in 0..TIMER_QUANTUM {
            let Some(fired) = self.state_of_session.timers.fire(context.now) else { break };
            self.state_of_session.fired = fired.layer;
            self.mail(fired.mail.into(), context);
        }
        if self.again.take().is_some() {
            self.show_held(context);
            self.deliver_end(context);
        }
        if let Some((_, why)) = self.limit(context.policy).filter(|&(at, _)| at <= context.now) {
            if why == CloseReason::Finished && self.state == State::Open {
                return self.part(Flow::Close, context);
            }
            self.close(why, why != CloseReason::Finished && why != CloseReason::IdleTimeout, context);
        }
    }

    /// What follows from the state everything is in now.
    #[inline]
    pub(super) fn settle(&mut self, context: &Context<'_>) {
        let both_ended = self.send_side == SendSide::Finished && self.receive_side == ReceiveSide::Ended;
        let finished = match self.state {
            _ if !self.queue.is_empty() => return self.leave(context),
            State::Open if !both_ended => return self.leave(context),
            State::Open => true,
            State::Draining { lingering } => both_ended || !lingering,
            State::Closing { .. } => false,
        };
        if finished {
            self.close(CloseReason::Finished, false, context);
        }
    }

    /// Ends a connection that was told to leave, between two messages. What its peer may be sending must not be met by
    /// a reset: a next request may be on its way, or here and not yet looked at, so for a moment it is waited for; and
    /// behind that one nothing is answered any more, but the peer gets to read what was.
    #[inline]
    pub(super) fn leave(&mut self, context: &Context<'_>) {
        if !self.state_of_session.leaving || self.is_busy() || self.state != State::Open {
            return;
        }
        if self.queue.is_empty() {
            if self.receive_side != ReceiveSide::Open {
                return self.part(Flow::Close, context);
            }
            if self.spoke {
                return self.part(Flow::Linger, context);
            }
            let until = || self.moved.checked_add(timeouts::LAST_WORD).unwrap_or(context.now);
            self.last_word.get_or_insert_with(until);
        }
        if self.waits_for_last_word() && self.last_word.is_some_and(|at| at <= context.now) {
            self.part(Flow::Close, context);
        }
    }

    /// Whether it would have left, but for a last word of its peer. What its session goes on sending of its own, to
    /// nobody's question, is sent, but does not keep it.
    pub(super) fn waits_for_last_word(&self) -> bool {
        let open = self.state == State::Open && self.receive_side == ReceiveSide::Open;
        self.state_of_session.leaving && !self.spoke && open && !self.is_busy()
    }

    /// The server stops: the session is told, once.
    pub(super) fn begin_to_leave(&mut self, context: &Context<'_>) {
        if !std::mem::replace(&mut self.state_of_session.leaving, true) && self.state == State::Open {
            self.call_at_work(context, |session, out| session.on_drain(out));
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
        let by_session = matches!(why, CloseReason::Finished | CloseReason::Aborted);
        let why = self.ends_by.filter(|_| by_session).unwrap_or(why);
        self.state = State::Closing { reset };
        self.queue.clear();
        self.input = Vec::new();
        context.counters.closed[why as usize].add(1);
        // What it could spoil by a panic is its own and goes with it.
        let _ = contain(|| self.session.on_close(why));
    }
}
