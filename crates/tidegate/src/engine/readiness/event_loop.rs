//! The loop of the readiness family: wait, let each ready connection have its turn, then look after the rest.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tidegate_os::pages::Pages;
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use super::entry::{Progress, ReadinessEntry, ReceiveBuffers};
use super::{PollEvent, Poller, Source};
use crate::engine::worker::Ready;
use crate::engine::worker::admission::{count_exhaustion, count_refusal};
use crate::engine::worker::command_queue::Accepted;
use crate::engine::worker::loop_driver::{LoopDriver, Phase};
use crate::engine::worker::loop_state::LoopState;
use crate::engine::worker::rings::{AwakeLinks, WaitMode};
use crate::engine::worker::transport::{Incoming, Settled, Transport};
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
use crate::engine::worker::view::View;
use crate::engine::{WorkerContext, capacity};
use crate::policy::accept::Admission;
use crate::proto::dial::DialRequest;
use crate::proto::spliced::PipePool;
use crate::proto::{Connection, Event, PermitState, Table, Token};

/// Runs one I/O thread until it has been asked to stop and its connections are gone.
pub(super) fn run<P: Poller>(
    worker: WorkerContext,
    waker: Arc<Waker>,
    listener: Option<Arc<P::Listener>>,
    ready: Ready,
) {
    if let Some(mut event_loop) = ready.report(ReadinessLoop::<P>::new(worker, waker, listener)) {
        event_loop.run();
    }
}

/// The sockets of a poller.
type Stream<P> = <<P as Poller>::Listener as Incoming>::Stream;

/// One I/O thread's work. The simulation steps it by [`turn`](Self::turn).
pub(in crate::engine) struct ReadinessLoop<P: Poller> {
    poller: P,
    listener: Option<Arc<P::Listener>>,
    loop_state: LoopState,
    waker: Arc<Waker>,
    table: Table<ReadinessEntry<Stream<P>>>,
    events: Vec<PollEvent>,
    /// Connections that have more to do than their last turn allowed.
    again: VecDeque<Token>,
    /// The one receive buffer: what a session leaves of it is copied, so it is free after each event.
    buffer: Pages,
    pipes: Arc<PipePool>,
    /// Those that go through shared memory, as far as they are awake.
    rings: AwakeLinks<Token>,
    listening: bool,
    /// Accepted sockets have data: the listener defers accepts.
    data_with_accept: bool,
    /// Of this batch, an answer did not fit into its socket.
    unfinished: bool,
}

impl<P: Poller> ReadinessLoop<P> {
    pub(in crate::engine) fn new(
        mut worker: WorkerContext,
        waker: Arc<Waker>,
        listener: Option<Arc<P::Listener>>,
    ) -> io::Result<Self> {
        worker.hold(P::HOLDS);
        let mut poller = P::new(&worker.policy)?;
        poller.watch_waker(&waker)?;
        let buffer = Pages::new(worker.policy.buffer_bytes, capacity::residence(&worker.policy))?;
        let pipes = PipePool::new(capacity::pipes_of_loop(&worker.policy, worker.threads));
        let now = poller.now();
        let mut new = Self {
            poller,
            listener,
            waker,
            table: Table::default(),
            events: Vec::new(),
            again: VecDeque::new(),
            rings: AwakeLinks::default(),
            buffer,
            pipes,
            listening: false,
            unfinished: false,
            data_with_accept: worker.defers(),
            loop_state: LoopState::new(worker, usize::MAX, now),
        };
        new.look_after_listener()?;
        Ok(new)
    }

    /// Lets events gather, if that is wanted; what is left of the time to wait.
    fn pause(&mut self, limit: Option<Duration>) -> Option<Duration> {
        let pause = self.loop_state.coalesce(limit, self.unfinished, || self.poller.now());
        if pause.is_zero() {
            return limit;
        }
        self.poller.pause(pause);
        limit.map(|limit| limit.saturating_sub(pause))
    }

