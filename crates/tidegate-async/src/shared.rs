//! State shared by a connection's session and its handles: bytes in both directions, timers, and requests to the
//! session.

mod dialled;
mod waits;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{
    AtomicBool, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use futures_util::future::BoxFuture;
use tidegate::{Outbox, Peer};

use crate::dial::DialOrder;
use crate::lent;
use crate::offload::AdmittedJob;
use crate::timers::ConnectionTimers;
use crate::waker::SessionWake;
use dialled::DialledBy;
pub(crate) use waits::DrainPlace;
use waits::DrainWaiters;

/// Output up to this size is copied to the outbox.
const COPIED: usize = 1024;

/// The shared state. The lock is held only while bytes are moved, never while application code runs; cloning, waking
/// and dropping wakers is application code, too.
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) peer: Peer,
    pub(crate) wake: Arc<SessionWake>,
    /// The waker of the session's futures, which is `wake`.
    waker: Waker,
    /// There are spawned futures in the state.
    has_spawned: AtomicBool,
    /// The server drains, or the connection is gone: set before anything that waits for that is woken.
    drains: AtomicBool,
    /// The connection is gone, as the state says.
    is_closed: AtomicBool,
    /// The state says who waits for input since the session was called: a note of the loan does not. Written under the
    /// lock; who polls the reader without it was handed the reader, and so sees what was written before.
    reader_is_set: AtomicBool,
    /// The session's own task waited for input when it was polled last. A read that it has given up remains its reader
    /// until then.
    own_task_reads: AtomicBool,
    /// For a connection that another one has dialled.
    dialled: Option<Box<DialledBy>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// Who waits.
pub(crate) enum Waiter {
    /// The session's own task: no waker needs to be cloned and dropped for it.
    Session,
    Other(Waker),
}

/// What only the session can do, with its outbox.
pub(crate) enum SessionRequest {
    Offload(AdmittedJob),
    Dial(Box<DialOrder>),
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) input: BytesMut,
    /// The peer has finished sending.
    pub(crate) ended: bool,
    reader: Option<Waiter>,
    pub(crate) output: BytesMut,
    /// Bytes that may be written before writes must wait.
    pub(crate) room: usize,
    writer: Option<Waiter>,
    /// The sending side is to be shut down when the output is sent.
    pub(crate) finished: bool,
    /// The connection is to be reset.
    pub(crate) aborted: bool,
    /// A stop has reset one that this one has dialled: what has been sent may look complete, and is not.
    pub(crate) cut_off: bool,
    /// The connection is gone.
    closed: bool,
    pub(crate) draining: DrainWaiters,
    timers: ConnectionTimers,
    now: Option<Instant>,
    spawned: Vec<BoxFuture<'static, ()>>,
    /// Carried out when the session next has its outbox.
    pub(crate) requests: VecDeque<SessionRequest>,
    /// Connections that this one has dialled and that owe an answer.
    pub(crate) awaited: usize,
    /// Of a dialled connection: something was written, and nothing has arrived since.
    owes: bool,
    /// Nobody has the dialled connection any more.
    pub(crate) released: bool,
    /// The session runs, and checks this state again before it returns.
    pub(crate) running: bool,
}

impl Shared {
    pub(crate) fn new(wake: Arc<SessionWake>, peer: Peer) -> Self {
        let waker = Waker::from(wake.clone());
        Self {
            state: Mutex::default(),
            peer,
            wake,
            waker,
            has_spawned: AtomicBool::new(false),
            drains: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            reader_is_set: AtomicBool::new(false),
            own_task_reads: AtomicBool::new(false),
            dialled: None,
        }
    }

    /// The waker of the session's futures.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Who waits with this task, if it is the session's own.
    fn session_waiter(&self, task: &Context<'_>) -> Option<Waiter> {
        task.waker().will_wake(&self.waker).then_some(Waiter::Session)
    }

