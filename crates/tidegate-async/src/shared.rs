//! What a connection's session and its handles share: bytes in both directions, timers, and requests to the session.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::BoxFuture;

use crate::waker::SessionWake;

/// A job that is offloaded once the session has its outbox at hand.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What is shared. The lock is held for moves of bytes only, never while code of the application runs.
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) wake: Arc<SessionWake>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) input: BytesMut,
    /// The peer has finished sending.
    pub(crate) ended: bool,
    reader: Option<Waker>,
    pub(crate) output: BytesMut,
    /// Bytes that may be written before writes have to wait.
    pub(crate) room: usize,
    writer: Option<Waker>,
    /// The sending side is to be shut down once the output is sent.
    pub(crate) finished: bool,
    /// The connection is gone.
    closed: bool,
    pub(crate) draining: Draining,
    timers: BTreeMap<(Instant, u64), Waker>,
    next_timer: u64,
    now: Option<Instant>,
    pub(crate) spawned: Vec<BoxFuture<'static, ()>>,
    pub(crate) jobs: VecDeque<Job>,
    /// The session runs, and looks at this state again before it returns.
    pub(crate) running: bool,
}

/// Whether the server drains, and who wants to know.
#[derive(Default)]
pub(crate) struct Draining {
    pub(crate) begun: bool,
    /// The code has asked: it decides when the connection ends.
    pub(crate) watched: bool,
    waiting: BTreeMap<u64, Waker>,
}

impl Shared {
    pub(crate) fn new(wake: Arc<SessionWake>) -> Self {
        Self { state: Mutex::default(), wake }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock but wakers, and they leave the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has arrived: at most `most` bytes, shown to `take`. `Ok(0)` is the end.
    pub(crate) fn poll_read(
        &self,
        task: &Context<'_>,
        most: usize,
        take: impl FnOnce(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut state = self.lock();
        if most == 0 {
            return Poll::Ready(Ok(0));
        }
        if state.input.is_empty() {
            if state.ended {
                return Poll::Ready(Ok(0));
            }
            if state.closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            let first = state.reader.is_none();
            register(&mut state.reader, task);
            if first {
                self.notify(&state); // an idle reader on another thread is one that a stop need not wait for
            }
            return Poll::Pending;
        }
        let n = state.input.len().min(most);
        take(state.input.get(..n).unwrap_or_default());
        state.input.advance(n);
        // Receiving may have been paused for this.
        self.notify(&state);
        Poll::Ready(Ok(n))
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
        let mut state = self.lock();
        if state.closed || state.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if state.room == 0 && pieces.iter().any(|piece| !piece.is_empty()) {
            register(&mut state.writer, task);
            return Poll::Pending;
        }
        let before = state.room;
        for piece in pieces {
            let taken = piece.get(..state.room.min(piece.len())).unwrap_or_default();
            state.output.extend_from_slice(taken);
            state.room -= taken.len();
        }
        self.notify(&state);
        Poll::Ready(Ok(before - state.room))
    }

    /// Everything written is the engine's to send; there is nothing to wait for but room.
    pub(crate) fn poll_flush(&self) -> Poll<io::Result<()>> {
        let state = self.lock();
        if state.closed { Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) } else { Poll::Ready(Ok(())) }
    }

    /// Ends the sending side after what was written.
    pub(crate) fn finish(&self) -> Poll<io::Result<()>> {
        let mut state = self.lock();
        if !state.closed {
            state.finished = true;
            self.notify(&state);
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until the server drains, under a number of [`timer`](Self::timer).
    pub(crate) fn poll_draining(&self, task: &Context<'_>, id: u64) -> Poll<()> {
        let mut state = self.lock();
        state.draining.watched = true;
        if state.draining.begun || state.closed {
            return Poll::Ready(());
        }
        state.draining.waiting.insert(id, task.waker().clone());
        Poll::Pending
    }

    pub(crate) fn cancel_draining(&self, id: u64) {
        let waker = self.lock().draining.waiting.remove(&id);
        drop(waker); // not under the lock
    }

    /// Adds a future of this connection.
    pub(crate) fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(future); // code of the application: not under the lock
        }
        state.spawned.push(future);
        self.wake.wake_again();
    }

    /// Has a job offloaded. Dropped unrun if the connection is gone.
    pub(crate) fn offload(&self, job: Job) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            return drop(job);
        }
        state.jobs.push_back(job);
        self.notify(&state);
    }

    /// The session looks at the state; from another thread than its own it has to be woken for that.
    fn notify(&self, state: &State) {
        if !state.running {
            self.wake.wake_again();
        }
    }

    /// The connection is gone: everything that waits hears of it.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let wakers: Vec<Waker> = state
            .reader
            .take()
            .into_iter()
            .chain(state.writer.take())
            .chain(std::mem::take(&mut state.draining.waiting).into_values())
            .collect();
        let timers = std::mem::take(&mut state.timers);
        let spawned = std::mem::take(&mut state.spawned);
        let jobs = std::mem::take(&mut state.jobs);
        state.output = BytesMut::new();
        drop(state);
        wakers.into_iter().chain(timers.into_values()).for_each(Waker::wake);
        drop((spawned, jobs));
    }

    /// A number for a timer of this connection, and the time it counts from.
    pub(crate) fn timer(&self) -> (u64, Instant) {
        let mut state = self.lock();
        state.next_timer += 1;
        // Virtual time runs ahead of the clock; the time of a batch of events lags behind it.
        let clock = Instant::now();
        (state.next_timer, state.now.map_or(clock, |now| now.max(clock)))
    }

    /// Waits until `at`.
    pub(crate) fn poll_timer(&self, task: &Context<'_>, at: Instant, id: u64) -> Poll<()> {
        let mut state = self.lock();
        let now = state.now.filter(|_| state.running).unwrap_or_else(Instant::now);
        if at <= now || state.closed {
            state.timers.remove(&(at, id));
            return Poll::Ready(());
        }
        let waker = state.timers.entry((at, id)).or_insert_with(|| task.waker().clone());
        if !waker.will_wake(task.waker()) {
            waker.clone_from(task.waker());
        }
        self.notify(&state);
        Poll::Pending
    }

    pub(crate) fn cancel_timer(&self, at: Instant, id: u64) {
        self.lock().timers.remove(&(at, id));
    }
}