    fn report(&mut self, event: PollEvent) {
        match event.source {
            Source::Waker => self.waker.clear(),
            Source::Listener => self.accept(),
            Source::Connection(token) => {
                let Some(entry) = self.table.get_mut(token) else { return };
                entry.ended |= event.ended;
                let ready = entry.stream.heed(event.ready, entry.wants());
                if matches!(entry.phase, Phase::Dialling(_)) {
                    if ready.readable || ready.writable {
                        self.settle(token, ready);
                    }
                    return;
                }
                self.ready(token, ready);
            }
        }
    }

    /// Lets a connection whose socket is ready have its turn.
    fn ready(&mut self, token: Token, ready: Readiness) {
        let entry = match ready.readable {
            true => prepared_to_receive(&mut self.table, &mut self.loop_state, token),
            false => prepared(&mut self.table, &mut self.loop_state, token),
        };
        let Some(entry) = entry else { return };
        let mut into = ReceiveBuffers { memory: &mut self.buffer, pipes: &self.pipes };
        let turn = entry.ready(ready, &mut into, &self.loop_state.context(token));
        self.after(token, turn);
    }

    /// Follows up on a connection's turn: lists it, closes it, or asks the poller for what it waits for.
    fn after(&mut self, token: Token, turn: Progress) {
        let Some(entry) = self.table.get_mut(token) else { return };
        if turn == Progress::Closed {
            return self.remove(token);
        }
        self.unfinished |= entry.is_sending();
        if let Phase::Open(connection) = &entry.phase {
            self.loop_state.arm(token, connection);
        }
        let turn = settle_send(entry, &mut self.loop_state, token).max(turn);
        let wants = entry.interest();
        if entry.stream.is_shared() && !std::mem::replace(&mut entry.looked_at, true) {
            self.rings.wake(token);
        }
        if !entry.watched {
            self.watch(token);
        } else if wants != entry.wanted {
            entry.wanted = wants;
            if let Some(fd) = entry.stream.borrowed() {
                self.poller.change(token, fd, wants);
            }
        }
        if turn == Progress::Yield {
            self.list(token);
        }
    }

    /// Lets those whose shared memory shows something have their turn, and then others, while the loop spins and there
    /// is nothing else to do. Returns how many turns there were.
    fn look_at_rings(&mut self) -> usize {
        let mut turns = 0;
        while let Some((token, ready)) = self.rings.ready.pop() {
            self.ready(token, ready);
            self.look_at_mail();
            turns += 1;
            if self.rings.ready.is_empty() && self.events.is_empty() && self.again.is_empty() {
                let table = &mut self.table;
                self.rings.look_after(turns, |&token, how| Some(table.get_mut(token)?.look(how)));
            }
        }
        turns
    }

    /// Has the connection looked at again after this batch.
    fn list(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        if !std::mem::replace(&mut entry.listed, true) {
            self.again.push_back(token);
        }
    }

    fn remove(&mut self, token: Token) {
        drop(self.take(token));
    }

    /// Gives those that were cut short one more turn each.
    fn look_again(&mut self) {
        for _ in 0..self.again.len() {
            let Some(token) = self.again.pop_front() else { return };
            let entry = prepared_to_receive(&mut self.table, &mut self.loop_state, token);
            let Some(entry) = entry else { continue };
            entry.listed = false;
            let mut into = ReceiveBuffers { memory: &mut self.buffer, pipes: &self.pipes };
            let turn = entry.resume(&mut into, &self.loop_state.context(token));
            self.after(token, turn);
            self.look_at_mail();
        }
    }

