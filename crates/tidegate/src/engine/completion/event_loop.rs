//! The loop of the completion family: hand over and wait, follow up on each completion, then look after the rest.

mod accepting;

use std::io;
use std::sync::Arc;

use tidegate_os::socket::is_cancelled;
use tidegate_os::waker::Waker;

use super::entry::{CompletionEntry, Deferred, ReceiveResult, SendResult, TurnResult};
use super::leaving::{InFlight, Leaving};
use super::{Addresses, Close, Completion, CompletionDriver, Setup};
use accepting::OutstandingAccepts;

use crate::engine::WorkerContext;
use crate::engine::worker::Ready;
use crate::engine::worker::admission::failure;
use crate::engine::worker::command_queue::Accepted;
use crate::engine::worker::loop_driver::{LoopDriver, Phase, Pinning};
use crate::engine::worker::loop_state::LoopState;
use crate::engine::worker::transport::Settled;
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
use crate::engine::worker::view::View;
use crate::proto::dial::DialRequest;
use crate::proto::{Direction, Event, NextStep, Sequence, Table, Token};

/// What all threads share: where they accept, and how their ports are reached.
type ThreadShared<P> = (Option<Arc<<P as CompletionDriver>::Listener>>, Arc<Addresses<P>>);

/// Runs one I/O thread until it has been asked to stop and its connections are gone.
pub(super) fn run<P: CompletionDriver>(
    worker: WorkerContext,
    waker: Arc<Waker>,
    (listener, addresses): ThreadShared<P>,
    ready: Ready,
) {
    let made = CompletionLoop::<P>::new(worker, waker, listener).and_then(|made| made.reached_by(addresses));
    if let Some(mut event_loop) = ready.report(made) {
        event_loop.run();
    }
}

/// One I/O thread's work. The simulation steps it by [`turn`](Self::turn).
pub(in crate::engine) struct CompletionLoop<P: CompletionDriver> {
    port: P,
    listener: Option<Arc<P::Listener>>,
    loop_state: LoopState,
    waker: Arc<Waker>,
    table: Table<CompletionEntry<P>>,
    /// Sockets of connections that are gone, until the kernel has finished with them.
    closing: Leaving<P::Socket>,
    /// Chained sends that were asked to end, and not found.
    missed: Vec<Token>,
    accepts: OutstandingAccepts,
    /// How the ports of the other threads are reached, if connections are handed on.
    addresses: Option<Arc<Addresses<P>>>,
    /// Connections that are on their way to other threads, and may come back.
    leaving: usize,
    /// It stops, and the connections do not know yet.
    unreported: bool,
    /// Connections whose receive ended because all buffers were in use.
    starved: Vec<Token>,
    /// Accepted sockets have data: the listener defers accepts.
    data_with_accept: bool,
    /// They are Unix sockets.
    accepts_unix: bool,
    /// Of this batch, sends that were begun, less those that have come back.
    sends: i64,
}

impl<P: CompletionDriver> CompletionLoop<P> {
    pub(in crate::engine) fn new(
        mut worker: WorkerContext,
        waker: Arc<Waker>,
        listener: Option<Arc<P::Listener>>,
    ) -> io::Result<Self> {
        let (mut port, holds) = P::new(&Setup {
            policy: &worker.policy,
            share: worker.share,
            dials_each: worker.service.options().dials,
            addresses: worker.service.options().peer_addr
                || worker.service.options().local_addr
                || worker.transports.listener_has_option(),
            partners: worker.listens && worker.threads > 1,
            dials: listener.is_none(),
            first_data: worker.wants_first_data(),
            transports: &worker.transports,
            descriptors: worker.descriptors(),
        })?;
        port.watch_waker(&waker);
        worker.hold(holds);
        let accepts_unix = listener.as_deref().is_some_and(P::is_unix);
        let takes = port.takes();
        let now = port.now();
        Ok(Self {
            port,
            listener,
            waker,
            table: Table::default(),
            closing: Leaving::default(),
            missed: Vec::new(),
            accepts: OutstandingAccepts::default(),
            addresses: None,
            leaving: 0,
            unreported: false,
            starved: Vec::new(),
            sends: 0,
            data_with_accept: worker.defers(),
            accepts_unix,
            loop_state: LoopState::new(worker, takes, now),
        })
    }