impl State {
    /// Bytes have arrived.
    pub(crate) fn received(&mut self, bytes: &[u8]) -> Option<Waker> {
        self.input.extend_from_slice(bytes);
        self.reader.take()
    }

    /// The peer has finished.
    pub(crate) fn end(&mut self) -> Option<Waker> {
        self.ended = true;
        self.reader.take()
    }

    /// There is room for so many bytes.
    pub(crate) fn set_room(&mut self, room: usize) -> Option<Waker> {
        self.room = room;
        if room > 0 { self.writer.take() } else { None }
    }

    /// The time of this event; who has waited for it is woken.
    pub(crate) fn set_now(&mut self, now: Instant) -> Vec<Waker> {
        self.now = Some(now);
        let mut due = Vec::new();
        while let Some(first) = self.timers.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        due
    }

    /// When the next timer is due.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|(&(at, _), _)| at)
    }

    /// The server drains.
    pub(crate) fn begin_to_drain(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.draining.begun = true;
        std::mem::take(&mut self.draining.waiting).into_values()
    }

    /// Whether somebody waits for input, and there is none.
    pub(crate) fn is_reading(&self) -> bool {
        self.reader.is_some() && self.input.is_empty()
    }

    /// What was written, to be sent.
    pub(crate) fn take_output(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    /// An idle connection keeps no buffer.
    pub(crate) fn give_back_memory(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }
}

fn register(slot: &mut Option<Waker>, task: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(task.waker()),
        None => *slot = Some(task.waker().clone()),
    }
}
