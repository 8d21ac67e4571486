//! A simulated port: operations of a kernel queue that complete in any order, late, in part, or not as asked.
//!
//! Sockets are slots of a table, and a slot that was given back is the first to be given out again. What is asked for
//! by slot is done to its owner when the kernel gets to it, which may be late; that must be the one meant.

mod kernel;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tidegate_os::file::FileRange;
use tidegate_os::socket::{More, is_out_of_buffers};
use tidegate_os::waker::Waker;

use crate::engine::completion::{Chained, Close, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::simulated::shelf::read;
use crate::engine::simulated::socket::{LOCAL, SocketState, id_of};
use crate::engine::simulated::view::View;
use crate::engine::simulated::world::{Happening, World, with};
use crate::policy::Policy;
use crate::proto::queue::{FileSending, Pieces};
use crate::proto::{Direction, NextStep, PermitState, Receive, Sequence, Token};
use crate::service::Dial;

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
    /// Its completion was made.
    over: bool,
}

/// What is handed over with the next wait, in this order.
#[derive(Debug)]
enum Submission {
    Start(Operation),
    StopAccepting,
    StopReceiving(Token),
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
pub(super) struct SimPort {
    requests: Vec<Submission>,
    operations: Vec<Operation>,
    /// What the kernel has not got to yet.
    orders: Vec<SlotOrder>,
    /// Who has which slot, and the free ones; the one that was freed last is given out first.
    table: Vec<Option<usize>>,
    free: Vec<usize>,
    completed: VecDeque<Completed>,
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
}

const NOBODY: Token = Token { index: u32::MAX, generation: 0 };
const NOWHERE: usize = usize::MAX;

impl CompletionDriver for SimPort {
    type Socket = Slot;
    type Buffer = Buffer;
    type Unsent = SimUnsent;
    type Listener = SimAcceptQueue;
    type Address = Infallible;
    type Loose = Infallible;
    const HANDS_ON: bool = false; // one thread

    const JOINS: bool = true;

    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let pool = setup.policy.buffers.next_power_of_two();
        let new = Self {
            requests: Vec::new(),
            operations: Vec::new(),
            orders: Vec::new(),
            table: Vec::new(),
            free: Vec::new(),
            completed: VecDeque::new(),
            closing: Vec::new(),
            buffers: pool,
            pool,
            buffer_bytes: setup.policy.buffer_bytes,
            taken: 0,
            slots: setup.share + SLACK,
            accepts: 0,
            stopping: false,
        };
        Ok((new, setup.share))
    }

    fn local_addr(_: &Slot) -> Option<SocketAddr> {
        Some(LOCAL)
    }

    fn files(&self) -> FileSending {
        with(|world| world.shelf.files)
    }

    fn watch_waker(&mut self, _: &Arc<Waker>) {}

    fn accept_room(&self) -> usize {
        (self.slots - SLACK).saturating_sub(self.taken)
    }

    fn accept_all(&mut self, _: &SimAcceptQueue) {
        self.accepts += 1;
        self.start(OperationKind::Accept { endless: true }, (NOBODY, None), None);
    }

    fn accept_one(&mut self, _: &SimAcceptQueue) {
        self.accepts += 1;
        self.start(OperationKind::Accept { endless: false }, (NOBODY, None), None);
    }

    fn address(&self) -> io::Result<Option<Infallible>> {
        Ok(None)
    }

    fn hand_on(&mut self, socket: Slot, _: usize, _: Option<Infallible>) -> HandOn<Self> {
        HandOn::Kept(socket)
    }

    fn take_in(&mut self, loose: Infallible) -> Slot {
        match loose {}
    }

    fn has_waiting(_: &SimAcceptQueue) -> bool {
        with(|world| !world.backlog.is_empty())
    }