    /// Hands connections on to the other threads' ports, and is given some by those.
    fn reached_by(mut self, addresses: Arc<Addresses<P>>) -> io::Result<Self> {
        if self.has_partners() {
            addresses.set(self.loop_state.worker.index, self.port.address()?);
            self.addresses = Some(addresses);
        }
        Ok(self)
    }

    /// Whether there are other threads that accepted connections can be handed on to.
    fn has_partners(&self) -> bool {
        P::HANDS_ON && self.loop_state.worker.listens && self.loop_state.worker.threads > 1
    }

    /// Before a pause answers are sent, and what has completed with that is followed up: most sends have.
    fn send_before_pause(&mut self) {
        if self.loop_state.is_pausing() && self.port.submit().is_ok() {
            let (events, _) = self.look_at_completions();
            self.loop_state.looked_again(events);
        }
    }

    /// Follows up on what has completed, and looks after the rest: completions, and those that a connection began.
    fn look_at_completions(&mut self) -> (usize, usize) {
        let (mut events, mut connections) = (0, 0);
        while let Some(completion) = self.port.next() {
            events += 1;
            connections += usize::from(completion.is_from_outside());
            self.completion(completion);
            self.look_at_mail();
        }
        self.loop_state.worker.counters.sockets_reused.add(self.port.reused());
        self.stop_again();
        self.feed_starved();
        self.look_at_commands();
        self.look_at_timers();
        self.give_places();
        (events, connections)
    }

    #[inline]
    fn completion(&mut self, completion: Completion<P>) {
        match completion {
            Completion::Received { token, sequence, outcome, ended } => {
                self.received(token, sequence, outcome, ended)
            }
            Completion::Reset { token, error } => self.dispatch(token, failure(&error, Direction::Receive)),
            Completion::Ended { token } => self.ended(token),
            Completion::Sent { token, sequence, outcome, unsent } => {
                self.sent(token, sequence, (outcome, unsent))
            }
            Completion::Accepted { outcome, ended } => self.accepted(outcome, ended),
            Completion::Dialled { token, outcome } => self.dialled(token, outcome),
            Completion::MayGoOn { token, outcome, unsent } => self.go_on(token, outcome, unsent),
            Completion::SendFinished { token, outcome } => {
                let Some(entry) = self.table.get_mut(token) else {
                    return self.came_back(token, |in_flight| in_flight.finishing = false);
                };
                entry.finishing = false;
                self.loop_state.worker.counters.outstanding.sub(1);
                match outcome {
                    Ok(()) => self.dispatch(token, Event::SendFinished),
                    Err(e) => self.dispatch(token, failure(&e, Direction::Send)),
                }
            }
            Completion::Handed { socket } => {
                self.loop_state.arrived();
                self.enter(socket, None);
            }
            Completion::HandedOn { to, outcome } => self.handed_on(to, outcome),
            Completion::Stopped { token, found } => {
                self.came_back(token, |in_flight| in_flight.was_stopped(found));
            }
            Completion::StoppedSending { found: true, .. } => {}
            Completion::StoppedSending { token, found: false } => self.missed.push(token),
            Completion::Woken => self.waker.clear(),
            Completion::Behind => self.accepts.note_behind(),
            Completion::Ignored => {}
        }
    }

    #[inline]
    fn received(&mut self, token: Token, sequence: Option<Sequence>, outcome: ReceiveResult<P>, ended: bool) {
        let Some(entry) = self.table.get_mut(token) else {
            self.recycle(outcome.ok().flatten()); // the connection is gone
            return self.came_back(token, |in_flight| in_flight.receives -= usize::from(ended));
        };
        if !ended {
            let newly_armed = std::mem::take(&mut entry.newly_armed);
            self.take_received(token, outcome, ended);
            if newly_armed {
                self.look_for_what_was_missed(token);
            }
            return;
        }
        let mut due = entry.received(sequence, outcome);
        while let Some(outcome) = due {
            self.loop_state.worker.counters.outstanding.sub(1);
            self.take_received(token, outcome, ended);
            due = self.table.get_mut(token).and_then(CompletionEntry::next_received);
        }
    }

