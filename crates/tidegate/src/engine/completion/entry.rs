//! One connection of a completion loop: the socket, what is in flight on it, and carrying out what the core wants.

use std::collections::VecDeque;
use std::io;

use tidegate_os::socket::More;

use super::leaving::InFlight;
use super::{Chained, Close, CompletionDriver};
use crate::engine::worker::admission::Quota;
use crate::engine::worker::loop_driver::{LoopEntry, Phase, Pinning};
use crate::engine::worker::loop_state::LoopState;
use crate::engine::worker::permits::{ConnectionPermits, Permits};
use crate::proto::queue::{FileSending, TakeLimits};
use crate::proto::{
    Connection, Direction, Early, NextStep, PermitState, Receive, Sequence, SequenceWindow, Token,
};

/// A connection and what the kernel holds for it.
pub(in crate::engine) struct CompletionEntry<P: CompletionDriver> {
    pub(super) socket: P::Socket,
    pub(super) phase: Phase,
    /// What it counts for.
    pub(super) quota: Quota,
    /// Receives that are armed.
    pub(super) receives: SequenceWindow,
    /// Those that are armed were asked to end.
    pub(super) stopping: bool,
    /// The one that is armed waits outside of the permits to receive, and takes nothing.
    pub(super) polls: bool,
    /// There is something to receive.
    pub(super) readable: bool,
    /// The receive that stays armed has brought nothing yet.
    pub(super) newly_armed: bool,
    /// It is a Unix socket.
    pub(super) is_unix: bool,
    /// Sends that are in flight.
    pub(super) sends: SequenceWindow,
    /// What few connections have.
    deferred: Option<Box<Deferred<P>>>,
    /// A send of what was not taken is in flight.
    pub(super) sends_again: bool,
    /// A send [was cut](CompletionDriver::is_cut), and what was left of it is not sent.
    pub(super) cut: bool,
    /// The stream has ended since, if that is what it did.
    pub(super) end_waits: bool,
    /// The close is chained to the send in flight.
    pub(super) chained: bool,
    /// It is over as soon as the chained send has come back.
    doomed: bool,
    /// The next receive does not have to stay armed: the first data came with the accept, or the connection was held
    /// back. Who is held back once will be again, and a receive that stays armed would meanwhile fill buffer upon
    /// buffer that must be kept.
    pub(super) once: bool,
    /// Receives in a row that each may have left more.
    pub(super) in_a_row: u32,
    /// The shutdown of the sending side is in flight.
    pub(super) finishing: bool,
    /// The dial is in flight.
    pub(super) dialling: bool,
    /// Its permits of the thread.
    pub(super) permits: ConnectionPermits,
}

/// Outcomes that came too early to be followed up, and what the kernel did not take.
pub(super) struct Deferred<P: CompletionDriver> {
    /// Receives and sends that have completed before an earlier one.
    pub(super) receives: Early<ReceiveResult<P>>,
    pub(super) sends: Early<SendResult<P>>,
    /// What the kernel did not take, in order: sent before all else, one by one.
    unsent: VecDeque<P::Unsent>,
}

impl<P: CompletionDriver> Default for Deferred<P> {
    fn default() -> Self {
        Self { receives: Vec::new(), sends: Vec::new(), unsent: VecDeque::new() }
    }
}

impl<P: CompletionDriver> LoopEntry for CompletionEntry<P> {
    #[inline]
    fn phase(&mut self) -> &mut Phase {
        &mut self.phase
    }

    #[inline]
    fn permits(&mut self) -> &mut ConnectionPermits {
        &mut self.permits
    }
}

/// What became of a receive, and of a send.
pub(super) type ReceiveResult<P> = io::Result<Option<<P as CompletionDriver>::Buffer>>;
pub(super) type SendResult<P> = (io::Result<usize>, Option<<P as CompletionDriver>::Unsent>);

/// What the loop has to do after a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnResult {
    Idle,
    Closed,
    /// What it has to send cannot be read.
    Failed(io::ErrorKind),
}

/// Most pieces of one send.
const PIECES: usize = 64;

impl<P: CompletionDriver> CompletionEntry<P> {
    pub(super) fn new(socket: P::Socket, phase: Phase) -> Self {
        Self {
            socket,
            quota: phase.quota(),
            receives: SequenceWindow::default(),
            stopping: false,
            polls: false,
            readable: false,
            newly_armed: false,
            is_unix: false,
            sends: SequenceWindow::default(),
            deferred: None,
            sends_again: false,
            cut: false,
            end_waits: false,
            chained: false,
            doomed: false,
            once: false,
            in_a_row: 0,
            finishing: false,
            dialling: matches!(phase, Phase::Dialling(_)),
            phase,
            permits: ConnectionPermits::default(),
        }
    }

