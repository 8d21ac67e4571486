//! The loop of the completion family: hand over and wait, follow up on each completion, then look after the rest.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_os::socket::is_exhaustion;
use tidegate_os::waker::Waker;

use super::entry::{Entry, Phase, Progress};
use super::leaving::{InFlight, Leaving};
use super::{Addresses, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::WorkerContext;
#[cfg(all(test, target_os = "linux", not(tidegate_loom)))]
use crate::engine::simulated::view::View;
use crate::engine::worker::Ready;
use crate::engine::worker::admission::count_refusal;
use crate::engine::worker::command_queue::Accepted;
use crate::engine::worker::loop_driver::LoopDriver;
use crate::engine::worker::loop_state::LoopState;
use crate::engine::worker::permits::ConnectionPermits;
use crate::policy::accept::{ACCEPTS_IN_TURN, ACCEPTS_NEAR_LIMIT, Admission};
use crate::proto::dial::DialRequest;
use crate::proto::{Event, NextStep, Table, Token};

/// What a thread is given beside its worker: what wakes it, where it accepts, and how the other ports are reached.
type Given<P> = (Arc<Waker>, Option<Arc<<P as CompletionDriver>::Listener>>, Arc<Addresses<P>>);

/// Runs one I/O thread until it has been told to stop and its connections are gone.
pub(super) fn run<P: CompletionDriver>(
    worker: WorkerContext,
    (waker, listener, addresses): Given<P>,
    ready: Ready,
) {
    let made = Loop::<P>::new(worker, waker, listener).and_then(|made| made.reached_by(addresses));
    if let Some(mut event_loop) = ready.report(made) {
        event_loop.run();
    }
}

/// Accepts that are posted.
#[derive(Default)]
struct Accepts {
    /// One that completes without end.
    endless: bool,
    /// Single ones.
    single: usize,
    /// How many single ones were last outstanding at most, and how many it should be because the server is behind.
    most: usize,
    boost: usize,
    /// All were asked to end.
    stopping: bool,
    /// How often connections were looked for after the order to stop.
    last_looks: u32,
}

impl Accepts {
    fn are_posted(&self) -> bool {
        self.endless || self.single > 0
    }

    /// All that were posted are used up: next time it is twice as many.
    fn note_exhausted(&mut self) {
        if self.single == 0 {
            self.boost = self.most.saturating_mul(2);
        }
    }
}

/// One I/O thread's work. The simulation steps it by [`turn`](Self::turn).
pub(in crate::engine) struct Loop<P: CompletionDriver> {
    port: P,
    listener: Option<Arc<P::Listener>>,
    loop_state: LoopState,
    waker: Arc<Waker>,
    table: Table<Entry<P>>,
    /// Sockets of connections that are gone, until the kernel has finished with them.
    closing: Leaving<P::Socket>,
    /// Chained sends that were asked to end, and not found.
    missed: Vec<Token>,
    accepts: Accepts,
    /// How the ports of the other threads are reached, if connections are handed on.
    addresses: Option<Arc<Addresses<P>>>,
    /// Connections that are on their way to other threads, and may come back.
    leaving: usize,
    /// It stops, and the connections do not know yet.
    untold: bool,
    /// Connections whose receive ended because all buffers were in use.
    starved: Vec<Token>,
    /// Accepted sockets have data: the listener defers accepts.
    data_with_accept: bool,
}

/// How often a thread that stops looks for connections nobody was woken for. If somebody still waits by then, there are
/// many, and each new one wakes another ring.
const LAST_LOOKS: u32 = 8;

impl<P: CompletionDriver> Loop<P> {
    pub(in crate::engine) fn new(
        mut worker: WorkerContext,
        waker: Arc<Waker>,
        listener: Option<Arc<P::Listener>>,
    ) -> io::Result<Self> {
        let (mut port, holds) = P::new(&Setup {
            policy: &worker.policy,
            share: worker.share + worker.dials,
            peer_addr: worker.service.needs_peer_addr(),
            partners: worker.listens && worker.threads > 1,
            dials: listener.is_none(),
            first_data: worker.wants_first_data(),
            ways: &worker.ways,
            descriptors: worker.descriptors(),
        })?;
        port.watch_waker(&waker);
        worker.hold(holds);
        let takes = port.takes();
        let now = port.now();
        Ok(Self {
            port,
            listener,
            waker,
            table: Table::default(),
            closing: Leaving::default(),
            missed: Vec::new(),
            accepts: Accepts::default(),
            addresses: None,
            leaving: 0,
            untold: false,
            starved: Vec::new(),
            data_with_accept: worker.defers(),
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

    fn run(&mut self) {
        while !self.is_over() {
            if let Err(e) = self.turn() {
                tracing::error!(error = %e, "waiting for completions failed");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if let Some(addresses) = &self.addresses {
            addresses.set(self.loop_state.worker.index, None);
        }
        self.loop_state.shut();
    }

    /// Whether it was told to stop, and its connections are gone. An accept that is still posted may bring one more.
    pub(in crate::engine) fn is_over(&self) -> bool {
        let may_accept =
            || !self.loop_state.out_of_patience() && (self.accepts.are_posted() || self.is_owed());
        let idle = self.loop_state.stop_at.is_some() && self.table.is_empty() && self.closing.is_empty();
        idle && self.leaving == 0 && !may_accept() && self.loop_state.may_leave()
    }

    /// Whether connections wait that another ring was perhaps not woken for. The kernel wakes one accept for each
    /// connection (`poll_exclusive` of IORING_OP_ACCEPT); if that was one of this ring and was being ended, nobody else
    /// hears of it.
    fn is_owed(&self) -> bool {
        let waits = || self.listener.as_ref().is_some_and(|listener| P::has_waiting(listener));
        self.room() > 0
            && self.accepts.last_looks < LAST_LOOKS
            && !self.loop_state.out_of_patience()
            && waits()
    }

    /// Waits once, and does what follows.
    pub(in crate::engine) fn turn(&mut self) -> io::Result<()> {
        self.look_after_accepts();
        // A stop without connections has nothing to sleep for: either accepts are to be asked to end again, or it is
        // over. But while accepting rests, because there are no descriptors, it cannot go on either.
        let idle = self.table.is_empty() && self.closing.is_empty() && !self.loop_state.is_resting();
        let ends = self.loop_state.stop_at.is_some() && (self.accepts.stopping || idle);
        let waited = self.port.wait(self.loop_state.rest(ends, || self.port.now()));
        self.loop_state.woke(self.port.now());
        let mut events = 0;
        while let Some(completion) = self.port.next() {
            self.completion(completion);
            events += 1;
        }
        self.loop_state.batch(events);
        self.loop_state.worker.counters.sockets_reused.add(self.port.reused());
        self.stop_again();
        self.feed_starved();
        self.look_at_commands();
        self.look_at_timers();
        self.give_places();
        waited
    }

    #[inline]
    fn completion(&mut self, completion: Completion<P>) {
        match completion {
            Completion::Received { token, outcome, ended } => self.received(token, outcome, ended),
            Completion::Sent { token, outcome, unsent } => self.sent(token, outcome, unsent),
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
                    Err(e) => self.dispatch(token, Event::Failed(e.kind())),
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
            Completion::Ignored => {}
        }
    }

    #[inline]
    fn received(&mut self, token: Token, outcome: io::Result<Option<P::Buffer>>, ended: bool) {
        let Some(entry) = self.table.get_mut(token) else {
            self.recycle(outcome.ok().flatten()); // the connection is gone
            return self.came_back(token, |in_flight| in_flight.receiving &= !ended);
        };
        if ended {
            entry.receiving = false;
            self.loop_state.worker.counters.outstanding.sub(1);
        }
        let stopped = ended && std::mem::take(&mut entry.stopping);
        match outcome {
            Ok(Some(buffer)) => {
                entry.seats.served = true;
                if let Phase::Open(connection) = &mut entry.phase {
                    let bytes = self.port.bytes(&buffer);
                    let event = if bytes.is_empty() { Event::PeerEnded } else { Event::Received(bytes) };
                    connection.handle(event, &self.loop_state.context(token));
                }
                self.port.recycle(buffer);
                self.follow_up(token);
            }
            Ok(None) => self.dispatch(token, Event::PeerEnded),
            Err(e) if P::is_out_of_buffers(&e) => {
                self.loop_state.worker.counters.no_buffers.add(1);
                self.starved.push(token);
            }
            Err(_) if stopped => self.follow_up(token), // as it was told
            Err(e) => self.dispatch(token, Event::Failed(e.kind())),
        }
    }

    fn recycle(&mut self, buffer: Option<P::Buffer>) {
        if let Some(buffer) = buffer {
            self.port.recycle(buffer);
        }
    }

    #[inline]
    fn sent(&mut self, token: Token, outcome: io::Result<usize>, unsent: Option<P::Unsent>) {
        let Some(entry) = self.table.get_mut(token) else {
            // The connection has ended meanwhile; what the kernel took of it counts all the same.
            let counters = &self.loop_state.worker.counters;
            counters.sends.add(u64::from(outcome.is_ok()));
            counters.bytes_out.add(outcome.unwrap_or(0) as u64);
            return self.came_back(token, |in_flight| in_flight.sending = false);
        };
        match (outcome, unsent) {
            (Ok(n), None) => {
                entry.sending = false;
                self.loop_state.permits.sent(&mut entry.seats);
                self.loop_state.worker.counters.outstanding.sub(1);
                self.dispatch(token, Event::Sent(n));
            }
            (Ok(n), Some(rest)) => {
                entry.chained = false; // the chain is broken, and the socket open
                self.port.send_rest(token, &entry.socket, rest);
                if n > 0 {
                    self.dispatch(token, Event::Sent(n)); // nothing would look as if its peer took something
                }
            }
            (Err(e), _) => {
                entry.sending = false;
                self.loop_state.permits.sent(&mut entry.seats);
                entry.chained = false;
                self.loop_state.worker.counters.outstanding.sub(1);
                self.dispatch(token, Event::Failed(e.kind()));
            }
        }
    }

    fn go_on(&mut self, token: Token, outcome: io::Result<()>, unsent: P::Unsent) {
        let Some(entry) = self.table.get_mut(token) else {
            return self.came_back(token, |in_flight| in_flight.sending = false);
        };
        let (outcome, unsent) = match outcome {
            Ok(()) => self.port.go_on(&entry.socket, unsent, entry.follows()),
            Err(e) => (Err(e), None),
        };
        self.sent(token, outcome, unsent);
    }

    #[inline]
    fn follow_up(&mut self, token: Token) {
        let Some(entry) = self.table.get_mut(token) else { return };
        let before = entry.outstanding();
        let turn = entry.carry_out(token, &mut self.port, &mut self.loop_state.permits);
        self.loop_state.worker.counters.outstanding.add(entry.outstanding() - before);
        match turn {
            Progress::Closed => self.remove(token),
            Progress::Failed(kind) => self.dispatch(token, Event::Failed(kind)),
            Progress::Idle => {
                if let Phase::Open(connection) = &entry.phase {
                    self.loop_state.arm(token, connection);
                }
            }
        }
    }

    /// Closes in three steps: what is in flight is stopped, what was stopped is joined, and the socket is closed. Where
    /// nothing is in flight, or the port does not need it, there is one step.
    fn remove(&mut self, token: Token) {
        drop(self.take(token));
    }

    /// Removes a connection; returns what it was.
    fn take(&mut self, token: Token) -> Option<Phase> {
        if let Some(entry) = self.table.get_mut(token)
            && entry.chained
            && entry.sending
        {
            // Whether the chain has closed it is only known when the send has come back.
            entry.doom(token, &mut self.port);
            return None;
        }
        let mut entry = self.table.remove(token)?;
        self.loop_state.permits.leave(&mut entry.seats);
        let then = match &entry.phase {
            Phase::Open(connection) => connection.action().then,
            Phase::Dialling(_) => NextStep::Close,
        };
        self.loop_state.worker.counters.outstanding.sub(entry.outstanding());
        if entry.chained {
            self.port.closed(entry.socket);
        } else {
            let (how, in_flight) = (entry.close(then), entry.in_flight());
            self.close(token, entry.socket, how, in_flight);
        }
        self.loop_state.closed(token, entry.dialled_by_session);
        Some(entry.phase)
    }

    /// Gives up a connection attempt.
    fn fail_dial(&mut self, token: Token, e: io::Error) {
        if let Some(Phase::Dialling(request)) = self.take(token) {
            self.loop_state.dial_failed(request, e);
        }
    }

    fn close(&mut self, token: Token, socket: P::Socket, mut how: super::Close, mut in_flight: InFlight) {
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
            self.port.close(token, socket, super::Close::default());
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

    /// Keeps accepts posted exactly while connections may come in, and never more than there is room for.
    fn look_after_accepts(&mut self) {
        let Some(listener) = self.listener.clone() else { return };
        let posted = self.accepts.are_posted();
        if self.accepts.stopping {
            if posted && self.loop_state.stop_at.is_some() {
                // One that is just being carried out is not found (io_uring_prep_cancel(3)) and then waits on; if
                // others were found, that does not even show. So the loop does not sleep before all have come back, and
                // asks again.
                self.port.stop_accepting();
            }
            return; // until all of them have come back
        }
        let room = self.room();
        let turns = self.has_partners();
        match self.loop_state.admission() {
            Admission::Wait if posted => self.stop_accepting(),
            Admission::Wait if self.loop_state.stop_at.is_some() => {
                if self.is_owed() && !self.loop_state.is_resting() {
                    // Takes what is there, and ends in the same breath.
                    self.accepts.last_looks += 1;
                    self.accept_singly(&listener, room.min(ACCEPTS_NEAR_LIMIT));
                    self.stop_accepting();
                } else {
                    self.close_up(room);
                }
            }
            Admission::Wait => {}
            Admission::Admit if self.loop_state.worker.policy.accept.posted.is_some() => {
                self.keep_posted(&listener, room);
            }
            Admission::Admit if turns => self.accept_singly(&listener, room.min(ACCEPTS_IN_TURN)),
            // More may come in at once than there is room for: the whole backlog.
            Admission::Admit if room > self.loop_state.worker.policy.accept.backlog as usize => {
                self.accept_all(&listener)
            }
            Admission::Admit if self.accepts.endless => self.stop_accepting(),
            Admission::Admit => self.accept_singly(&listener, room.min(ACCEPTS_NEAR_LIMIT)),
            Admission::Refuse if self.accepts.single == 0 => {
                self.accepts.most = 1;
                self.post_one(&listener);
            }
            Admission::Refuse => {}
        }
    }

    /// Connections that may be accepted, beside those that other threads are about to hand on.
    fn room(&self) -> usize {
        self.loop_state.room().min(self.port.accept_room().saturating_sub(self.loop_state.expected()))
    }

    /// A stop has taken whoever waited. Only now are connections told: a client that is told may come again at once.
    fn close_up(&mut self, room: usize) {
        if room > 0 && !self.loop_state.is_resting() {
            self.listener = None; // who comes now would not be served
        }
        if std::mem::take(&mut self.untold) {
            self.broadcast(|| Event::Drain);
        }
    }

    fn accept_all(&mut self, listener: &P::Listener) {
        if !self.accepts.endless {
            self.accepts.endless = true;
            self.port.accept_all(listener);
        }
    }

    fn accept_singly(&mut self, listener: &P::Listener, want: usize) {
        self.accepts.most = want;
        while self.accepts.single < want && self.loop_state.claim_posted() {
            self.post_one(listener);
        }
    }

    fn post_one(&mut self, listener: &P::Listener) {
        self.accepts.single += 1;
        self.port.accept_one(listener);
    }

    /// Keeps single accepts between their watermarks; more while the server is behind.
    fn keep_posted(&mut self, listener: &P::Listener, room: usize) {
        let accept = &self.loop_state.worker.policy.accept;
        let Some(marks) = accept.posted else { return };
        let (low, high) = (marks.low.get() as usize, marks.high.get() as usize);
        if self.accepts.single < low.min(room) {
            let want = high.max(self.accepts.boost).min(accept.backlog as usize).min(room);
            self.accepts.boost /= 2;
            self.accept_singly(listener, want);
        }
    }

    fn stop_accepting(&mut self) {
        self.accepts.stopping = true;
        self.port.stop_accepting();
    }

    fn accepted(&mut self, outcome: io::Result<(P::Socket, Option<SocketAddr>)>, ended: bool) {
        let mut claimed = false;
        if ended {
            // Single accepts end with each completion; the endless one is the last to be left over.
            if self.accepts.single > 0 {
                self.accepts.single -= 1;
                claimed = self.loop_state.unpost();
                self.accepts.note_exhausted();
            } else {
                self.accepts.endless = false;
            }
        }
        let stopping = self.accepts.stopping;
        if !self.accepts.are_posted() {
            self.accepts.stopping = false;
        }
        match (&outcome, claimed) {
            (Ok(_), false) => self.loop_state.claim_anyway(),
            (Err(_), true) => self.loop_state.release(),
            _ => {}
        }
        match outcome {
            Ok((socket, peer)) => self.place(socket, peer),
            // Exhaustion counts all the same: accepts that take the last connections at a stop must rest too.
            Err(e) if stopping && !is_exhaustion(&e) => {}
            Err(e) => self.loop_state.accept_failed(&e),
        }
    }

    /// An accepted connection, which has a place here: serves it, or has another thread do so.
    fn place(&mut self, socket: P::Socket, peer: Option<SocketAddr>) {
        if self.loop_state.is_full() {
            count_refusal(&self.loop_state.worker.counters);
            self.loop_state.release();
            return self.port.close(self.table.next_token(), socket, super::Close::default());
        }
        let Some(addresses) = self.addresses.clone() else {
            self.loop_state.keep();
            return self.enter(socket, peer);
        };
        let Some(to) = self.loop_state.assign() else { return self.enter(socket, peer) };
        self.loop_state.release();
        match self.port.hand_on(socket, to, addresses.get(to)) {
            HandOn::UnderWay => self.leaving += 1,
            HandOn::Loose(loose) => self.loop_state.hand_on(to, Accepted::new(loose, peer)),
            HandOn::Kept(socket) => {
                self.loop_state.take_back(to);
                self.enter(socket, peer);
            }
        }
    }

    fn handed_on(&mut self, to: usize, outcome: Result<(), P::Socket>) {
        self.leaving -= 1;
        if let Err(socket) = outcome {
            self.loop_state.take_back(to);
            self.enter(socket, None);
        }
    }

    /// A connection that has its place comes in, if the service wants it.
    fn enter(&mut self, socket: P::Socket, peer: Option<SocketAddr>) {
        self.loop_state.worker.counters.attempted.add(1);
        let Some(connection) = self.loop_state.admit(peer) else {
            self.loop_state.turned_away();
            return self.port.close(self.table.next_token(), socket, super::Close::default());
        };
        let token = self.table.insert(Entry::new(socket, Phase::Open(connection), self.data_with_accept));
        self.dispatch(token, Event::Opened);
        if self.loop_state.stop_at.is_some() {
            self.dispatch(token, Event::Drain); // it has missed that
        }
    }

    fn dialled(&mut self, token: Token, outcome: io::Result<()>) {
        let Some(entry) = self.table.get_mut(token) else {
            return self.came_back(token, |in_flight| in_flight.sending = false);
        };
        let Phase::Dialling(request) = &mut entry.phase else { return };
        entry.dialling = false;
        if let Err(e) = outcome {
            return self.fail_dial(token, e);
        }
        let Some(connection) = self.loop_state.admit_dialled(request) else { return self.remove(token) };
        let was = std::mem::replace(&mut entry.phase, Phase::Open(connection));
        self.dispatch(token, Event::Opened);
        if let Phase::Dialling(request) = was {
            request.connected(|| self.loop_state.mailbox(token));
        }
        if self.loop_state.stop_at.is_some() {
            self.dispatch(token, Event::Drain); // it has missed that
        }
    }
}

impl<P: CompletionDriver> LoopDriver for Loop<P> {
    fn loop_state(&mut self) -> &mut LoopState {
        &mut self.loop_state
    }

    fn tokens(&self) -> Vec<Token> {
        self.table.tokens()
    }

    fn token_at(&self, index: u32) -> Option<Token> {
        self.table.token_at(index)
    }

    fn seats(&mut self, token: Token) -> Option<(&mut LoopState, &mut ConnectionPermits, bool)> {
        let entry = self.table.get_mut(token)?;
        let rests = matches!(&entry.phase, Phase::Open(connection) if connection.rests());
        Some((&mut self.loop_state, &mut entry.seats, rests))
    }

    fn resume(&mut self, token: Token) {
        self.follow_up(token);
    }

    fn step_back(&mut self, token: Token) {
        if let Some(entry) = self.table.get_mut(token)
            && entry.receiving
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
            }
            Phase::Dialling(_) => {}
        }
        self.follow_up(token);
    }

    fn broadcast(&mut self, event: fn() -> Event<'static>) {
        for token in self.tokens() {
            let Some(entry) = self.table.get_mut(token) else { continue };
            match &entry.phase {
                Phase::Open(_) => self.dispatch(token, event()),
                Phase::Dialling(request) if request.is_by_session() && !matches!(event(), Event::Stop) => {}
                Phase::Dialling(_) => self.fail_dial(token, io::Error::other("the client is stopping")),
            }
        }
    }

    fn take_in(&mut self, accepted: Accepted) {
        self.loop_state.arrived();
        if let Some((loose, peer)) = accepted.open() {
            let socket = self.port.take_in(loose);
            self.enter(socket, peer);
        }
    }

    /// The accepts that are posted take those who wait, and then the [last looks](LAST_LOOKS).
    fn begin_to_stop(&mut self) {
        self.loop_state.drain(self.port.now());
        match self.listener {
            Some(_) => self.untold = true,
            None => self.broadcast(|| Event::Drain),
        }
    }

    fn begin_dial(&mut self, request: DialRequest) -> Result<(), (DialRequest, io::Error)> {
        let token = self.table.next_token();
        let socket = match self.port.dial(token, request.dial()) {
            Ok(socket) => socket,
            Err(e) => return Err((request, e)),
        };
        let deadline = request.deadline();
        self.loop_state.opened(request.is_by_session());
        let same = self.table.insert(Entry::new(socket, Phase::Dialling(request), false));
        debug_assert_eq!(same, token);
        self.loop_state.alarm(token, deadline);
        Ok(())
    }
}

/// What the simulation looks at between turns.
#[cfg(all(test, target_os = "linux", not(tidegate_loom)))]
impl<P: CompletionDriver> Loop<P> {
    /// What [`run`](Self::run) does at its end.
    pub(in crate::engine) fn shut(&mut self) {
        self.loop_state.shut();
    }

    pub(in crate::engine) fn inspect(&mut self, mut look: impl FnMut(&P::Socket, View)) {
        for token in self.table.tokens() {
            if let Some(entry) = self.table.get_mut(token) {
                let connection = match &entry.phase {
                    Phase::Open(connection) => Some(connection),
                    Phase::Dialling(_) => None,
                };
                let view = View {
                    receives: entry.receiving,
                    sends: entry.sending,
                    finishes: entry.finishing,
                    ..View::new(connection, &entry.seats, &self.loop_state.worker.policy)
                };
                look(&entry.socket, view);
            }
        }
    }

    pub(in crate::engine) fn port(&mut self) -> &mut P {
        &mut self.port
    }
}
