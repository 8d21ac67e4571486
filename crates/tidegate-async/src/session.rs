//! The session that owns a connection's futures and polls them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tidegate::{Activity, CloseReason, Consumed, Flow, Mail, Outbox, Peer, Session};

use crate::Connection;
use crate::dial::PendingDials;
use crate::lent::Lent;
use crate::offload;
use crate::shared::{SessionRequest, Shared, State, Waiter};
use crate::waker::SessionWake;

/// How often the futures of one connection are polled before other connections are served.
const POLL_QUANTUM: usize = 8;

/// The session of an [`AsyncService`](crate::AsyncService).
pub struct AsyncSession {
    shared: Arc<Shared>,
    user: User,
    /// Spawned futures, if any.
    spawned: Option<FuturesUnordered<BoxFuture<'static, ()>>>,
    dials: PendingDials,
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

/// Who uses the connection.
enum User {
    /// Its own future, until that has returned.
    Future(BoxFuture<'static, ()>),
    /// The code that has dialled it, until that has let go of it.
    Dialler,
    /// Nobody: it ends.
    Nobody,
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
        Self::of(shared, User::Future(root))
    }

    /// The session of a connection that another one has dialled.
    pub(crate) fn of_dialled(shared: Arc<Shared>) -> Self {
        Self::of(shared, User::Dialler)
    }

    fn of(shared: Arc<Shared>, user: User) -> Self {
        Self {
            shared,
            user,
            spawned: None,
            dials: PendingDials::default(),
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
        let arrived = !input.is_empty();
        let (input, reader) = match self.user {
            User::Dialler if arrived => (&[][..], state.keep(input)), // its reader is in another task
            _ => state.arrived(input),
        };
        let of_event = event(&mut state);
        let writer = state.set_room(out.room());
        let answered = (arrived || state.ended).then(|| state.has_answer());
        let mut taken = TakenIn { input, is_all: state.has_nothing_to_read(), woken: false };
        drop(state);
        for waiter in due {
            taken.wakes(waiter);
        }
        for waiter in [reader, of_event, writer].into_iter().flatten() {
            taken.wakes(waiter);
        }
        // After the wakes: who has dialled is not idle in between.
        answered.into_iter().for_each(|answered| self.shared.settle(answered));
        taken
    }

    fn poll(&mut self) {
        #[cfg(feature = "tokio")]
        let _entered = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        self.shared.begin_poll();
        let mut task = Context::from_waker(self.shared.waker());
        if let User::Future(root) = &mut self.user
            && Pin::new(root).poll(&mut task).is_ready()
        {
            self.user = User::Nobody;
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

    /// Moves written bytes and requests to the outbox, and returns how the connection goes on. `reads`: the session's
    /// own task has noted that it waits for input.
    fn hand_over(&mut self, reads: bool, out: &mut Outbox<'_>) -> Flow {
        let mut state = self.shared.lock();
        let read_before = if reads { self.shared.take_note(&mut state) } else { None };
        if !state.requests.is_empty() {
            let requests = std::mem::take(&mut state.requests);
            drop(state);
            self.carry_out(requests, out); // not under the lock: a destructor of a refused job is application code
            state = self.shared.lock();
        }
        if state.released {
            self.user = User::Nobody;
        }
        state.hand_over_output(out);
        match state.next_timer() {
            Some(at) => out.wake_at(at),
            None => out.wake_never(),
        }
        if !state.requests.is_empty() {
            self.shared.wake.wake_again(); // another thread has added one since, without waking the session
        }
        let is_over = matches!(self.user, User::Nobody);
        out.set_activity(self.activity(&state));
        let holds_back = !is_over && self.shared.holds_back(&state);
        out.set_buffered(if holds_back { state.input.len() } else { 0 });
        state.give_back_memory();
        let finishes = state.finished && !self.finished;
        let (aborts, lingers) = (state.aborted || is_over && state.cut_off, !state.ended);
        state.finished |= is_over; // nothing written from now on would be sent
        state.running = false;
        drop(state);
        drop(read_before); // not under the lock
        if is_over {
            self.dials = PendingDials::default();
            self.shared.close(); // the session is not called any more: remaining handles must not wait for it
        }
        self.finished |= finishes;
        match is_over {
            _ if aborts => Flow::Abort,
            // The peer may still be sending: the last output must not be lost in a reset.
            true if lingers => Flow::Linger,
            true => Flow::Close,
            false if finishes => Flow::Shutdown,
            false => Flow::Continue,
        }
    }

    fn carry_out(&mut self, requests: VecDeque<SessionRequest>, out: &mut Outbox<'_>) {
        for request in requests {
            match request {
                SessionRequest::Offload(job) => offload::offload(job, out),
                #[cfg(feature = "tokio")]
                SessionRequest::Dial(order) => {
                    self.dials.begin(*order, |session| session.entering(self.runtime.clone()), out);
                }
                #[cfg(not(feature = "tokio"))]
                SessionRequest::Dial(order) => self.dials.begin(*order, |session| session, out),
            }
        }
    }

    /// What a stop waits for, and whether receiving goes on meanwhile.
    fn activity(&self, state: &State) -> Activity {
        match self.user {
            User::Nobody => Activity::Nothing,
            User::Dialler if self.shared.is_left_alone(state) => Activity::Nothing,
            // The connection that has dialled decides when it ends.
            User::Dialler if !self.shared.holds_back(state) => Activity::Answer,
            User::Dialler => Activity::Work,
            User::Future(_) if self.shared.wake.is_woken() || !self.shared.is_reading(state) => {
                Activity::Work
            }
            User::Future(_) if state.awaited > 0 => Activity::Answer,
            User::Future(_) if state.draining.begun && state.draining.watched => Activity::Input,
            User::Future(_) => Activity::Nothing,
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
        if let Mail::Dialled(dialled) = mail {
            self.shared.wake.begin(|| out.waker()); // first: this call polls who is woken by that
            self.dials.ended(dialled);
        }
        self.run(out, |_| None) // a wake is noted already
    }

    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.shared.begin_to_drain();
        self.run(out, |_| Some(Waiter::Session))
    }

    fn on_close(&mut self, reason: CloseReason) {
        #[cfg(feature = "tokio")]
        let _entered = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        if reason == CloseReason::Stopped {
            self.shared.cuts_off(); // before its user learns that it is closed
        }
        self.shared.close(); // first: the destructors of the application's futures may panic
        self.user = User::Nobody;
        self.spawned = None;
        self.dials = PendingDials::default();
    }
}

impl Drop for AsyncSession {
    fn drop(&mut self) {
        self.shared.close();
    }
}