    #[inline]
    fn take_received(&mut self, token: Token, outcome: ReceiveResult<P>, ended: bool) {
        let Some(entry) = self.table.get_mut(token) else { return };
        let stopped = ended && entry.stopping;
        entry.stopping &= entry.receives.pending() > 0;
        let polled = std::mem::take(&mut entry.polls);
        entry.permits.due &= polled;
        match outcome {
            Ok(None) if polled => {
                entry.readable = true;
                self.follow_up(token);
            }
            Ok(Some(buffer)) if self.port.bytes(&buffer).is_empty() => {
                self.port.recycle(buffer);
                self.ended(token);
            }
            Ok(Some(buffer)) => {
                if let Phase::Open(connection) = &mut entry.phase {
                    let event = Event::Received(self.port.bytes(&buffer));
                    connection.handle(event, &self.loop_state.context(token));
                }
                // What is left is taken at once, unless others have waited for long enough.
                entry.in_a_row += 1;
                let budget = self.loop_state.worker.policy.drain_budget;
                let again = (entry.in_a_row as usize) < budget;
                let drains = ended && again && self.port.may_have_left(&buffer);
                entry.in_a_row = if drains { entry.in_a_row } else { 0 };
                entry.once |= drains;
                self.port.recycle(buffer);
                self.follow_up(token);
            }
            Ok(None) => self.ended(token),
            Err(e) if P::is_out_of_buffers(&e) => {
                self.loop_state.worker.counters.no_buffers.add(1);
                self.starved.push(token);
            }
            Err(e) if stopped && is_cancelled(&e) => self.follow_up(token), // as requested
            Err(e) => self.dispatch(token, failure(&e, Direction::Receive)),
        }
    }

    /// The end of the stream, unless it has broken off and a send has received the error: what is left of it will fail.
    fn ended(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        entry.end_waits = entry.cut;
        if !entry.end_waits {
            self.dispatch(token, Event::PeerEnded);
        }
    }

    /// A receive that stays armed may have missed a reset or an end while it was being armed. A send would find a reset
    /// out, but not the end of a Unix socket.
    fn look_for_what_was_missed(&mut self, token: Token) {
        match self.table.get_mut(token) {
            Some(entry) if entry.is_unix => self.port.look_for_end(token, &entry.socket),
            Some(entry) if entry.sends.pending() == 0 => self.port.look_for_reset(token, &entry.socket),
            _ => {}
        }
    }

    /// What has completed before something earlier of a connection that is gone: the kernel took it, and gave it.
    fn abandon(&mut self, entry: &mut CompletionEntry<P>) {
        let Deferred { receives, sends, .. } = entry.abandon();
        sends.into_iter().for_each(|(_, sent)| self.count_sent(sent));
        for buffer in receives.into_iter().filter_map(|(_, outcome)| outcome.ok().flatten()) {
            let counters = &self.loop_state.worker.counters;
            counters.receives.add(1);
            counters.bytes_in.add(self.port.bytes(&buffer).len() as u64);
            self.port.recycle(buffer);
        }
    }

    fn recycle(&mut self, buffer: Option<P::Buffer>) {
        if let Some(buffer) = buffer {
            self.port.recycle(buffer);
        }
    }

    #[inline]
    fn sent(&mut self, token: Token, sequence: Option<Sequence>, sent: SendResult<P>) {
        let Some(entry) = self.table.get_mut(token) else {
            self.count_sent(sent);
            return self.came_back(token, |in_flight| in_flight.sends -= 1);
        };
        let mut due = entry.sent(sequence, sent);
        while let Some(sent) = due {
            self.take_sent(token, sent);
            due = self.table.get_mut(token).and_then(CompletionEntry::next_sent);
        }
    }