    /// Wakes who waited.
    pub(crate) fn notify_waiter(&self, waiter: Waiter) {
        match waiter {
            Waiter::Session => self.wake.wake_again(),
            Waiter::Other(waker) => waker.wake(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session is called.
    pub(crate) fn begin(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.running = true;
        self.reader_is_set.store(false, Relaxed);
        state
    }

    /// The session's own task has noted that it waits for input: so does the state, unless somebody has waited there
    /// since. Who has waited before.
    pub(crate) fn take_note(&self, state: &mut State) -> Option<Waiter> {
        let noted_last = !self.reader_is_set.load(Relaxed);
        if noted_last { state.reader.replace(Waiter::Session) } else { None }
    }

    /// The session's own task is about to be polled.
    pub(crate) fn begin_poll(&self) {
        self.own_task_reads.store(false, Relaxed);
    }

    /// Whether the last poll may have given up a read, so that another one is needed to know what the task waits for
    /// now. Only a drain has to know it.
    pub(crate) fn may_have_given_up_a_read(&self) -> bool {
        self.drains.load(Relaxed) && self.own_task_reads.load(Relaxed)
    }

    /// Whether a reader waits and there is no input. While the server drains, a read that the task has given up is not
    /// waited for.
    pub(crate) fn is_reading(&self, state: &State) -> bool {
        state.input.is_empty()
            && match state.reader {
                None => false,
                Some(Waiter::Session) => !self.drains.load(Relaxed) || self.own_task_reads.load(Relaxed),
                Some(Waiter::Other(_)) => true,
            }
    }

    /// Reads what has arrived: at most `most` bytes, shown to `take`. `Ok(0)` is the end.
    pub(crate) fn poll_read(
        &self,
        task: &Context<'_>,
        most: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        if most == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut own = self.session_waiter(task);
        let mut take = Some(take);
        let may_note = own.is_some() && !self.reader_is_set.load(Relaxed);
        match lent::read(self, most, may_note, &mut take) {
            Some(0) => {
                self.own_task_reads.store(true, Relaxed);
                return Poll::Pending;
            }
            Some(n) => return Poll::Ready(Ok(n)),
            None => {}
        }
        loop {
            let mut state = self.lock();
            if !state.input.is_empty()
                && let Some(take) = take.take()
            {
                let n = most.min(state.input.len());
                take(&state.input[..n]);
                let was_held_back = self.holds_back(&state);
                state.input.advance(n);
                if was_held_back && !self.holds_back(&state) {
                    self.notify(state);
                }
                return Poll::Ready(Ok(n));
            }
            if state.ended {
                return Poll::Ready(Ok(0));
            }
            if state.closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let Some(waiter) = own.take() else {
                drop(state);
                own = Some(Waiter::Other(task.waker().clone()));
                continue;
            };
            self.reader_is_set.store(true, Relaxed);
            if matches!(waiter, Waiter::Session) {
                self.own_task_reads.store(true, Relaxed);
            }
            let before = state.reader.replace(waiter);
            if before.is_none() {
                self.notify(state); // a stop need not wait for an idle reader on another thread
            } else {
                drop(state);
            }
            return Poll::Pending; // `before` is dropped without the lock
        }
    }

    /// Writes as much as there is room for.
    pub(crate) fn poll_write(&self, task: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(task, &[IoSlice::new(bytes)])
    }

    /// Writes as much of the pieces, in order, as there is room for.
    pub(crate) fn poll_write_vectored(
        &self,
        task: &Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut own = self.session_waiter(task);
        loop {
            let mut state = self.lock();
            if state.closed || state.finished {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if state.room > 0 || pieces.iter().all(|piece| piece.is_empty()) {
                let all: usize = pieces.iter().map(|piece| piece.len()).sum();
                let direct = state.output.is_empty(); // otherwise another thread was first
                let taken = if direct && all <= state.room && lent::write(self, pieces) {
                    state.room -= all;
                    all
                } else {
                    state.write_some(pieces, |taken| direct && lent::write(self, &[IoSlice::new(taken)]))
                };
                if taken > 0 {
                    self.expects_answer(&mut state);
                }
                self.notify(state);
                return Poll::Ready(Ok(taken));
            }
            let Some(waiter) = own.take() else {
                drop(state);
                own = Some(Waiter::Other(task.waker().clone()));
                continue;
            };
            let before = state.writer.replace(waiter);
            drop(state);
            drop(before);
            return Poll::Pending;
        }
    }

    /// Everything written is sent by the engine; a flush never waits.
    pub(crate) fn poll_flush(&self) -> Poll<io::Result<()>> {
        if self.is_closed.load(Acquire) {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        } else {
            Poll::Ready(Ok(()))
        }
    }

    /// Ends the sending side after what was written.
    pub(crate) fn finish(&self) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if !state.closed {
            state.finished = true;
            self.notify(state);
        }
        Poll::Ready(Ok(()))
    }

    /// Drops the output, and resets the connection.
    pub(crate) fn abort(&self) {
        let mut state = self.lock();
        if !state.closed {
            state.finished = true;
            state.aborted = true;
            self.notify(state);
        }
    }

    /// Adds a future of this connection.
    pub(crate) fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(future); // application code: not under the lock
        }
        state.spawned.push(future);
        self.has_spawned.store(true, Release);
        drop(state);
        self.wake.wake_again();
    }

    /// The futures spawned since the last call.
    pub(crate) fn take_spawned(&self) -> Vec<BoxFuture<'static, ()>> {
        if self.has_spawned.load(Relaxed) && self.has_spawned.swap(false, AcqRel) {
            std::mem::take(&mut self.lock().spawned)
        } else {
            Vec::new()
        }
    }

