//! What a loop shows of a connection to the simulation between turns.

use std::time::Instant;

use crate::engine::worker::permits::ConnectionPermits;
use crate::policy::Policy;
use crate::proto::{Action, Connection, NextStep, PermitState};

/// What a connection wants, and what was done about it.
#[derive(Debug)]
pub(in crate::engine) struct View {
    pub(in crate::engine) deadline: Option<Instant>,
    /// `None` while it is being made.
    pub(in crate::engine) action: Option<Action>,
    /// It is between two messages.
    pub(in crate::engine) rests: bool,
    /// What it receives is discarded.
    pub(in crate::engine) lingers: bool,
    /// It will be looked at again without a cause from outside.
    pub(in crate::engine) listed: bool,
    /// An operation is in flight, or may be done as soon as the socket is ready.
    pub(in crate::engine) receives: bool,
    pub(in crate::engine) sends: bool,
    pub(in crate::engine) finishes: bool,
    /// The stream has ended, or broken off, which a send that is in flight or kept finds out.
    pub(in crate::engine) ended: bool,
    /// It has what the kernel had no memory to send; and when it tries that, or to receive, again.
    pub(in crate::engine) holds: bool,
    pub(in crate::engine) retry_at: Option<Instant>,
    pub(in crate::engine) receive_place: PermitState,
    pub(in crate::engine) send_place: PermitState,
    /// Permits to send that it has.
    pub(in crate::engine) send_permits: usize,
}

impl View {
    pub(in crate::engine) fn new(
        connection: Option<&Connection>,
        permits: &ConnectionPermits,
        policy: &Policy,
    ) -> Self {
        Self {
            deadline: connection.filter(|c| !is_over(c)).and_then(|connection| connection.deadline(policy)),
            action: connection.map(Connection::action),
            rests: connection.is_some_and(Connection::rests),
            lingers: connection.is_some_and(Connection::is_lingering),
            listed: false,
            receives: false,
            sends: false,
            finishes: false,
            ended: false,
            holds: false,
            retry_at: connection.filter(|c| !is_over(c)).and_then(Connection::retry_at),
            receive_place: permits.receive,
            send_place: permits.send,
            send_permits: permits.sends(),
        }
    }
}

/// It only waits for what is in flight.
fn is_over(connection: &Connection) -> bool {
    matches!(connection.action().then, NextStep::Close | NextStep::Reset)
}