    /// Watches the listener exactly while a connection may be accepted.
    fn look_after_listener(&mut self) -> io::Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let listen = self.loop_state.admission() != Admission::Wait;
        if listen && !self.listening {
            self.poller.watch_listener(listener)?;
        } else if !listen && self.listening {
            self.poller.unwatch_listener(listener);
        }
        self.listening = listen;
        Ok(())
    }

    /// Accepts as many as one turn may take.
    fn accept(&mut self) {
        let _ = (0..self.loop_state.worker.policy.accept.batch).try_for_each(|_| self.accept_next());
    }

    /// Accepts one connection, or finds that there is none, or no room for it.
    fn accept_next(&mut self) -> ControlFlow<()> {
        let Some(listener) = self.listener.clone() else { return ControlFlow::Break(()) };
        let admission = self.loop_state.admission();
        // The place comes first: another thread might give this one its last connection meanwhile.
        let claimed = admission == Admission::Admit && self.loop_state.places().claim();
        if !claimed && admission != Admission::Refuse {
            return ControlFlow::Break(());
        }
        let accepted = listener.accept();
        if claimed && accepted.is_err() {
            self.loop_state.places().release();
        }
        match accepted {
            Ok((stream, peer)) if claimed => self.place(stream, peer),
            Ok(_) => count_refusal(&self.loop_state.worker.counters),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return ControlFlow::Break(()),
            Err(e) => self.loop_state.accept_failed(&e),
        }
        ControlFlow::Continue(())
    }

    /// Serves an accepted connection, or has another thread do so.
    fn place(&mut self, stream: Stream<P>, peer: Option<SocketAddr>) {
        match self.loop_state.assign() {
            None => self.enter(stream, peer),
            Some(to) => {
                self.loop_state.hand_on(to, Accepted::new(stream, peer));
                self.loop_state.places().release();
            }
        }
    }

    /// Serves a connection that has its place, if the service wants it.
    fn enter(&mut self, stream: Stream<P>, peer: Option<SocketAddr>) {
        match self.loop_state.admit(peer, || stream.local_addr()) {
            Some(connection) => self.serve(stream, connection),
            None => self.loop_state.turned_away(),
        }
    }

    /// Serves an accepted socket. If its first data arrived with the accept, it is looked at before the poller has
    /// it: a connection that is answered and closed at once never costs a registration.
    fn serve(&mut self, stream: Stream<P>, mut connection: Connection) {
        let_splice(&mut connection, &stream);
        self.loop_state.worker.counters.fast_paths.add(stream.is_shared().into());
        let token = self.table.insert(ReadinessEntry::new(stream, Phase::Open(connection)));
        let Some(entry) = prepared(&mut self.table, &mut self.loop_state, token) else { return };
        let mut turn = entry.dispatch(Event::Opened, &self.loop_state.context(token));
        if self.data_with_accept && turn != Progress::Closed {
            let entry = prepared_to_receive(&mut self.table, &mut self.loop_state, token);
            let Some(entry) = entry else { return };
            let mut into = ReceiveBuffers { memory: &mut self.buffer, pipes: &self.pipes };
            turn = entry.resume(&mut into, &self.loop_state.context(token));
        }
        self.after(token, turn);
        self.catch_up(token); // another thread may have accepted it
    }

    /// Has the poller watch a connection, or gives the connection up.
    fn watch(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        entry.wanted = entry.interest();
        let watched = match entry.stream.borrowed() {
            Some(fd) => self.poller.watch(token, fd, entry.wanted),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        entry.watched = watched.is_ok();
        let Err(e) = watched else { return };
        entry.dispatch(Event::Failed(e.kind()), &self.loop_state.context(token));
        match self.take(token) {
            Some(Phase::Dialling(request)) => self.loop_state.dial_failed(*request, e),
            _ => _ = count_exhaustion(&e, &self.loop_state.worker.counters),
        }
    }

    /// A connection attempt has come to its end, one way or the other; or it goes on otherwise than it began.
    fn settle(&mut self, token: Token, ready: Readiness) {
        let Some(entry) = self.table.get_mut(token) else { return };
        if entry.stream.settles_elsewhere()
            && std::mem::take(&mut entry.watched)
            && let Some(fd) = entry.stream.borrowed()
        {
            self.poller.unwatch(token, fd);
            entry.ended = false; // that was the control socket's
        }
        match entry.stream.settle() {
            Err(e) => self.fail_dial(token, e),
            Ok(Settled::Pending) if entry.watched => {}
            Ok(Settled::Pending) => self.watch(token),
            Ok(Settled::Established) => self.dialled(token, ready),
        }
    }

    /// Its timeout is over, or the limits have changed: an attempt that waits for more than the connection goes on
    /// without.
    fn settle_anyway(&mut self, token: Token) {
        let Some(ReadinessEntry { stream, phase: Phase::Dialling(request), .. }) = self.table.get_mut(token)
        else {
            return;
        };
        if let Some(e) = request.is_late(self.loop_state.now) {
            return self.fail_dial(token, e);
        }
        self.loop_state.alarm(token, request.deadline());
        if stream.handshake_timeout().is_some() {
            self.settle(token, Readiness::default());
        }
    }

    /// A connection that was dialled is established, if the service wants it.
    fn dialled(&mut self, token: Token, ready: Readiness) {
        let Some(entry) = self.table.get_mut(token) else { return };
        let Phase::Dialling(request) = &mut entry.phase else { return };
        let local = || entry.stream.local_addr();
        let Some(mut connection) = self.loop_state.admit_dialled(request, local) else {
            return self.remove(token);
        };
        let_splice(&mut connection, &entry.stream);
        self.loop_state.worker.counters.fast_paths.add(entry.stream.is_shared().into());
        self.establish(token, connection);
        if ready.readable {
            // An edge-triggered poller reports the end of the attempt and first data as one.
            self.after(token, Progress::Yield);
        }
    }
}

