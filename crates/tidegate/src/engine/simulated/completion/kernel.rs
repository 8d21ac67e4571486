//! What the simulated kernel does with the operations that were handed to it.

use std::io::{self, ErrorKind};
use std::mem::discriminant;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use rustix::io::Errno;

use super::{
    Ask, Buffer, NOWHERE, Operation, OperationKind, Receives, SimPort, SimUnsent, SlotOrder, Submission,
};
use crate::engine::completion::Completion;
use crate::engine::simulated::socket::{SocketState, Taken, address};
use crate::engine::simulated::world::{Happening, World};
use crate::proto::{Direction, Token};

impl SimPort {
    /// An accept looks for a connection as soon as it is handed over.
    pub(super) fn accept_at_once(&mut self, world: &mut World) {
        let Some(at) = self.operations.len().checked_sub(1) else { return };
        if let OperationKind::Accept { endless } = self.operations[at].kind {
            self.step_accept(at, endless, world);
        }
    }

    /// Does what can be done of every operation, in any order.
    pub(super) fn work(&mut self, world: &mut World) {
        if world.woken.swap(false, SeqCst) {
            self.completed.push_back((None, Completion::Woken));
        }
        self.carry_out_orders(world);
        let count = self.operations.len();
        let first = if count > 0 { world.rng.usize(..count) } else { 0 };
        for step in 0..count {
            let at = (first + step) % count;
            // An operation without end goes on as long as there is something, or is interrupted.
            let most = world.rng.u8(1..=4);
            for _ in 0..most {
                let operation = &self.operations[at];
                if operation.not_before <= world.now && !operation.over {
                    self.step(at, world);
                }
            }
        }
        self.operations.retain(|operation| !operation.over);
        self.finish_closing(world);
    }

    /// What was closed is closed for the peer as soon as nothing keeps it open any more.
    fn finish_closing(&mut self, world: &mut World) {
        let operations = &self.operations;
        self.closing.retain(|&id| {
            if operations.iter().any(|operation| operation.id == id) {
                return true;
            }
            let reset = matches!(world.sockets[id].server, SocketState::Closing { reset: true });
            world.close(id, reset);
            false
        });
    }

    /// Gets to what is to be done about slots.
    fn carry_out_orders(&mut self, world: &mut World) {
        let now = world.now;
        let due: Vec<SlotOrder> = self.orders.extract_if(.., |order| order.not_before <= now).collect();
        for SlotOrder { token, slot, meant, what, .. } in due {
            let Some(id) = self.look_up(slot, meant, world, || format!("{what:?}")) else { return };
            let found = match what {
                // A shutdown that still waits for its thread is not found.
                Ask::StopAll => {
                    let waits = |o: &Operation| o.id == NOWHERE && matches!(o.kind, OperationKind::Finish);
                    self.cancel(world, |operation| operation.meant == id && !waits(operation))
                }
                Ask::StopReceiving => {
                    let receives = |o: &Operation| matches!(o.kind, OperationKind::Receive(_));
                    self.cancel(world, |operation| operation.token == token && receives(operation))
                }
                Ask::Reset => 0,
                Ask::Close => {
                    self.table[slot] = None;
                    self.free.push(slot);
                    self.closing.push(id);
                    0
                }
            };
            if what != Ask::Close {
                self.completed.push_back((None, Completion::Stopped { token, found }));
            }
        }
    }

    /// Who has a slot: it has to be who was meant.
    fn look_up(
        &self,
        slot: usize,
        meant: usize,
        world: &mut World,
        what: impl FnOnce() -> String,
    ) -> Option<usize> {
        let id = self.table.get(slot).copied().flatten();
        if id != Some(meant) {
            world.fail(|| format!("slot {slot} was {meant}'s, and is {id:?}'s now: {}", what()));
            return None;
        }
        id
    }

    /// Receives and sends of one connection are served in the order in which they were posted.
    fn is_next(&self, at: usize) -> bool {
        let Operation { ref kind, token, .. } = self.operations[at];
        let same = |other: &Operation| {
            other.token == token && !other.over && discriminant(&other.kind) == discriminant(kind)
        };
        matches!(kind, OperationKind::Accept { .. }) || !self.operations[..at].iter().any(same)
    }

