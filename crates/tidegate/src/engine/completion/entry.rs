//! One connection of a completion loop: the socket, what is in flight on it, and carrying out what the core wants.

use super::{Close, Port};
use crate::core::{Connection, Receive, Then, Token};
use crate::service::{Dial, Session};

/// A connection and what the kernel holds for it.
pub(super) struct Entry<S, P: Port> {
    pub(super) socket: P::Socket,
    pub(super) phase: Phase<S>,
    /// A receive is armed.
    pub(super) receiving: bool,
    /// The armed receive was asked to end.
    pub(super) stopping: bool,
    /// A send is in flight.
    pub(super) sending: bool,
    /// The shutdown of the sending side is in flight.
    pub(super) finishing: bool,
}

pub(super) enum Phase<S> {
    /// Being made.
    Dialling(Dial),
    Open(Connection<S>),
}

/// What the loop has to do after a connection's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Waits,
    Over(Close),
}

/// Most pieces of one send.
const PIECES: usize = 64;

impl<S: Session, P: Port> Entry<S, P> {
    pub(super) fn new(socket: P::Socket, phase: Phase<S>) -> Self {
        Self { socket, phase, receiving: false, stopping: false, sending: false, finishing: false }
    }

    /// Hands over what the connection wants and what is not in flight already.
    #[inline]
    pub(super) fn carry_out(&mut self, token: Token, port: &mut P) -> Turn {
        let Phase::Open(connection) = &mut self.phase else { return Turn::Waits };
        let action = connection.action();
        match action.then {
            Then::Nothing => {}
            Then::Close => return Turn::Over(self.close(false)),
            Then::Reset => return Turn::Over(self.close(true)),
            Then::FinishSending if self.finishing => {}
            Then::FinishSending => {
                self.finishing = true;
                port.finish_sending(token, &self.socket);
            }
        }
        if action.send && !self.sending {
            self.sending = true;
            port.send(token, &self.socket, connection.take_pieces(PIECES));
        }
        match action.receive {
            Receive::Post if !self.receiving => {
                self.receiving = true;
                port.receive(token, &self.socket);
            }
            Receive::Pause if self.receiving && !self.stopping => {
                self.stopping = true;
                port.stop_receiving(token);
            }
            _ => {}
        }
        Turn::Waits
    }

    /// How to close it in its present state.
    pub(super) fn close(&self, reset: bool) -> Close {
        let dialling = matches!(self.phase, Phase::Dialling(_));
        Close { reset, busy: self.receiving || self.sending || self.finishing || dialling }
    }

    /// Operations the kernel holds.
    pub(super) fn outstanding(&self) -> u64 {
        u64::from(self.receiving) + u64::from(self.sending) + u64::from(self.finishing)
    }
}