    /// The connection has ended meanwhile; what the kernel took of it counts all the same.
    fn count_sent(&self, (outcome, _): SendResult<P>) {
        let counters = &self.loop_state.worker.counters;
        counters.sends.add(u64::from(outcome.is_ok()));
        counters.bytes_out.add(outcome.unwrap_or(0) as u64);
    }

    #[inline]
    fn take_sent(&mut self, token: Token, (outcome, unsent): SendResult<P>) {
        let Some(entry) = self.table.get_mut(token) else { return };
        entry.chained &= outcome.is_ok() && unsent.is_none(); // else the chain is broken, and the socket open
        let alone = entry.sends.pending() == 0 && (entry.sends_again || !entry.has_unsent());
        entry.cut = match (&outcome, &unsent) {
            (&Ok(n), Some(rest)) => entry.cut || self.port.is_cut(&entry.socket, n, rest),
            (Ok(_), None) => false,
            (Err(_), _) => entry.cut,
        };
        let ended = !entry.cut && std::mem::take(&mut entry.end_waits);
        let event = match (outcome, unsent) {
            (Ok(n), Some(rest)) if alone => {
                self.port.send_rest(token, entry.sends.begin(), &entry.socket, rest);
                if n > 0 {
                    self.dispatch(token, Event::Sent(n)); // nothing would look as if its peer took something
                }
                return;
            }
            (Ok(n), Some(rest)) => {
                entry.keep_unsent(rest); // those behind it come back, too
                (n > 0).then_some(Event::Sent(n))
            }
            (Ok(n), None) => Some(Event::Sent(n)),
            (Err(e), Some(unsent)) => {
                entry.keep_unsent(unsent); // to be sent again, if memory is all that it lacks
                Some(failure(&e, Direction::Send))
            }
            (Err(e), None) => Some(Event::Failed(e.kind())),
        };
        entry.sends_again = false;
        self.sends -= 1;
        self.loop_state.permits.sent(&mut entry.permits);
        self.loop_state.worker.counters.outstanding.sub(1);
        match event {
            Some(event) => self.dispatch(token, event),
            None => self.follow_up(token),
        }
        if ended {
            self.dispatch(token, Event::PeerEnded);
        }
    }

    fn go_on(&mut self, token: Token, outcome: io::Result<()>, unsent: P::Unsent) {
        let Some(entry) = self.table.get_mut(token) else {
            return self.came_back(token, |in_flight| in_flight.sends -= 1);
        };
        let (outcome, unsent) = match outcome {
            Ok(()) => self.port.go_on(&entry.socket, unsent, entry.follows(self.loop_state.before_close())),
            Err(e) => (Err(e), Some(unsent)),
        };
        self.sent(token, None, (outcome, unsent));
    }

    #[inline]
    fn follow_up(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        let (before, sends) = (entry.outstanding(), entry.sends.pending());
        let turn = entry.carry_out(token, &mut self.port, &mut self.loop_state);
        self.sends += (entry.sends.pending() - sends) as i64;
        self.loop_state.worker.counters.outstanding.add(entry.outstanding() - before);
        match turn {
            TurnResult::Closed => self.remove(token),
            TurnResult::Failed(kind) => self.dispatch(token, Event::Failed(kind)),
            TurnResult::Idle => {
                if let Phase::Open(connection) = &entry.phase {
                    self.loop_state.arm(token, connection);
                }
            }
        }
    }

    fn remove(&mut self, token: Token) {
        drop(self.take(token));
    }

    /// Closes in three steps: what is in flight is stopped, what was stopped is joined, and the socket is closed. Where
    /// nothing is in flight, or the port does not need it, there is one step.
    fn close(&mut self, token: Token, socket: P::Socket, mut how: Close, mut in_flight: InFlight) {
        if P::JOINS && (how.reset || !in_flight.is_nothing()) {
            in_flight.stops = self.port.stop(token, &socket, how);
            if !in_flight.is_nothing() {
                return self.closing.insert(token, socket, in_flight);
            }
            how.reset = false; // that is done
        }
        self.port.close(token, socket, how);
    }

