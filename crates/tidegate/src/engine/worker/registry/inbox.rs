//! Where mail and orders for one connection wait, on models without a loop.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker as TaskWaker;
use std::time::Instant;

use super::{ConnectionRegistry, wake};
use crate::policy::pressure::Candidate;
use crate::proto::dial::DialRequest;
use crate::proto::mail::{MailSink, MailboxError, SendError};
use crate::proto::panics::Contained;
use crate::proto::{Event, Token};
use crate::service::Mail;

/// What a connection is ordered to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Order {
    /// The kernel lacks memory: close.
    Shed,
    /// Finish what is in flight, then close.
    Drain,
    /// Close now.
    Stop,
}

/// The token of a connection that has an inbox to itself.
pub(in crate::engine) const ALONE: Token = Token { index: 0, generation: 0 };

/// Mail and orders for one connection.
pub(in crate::engine) struct Inbox {
    state: Mutex<InboxState>,
    bound: usize,
    stopped: Arc<AtomicBool>,
    registry: Weak<ConnectionRegistry>,
}

#[derive(Default)]
struct InboxState {
    mail: VecDeque<Contained<Mail>>,
    order: Option<Order>,
    waker: Option<TaskWaker>,
    /// When its connection last looked here, which it does whenever something has happened to it.
    looked: Option<Instant>,
    /// The connection is gone: mail for it is dropped.
    closed: bool,
}

impl Inbox {
    pub(super) fn new(registry: &Arc<ConnectionRegistry>, bound: usize, order: Option<Order>) -> Self {
        Self {
            state: Mutex::new(InboxState { order, ..InboxState::default() }),
            bound,
            stopped: registry.stopped.clone(),
            registry: Arc::downgrade(registry),
        }
    }

    /// The last order, if it has not been read.
    pub(super) fn last_order(&self) -> Option<Order> {
        self.lock().order
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = state.order.max(Some(order));
        let waker = state.waker.clone();
        drop(state);
        wake(waker);
    }

    pub(super) fn wake(&self) {
        let waker = self.lock().waker.clone();
        wake(waker);
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let (undelivered, waker) = (std::mem::take(&mut state.mail), state.waker.take());
        drop(state);
        drop((undelivered, waker)); // values of the application: not under the lock
    }

    /// As one of those that may have to be closed, once it is served. What it waits for is not known here, but when it
    /// last had something to do.
    pub(super) fn candidate(self: Arc<Self>) -> Option<Candidate<Arc<Self>>> {
        let (moved, rests) = {
            let state = self.lock();
            (state.looked?, state.mail.is_empty())
        };
        Some(Candidate { which: self, rests, moved })
    }

    /// Whom to wake from now on.
    pub(in crate::engine) fn wakes(&self, waker: &TaskWaker) {
        if !self.lock().waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            let waker = waker.clone();
            let before = self.lock().waker.replace(waker);
            drop(before); // not under the lock
        }
    }

    /// Whether there is an order or mail.
    pub(in crate::engine) fn has_delivery(&self) -> bool {
        let state = self.lock();
        state.order.is_some() || !state.mail.is_empty()
    }

    /// Pieces of mail that wait; an order counts as more than any number of them. `None` if there is neither.
    pub(in crate::engine) fn waiting(&self) -> Option<usize> {
        let mut state = self.lock();
        state.looked = Some(Instant::now());
        match (state.order, state.mail.len()) {
            (Some(_), _) => Some(usize::MAX),
            (None, 0) => None,
            (None, mail) => Some(mail),
        }
    }

    /// The next order or piece of mail.
    pub(in crate::engine) fn take(&self) -> Option<Event<'static>> {
        let mut state = self.lock();
        state.looked = Some(Instant::now());
        match state.order.take() {
            Some(Order::Shed) => Some(Event::Shed),
            Some(Order::Drain) => Some(Event::Drain),
            Some(Order::Stop) => Some(Event::Stop),
            None => state.mail.pop_front().map(Event::Mail),
        }
    }
}

impl MailSink for Inbox {
    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        let Some(registry) = self.registry.upgrade() else {
            request.refused();
            return Err(MailboxError::Stopped);
        };
        registry.dial(request);
        Ok(())
    }

    fn has_room(&self, pieces: usize) -> bool {
        let waiting = self.lock().mail.len();
        waiting == 0 || waiting + pieces <= self.bound
    }

    fn post(&self, _: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        if self.stopped.load(Relaxed) {
            return Err(SendError { error: MailboxError::Stopped, message: mail });
        }
        let mail = Contained::new(mail); // dropped, if it is, when the lock has been let go
        let mut state = self.lock();
        if state.closed {
            return Ok(()); // dropped, as to a session that goes before it reads
        }
        // The results of jobs are bounded by the queue of jobs.
        if state.mail.len() >= self.bound && mail.is_bounded() {
            return Err(SendError { error: MailboxError::Full, message: mail.into_inner() });
        }
        state.mail.push_back(mail);
        let waker = state.waker.clone();
        drop(state);
        wake(waker);
        Ok(())
    }
}