/// Lets a connection that is about to be opened use pipes, if its transport can.
fn let_splice(connection: &mut Connection, stream: &impl Transport) {
    if stream.splices() {
        connection.can_splice();
    }
}

/// A connection that is about to have its turn, with what its places allow it to do. It does not receive.
fn prepared<'a, W: Transport>(
    table: &'a mut Table<ReadinessEntry<W>>,
    loop_state: &mut LoopState,
    token: Token,
) -> Option<&'a mut ReadinessEntry<W>> {
    let entry = table.get_mut(token)?;
    let restricted = !entry.may_receive || !entry.may_send; // by a bound that may be gone
    if (loop_state.permits.are_bounded() || restricted)
        && let Phase::Open(connection) = &mut entry.phase
    {
        entry.may_receive = entry.permits.receive != PermitState::Waiting;
        entry.may_send = loop_state.permits.could_send(&entry.permits);
        connection.hold_back(!entry.may_send, loop_state.now);
    }
    Some(entry)
}

/// The same if there may be something to receive: it has a place for that, or is queued for one.
fn prepared_to_receive<'a, W: Transport>(
    table: &'a mut Table<ReadinessEntry<W>>,
    loop_state: &mut LoopState,
    token: Token,
) -> Option<&'a mut ReadinessEntry<W>> {
    let entry = prepared(table, loop_state, token)?;
    if loop_state.permits.are_bounded() && matches!(entry.phase, Phase::Open(_)) {
        entry.may_receive = loop_state.permits.may_receive(token, &mut entry.permits);
    }
    Some(entry)
}

/// After its turn: a send that the kernel has not finished with takes a place, and one that has none waits for it.
fn settle_send<W: Transport>(
    entry: &mut ReadinessEntry<W>,
    loop_state: &mut LoopState,
    token: Token,
) -> Progress {
    if !loop_state.permits.are_bounded() {
        return Progress::Idle;
    }
    if !entry.is_sending() && !entry.waits_to_send() {
        loop_state.permits.sent(&mut entry.permits);
        return Progress::Idle;
    }
    let may = loop_state.permits.may_send(token, &mut entry.permits);
    if may && !entry.is_sending() { Progress::Yield } else { Progress::Idle }
}

impl<P: Poller> LoopDriver for ReadinessLoop<P> {
    type Entry = ReadinessEntry<Stream<P>>;
    const WAITS_FOR: &str = "sockets";

    fn is_over(&self) -> bool {
        self.loop_state.stop_at.is_some() && self.table.is_empty() && self.loop_state.may_leave()
    }

