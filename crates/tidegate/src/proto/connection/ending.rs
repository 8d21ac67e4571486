//! How a connection ends: through its session, its peer, a time limit, or a stop.

use super::super::panics::contain;
use super::{CloseMode, Connection, ConnectionState, Context, ReceiveSide, SendSide};
use crate::policy::sends::TIMER_QUANTUM;
use crate::policy::timeouts;
use crate::types::{CloseReason, Flow};

impl Connection {
    pub(super) fn linger(&mut self, context: &Context<'_>) {
        self.state = ConnectionState::Draining { lingering: true };
        self.moved = context.timestamp;
        if self.send_side == SendSide::Open {
            self.send_side = SendSide::Finishing;
        }
    }

    /// Handles everything that is due. A deadline may be so late that several limits have passed: afterwards the next
    /// one is later than `now`, unless the session asks for another call at once.
    pub(super) fn expired(&mut self, context: &Context<'_>) {
        self.full |= self.queue.len() >= context.policy.outbox.high; // the policy may have changed
        self.try_again(context);
        for _ in 0..TIMER_QUANTUM {
            let Some(fired) = self.state_of_session.fire_timer(context.now) else { break };
            if fired.layer != self.rare().fired {
                self.rare_mut().fired = fired.layer;
            }
            self.show_mail(fired.mail.into(), context);
        }
        if self.rare().again.is_some() {
            self.rare_mut().again = None;
            self.show_held(context);
            self.deliver_end(context);
        }
        if self.state == ConnectionState::Open && self.limit_passed(context) == Some(CloseReason::Finished) {
            self.part(Flow::Close, context);
            if self.taken == context.timestamp {
                self.moved = self.taken; // output that is queued only now has not exceeded a limit
            }
        }
        match self.limit_passed(context) {
            Some(why @ (CloseReason::Finished | CloseReason::IdleTimeout)) => self.close(why, context),
            Some(why) => self.reset(why, context),
            None => {}
        }
    }

    /// The reason of its earliest time limit, if that has passed.
    fn limit_passed(&self, context: &Context<'_>) -> Option<CloseReason> {
        self.limit(context.policy).filter(|&(at, _)| at <= context.now).map(|(_, why)| why)
    }

    /// Applies the transitions that follow from the current state.
    #[inline]
    pub(super) fn settle(&mut self, context: &Context<'_>) {
        let both_ended = self.send_side == SendSide::Finished && self.receive_side == ReceiveSide::Ended;
        let finished = match self.state {
            _ if !self.queue.is_empty() => return self.leave(context),
            ConnectionState::Open if !both_ended => return self.leave(context),
            ConnectionState::Open => true,
            ConnectionState::Draining { lingering } => both_ended || !lingering,
            ConnectionState::Closing(_) => false,
        };
        if finished {
            self.close(CloseReason::Finished, context);
        }
    }

    /// Ends a draining connection that is between two messages. Data that its peer may be sending must not be answered
    /// by a reset: a next request may be in flight, or received and not processed yet, so it waits for a moment; after
    /// that request nothing more is answered, but the peer receives what was sent.
    #[inline]
    pub(super) fn leave(&mut self, context: &Context<'_>) {
        if !self.state_of_session.leaving || self.is_busy() || self.state != ConnectionState::Open {
            return;
        }
        if self.queue.is_empty() {
            if self.receive_side != ReceiveSide::Open {
                return self.part(Flow::Close, context);
            }
            if self.spoke {
                return self.part(Flow::Linger, context);
            }
            let until = self.moved().checked_add(timeouts::LAST_WORD).unwrap_or(context.now);
            if self.rare().last_word.is_none() {
                self.rare_mut().last_word = Some(until);
            }
        }
        if self.waits_for_last_word() && self.rare().last_word.is_some_and(|at| at <= context.now) {
            self.part(Flow::Close, context);
        }
    }

    /// Whether it would have closed, but waits for a last request of its peer. Output that its session produces unasked
    /// is sent, but does not keep it open.
    pub(super) fn waits_for_last_word(&self) -> bool {
        let open = self.state == ConnectionState::Open && self.receive_side == ReceiveSide::Open;
        self.state_of_session.leaving && !self.spoke && open && !self.is_busy()
    }

    /// The server is stopping: notifies the session, once.
    pub(super) fn begin_to_leave(&mut self, context: &Context<'_>) {
        if !std::mem::replace(&mut self.state_of_session.leaving, true) && self.state == ConnectionState::Open
        {
            self.call_at_work(context, |session, out| session.on_drain(out));
        }
    }

    /// Lets the session send a last message, unless it has finished sending, then ends the connection.
    #[cold]
    pub(super) fn part(&mut self, how: Flow, context: &Context<'_>) {
        let speaks = self.send_side == SendSide::Open;
        self.call(context, |session, out| {
            if speaks {
                session.on_leave(out);
            }
            how
        });
        if self.state == (ConnectionState::Draining { lingering: false }) && self.queue.is_empty() {
            self.close(CloseReason::Finished, context);
        }
    }

    pub(super) fn close(&mut self, why: CloseReason, context: &Context<'_>) {
        self.end(why, CloseMode::Graceful, context);
    }

    pub(super) fn reset(&mut self, why: CloseReason, context: &Context<'_>) {
        self.end(why, CloseMode::Reset, context);
    }

    fn end(&mut self, why: CloseReason, mode: CloseMode, context: &Context<'_>) {
        if matches!(self.state, ConnectionState::Closing(_)) {
            return;
        }
        let by_session = matches!(why, CloseReason::Finished | CloseReason::Aborted);
        let why = self.rare().ends_by.filter(|_| by_session).unwrap_or(why);
        self.state = ConnectionState::Closing(mode);
        self.queue.clear();
        self.drop_input();
        // A panic here can only damage the session's own state, which is dropped with it.
        let _ = contain(|| self.session.on_close(why));
        // Last: who sees the end counted finds what the session has done about it.
        context.counters.closed[why as usize].add(1);
    }
}