    fn step(&mut self, at: usize, world: &mut World) {
        if !self.is_next(at) {
            return;
        }
        let Operation { slot, meant, id, .. } = self.operations[at];
        if id == NOWHERE && slot != NOWHERE {
            let what = || format!("{:?}", self.operations[at].kind);
            let Some(id) = self.look_up(slot, meant, world, what) else { return };
            self.operations[at].id = id;
        }
        match self.operations[at].kind {
            OperationKind::Accept { endless } => self.step_accept(at, endless, world),
            OperationKind::Receive(what) => self.step_receive(at, what, world),
            OperationKind::Send { .. } => self.step_send(at, world),
            OperationKind::Room(_) => self.step_room(at, world),
            OperationKind::Finish => self.step_finish(at, world),
            OperationKind::Dial => self.step_dial(at, world),
        }
    }

    /// Whether a cancellation comes in time; a race that is lost is lost once.
    fn is_cancelled(&mut self, at: usize, world: &mut World) -> bool {
        self.operations[at].cancelled && !world.chance(world.moods.loses)
    }

    /// The last completion of an operation.
    fn complete(&mut self, at: usize, completion: Completion<Self>) {
        self.complete_part(at, true, completion);
    }

    /// A completion, after which others may follow unless it ended.
    fn complete_part(&mut self, at: usize, ended: bool, completion: Completion<Self>) {
        let operation = &mut self.operations[at];
        operation.over |= ended;
        let id = (operation.id != NOWHERE).then_some(operation.id);
        self.completed.push_back((id, completion));
    }

    /// One of several operations of a connection: its completion may overtake those of earlier ones.
    fn complete_in_sequence(&mut self, at: usize, world: &mut World, completion: Completion<Self>) {
        self.complete(at, completion);
        let Operation { sequence: Some(_), ref kind, token, .. } = self.operations[at] else { return };
        let overtaken = |other: &Completion<Self>| match other {
            Completion::Received { token: other, .. } => {
                *other == token && matches!(kind, OperationKind::Receive(_))
            }
            Completion::Sent { token: other, .. } => {
                *other == token && matches!(kind, OperationKind::Send { .. })
            }
            _ => false,
        };
        let last = self.completed.len() - 1;
        let mut places: Vec<_> = (0..last).filter(|&place| overtaken(&self.completed[place].1)).collect();
        places.push(last);
        let to = places[world.rng.usize(..places.len())];
        if let Some(overtakes) = self.completed.pop_back() {
            self.completed.insert(to, overtakes);
        }
    }

    fn step_accept(&mut self, at: usize, endless: bool, world: &mut World) {
        let there = !world.backlog.is_empty();
        if self.operations[at].cancelled && (!there || self.is_cancelled(at, world)) {
            let outcome = Err(Errno::CANCELED.into());
            return self.complete(at, Completion::Accepted { outcome, ended: true });
        }
        if !there {
            return;
        }
        if let Some(e) = world.accept_error() {
            return self.complete(at, Completion::Accepted { outcome: Err(e), ended: true });
        }
        let Some(id) = world.backlog.pop_front() else { return };
        self.taken += 1;
        if self.taken > self.slots {
            world.fail(|| "a connection is lost: accepted into a full table".into());
        }
        world.established(id);
        let ended = !endless || world.chance(world.moods.ends);
        let outcome = Ok((self.give_slot(id), Some(address(id))));
        self.complete_part(at, ended, Completion::Accepted { outcome, ended });
    }

    fn step_receive(&mut self, at: usize, what: Receives, world: &mut World) {
        let id = self.operations[at].id;
        let more = world.sockets[id].has_unread();
        let readable = if self.operations[at].deaf { more } else { world.sockets[id].is_readable() };
        if self.operations[at].cancelled && (!readable || self.is_cancelled(at, world)) {
            let outcome = Err(Errno::CANCELED.into());
            return self.complete_receive(at, true, world, outcome);
        }
        if !readable {
            return;
        }
        if what == Receives::Polls {
            let outcome = world.memory_error(id).map_or(Ok(None), Err);
            return self.complete_receive(at, true, world, outcome);
        }
        let mut most = self.buffer_bytes as u64;
        if world.chance(world.moods.partial) {
            most = world.rng.u64(1..=most);
        }
        if more && self.buffers == 0 {
            world.expected.no_buffers += 1;
            let outcome = Err(Errno::NOBUFS.into());
            return self.complete_receive(at, true, world, outcome);
        }
        // Where several are posted each of them fails, as on Windows; Linux reports the error once.
        let each_fails = world.sockets[id].broken_before_its_end().filter(|_| !world.moods.endless);
        let received = world.memory_error(id).map_or_else(|| world.receive(id, most), Err);
        let outcome = match (received, each_fails) {
            (Ok(0), Some(errno)) => Err(errno.into()),
            (Ok(0), None) => {
                world.was_received(id, 0);
                Ok(self.empty_buffer(world))
            }
            (Ok(n), _) => {
                self.buffers -= 1;
                let mut bytes = vec![0; n as usize];
                world.sockets[id].copy_arrived(&mut bytes);
                world.was_received(id, n);
                Ok(Some(Buffer(bytes)))
            }
            (Err(e), _) => Err(e),
        };
        let went_on = matches!(&outcome, Ok(Some(buffer)) if !buffer.0.is_empty());
        let ended = !went_on || what != Receives::Endless || world.chance(world.moods.ends);
        // What was there when it was armed, behind data: see `look_for_reset` and `look_for_end` of `uring`.
        let first = !std::mem::replace(&mut self.operations[at].brought, true);
        let socket = &world.sockets[id];
        let ends = socket.broken.is_some() || world.moods.unix && socket.asker.is_none() && socket.peer_ended;
        let ends_here = ends && !socket.has_unread();
        if first && !ended && ends_here && world.chance(world.moods.loses) {
            self.operations[at].deaf = true;
            world.sockets[id].missed = Some(world.now);
        }
        self.complete_receive(at, ended, world, outcome);
    }

