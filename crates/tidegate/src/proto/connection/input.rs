//! Delivers input to the session: immediately, or later if it must be held back.

use super::{Connection, ConnectionState, Context, ReceiveSide};
use crate::policy::sends::INPUT_QUANTUM;
use crate::types::{Activity, CloseReason, Flow};

impl Connection {
    #[inline]
    pub(super) fn received(&mut self, bytes: &[u8], context: &Context<'_>) {
        self.heard(context);
        if self.state != ConnectionState::Open {
            return; // lingering: discarded, without extending the wait
        }
        if !self.rare().input.is_empty() || self.is_held_by_outbox() {
            self.rare_mut().input.extend_from_slice(bytes);
            return self.show_held(context);
        }
        let used = self.show(bytes, context);
        if let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            self.keep(rest, context);
        }
    }

    /// Something has arrived.
    #[inline]
    pub(super) fn heard(&mut self, context: &Context<'_>) {
        self.silent = false;
        self.spoke |= self.state_of_session.leaving;
        if self.state == ConnectionState::Open {
            self.moved = context.timestamp;
        }
    }

    /// Delivers input to the session, again if it asks for that and its turn lasts; returns the number of bytes
    /// consumed.
    #[inline]
    pub(super) fn show(&mut self, bytes: &[u8], context: &Context<'_>) -> usize {
        if let Some(rare) = &mut self.state_of_session.rare {
            rare.again = None;
        }
        let mut used = 0;
        for _ in 0..INPUT_QUANTUM {
            let rest = bytes.get(used..).unwrap_or_default();
            let (n, again) = self.show_once(rest, context);
            used += n;
            if !again || n == 0 || n == rest.len() || !self.takes_input() {
                return used;
            }
        }
        self.rare_mut().again = Some(context.now); // other connections first
        used
    }

    #[inline]
    fn show_once(&mut self, bytes: &[u8], context: &Context<'_>) -> (usize, bool) {
        let (mut used, mut again) = (0, false);
        self.call(context, |session, out| {
            let consumed = session.on_bytes(bytes, out);
            (used, again) = (consumed.bytes.min(bytes.len()), consumed.again);
            consumed.flow
        });
        (used, again)
    }

    /// Whether the session receives the stored input without waiting for something else first.
    fn takes_input(&self) -> bool {
        self.state == ConnectionState::Open
            && !self.is_held_by_outbox()
            && self.state_of_session.awaits != Activity::Work
    }

    /// Delivers input that was held back, unless the outbox is still full.
    pub(super) fn show_held(&mut self, context: &Context<'_>) {
        if self.is_held_by_outbox()
            || self.rare().input.is_empty()
            || self.state != ConnectionState::Open
            || self.waits_for_work()
        {
            return;
        }
        let mut input = std::mem::take(&mut self.rare_mut().input);
        let used = self.show(&input, context);
        if used < input.len() {
            input.drain(..used);
            self.rare_mut().input = input;
            self.check_kept(self.left(), context);
        }
    }

    #[cold]
    pub(super) fn keep(&mut self, rest: &[u8], context: &Context<'_>) {
        self.rare_mut().input.extend_from_slice(rest);
        self.check_kept(self.left(), context);
    }

    /// Handles the bytes `left` of the input.
    pub(super) fn check_kept(&mut self, left: usize, context: &Context<'_>) {
        match self.state {
            // Held back by the outbox rather than by the session: bounded by what was in flight.
            // Or by work, during which nothing more is received.
            // Or by the end of its turn.
            ConnectionState::Open
                if self.takes_input() && self.rare().again.is_none() && left > context.policy.input_bytes =>
            {
                self.exceed(context);
            }
            // Closing with unread input would reset the connection and might destroy the response.
            ConnectionState::Draining { lingering: false } => {
                self.drop_input();
                self.linger(context);
            }
            ConnectionState::Draining { lingering: true } => self.drop_input(),
            _ => {}
        }
    }

    /// The session left more than the limit: it may send a response, or is reset. The input it left is not shown again.
    #[cold]
    fn exceed(&mut self, context: &Context<'_>) {
        self.drop_input();
        self.rare_mut().ends_by = Some(CloseReason::InputLimit);
        self.call(context, |session, out| match session.on_input_limit(out) {
            // With unread input, closing means lingering.
            Flow::Close | Flow::Linger => Flow::Linger,
            Flow::Continue | Flow::Shutdown | Flow::Abort => Flow::Abort,
        });
    }

    /// Notifies the session that the peer has finished, once all input was delivered.
    pub(super) fn deliver_end(&mut self, context: &Context<'_>) {
        let held_back = self.is_held_by_outbox()
            || self.state_of_session.awaits == Activity::Work
            || self.rare().again.is_some();
        if self.receive_side != ReceiveSide::Ending || (held_back && !self.rare().input.is_empty()) {
            return;
        }
        self.receive_side = ReceiveSide::Ended;
        if self.state == ConnectionState::Open {
            self.drop_input();
            self.call(context, |session, out| session.on_end(out));
        }
    }

    /// There is input that the session will process when its work is done, or there would be no room for it.
    #[inline]
    #[must_use]
    pub fn waits_for_work(&self) -> bool {
        self.state_of_session.awaits == Activity::Work && (self.left() > 0 || self.has_no_splice_room())
    }
}