    /// Something in flight has come back, and its connection is gone: the last to come back closes the socket.
    fn came_back(&mut self, token: Token, note: impl FnOnce(&mut InFlight)) {
        if let Some(socket) = self.closing.came_back(token, note) {
            self.port.close(token, socket, Close::default());
        }
    }

    /// What was asked to end and was not found is asked again.
    fn stop_again(&mut self) {
        self.closing.stop_again(|token, socket, how| self.port.stop(token, socket, how));
        for token in std::mem::take(&mut self.missed) {
            if let Some(entry) = self.table.get_mut(token) {
                entry.doom_again(token, &mut self.port);
            }
        }
    }

    /// All buffers were in use; those of this batch have come back.
    fn feed_starved(&mut self) {
        for token in std::mem::take(&mut self.starved) {
            self.follow_up(token);
        }
    }

    fn dialled(&mut self, token: Token, outcome: io::Result<()>) {
        let Some(entry) = self.table.get_mut(token) else {
            return self.came_back(token, |in_flight| in_flight.sends -= 1);
        };
        let Phase::Dialling(request) = &mut entry.phase else { return };
        match outcome.and_then(|()| self.port.settle(token, &mut entry.socket)) {
            Ok(Settled::Pending) => return,
            Ok(Settled::Established) => entry.dialling = false,
            Err(e) => {
                entry.dialling = false;
                return self.fail_dial(token, e);
            }
        }
        let local = || P::local_addr(&entry.socket);
        let Some(connection) = self.loop_state.admit_dialled(request, local) else {
            return self.remove(token);
        };
        self.loop_state.worker.counters.fast_paths.add(P::is_shared(&entry.socket).into());
        self.establish(token, connection);
    }
}

impl<P: CompletionDriver> LoopDriver for CompletionLoop<P> {
    type Entry = CompletionEntry<P>;
    const WAITS_FOR: &str = "completions";

    fn is_over(&self) -> bool {
        // An accept that is still posted may bring one more.
        let may_accept = || !self.loop_state.out_of_time() && (self.accepts.are_posted() || self.is_owed());
        let idle = self.loop_state.stop_at.is_some() && self.table.is_empty() && self.closing.is_empty();
        // A batch that was full may have left a connection that was accepted.
        idle && self.leaving == 0
            && !may_accept()
            && !self.loop_state.was_full()
            && self.loop_state.may_leave()
    }

    fn turn(&mut self) -> io::Result<()> {
        self.send_before_pause();
        self.look_after_accepts();
        self.count_accepts();
        // A stop without connections has nothing to sleep for: either accepts are to be asked to end again, or it is
        // over. But while accepting rests, because there are no descriptors, it cannot go on either.
        let idle = self.table.is_empty() && self.closing.is_empty() && !self.loop_state.is_resting();
        let looks = self.accepts.stopping || self.loop_state.was_full();
        let ends = self.loop_state.stop_at.is_some() && (looks || idle);
        let limit = self.loop_state.rest(ends, || self.port.now());
        // While few are accepted at a time, a pause would let in as few.
        let unfinished = self.sends > 0 || self.accepts.are_in_batches();
        let pause = self.loop_state.coalesce(limit, unfinished, || self.port.now());
        let waited = if pause.is_zero() { self.port.wait(limit) } else { self.port.wait_later(pause, limit) };
        self.loop_state.woke(self.port.now());
        self.sends = 0;
        let (events, connections) = self.look_at_completions();
        self.loop_state.batch(events, connections);
        waited
    }

    fn shut(&mut self) {
        if let Some(addresses) = &self.addresses {
            addresses.set(self.loop_state.worker.index, None);
        }
        self.loop_state.worker.counters.accepts_posted.set(0); // those that are left end with the port
        self.loop_state.shut();
    }

    fn parts(&mut self) -> (&mut LoopState, &mut Table<CompletionEntry<P>>) {
        (&mut self.loop_state, &mut self.table)
    }