    fn complete_receive(
        &mut self,
        at: usize,
        ended: bool,
        world: &mut World,
        outcome: io::Result<Option<Buffer>>,
    ) {
        let Operation { token, sequence, .. } = self.operations[at];
        let completion = Completion::Received { token, sequence, outcome, ended };
        match sequence {
            Some(_) => self.complete_in_sequence(at, world, completion),
            None => self.complete_part(at, ended, completion),
        }
    }

    /// The end of a stream may or may not take a buffer.
    fn empty_buffer(&mut self, world: &mut World) -> Option<Buffer> {
        if self.buffers == 0 || world.rng.bool() {
            return None;
        }
        self.buffers -= 1;
        Some(Buffer(Vec::new()))
    }

    fn step_send(&mut self, at: usize, world: &mut World) {
        let cancelled = self.is_cancelled(at, world);
        let Operation { token, sequence, id, .. } = self.operations[at];
        let OperationKind::Send { bytes, sent, chained, returns } = &mut self.operations[at].kind else {
            return;
        };
        if *returns {
            let unsent = Some(SimUnsent::Bytes(std::mem::take(bytes)));
            return self.complete_in_sequence(
                at,
                world,
                Completion::Sent { token, sequence, outcome: Ok(0), unsent },
            );
        }
        let left = bytes.get(*sent..).unwrap_or_default();
        let mut outcome = Ok(0);
        if !cancelled && !left.is_empty() && world.sockets[id].is_writable() {
            outcome = world.memory_error(id).map_or_else(|| world.send(id, left), Err);
            *sent += outcome.as_ref().map_or(0, |n| *n as usize);
        }
        let all = *sent == bytes.len();
        let stops = cancelled || outcome.is_err() || (*sent > 0 && world.chance(world.moods.partial));
        if !all && !stops {
            if self.operations[at].cancelled {
                world.config(Duration::from_micros(200), Happening::Nudge); // it comes late, but it comes
            }
            return;
        }
        world.sockets[id].flying.cut = !all && (cancelled || outcome.is_err());
        let (n, chained) = (*sent, *chained);
        let unsent = (!all).then(|| SimUnsent::Bytes(bytes.split_off(n)));
        let outcome = match outcome {
            _ if n > 0 => Ok(n),
            Ok(_) => Err(Errno::CANCELED.into()),
            Err(e) => Err(e),
        };
        if all && chained {
            self.close_chained(at, world);
        }
        if !all && sequence.is_some() {
            world.sockets[id].flying.fell_short = true;
            self.return_sends(token);
        }
        self.complete_in_sequence(at, world, Completion::Sent { token, sequence, outcome, unsent });
    }

    /// Sends behind one that was not taken whole are not taken at all.
    fn return_sends(&mut self, token: Token) {
        let asked = self.submissions.iter_mut().filter_map(|submission| match submission {
            Submission::Start(operation) => Some(operation),
            _ => None,
        });
        for operation in self.operations.iter_mut().chain(asked).filter(|other| other.token == token) {
            if let OperationKind::Send { returns, .. } = &mut operation.kind {
                *returns = true;
            }
        }
    }

    /// A socket has room, perhaps; or nobody waits for that any more.
    fn step_room(&mut self, at: usize, world: &mut World) {
        let cancelled = self.is_cancelled(at, world);
        let (token, id) = (self.operations[at].token, self.operations[at].id);
        let OperationKind::Room(range) = &self.operations[at].kind else { return };
        let unsent = SimUnsent::File(range.clone());
        if !cancelled && !world.sockets[id].is_writable() && !world.chance(world.moods.spurious) {
            if self.operations[at].cancelled {
                world.config(Duration::from_micros(200), Happening::Nudge); // it comes late, but it comes
            }
            return;
        }
        let outcome = if cancelled { Err(Errno::CANCELED.into()) } else { Ok(()) };
        self.complete(at, Completion::MayGoOn { token, outcome, unsent });
    }

