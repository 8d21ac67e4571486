//! What the loop submits: made at once, handed over with the next wait.

use std::time::Instant;

use tidegate_os::file::FileRange;

use super::{Ask, NOWHERE, Operation, OperationKind, Receives, SimPort, Slot, SlotOrder, Submission};
use crate::engine::completion::{Completion, CompletionDriver};
use crate::engine::simulated::world::{Happening, World, with};
use crate::engine::worker::loop_driver::Pinning;
use crate::proto::{Direction, Sequence, Token};

/// What the loop asks for.
impl SimPort {
    /// A free slot, for this socket.
    pub(super) fn give_slot(&mut self, id: usize) -> Slot {
        let number = self.free.pop().unwrap_or(self.table.len());
        self.table.resize(self.table.len().max(number + 1), None);
        self.table[number] = Some(id);
        Slot { number, id }
    }

    pub(super) fn start(
        &mut self,
        kind: OperationKind,
        (token, sequence): (Token, Option<Sequence>),
        socket: Option<&Slot>,
    ) {
        let not_before = with(|world| {
            let may_wait = !matches!(kind, OperationKind::Accept { .. }); // that is tried as soon as it is handed over
            let late = may_wait && world.chance(world.moods.late) || matches!(kind, OperationKind::Dial);
            world.not_before(late)
        });
        let (slot, meant) = socket.map_or((NOWHERE, NOWHERE), |socket| (socket.number, socket.id));
        let operation = Operation {
            kind,
            token,
            sequence,
            slot,
            meant,
            id: NOWHERE,
            not_before,
            cancelled: false,
            brought: false,
            deaf: false,
            over: false,
        };
        self.submissions.push(Submission::Start(operation));
    }

    pub(super) fn order(&mut self, token: Token, socket: &Slot, what: Ask) {
        let not_before = with(|world| {
            let late = world.chance(world.moods.late);
            world.not_before(late)
        });
        let order = SlotOrder { token, slot: socket.number, meant: socket.id, what, not_before };
        self.submissions.push(Submission::Order(order));
    }

    pub(super) fn start_receive(&mut self, token: Token, sequence: Sequence, socket: &Slot, what: Receives) {
        with(|world| {
            world.tries_again(socket.id, Direction::Receive);
            world.sockets[socket.id].order[Direction::Receive as usize].begin();
            let most = if what == Receives::Once { world.policy.posted_receives } else { 1 };
            let flying = &mut world.sockets[socket.id].flying;
            flying.stopping = false;
            flying.polls = what == Receives::Polls;
            flying.receives += 1;
            let receives = flying.receives;
            if receives > most {
                world.fail(|| format!("{}: {receives} receives in flight", socket.id));
            }
            let enough = world.policy.max_receiving.is_none_or(|n| n.get() >= world.sockets.len());
            if what == Receives::Polls && enough && !world.switched {
                world.fail(|| format!("{} polls, and there is a permit for each connection", socket.id));
            }
        });
        let sequence = (what != Receives::Endless).then_some(sequence);
        self.start(OperationKind::Receive(what), (token, sequence), Some(socket));
    }

    pub(super) fn start_send(
        &mut self,
        token: Token,
        sequence: Sequence,
        socket: &Slot,
        bytes: Vec<u8>,
        chained: bool,
    ) {
        self.note_send(socket, bytes.len());
        let sequence = (self.most_sends() > 1).then_some(sequence);
        let returns = with(|world| world.sockets[socket.id].flying.fell_short);
        self.start(OperationKind::Send { bytes, sent: 0, chained, returns }, (token, sequence), Some(socket));
    }

    pub(super) fn start_file(&mut self, token: Token, socket: &Slot, range: FileRange) {
        self.note_send(socket, range.len());
        self.start(OperationKind::Room(range), (token, None), Some(socket));
    }

    fn note_send(&self, socket: &Slot, n: usize) {
        with(|world| {
            world.tries_again(socket.id, Direction::Send);
            world.sockets[socket.id].order[Direction::Send as usize].begin();
            let most = if self.pinning == Pinning::Least { 1 } else { world.policy.posted_sends };
            let flying = &mut world.sockets[socket.id].flying;
            flying.sends += 1;
            let sends = flying.sends;
            if sends > most || n == 0 {
                world.fail(|| format!("{}: a send of {n} bytes, {sends} in flight", socket.id));
            }
        });
    }

    pub(super) fn hand_over(&mut self, world: &mut World) {
        for submission in std::mem::take(&mut self.submissions) {
            world.note(|| format!("  handed over: {submission:?}"));
            match submission {
                Submission::Start(operation) => {
                    self.operations.push(operation);
                    self.accept_at_once(world);
                }
                Submission::StopAccepting => {
                    // One that is just being carried out is not found (`io_uring_prep_cancel(3)`), and waits on.
                    let misses = world.moods.loses / 4;
                    for operation in &mut self.operations {
                        let accepts = matches!(operation.kind, OperationKind::Accept { .. });
                        operation.cancelled |= accepts && !world.chance(misses);
                    }
                }
                Submission::StopReceiving(token) => {
                    let receives =
                        |o: &Operation| o.token == token && matches!(o.kind, OperationKind::Receive(_));
                    self.operations.iter_mut().filter(|o| receives(o)).for_each(|o| o.cancelled = true);
                }
                Submission::LookForReset(token, id) => {
                    let socket = &mut world.sockets[id];
                    if !socket.has_unread()
                        && let Some(error) = socket.break_error()
                    {
                        self.completed.push_back((Some(id), Completion::Reset { token, error }));
                    }
                }
                Submission::LookForEnd(token, id) => {
                    let socket = &mut world.sockets[id];
                    if socket.is_readable() && !socket.has_unread() {
                        let completion = match socket.break_error() {
                            Some(error) => Completion::Reset { token, error },
                            None => {
                                (socket.missed, socket.end_seen) = (None, true);
                                Completion::Ended { token }
                            }
                        };
                        self.completed.push_back((Some(id), completion));
                    }
                }
                Submission::StopSending(token) => {
                    let sends =
                        |o: &Operation| o.token == token && matches!(o.kind, OperationKind::Send { .. });
                    let found = self.cancel(world, sends) > 0;
                    self.completed.push_back((None, Completion::StoppedSending { token, found }));
                }
                Submission::Order(order) => self.orders.push(order),
            }
        }
    }

    /// Asks operations to end; how many were found. One that is just being worked on is not.
    pub(super) fn cancel(&mut self, world: &mut World, which: impl Fn(&Operation) -> bool) -> u32 {
        let misses = world.moods.loses / 4;
        let mut found = 0;
        for operation in self.operations.iter_mut().filter(|operation| which(operation)) {
            let finds = !world.chance(misses);
            operation.cancelled |= finds;
            found += u32::from(finds);
        }
        found
    }
}

impl World {
    /// When the kernel gets to something that it may come to late.
    pub(in crate::engine::simulated) fn not_before(&mut self, late: bool) -> Instant {
        if !late {
            return self.now;
        }
        let after = crate::engine::simulated::script::time(&mut self.rng, 60);
        self.config(after, Happening::Nudge);
        self.now + after
    }
}
