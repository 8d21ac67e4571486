//! The port as the loop sees it: each call is checked, and becomes a submission.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::socket::{More, is_out_of_buffers};
use tidegate_os::waker::Waker;

use super::{
    Ask, Buffer, NOBODY, OperationKind, Receives, SLACK, SimAcceptQueue, SimPort, SimUnsent, Slot, Submission,
};
use crate::engine::completion::{Chained, Close, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::simulated::shelf::read;
use crate::engine::simulated::socket::{LOCAL, SocketState};
use crate::engine::simulated::world::with;
use crate::engine::worker::loop_driver::Pinning;
use crate::policy::Policy;
use crate::proto::queue::{FileSending, Pieces};
use crate::proto::{Direction, Sequence, Token};
use crate::service::Dial;

impl CompletionDriver for SimPort {
    type Socket = Slot;
    type Buffer = Buffer;
    type Unsent = SimUnsent;
    type Listener = SimAcceptQueue;
    type Address = Infallible;
    type Loose = Infallible;
    const HANDS_ON: bool = false; // one thread
    const TAKES_BACKLOG: bool = true;
    const MOST_SEND_BYTES: usize = 16 * 1024;

    const JOINS: bool = true;

    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let pool = setup.policy.buffers.next_power_of_two();
        let all = setup.share * (setup.dials_each + 1);
        let new = Self {
            most: setup.policy.events_per_wait,
            buffers: pool,
            pool,
            buffer_bytes: setup.policy.buffer_bytes,
            slots: all + SLACK,
            ..Self::default()
        };
        Ok((new, all))
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

    fn is_unix(_: &SimAcceptQueue) -> bool {
        with(|world| world.moods.unix)
    }

    fn has_waiting(_: &SimAcceptQueue) -> bool {
        with(|world| !world.backlog.is_empty())
    }

    fn stop_accepting(&mut self) {
        self.stopping = true;
        self.submissions.push(Submission::StopAccepting);
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<Slot> {
        let id = with(|world| world.dial(&dial.to))?;
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

    fn look_for_reset(&mut self, token: Token, socket: &Slot) {
        self.submissions.push(Submission::LookForReset(token, socket.id));
    }

    fn look_for_end(&mut self, token: Token, socket: &Slot) {
        self.submissions.push(Submission::LookForEnd(token, socket.id));
    }

    fn receive_once(&mut self, token: Token, sequence: Sequence, socket: &Slot) {
        self.start_receive(token, sequence, socket, Receives::Once);
    }

    fn poll_readable(&mut self, token: Token, sequence: Sequence, socket: &Slot) {
        self.start_receive(token, sequence, socket, Receives::Polls);
    }

    fn stop_receiving(&mut self, token: Token, socket: &Slot) {
        with(|world| world.sockets[socket.id].flying.stopping = true);
        self.submissions.push(Submission::StopReceiving(token));
    }

    fn stop_sending(&mut self, token: Token, _: &Slot) {
        self.submissions.push(Submission::StopSending(token));
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

    fn is_cut(&self, socket: &Slot, _: usize, unsent: &SimUnsent) -> bool {
        matches!(unsent, SimUnsent::Bytes(_)) && with(|world| world.sockets[socket.id].flying.cut)
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
            let next = if self.brought < self.most { self.completed.pop_front() } else { None };
            self.brought = if next.is_some() { self.brought + 1 } else { 0 };
            let (id, completion) = next?;
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

    fn set_pinning(&mut self, pinning: Pinning) {
        self.pinning = pinning;
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
