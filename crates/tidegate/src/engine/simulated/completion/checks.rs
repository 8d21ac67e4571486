//! What must hold of operations in flight: bounds, nothing forgotten, nothing left.

use std::time::Duration;

use super::{OperationKind, SimPort, Slot};
use crate::engine::completion::Completion;
use crate::engine::simulated::observed::TICK;
use crate::engine::simulated::socket::SocketState;
use crate::engine::simulated::world::{World, with};
use crate::engine::worker::loop_driver::Pinning;
use crate::engine::worker::view::View;
use crate::policy::pressure::LONGEST_PAUSE;
use crate::proto::{NextStep, PermitState, Receive};
use crate::stats::Counters;

/// By then a connection knows of a reset, or an end, that its receive has missed.
const SOON: Duration = Duration::from_millis(100);

impl SimPort {
    /// After a turn: receives pin less from the first operation that fails for lack of memory until one succeeds, or
    /// nothing has failed for longer than any pause. In a turn that saw both, either may have been the last.
    pub(in crate::engine::simulated) fn check_pinning(&mut self, world: &mut World, counters: &Counters) {
        let now = (counters.no_memory.get(), counters.recovered.get());
        let before = std::mem::replace(&mut self.shortages, now);
        let pins = self.pinning == Pinning::Usual;
        let is_old =
            world.last_short.is_none_or(|at| world.now > at + 2 * LONGEST_PAUSE + TICK + world.slack);
        match (now.0 != before.0, now.1 != before.1) {
            (true, false) if pins => {
                world.fail(|| "memory is short, and receives pin as much as before".into())
            }
            (false, true) if !pins => world.fail(|| "memory is there, and receives pin none".into()),
            (false, false) if !pins && is_old => world.fail(|| "receives pin no memory for ever".into()),
            _ => {}
        }
    }

    /// The bounds of the policy on what is in flight at once.
    pub(super) fn check_bounds(&self, world: &mut World) {
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
pub(in crate::engine::simulated) fn check_empty(port: &mut SimPort) {
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
    /// After a turn: whatever the connection wants is in flight.
    pub(in crate::engine::simulated) fn check_flying_view(&mut self, socket: &Slot, view: &View) {
        self.check_view(socket.id, view);
        let late = |at| self.now > at + SOON + self.slack;
        if view.receives && !view.sends && self.sockets[socket.id].missed.is_some_and(late) {
            self.fail(|| format!("{} was reset or has ended, and does not know: {view:?}", socket.id));
        }
        let Some(action) = view.action else { return };
        let waits = view.receive_place == PermitState::Waiting || view.ended && (view.sends || view.holds);
        let receives = view.receives || waits || action.receive == Receive::Pause;
        let sends = view.sends || view.send_place == PermitState::Waiting || !action.send;
        let finishes = view.finishes || action.then != NextStep::FinishSending;
        if !receives || !sends || !finishes {
            self.fail(|| format!("{} wants something that nobody has asked for: {view:?}", socket.id));
        }
    }
}