    fn stop_accepting(&mut self) {
        self.stopping = true;
        self.requests.push(Submission::StopAccepting);
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<Slot> {
        let Some(id) = dial.to.addr().map(id_of) else {
            unreachable!("every peer of a simulation has an address")
        };
        let refused = with(|world| {
            if world.chance(world.moods.exhausted) {
                world.expected.no_descriptors += 1;
                return true;
            }
            world.established(id);
            world.sockets[id].flying.dial = true;
            false
        });
        if refused {
            return Err(Errno::MFILE.into());
        }
        self.taken += 1;
        let socket = self.give_slot(id);
        self.start(OperationKind::Dial, (token, None), Some(&socket));
        Ok(socket)
    }

    fn most_sends(&self) -> usize {
        // What is sent from a file goes in steps of the loop.
        with(|world| if world.shelf.files == FileSending::Alone { 1 } else { usize::MAX })
    }

    fn may_receive_ahead(&self, _: &Slot) -> bool {
        with(|world| !world.moods.endless && world.rng.bool())
    }

    fn receive(&mut self, token: Token, sequence: Sequence, socket: &Slot, _: &Policy) {
        let what = if with(|world| world.moods.endless) { Receives::Endless } else { Receives::Once };
        self.start_receive(token, sequence, socket, what);
    }

    fn receive_once(&mut self, token: Token, sequence: Sequence, socket: &Slot) {
        self.start_receive(token, sequence, socket, Receives::Once);
    }

    fn poll_readable(&mut self, token: Token, sequence: Sequence, socket: &Slot) {
        self.start_receive(token, sequence, socket, Receives::Polls);
    }

    fn stop_receiving(&mut self, token: Token, _: &Self::Socket) {
        if let Some(operation) = self.operation(token) {
            let id = operation.meant;
            with(|world| world.sockets[id].flying.stopping = true);
        }
        self.requests.push(Submission::StopReceiving(token));
    }

    fn stop_sending(&mut self, token: Token, _: &Slot) {
        self.requests.push(Submission::StopSending(token));
    }

    fn stop(&mut self, token: Token, socket: &Slot, how: Close) -> u32 {
        with(|world| {
            world.gives_up(socket.id);
            let socket = &mut world.sockets[socket.id];
            socket.resets |= how.reset;
            socket.server = SocketState::Closing { reset: socket.resets };
            socket.leaving = true;
        });
        let stops = match how {
            Close { busy: true, .. } => Some(Ask::StopAll),
            Close { receiving: true, .. } => Some(Ask::StopReceiving),
            Close { .. } => None,
        };
        let asks = how.reset.then_some(Ask::Reset).into_iter().chain(stops);
        asks.map(|what| self.order(token, socket, what)).count() as u32
    }

    fn send(&mut self, token: Token, sequence: Sequence, socket: &Slot, pieces: Pieces, more: More) {
        // Such bytes wait for the close, and that would come behind a pause.
        with(|world| {
            if more == More::CloseFollows && !world.switched && !world.policy.coalesce.is_zero() {
                world.fail(|| format!("what {} is sent last waits for a close behind a pause", socket.id));
            }
        });
        match pieces {
            Pieces::File { range, .. } if self.files() == FileSending::Alone => {
                self.start_file(token, socket, range)
            }
            pieces => self.start_send(token, sequence, socket, flat(&pieces), false),
        }
    }

    fn go_on(
        &mut self,
        socket: &Slot,
        unsent: SimUnsent,
        _more: More,
    ) -> (io::Result<usize>, Option<SimUnsent>) {
        let SimUnsent::File(mut range) = unsent else { unreachable!("only a file goes on") };
        let outcome: io::Result<usize> = with(|world| {
            let id = socket.id;
            let refuses = world.chance(world.moods.would_block) && world.sockets[id].broken.is_none();
            if let Some(e) = world.memory_error(id) {
                world.is_short(id, Direction::Send);
                return Err(e);
            }
            let mut bytes = read(&range);
            if world.chance(world.moods.partial) {
                bytes.truncate(world.rng.usize(1..=bytes.len()));
            }
            let n = if refuses { 0 } else { world.send(id, &bytes)? as usize };
            if n > 0 {
                world.was_confirmed(id, n as u64); // nothing is no progress
            }
            range.advance(n);
            Ok(n)
        });
        let unsent = (!range.is_empty()).then_some(SimUnsent::File(range));
        (outcome, unsent)
    }

    fn send_last(&mut self, token: Token, sequence: Sequence, socket: &Slot, pieces: Pieces) -> Chained {
        if matches!(pieces, Pieces::File { .. }) {
            self.send(token, sequence, socket, pieces, More::No);
            return Chained::No;
        }
        let chains = with(|world| world.moods.chains);
        self.start_send(token, sequence, socket, flat(&pieces), chains);
        if chains { Chained::Yes } else { Chained::No }
    }

    fn closed(&mut self, socket: Slot) {
        self.taken -= 1;
        with(|world| {
            let server = world.sockets[socket.id].server;
            if !matches!(server, SocketState::Closed | SocketState::Closing { .. }) {
                world.fail(|| format!("{} is taken for closed, and is {server:?}", socket.id));
            }
        });
    }

    fn send_rest(&mut self, token: Token, sequence: Sequence, socket: &Slot, unsent: SimUnsent) {
        with(|world| {
            let others = world.sockets[socket.id].flying.sends;
            if others > 0 {
                world.fail(|| format!("{}: a rest is sent behind {others} other sends", socket.id));
            }
        });
        match unsent {
            SimUnsent::Bytes(bytes) => self.start_send(token, sequence, socket, bytes, false),
            SimUnsent::File(range) => self.start_file(token, socket, range),
        }
    }

    fn finish_sending(&mut self, token: Token, socket: &Slot) {
        with(|world| {
            world.tries_again(socket.id, Direction::Send);
            let twice = std::mem::replace(&mut world.sockets[socket.id].flying.finish, true);
            if twice {
                world.fail(|| format!("{}: two shutdowns in flight", socket.id));
            }
        });
        self.start(OperationKind::Finish, (token, None), Some(socket));
    }

    fn close(&mut self, token: Token, socket: Slot, how: Close) {
        let id = socket.id;
        self.taken -= 1;
        with(|world| {
            world.gives_up(id);
            let socket = &mut world.sockets[id];
            let (flying, leaving) = (socket.flying, std::mem::take(&mut socket.leaving));
            if !leaving && socket.server != SocketState::Open {
                world.fail(|| format!("{id} is closed twice"));
            } else if flying.receives + flying.sends > 0 || flying.finish || flying.dial {
                world.fail(|| format!("{id} is closed over what is in flight: {flying:?}, {how:?}"));
            } else {
                socket.resets |= how.reset;
                socket.server = SocketState::Closing { reset: socket.resets };
            }
        });
        self.order(token, &socket, Ask::Close);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        with(|world| {
            self.check_bounds(world);
            self.hand_over(world);
            if !self.completed.is_empty() {
                world.moved = true;
            }
            let waits = if self.completed.is_empty() { timeout } else { Some(Duration::ZERO) };
            world.sleep(waits, |world| {
                self.work(world);
                !self.completed.is_empty()
            });
            self.work(world); // after a stall
            world.note(|| format!("woken by {} completions", self.completed.len()));
            Ok(())
        })
    }

    fn submit(&mut self) -> io::Result<()> {
        with(|world| {
            self.check_bounds(world);
            self.hand_over(world);
            self.work(world); // what completes at once, and on some kernels what has come from outside
            Ok(())
        })
    }

    fn wait_later(&mut self, pause: Duration, timeout: Option<Duration>) -> io::Result<()> {
        with(|world| {
            self.hand_over(world);
            world.pause(pause, |world| self.work(world));
        });
        self.wait(timeout.map(|timeout| timeout.saturating_sub(pause)))
    }

    fn next(&mut self) -> Option<Completion<Self>> {
        with(|world| {
            world.take_rest();
            world.suddenly();
            if world.chance(world.moods.sudden) {
                self.work(world);
            }
            let (id, completion) = self.completed.pop_front()?;
            self.note_taken(world, id, &completion);
            Some(completion)
        })
    }

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        &buffer.0
    }

