//! A simulated port: operations of a kernel queue that complete in any order, late, in part, or not as asked.
//!
//! Sockets are slots of a table, and a slot that was given back is the first to be given out again. What is asked for
//! by slot is done to its owner when the kernel gets to it, which may be late; that must be the one meant.

mod checks;
mod driver;
mod kernel;
mod submissions;

use std::collections::VecDeque;
use std::time::Instant;

use tidegate_os::file::FileRange;

pub(super) use self::checks::check_empty;
use crate::engine::completion::Completion;
use crate::engine::worker::loop_driver::Pinning;
use crate::proto::{Sequence, Token};

/// The listening socket.
pub(super) struct SimAcceptQueue;

/// A socket in the port's table.
#[derive(Debug)]
pub(super) struct Slot {
    number: usize,
    /// Whose it is.
    pub(super) id: usize,
}

/// A buffer of the pool, out with received bytes.
pub(super) struct Buffer(Vec<u8>);

/// What a send did not take.
pub(super) enum SimUnsent {
    Bytes(Vec<u8>),
    File(FileRange),
}

#[derive(Debug)]
enum OperationKind {
    Accept {
        endless: bool,
    },
    Receive(Receives),
    Send {
        bytes: Vec<u8>,
        sent: usize,
        chained: bool,
        /// One before it was not taken whole.
        returns: bool,
    },
    /// Until a part of a file may go on.
    Room(FileRange),
    Finish,
    Dial,
}

/// What a receive does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Once,
    Endless,
    /// Waits for something, and takes nothing.
    Polls,
}

/// An operation in flight.
#[derive(Debug)]
struct Operation {
    kind: OperationKind,
    /// Of nobody, for accepts.
    token: Token,
    /// Among the receives or sends of its connection; none where there is one at most.
    sequence: Option<Sequence>,
    /// The slot it was asked for by, and who had that then; [`NOWHERE`] for accepts.
    slot: usize,
    meant: usize,
    /// Who had it when the kernel looked it up; [`NOWHERE`] before.
    id: usize,
    /// Nothing is done about it before.
    not_before: Instant,
    cancelled: bool,
    /// A receive that stays armed has brought something; it has missed a reset, or an end, that was there by then.
    brought: bool,
    deaf: bool,
    /// Its completion was made.
    over: bool,
}

/// What is handed over with the next wait, in this order.
#[derive(Debug)]
enum Submission {
    Start(Operation),
    StopAccepting,
    StopReceiving(Token),
    LookForReset(Token, usize),
    LookForEnd(Token, usize),
    StopSending(Token),
    Order(SlotOrder),
}

/// Something to be done about a slot, or under it: at once, or later.
#[derive(Debug)]
struct SlotOrder {
    token: Token,
    slot: usize,
    meant: usize,
    what: Ask,
    not_before: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// What is in flight is to end; only the receive is.
    StopAll,
    StopReceiving,
    /// The close is to be a reset.
    Reset,
    Close,
}

/// A completion, and what becomes of it if the loop no longer knows the connection.
type Completed = (Option<usize>, Completion<SimPort>);

/// Slots that connections which are being refused may take beside those that are served.
const SLACK: usize = 64;

/// A simulated kernel queue.
#[derive(Default)]
pub(super) struct SimPort {
    submissions: Vec<Submission>,
    operations: Vec<Operation>,
    /// What the kernel has not got to yet.
    orders: Vec<SlotOrder>,
    /// Who has which slot, and the free ones; the one that was freed last is given out first.
    table: Vec<Option<usize>>,
    free: Vec<usize>,
    completed: VecDeque<Completed>,
    /// Completions of a batch at most, and those of this one so far.
    most: usize,
    brought: usize,
    /// Sockets that were closed while something was in flight on them.
    closing: Vec<usize>,
    /// Buffers of the pool that are free, and how many there are.
    buffers: usize,
    pool: usize,
    buffer_bytes: usize,
    /// Connections in the table, as the loop counts them, and how many it may have.
    taken: usize,
    slots: usize,
    /// Accepts that were posted and have not ended, as the loop sees it; they were asked to.
    accepts: usize,
    stopping: bool,
    /// What receives may pin; and the operations that had failed for lack of memory, and the retries that had
    /// succeeded, when that was last looked at.
    pinning: Pinning,
    shortages: (u64, u64),
}

const NOBODY: Token = Token { index: u32::MAX, generation: 0 };
const NOWHERE: usize = usize::MAX;