    fn turn(&mut self) -> io::Result<()> {
        let busy = !self.again.is_empty() || !self.loop_state.commands.is_empty();
        let rest = self.loop_state.rest(busy, || self.poller.now());
        let (now, table) = (self.loop_state.now, &mut self.table);
        let look = |&token: &Token, how| Some(table.get_mut(token)?.look(how));
        let waited = match self.rings.before(rest, busy, now, look) {
            WaitMode::Skip => Ok(()),
            WaitMode::Wait(limit) => {
                let limit = self.pause(limit);
                let waited = self.poller.wait(limit, &mut self.events);
                self.rings.asked(self.events.len());
                waited
            }
        };
        self.loop_state.woke(self.poller.now());
        self.unfinished = false;
        let events = self.events.len() + self.look_at_rings();
        self.loop_state.batch(events, events);
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.report(event);
            self.look_at_mail();
        }
        self.events = events;
        self.look_again();
        self.look_at_commands();
        self.look_at_timers();
        self.give_places();
        self.look_after_listener()?;
        waited
    }

    fn parts(&mut self) -> (&mut LoopState, &mut Table<ReadinessEntry<Stream<P>>>) {
        (&mut self.loop_state, &mut self.table)
    }

    fn limits_have_changed(&mut self) {
        let worker = &self.loop_state.worker;
        self.pipes.set_most(capacity::pipes_of_loop(&worker.policy, worker.threads));
    }

    fn take(&mut self, token: Token) -> Option<Phase> {
        let mut entry = self.table.remove(token)?;
        self.loop_state.permits.leave(&mut entry.permits);
        if entry.watched
            && let Some(fd) = entry.stream.borrowed()
        {
            self.poller.unwatch(token, fd);
        }
        self.loop_state.closed(token, entry.quota);
        Some(entry.phase)
    }

    fn resume(&mut self, token: Token) {
        self.list(token);
    }

    fn step_back(&mut self, _: Token) {
        // The poller reports when there is something; who is listed because there is more asks for a place anew.
    }

    fn dispatch(&mut self, token: Token, event: Event<'_>) {
        if let Some(ReadinessEntry { phase: Phase::Dialling(_), .. }) = self.table.get_mut(token) {
            if matches!(event, Event::Deadline) {
                self.settle_anyway(token);
            }
            return;
        }
        if let Some(entry) = prepared(&mut self.table, &mut self.loop_state, token) {
            let turn = entry.dispatch(event, &self.loop_state.context(token));
            self.after(token, turn);
        }
    }

    fn take_in(&mut self, accepted: Accepted) {
        self.loop_state.arrived();
        if let Some((stream, peer)) = accepted.open() {
            self.enter(stream, peer);
        }
    }

    fn begin_to_stop(&mut self) {
        let _ = (0..self.loop_state.worker.policy.accept.backlog).try_for_each(|_| self.accept_next());
        if let Some(listener) = self.listener.take()
            && std::mem::take(&mut self.listening)
        {
            self.poller.unwatch_listener(&listener);
        }
        self.loop_state.drain(self.poller.now());
        self.broadcast(|| Event::Drain);
    }

    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)> {
        let dial = request.dial();
        let stream = match Stream::<P>::dial(&dial.to, dial.source, &self.loop_state.worker.transports) {
            Ok(stream) => stream,
            Err(e) => return Err((request, e)),
        };
        let handshake_timeout = stream.handshake_timeout();
        let token = self.begun(request, handshake_timeout, |phase| ReadinessEntry::new(stream, phase));
        self.watch(token);
        Ok(())
    }
}

/// What the simulation looks at between turns.
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
impl<P: Poller> ReadinessLoop<P> {
    pub(in crate::engine) fn inspect(&mut self, mut look: impl FnMut(&Stream<P>, View)) {
        for token in self.table.tokens() {
            if let Some(entry) = self.table.get_mut(token) {
                let connection = entry.phase.connection();
                let view = View {
                    listed: entry.listed,
                    receives: entry.may_receive,
                    sends: entry.may_send,
                    ..View::new(connection, &entry.permits, &self.loop_state.worker.policy)
                };
                look(&entry.stream, view);
            }
        }
    }
}