    fn recycle(&mut self, _: Buffer) {
        self.buffers += 1;
        if self.buffers > self.pool {
            with(|world| world.fail(|| "a buffer is returned twice".into()));
        }
    }

    fn is_out_of_buffers(e: &io::Error) -> bool {
        is_out_of_buffers(e)
    }

    fn now(&self) -> Instant {
        with(|world| world.now)
    }
}

fn flat(pieces: &Pieces) -> Vec<u8> {
    match pieces {
        Pieces::One(piece) => piece.to_vec(),
        Pieces::Many(pieces) => pieces.concat(),
        Pieces::File { head, range, tail } => [head.concat(), read(range), tail.concat()].concat(),
    }
}

/// What the loop asks for.
impl SimPort {
    /// A free slot, for this socket.
    fn give_slot(&mut self, id: usize) -> Slot {
        let number = self.free.pop().unwrap_or(self.table.len());
        self.table.resize(self.table.len().max(number + 1), None);
        self.table[number] = Some(id);
        Slot { number, id }
    }

    fn start(
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
        let (id, cancelled, over) = (NOWHERE, false, false);
        let operation = Operation { kind, token, sequence, slot, meant, id, not_before, cancelled, over };
        self.requests.push(Submission::Start(operation));
    }

    fn order(&mut self, token: Token, socket: &Slot, what: Ask) {
        let not_before = with(|world| {
            let late = world.chance(world.moods.late);
            world.not_before(late)
        });
        let order = SlotOrder { token, slot: socket.number, meant: socket.id, what, not_before };
        self.requests.push(Submission::Order(order));
    }