    /// The close that was chained to a send: nothing else may be in flight, or the socket stays open. The kernel tells
    /// of the send first, and closes when it gets to it.
    fn close_chained(&mut self, at: usize, world: &mut World) {
        let Operation { token, slot, id, .. } = self.operations[at];
        let others = self.operations.iter().filter(|o| o.meant == id && !o.over).count();
        if others > 1 {
            world.fail(|| format!("{id} is closed by a chain while {others} operations are in flight"));
        }
        world.sockets[id].server = SocketState::Closing { reset: false };
        world.sockets[id].chained = true;
        let late = world.chance(world.moods.late);
        let not_before = world.not_before(late);
        self.orders.push(SlotOrder { token, slot, meant: id, what: Ask::Close, not_before });
    }

    fn step_finish(&mut self, at: usize, world: &mut World) {
        let (token, id) = (self.operations[at].token, self.operations[at].id);
        let outcome = match self.is_cancelled(at, world) {
            true => Err(Errno::CANCELED.into()),
            false => world.memory_error(id).map_or_else(|| world.shut_down(id), Err),
        };
        self.complete(at, Completion::SendFinished { token, outcome });
    }

    fn step_dial(&mut self, at: usize, world: &mut World) {
        let (token, id) = (self.operations[at].token, self.operations[at].id);
        let outcome = match (self.is_cancelled(at, world), world.sockets[id].refusal) {
            (true, _) => Err(Errno::CANCELED.into()),
            (false, Some(errno)) => Err(errno.into()),
            (false, None) => Ok(()),
        };
        if outcome.is_ok() {
            world.begins(id);
        }
        self.complete(at, Completion::Dialled { token, outcome });
    }

    /// The loop takes a completion, and knows what it says from now on.
    pub(super) fn note_taken(&mut self, world: &mut World, id: Option<usize>, completion: &Completion<Self>) {
        world.moved = true;
        if let Completion::Accepted { outcome, ended } = completion {
            let unseen = outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionAborted);
            world.expected.accept_errors_unseen += u64::from(unseen && self.stopping);
            self.accepts -= usize::from(*ended);
            self.stopping &= self.accepts > 0;
        }
        let Some(id) = id else { return };
        let leaving = world.sockets[id].leaving;
        let flying = &mut world.sockets[id].flying;
        let no_memory = |e: &io::Error| e.raw_os_error() == Some(Errno::NOMEM.raw_os_error());
        match completion {
            Completion::Received { sequence, outcome, ended, .. } => {
                flying.receives -= usize::from(*ended);
                flying.polls &= !*ended;
                let n = outcome.as_ref().ok().and_then(Option::as_ref).map_or(0, |buffer| buffer.0.len());
                let short = outcome.as_ref().is_err_and(no_memory);
                let taken = Taken { direction: Direction::Receive, bytes: n as u64, short };
                if *ended {
                    world.take(id, *sequence, taken);
                } else {
                    world.behind.push_back((id, taken));
                    world.take_next();
                }
            }
            Completion::Sent { sequence, outcome, unsent, .. } => {
                flying.sends -= 1;
                flying.fell_short &= unsent.is_none() || matches!(outcome, Ok(0)); // that is one behind it
                let bytes = outcome.as_ref().map_or(0, |n| *n as u64);
                let short = outcome.as_ref().is_err_and(no_memory);
                world.take(id, *sequence, Taken { direction: Direction::Send, bytes, short });
            }
            Completion::SendFinished { outcome, .. } => {
                flying.finish = false;
                if !leaving && outcome.as_ref().is_err_and(no_memory) {
                    world.is_short(id, Direction::Send);
                }
            }
            Completion::Dialled { .. } => flying.dial = false,
            Completion::MayGoOn { .. } => {
                flying.sends -= 1;
                let nothing = Taken { direction: Direction::Send, bytes: 0, short: false };
                world.take(id, None, nothing);
            }
            Completion::Accepted { .. } | Completion::Woken => {}
            Completion::Reset { .. } | Completion::Ended { .. } => {}
            Completion::Behind | Completion::Ignored => {}
            Completion::Handed { .. } | Completion::HandedOn { .. } => unreachable!("there is one thread"),
            Completion::Stopped { .. } | Completion::StoppedSending { .. } => {}
        }
    }
}