    /// Asks the session for something; dropped if the connection is gone.
    pub(crate) fn request(&self, request: SessionRequest) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(request);
        }
        state.requests.push_back(request);
        self.notify(state);
    }

    /// Makes the session check the state; wakes it if called from another thread.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let runs = state.running;
        drop(state);
        if !runs {
            self.wake.wake_again();
        }
    }

    /// The connection is gone, or the session is not called any more: wakes everything that waits.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.is_closed.store(true, Release);
        self.drains.store(true, Release);
        let ends: [Option<Waiter>; 2] = [state.reader.take(), state.writer.take()];
        let draining = std::mem::take(&mut state.draining.waiting);
        let timers = std::mem::take(&mut state.timers);
        let spawned = std::mem::take(&mut state.spawned);
        let requests = std::mem::take(&mut state.requests);
        state.output = BytesMut::new();
        let answered = state.has_answer();
        drop(state);
        ends.into_iter().flatten().for_each(|waiter| self.notify_waiter(waiter));
        draining.into_values().chain(timers.into_waiters()).for_each(|waiter| self.notify_waiter(waiter));
        self.settle(answered);
        drop((spawned, requests));
    }
}

impl State {
    /// Writes as much of the pieces as there is room for: what `lent` does not take is kept. Returns the bytes.
    fn write_some(&mut self, pieces: &[IoSlice<'_>], lent: impl Fn(&[u8]) -> bool) -> usize {
        let before = self.room;
        for piece in pieces {
            let taken = piece.get(..self.room.min(piece.len())).unwrap_or_default();
            if !lent(taken) {
                self.output.extend_from_slice(taken);
            }
            self.room -= taken.len();
        }
        before - self.room
    }

    /// Bytes have arrived: those that can be lent, because nothing unread is before them, and who waits for them.
    pub(crate) fn arrived<'a>(&mut self, bytes: &'a [u8]) -> (&'a [u8], Option<Waiter>) {
        if bytes.is_empty() || self.input.is_empty() {
            return (bytes, self.reader.take_if(|_| !bytes.is_empty()));
        }
        (&[], self.keep(bytes))
    }

    /// Keeps bytes that nobody has read.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Option<Waiter> {
        self.input.extend_from_slice(bytes);
        self.reader.take()
    }

    /// The peer has finished.
    pub(crate) fn end(&mut self) -> Option<Waiter> {
        self.ended = true;
        self.reader.take()
    }

    /// Sets the bytes that may be written: the room of the outbox, less what is to be moved there.
    pub(crate) fn set_room(&mut self, room: usize) -> Option<Waiter> {
        self.room = room.saturating_sub(self.output.len());
        if self.room > 0 { self.writer.take() } else { None }
    }

    /// Sets the time of this event; who waits for a timer that is due.
    pub(crate) fn set_now(&mut self, now: Instant) -> Vec<Waiter> {
        self.now = Some(now);
        self.timers.take_due(now)
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Whether there is nothing to read, and no end.
    pub(crate) fn has_nothing_to_read(&self) -> bool {
        self.input.is_empty() && !self.ended && !self.closed
    }

    /// Moves the written bytes to the outbox: copies few, which is cheaper than sharing them.
    pub(crate) fn hand_over_output(&mut self, out: &mut Outbox<'_>) {
        let output = std::mem::take(&mut self.output);
        match output.len() {
            0 => {}
            1..=COPIED => out.write(&output),
            _ => out.share(output.freeze()),
        }
    }

    /// An idle connection keeps no buffer.
    pub(crate) fn give_back_memory(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }
}