    fn take(&mut self, token: Token) -> Option<Phase> {
        if let Some(entry) = self.table.get_mut(token)
            && entry.chained
            && entry.sends.pending() > 0
        {
            // Whether the chain has closed it is only known when the send has come back.
            entry.doom(token, &mut self.port);
            return None;
        }
        let mut entry = self.table.remove(token)?;
        self.loop_state.permits.leave(&mut entry.permits);
        let then = entry.phase.connection().map_or(NextStep::Close, |connection| connection.action().then);
        self.loop_state.worker.counters.outstanding.sub(entry.outstanding());
        if entry.chained {
            self.port.closed(entry.socket);
        } else {
            let (how, in_flight) = (entry.close(then), entry.in_flight());
            self.abandon(&mut entry);
            self.close(token, entry.socket, how, in_flight);
        }
        self.loop_state.closed(token, entry.quota);
        Some(entry.phase)
    }

    fn resume(&mut self, token: Token) {
        self.follow_up(token);
    }

    fn set_pinning(&mut self, pinning: Pinning) {
        self.loop_state.pinning = pinning;
        self.port.set_pinning(pinning);
    }

    fn step_back(&mut self, token: Token) {
        if let Some(entry) = self.table.get_mut(token)
            && entry.receives.in_flight() > 0
            && !entry.polls
            && !std::mem::replace(&mut entry.stopping, true)
        {
            self.port.stop_receiving(token, &entry.socket);
        }
    }

    #[inline]
    fn dispatch(&mut self, token: Token, event: Event<'_>) {
        let Some(entry) = self.table.get_mut(token) else { return };
        match &mut entry.phase {
            Phase::Open(connection) => {
                connection.handle(event, &self.loop_state.context(token));
            }
            Phase::Dialling(request) if matches!(event, Event::Deadline) => {
                if let Some(e) = request.is_late(self.loop_state.now) {
                    return self.fail_dial(token, e);
                }
                self.loop_state.alarm(token, request.deadline());
                self.port.settle_anyway(token, &entry.socket);
            }
            Phase::Dialling(_) => {}
        }
        self.follow_up(token);
    }

    fn take_in(&mut self, accepted: Accepted) {
        self.loop_state.arrived();
        if let Some((loose, peer)) = accepted.open() {
            let socket = self.port.take_in(loose);
            self.enter(socket, peer);
        }
    }

    /// The accepts that are posted take those who wait, and then the last looks.
    fn begin_to_stop(&mut self) {
        self.loop_state.drain(self.port.now());
        match self.listener {
            Some(_) => self.unreported = true,
            None => self.broadcast(|| Event::Drain),
        }
    }

    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)> {
        let token = self.table.next_token();
        let socket = match self.port.dial(token, request.dial()) {
            Ok(socket) => socket,
            Err(e) => return Err((request, e)),
        };
        let handshake_timeout = P::handshake_timeout(&socket);
        let is_unix = request.dial().to.is_unix();
        let same = self.begun(request, handshake_timeout, |phase| {
            let mut entry = CompletionEntry::new(socket, phase);
            entry.is_unix = is_unix;
            entry
        });
        debug_assert_eq!(same, token);
        Ok(())
    }
}

/// What the simulation looks at between turns.
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
impl<P: CompletionDriver> CompletionLoop<P> {
    pub(in crate::engine) fn inspect(&mut self, mut look: impl FnMut(&P::Socket, View)) {
        for token in self.table.tokens() {
            if let Some(entry) = self.table.get_mut(token) {
                let connection = entry.phase.connection();
                let view = View {
                    receives: entry.receives.pending() > 0,
                    sends: entry.sends.pending() > 0,
                    finishes: entry.finishing,
                    ended: entry.end_waits,
                    holds: entry.has_unsent(),
                    ..View::new(connection, &entry.permits, &self.loop_state.worker.policy)
                };
                look(&entry.socket, view);
            }
        }
    }

    pub(in crate::engine) fn port(&mut self) -> &mut P {
        &mut self.port
    }
}
