//! The session that owns a connection's futures and polls them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use crate::Connection;
use crate::lent::Lent;
use crate::offload;
use crate::shared::{Shared, State, Waiter};
use crate::waker::SessionWake;

/// How often the futures of one connection are polled before other connections are served.
const POLL_QUANTUM: usize = 8;

/// The session of an [`AsyncService`](crate::AsyncService).
pub struct AsyncSession {
    shared: Arc<Shared>,
    /// The connection's future, until it has returned.
    root: Option<BoxFuture<'static, ()>>,
    /// Spawned futures, if any.
    spawned: Option<FuturesUnordered<BoxFuture<'static, ()>>>,
    /// The sending side was shut down.
    finished: bool,
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

impl std::fmt::Debug for AsyncSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AsyncSession").finish_non_exhaustive()
    }
}

/// What a session was called with, as its futures see it.
struct TakenIn<'a> {
    /// The input that can be lent.
    input: &'a [u8],
    /// The shared state has neither input nor an end for a reader.
    is_all: bool,
    /// The session's own task was woken.
    woken: bool,
}

impl TakenIn<'_> {
    fn wakes(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Session => self.woken = true,
            Waiter::Other(waker) => waker.wake(),
        }
    }
}

impl AsyncSession {
    pub(crate) fn new(peer: &Peer, start: impl FnOnce(Connection) -> BoxFuture<'static, ()>) -> Self {
        let wake = Arc::new(SessionWake::default());
        let shared = Arc::new(Shared::new(wake, peer.clone()));
        let root = start(Connection::new(shared.clone()));
        Self {
            shared,
            root: Some(root),
            spawned: None,
            finished: false,
            #[cfg(feature = "tokio")]
            runtime: None,
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn entering(mut self, runtime: Option<tokio::runtime::Handle>) -> Self {
        self.runtime = runtime;
        self
    }

    /// Handles an event, polls the woken futures, and processes their requests.
    fn run(&mut self, out: &mut Outbox<'_>, event: impl FnOnce(&mut State) -> Option<Waiter>) -> Flow {
        self.run_with(&[], out, event)
    }

    /// The same with bytes that have arrived.
    fn run_with(
        &mut self,
        input: &[u8],
        out: &mut Outbox<'_>,
        event: impl FnOnce(&mut State) -> Option<Waiter>,
    ) -> Flow {
        self.shared.wake.begin(|| out.waker());
        let TakenIn { input, is_all, mut woken } = self.take_in(input, out, event);
        let lent = Lent::new(&self.shared, input, is_all, out);
        for _ in 0..POLL_QUANTUM {
            if !(self.shared.wake.take_woken() | std::mem::take(&mut woken)) {
                break;
            }
            lent.during(|| self.poll());
        }
        if self.shared.may_have_given_up_a_read() {
            lent.during(|| self.poll());
        }
        let (unread, reads) = lent.into_parts();
        if !unread.is_empty() {
            let reader = self.shared.lock().keep(unread);
            reader.into_iter().for_each(|waiter| self.shared.notify_waiter(waiter));
        }
        let flow = self.hand_over(reads, out);
        self.shared.wake.end();
        flow
    }

    /// Notes what has happened, and wakes who waits for it.
    fn take_in<'a>(
        &mut self,
        input: &'a [u8],
        out: &Outbox<'_>,
        event: impl FnOnce(&mut State) -> Option<Waiter>,
    ) -> TakenIn<'a> {
        let mut state = self.shared.begin();
        let due = state.set_now(out.now());
        let (input, reader) = state.arrived(input);
        let of_event = event(&mut state);
        let writer = state.set_room(out.room());
        let mut taken = TakenIn { input, is_all: state.has_nothing_to_read(), woken: false };
        drop(state);
        for waiter in due {
            taken.wakes(waiter);
        }
        for waiter in [reader, of_event, writer].into_iter().flatten() {
            taken.wakes(waiter);
        }
        taken
    }

    fn poll(&mut self) {
        #[cfg(feature = "tokio")]
        let _entered = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        self.shared.begin_poll();
        let mut task = Context::from_waker(self.shared.waker());
        if let Some(root) = &mut self.root
            && Pin::new(root).poll(&mut task).is_ready()
        {
            self.root = None;
        }
        let new = self.shared.take_spawned();
        if !new.is_empty() {
            self.spawned.get_or_insert_default().extend(new);
        }
        if let Some(spawned) = &mut self.spawned {
            while let Poll::Ready(Some(())) = spawned.poll_next_unpin(&mut task) {}
            if spawned.is_empty() {
                self.spawned = None;
            }
        }
    }

    /// Moves written bytes and requests to the outbox, and returns how the connection goes on. `reads`: the session's own
    /// task has noted that it waits for input.
    fn hand_over(&mut self, reads: bool, out: &mut Outbox<'_>) -> Flow {
        let mut state = self.shared.lock();
        let read_before = if reads { self.shared.take_note(&mut state) } else { None };
        if !state.jobs.is_empty() {
            let jobs = std::mem::take(&mut state.jobs);
            drop(state);
            for job in jobs {
                offload::offload(job, out); // not under the lock: a destructor of a refused one is application code
            }
            state = self.shared.lock();
        }
        state.hand_over_output(out);
        match state.next_timer() {
            Some(at) => out.wake_at(at),
            None => out.wake_never(),
        }
        let decides = state.draining.begun && state.draining.watched;
        out.set_activity(match (&self.root, self.shared.is_reading(&state)) {
            (None, _) => Activity::Nothing,
            (Some(_), true) if !decides => Activity::Nothing,
            // A stop waits for it, and receiving continues.
            (Some(_), true) => Activity::Input,
            (Some(_), false) => Activity::Work,
        });
        // Receiving pauses while there is unread input.
        out.set_buffered(if self.root.is_none() { 0 } else { state.input.len() });
        state.give_back_memory();
        let finishes = state.finished && !self.finished;
        let (aborts, lingers) = (state.aborted, !state.ended);
        state.finished |= self.root.is_none(); // nothing written from now on would be sent
        if !state.jobs.is_empty() {
            self.shared.wake.wake_again(); // another thread has added one since, without waking the session
        }
        state.running = false;
        drop(state);
        drop(read_before); // not under the lock
        if self.root.is_none() {
            self.shared.close(); // the session is not called any more: remaining handles must not wait for it
        }
        self.finished |= finishes;
        match &self.root {
            _ if aborts => Flow::Abort,
            // The peer may still be sending: the last output must not be lost in a reset.
            None if lingers => Flow::Linger,
            None => Flow::Close,
            Some(_) if finishes => Flow::Shutdown,
            Some(_) => Flow::Continue,
        }
    }
}

impl Session for AsyncSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        // Each direction is bounded by itself: writes wait for room, receiving for the code to read. If a full outbox
        // held input back, two ends that write and read side by side could wait for each other for ever.
        out.takes_input_while_full();
        self.run(out, |_| Some(Waiter::Session))
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let flow = self.run_with(input, out, |_| None);
        Consumed::all(input).then(flow)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.run(out, |_| None)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.run(out, State::end)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.run(out, |_| matches!(mail, Mail::Wake).then_some(Waiter::Session))
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.shared.begin_to_drain();
        self.run(out, |_| Some(Waiter::Session))
    }

    fn on_close(&mut self, _: CloseReason) {
        #[cfg(feature = "tokio")]
        let _entered = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        self.shared.close(); // first: the destructors of the application's futures may panic
        self.root = None;
        self.spawned = None;
    }
}

impl Drop for AsyncSession {
    fn drop(&mut self) {
        self.shared.close();
    }
}