    /// Hands over what the connection wants and what is not in flight already.
    #[inline]
    pub(super) fn carry_out(&mut self, token: Token, port: &mut P, loop_state: &mut LoopState) -> TurnResult {
        let Phase::Open(connection) = &mut self.phase else { return TurnResult::Idle };
        let action = connection.action();
        match action.then {
            NextStep::Nothing | NextStep::CloseAfterSend => {}
            NextStep::Close | NextStep::Reset => return TurnResult::Closed,
            NextStep::FinishSending if self.finishing => {}
            NextStep::FinishSending => {
                self.finishing = true;
                port.finish_sending(token, &self.socket);
            }
        }
        self.once |= action.receive == Receive::Pause;
        if action.receive == Receive::Pause && self.receives.in_flight() > 0 && !self.stopping {
            self.stopping = true;
            port.stop_receiving(token, &self.socket);
        }
        if let Err(e) = self.post_sends(token, port, loop_state) {
            return TurnResult::Failed(e.kind());
        }
        self.post_receives(token, port, loop_state);
        TurnResult::Idle
    }

    /// Hands over what is to be sent: as many sends as may be in flight at once.
    fn post_sends(&mut self, token: Token, port: &mut P, loop_state: &mut LoopState) -> io::Result<()> {
        let has_unsent = self.has_unsent();
        let Phase::Open(connection) = &mut self.phase else { return Ok(()) };
        let permits = &mut loop_state.permits;
        let again = has_unsent && !connection.is_short(Direction::Send);
        let sends = self.sends.pending() == 0 && (again || connection.action().send);
        let may_send = sends && permits.may_send(token, &mut self.permits);
        if (permits.are_bounded() || connection.is_held_back()) && sends {
            connection.hold_back(!may_send, permits.now);
        }
        if may_send && let Some(unsent) = self.take_unsent() {
            self.sends_again = true;
            port.send_rest(token, self.sends.begin(), &self.socket, unsent);
        } else if may_send {
            self.post_send(token, port, loop_state)?;
        }
        let most = match loop_state.pinning {
            Pinning::Usual => loop_state.worker.policy.posted_sends.min(port.most_sends()),
            Pinning::Least => 1,
        };
        while self.sends_more(most) && loop_state.permits.may_send_more(&mut self.permits) {
            self.post_send(token, port, loop_state)?;
        }
        Ok(())
    }

    /// Whether there is more to send behind what is in flight, and that may be: not while something that came back too
    /// early is kept, which may not have been sent.
    fn sends_more(&self, most: usize) -> bool {
        let wants = || self.phase.connection().is_some_and(|connection| connection.action().send);
        let may = self.sends.pending() == self.sends.in_flight() && !self.has_unsent() && !self.sends_again;
        (1..most).contains(&self.sends.pending()) && may && wants()
    }

    fn post_send(&mut self, token: Token, port: &mut P, loop_state: &LoopState) -> io::Result<()> {
        let Phase::Open(connection) = &mut self.phase else { return Ok(()) };
        let files = port.files();
        if files == FileSending::Read {
            connection.load_file()?;
        }
        let most = TakeLimits { pieces: PIECES, bytes: P::MOST_SEND_BYTES };
        let pieces = connection.take_pieces(most, files);
        let last = is_last(connection);
        let before_close = loop_state.before_close();
        let others = self.receives.in_flight() > 0 || self.sends.pending() > 0 || self.finishing;
        let sequence = self.sends.begin();
        if last && P::JOINS && others {
            // A chain that closes must find nothing else in flight, and that has not come back yet. The close is not
            // far. A shutdown that a kernel worker still has would otherwise find the slot's next owner.
            port.send(token, sequence, &self.socket, pieces, before_close);
        } else if last {
            self.chained = port.send_last(token, sequence, &self.socket, pieces) == Chained::Yes;
        } else {
            // Only a file's beginning is sent right after these: other bytes wait until they have come back.
            let more = connection.queue().next_file().map_or(More::No, |_| More::BytesFollow);
            port.send(token, sequence, &self.socket, pieces, more);
        }
        Ok(())
    }

    /// Arms receives: one, or as many as may be posted where each has a buffer.
    fn post_receives(&mut self, token: Token, port: &mut P, loop_state: &mut LoopState) {
        let Phase::Open(connection) = &self.phase else { return };
        let wanted = connection.action().receive == Receive::Post && !self.stopping && !self.end_waits;
        if wanted && self.receives.pending() == 0 && !self.may_receive(token, &mut loop_state.permits) {
            if self.permits.receive == PermitState::Outside {
                self.polls = true;
                port.poll_readable(token, self.receives.begin(), &self.socket);
            }
            return;
        }
        if wanted && self.receives.pending() == 0 {
            let sequence = self.receives.begin();
            if std::mem::take(&mut self.once) {
                return port.receive_once(token, sequence, &self.socket);
            }
            self.newly_armed = true;
            port.receive(token, sequence, &self.socket, &loop_state.worker.policy);
        }
        let policy = &loop_state.worker.policy;
        while wanted
            && !self.polls
            && (1..policy.posted_receives).contains(&self.receives.pending())
            && port.may_receive_ahead(&self.socket)
        {
            port.receive(token, self.receives.begin(), &self.socket, policy);
        }
    }