    fn start_receive(&mut self, token: Token, sequence: Sequence, socket: &Slot, what: Receives) {
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

    fn start_send(&mut self, token: Token, sequence: Sequence, socket: &Slot, bytes: Vec<u8>, chained: bool) {
        self.note_send(socket, bytes.len());
        let sequence = (self.most_sends() > 1).then_some(sequence);
        let returns = with(|world| world.sockets[socket.id].flying.fell_short);
        self.start(OperationKind::Send { bytes, sent: 0, chained, returns }, (token, sequence), Some(socket));
    }

    fn start_file(&mut self, token: Token, socket: &Slot, range: FileRange) {
        self.note_send(socket, range.len());
        self.start(OperationKind::Room(range), (token, None), Some(socket));
    }

    fn note_send(&self, socket: &Slot, n: usize) {
        with(|world| {
            world.tries_again(socket.id, Direction::Send);
            world.sockets[socket.id].order[Direction::Send as usize].begin();
            let most = world.policy.posted_sends;
            let flying = &mut world.sockets[socket.id].flying;
            flying.sends += 1;
            let sends = flying.sends;
            if sends > most || n == 0 {
                world.fail(|| format!("{}: a send of {n} bytes, {sends} in flight", socket.id));
            }
        });
    }

    fn operation(&self, token: Token) -> Option<&Operation> {
        let asked = self.requests.iter().filter_map(|request| match request {
            Submission::Start(operation) => Some(operation),
            _ => None,
        });
        self.operations
            .iter()
            .chain(asked)
            .find(|operation| operation.token == token && matches!(operation.kind, OperationKind::Receive(_)))
    }

    fn hand_over(&mut self, world: &mut World) {
        for request in std::mem::take(&mut self.requests) {
            world.note(|| format!("  handed over: {request:?}"));
            match request {
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
    fn cancel(&mut self, world: &mut World, which: impl Fn(&Operation) -> bool) -> u32 {
        let misses = world.moods.loses / 4;
        let mut found = 0;
        for operation in self.operations.iter_mut().filter(|operation| which(operation)) {
            let finds = !world.chance(misses);
            operation.cancelled |= finds;
            found += u32::from(finds);
        }
        found
    }

    /// The bounds of the policy on what is in flight at once.
    fn check_bounds(&self, world: &mut World) {
        let open = world.sockets.iter().filter(|socket| socket.server == SocketState::Open);
        let (mut sends, mut receives) = (0, 0);
        for socket in open {
            sends += socket.flying.sends;
            let flying = socket.flying;
            receives += usize::from(flying.receives > 0 && !flying.stopping && !flying.polls);
        }
        let policy = world.policy.clone();
        if world.switched {
            return;
        }
        if policy.outstanding_sends.is_some_and(|most| sends > most.get() as usize) {
            world.fail(|| format!("{sends} sends are outstanding, more than outstanding_sends"));
        }
        if policy.max_receiving.is_some_and(|most| receives > most.get()) {
            world.fail(|| format!("{receives} connections receive, more than max_receiving"));
        }
    }
}

/// When everything is over: nothing is left with the kernel.
pub(super) fn check_empty(port: &mut SimPort) {
    with(|world| {
        port.hand_over(world);
        // Nothing outlasts the drain timeout: accepts that have not come back by then go with the ring.
        if world.drained_at.is_some_and(|at| world.now >= at + world.policy.drain_timeout) || world.switched {
            port.operations.retain(|operation| !matches!(operation.kind, OperationKind::Accept { .. }));
        }
        for _ in 0..1000 {
            port.work(world);
            world.now += Duration::from_millis(1);
        }
        while let Some((id, completion)) = port.completed.pop_front() {
            port.note_taken(world, id, &completion);
            if let Completion::Received { outcome: Ok(Some(_)), .. } = completion {
                port.buffers += 1;
            }
        }
        let live = port.operations.len() + port.orders.len();
        if let Some(id) = port.table.iter().flatten().next() {
            world.fail(|| format!("left: the slot of {id}"));
        }
        let (buffers, pool, taken) = (port.buffers, port.pool, port.taken);
        if live > 0 || buffers != pool {
            world.fail(|| {
                format!("left: {live} operations, {taken} sockets, {buffers} of {pool} buffers free")
            });
        }
    });
}

impl World {
    /// When the kernel gets to something that it may come to late.
    pub(super) fn not_before(&mut self, late: bool) -> Instant {
        if !late {
            return self.now;
        }
        let after = crate::engine::simulated::script::time(&mut self.rng, 60);
        self.config(after, Happening::Nudge);
        self.now + after
    }

    /// After a turn: whatever the connection wants is in flight.
    pub(super) fn check_flying_view(&mut self, socket: &Slot, view: &View) {
        self.check_view(socket.id, view);
        let Some(action) = view.action else { return };
        let receives =
            view.receives || view.receive_place == PermitState::Waiting || action.receive == Receive::Pause;
        let sends = view.sends || view.send_place == PermitState::Waiting || !action.send;
        let finishes = view.finishes || action.then != NextStep::FinishSending;
        if !receives || !sends || !finishes {
            self.fail(|| format!("{} wants something that nobody has asked for: {view:?}", socket.id));
        }
    }
}
