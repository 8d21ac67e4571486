//! One connection of a completion loop: the socket, what is in flight on it, and carrying out what the core wants.

use std::io;

use tidegate_os::socket::More;

use super::leaving::InFlight;
use super::{Chained, Close, CompletionDriver};
use crate::engine::worker::loop_driver::{LoopEntry, Phase};
use crate::engine::worker::loop_state::LoopState;
use crate::engine::worker::permits::ConnectionPermits;
use crate::proto::queue::Files;
use crate::proto::{Connection, Direction, NextStep, Receive, Token};

/// A connection and what the kernel holds for it.
pub(in crate::engine) struct Entry<P: CompletionDriver> {
    pub(super) socket: P::Socket,
    pub(super) phase: Phase,
    /// A session has dialled it.
    pub(super) dialled_by_session: bool,
    /// A receive is armed.
    pub(super) receiving: bool,
    /// The armed receive was asked to end.
    pub(super) stopping: bool,
    /// A send is in flight.
    pub(super) sending: bool,
    /// What the kernel had no memory to send: sent before all else.
    pub(super) unsent: Option<Box<P::Unsent>>,
    /// The close is chained to the send in flight.
    pub(super) chained: bool,
    /// It is over as soon as the chained send has come back.
    doomed: bool,
    /// The next receive does not have to stay armed: the first data came with the accept, or the connection was held
    /// back. Who is held back once will be again, and a receive that stays armed would meanwhile fill buffer upon
    /// buffer that must be kept.
    pub(super) once: bool,
    /// Receives in a row that each may have left more.
    pub(super) in_a_row: usize,
    /// The shutdown of the sending side is in flight.
    pub(super) finishing: bool,
    /// The dial is in flight.
    pub(super) dialling: bool,
    /// Its permits of the thread.
    pub(super) permits: ConnectionPermits,
}

impl<P: CompletionDriver> LoopEntry for Entry<P> {
    #[inline]
    fn phase(&mut self) -> &mut Phase {
        &mut self.phase
    }

    #[inline]
    fn permits(&mut self) -> &mut ConnectionPermits {
        &mut self.permits
    }
}

/// What the loop has to do after a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Idle,
    Closed,
    /// What it has to send cannot be read.
    Failed(io::ErrorKind),
}

/// Most pieces of one send.
const PIECES: usize = 64;

impl<P: CompletionDriver> Entry<P> {
    pub(super) fn new(socket: P::Socket, phase: Phase, once: bool) -> Self {
        Self {
            socket,
            dialled_by_session: phase.is_dialled_by_session(),
            receiving: false,
            stopping: false,
            sending: false,
            unsent: None,
            chained: false,
            doomed: false,
            once,
            in_a_row: 0,
            finishing: false,
            dialling: matches!(phase, Phase::Dialling(_)),
            phase,
            permits: ConnectionPermits::default(),
        }
    }

    /// Hands over what the connection wants and what is not in flight already.
    #[inline]
    pub(super) fn carry_out(&mut self, token: Token, port: &mut P, loop_state: &mut LoopState) -> Progress {
        let Phase::Open(connection) = &mut self.phase else { return Progress::Idle };
        let action = connection.action();
        match action.then {
            NextStep::Nothing | NextStep::CloseAfterSend => {}
            NextStep::Close | NextStep::Reset => return Progress::Closed,
            NextStep::FinishSending if self.finishing => {}
            NextStep::FinishSending => {
                self.finishing = true;
                port.finish_sending(token, &self.socket);
            }
        }
        self.once |= action.receive == Receive::Pause;
        if action.receive == Receive::Pause && self.receiving && !self.stopping {
            self.stopping = true;
            port.stop_receiving(token, &self.socket);
        }
        let permits = &mut loop_state.permits;
        let again = self.unsent.is_some() && !connection.is_short(Direction::Send);
        let sends = !self.sending && (again || action.send);
        let may_send = sends && permits.may_send(token, &mut self.permits);
        if (permits.are_bounded() || connection.is_held_back()) && sends {
            connection.hold_back(!may_send, permits.now);
        }
        if may_send && let Some(unsent) = self.unsent.take() {
            self.sending = true;
            port.send_rest(token, &self.socket, *unsent);
        } else if may_send {
            let files = port.files();
            if files == Files::Read
                && let Err(e) = connection.load_file()
            {
                return Progress::Failed(e.kind());
            }
            self.sending = true;
            let pieces = connection.take_pieces(PIECES, files);
            let last = is_last(connection);
            let before_close = loop_state.before_close();
            if last && P::JOINS && (self.receiving || self.finishing) {
                // A chain that closes must find nothing else in flight, and that has not come back yet. The close is
                // not far. A shutdown that a kernel worker still has would otherwise find the slot's next owner.
                port.send(token, &self.socket, pieces, before_close);
            } else if last {
                self.chained = port.send_last(token, &self.socket, pieces) == Chained::Yes;
            } else {
                // Only a file's beginning is sent right after these: other bytes wait until they have come back.
                let more = connection.queue().next_file().map_or(More::No, |_| More::BytesFollow);
                port.send(token, &self.socket, pieces, more);
            }
        }
        let wanted = action.receive == Receive::Post && !self.receiving;
        if wanted && loop_state.permits.may_receive(token, &mut self.permits) {
            self.receiving = true;
            if std::mem::take(&mut self.once) {
                port.receive_once(token, &self.socket);
            } else {
                port.receive(token, &self.socket, &loop_state.worker.policy);
            }
        }
        Progress::Idle
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
        let sending = self.sending || self.dialling;
        InFlight { receiving: self.receiving, sending, finishing: self.finishing, ..InFlight::default() }
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
        if self.sending && self.chained && std::mem::take(&mut self.doomed) {
            self.doom(token, port);
        }
    }

    /// Operations the kernel holds.
    pub(super) fn outstanding(&self) -> u64 {
        u64::from(self.receiving) + u64::from(self.sending) + u64::from(self.finishing)
    }
}

/// Whether all that was to be sent has been handed over, and the close is next.
fn is_last(connection: &Connection) -> bool {
    connection.action().then == NextStep::CloseAfterSend && !connection.queue().has_unsent()
}