    /// Whether a receive may be posted. Who has something to receive is queued for a permit; else one that nobody needs
    /// is taken, or none.
    fn may_receive(&mut self, token: Token, permits: &mut Permits) -> bool {
        match std::mem::take(&mut self.readable) {
            true => permits.may_receive(token, &mut self.permits),
            false => permits.may_await(token, &mut self.permits),
        }
    }

    /// What was not sent comes before all else that is; in front if it is what was sent again.
    pub(super) fn keep_unsent(&mut self, unsent: P::Unsent) {
        let kept = &mut self.deferred.get_or_insert_default().unsent;
        if self.sends_again { kept.push_front(unsent) } else { kept.push_back(unsent) }
    }

    fn take_unsent(&mut self) -> Option<P::Unsent> {
        self.deferred.as_mut()?.unsent.pop_front()
    }

    /// Whether there is something that the kernel did not take.
    pub(super) fn has_unsent(&self) -> bool {
        self.deferred.as_ref().is_some_and(|deferred| !deferred.unsent.is_empty())
    }

    /// A receive has completed; what is to be followed up now, if that is something.
    #[inline]
    pub(super) fn received(
        &mut self,
        sequence: Option<Sequence>,
        outcome: ReceiveResult<P>,
    ) -> Option<ReceiveResult<P>> {
        self.receives.complete(sequence, outcome, || &mut self.deferred.get_or_insert_default().receives)
    }

    /// The receive that has completed before the one that was followed up last.
    #[inline]
    pub(super) fn next_received(&mut self) -> Option<ReceiveResult<P>> {
        self.receives.take_due(&mut self.deferred.as_mut()?.receives)
    }

    /// The same of a send.
    #[inline]
    pub(super) fn sent(
        &mut self,
        sequence: Option<Sequence>,
        outcome: SendResult<P>,
    ) -> Option<SendResult<P>> {
        self.sends.complete(sequence, outcome, || &mut self.deferred.get_or_insert_default().sends)
    }

    #[inline]
    pub(super) fn next_sent(&mut self) -> Option<SendResult<P>> {
        self.sends.take_due(&mut self.deferred.as_mut()?.sends)
    }

    /// What nobody follows up any more.
    pub(super) fn abandon(&mut self) -> Deferred<P> {
        self.deferred.take().map_or_else(Deferred::default, |deferred| *deferred)
    }

    /// What follows what is being sent.
    pub(super) fn follows(&self, before_close: More) -> More {
        match &self.phase {
            Phase::Open(connection) if is_last(connection) => before_close,
            _ => More::No,
        }
    }

    /// How to close it in its present state, if that is next.
    pub(super) fn close(&self, then: NextStep) -> Close {
        Close { reset: then == NextStep::Reset, ..self.in_flight().close() }
    }

    /// What the kernel has of it.
    pub(super) fn in_flight(&self) -> InFlight {
        let sends = self.sends.in_flight() + usize::from(self.dialling);
        let receives = self.receives.in_flight();
        InFlight { receives, sends, finishing: self.finishing, ..InFlight::default() }
    }

    /// Ends a send that has a close chained to it; either the chain has closed the socket then, or it is broken. By
    /// then the slot may be a stranger's, so it is the send that is named.
    pub(super) fn doom(&mut self, token: Token, port: &mut P) {
        if !std::mem::replace(&mut self.doomed, true) {
            port.stop_sending(token, &self.socket);
        }
    }

    /// The send was asked to end, and not found, because it was just being worked on: it is asked again.
    pub(super) fn doom_again(&mut self, token: Token, port: &mut P) {
        if self.sends.pending() > 0 && self.chained && std::mem::take(&mut self.doomed) {
            self.doom(token, port);
        }
    }

    /// Operations that the kernel holds, or that were not followed up yet.
    pub(super) fn outstanding(&self) -> u64 {
        (self.receives.pending() + self.sends.pending()) as u64 + u64::from(self.finishing)
    }
}

/// Whether all that was to be sent has been handed over, and the close is next.
fn is_last(connection: &Connection) -> bool {
    connection.action().then == NextStep::CloseAfterSend && !connection.queue().has_unsent()
}
