//! What the engines without a loop of their own share (`blocking`, `pool`, `tokio`): how many connections
//! are open, where their mail goes, and stopping.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context as TaskContext, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use tidegate_os::waker::Waker as Notify;

use tidegate_os::socket::Listener;

use super::admission::{self, AcceptPause, DialRoom};
use super::{CommandQueue, EngineConfig, EngineHandle};
use crate::policy::Policy;
use crate::policy::accept::{Admission, Fullness, admission, admitted};
use crate::proto::Token;
use crate::proto::dial::DialRequest;
use crate::proto::mail::{MailSink, Mailbox, MailboxError};
use crate::proto::panics::Contained;
use crate::service::{Mail, Origin, Session};
use crate::stats::{Counters, Writers};

/// What all connections of a server or client without loops share.
pub(in crate::engine) struct ConnectionRegistry {
    pub(in crate::engine) config: EngineConfig,
    /// Until somebody accepts.
    listener: Mutex<Option<Arc<Listener>>>,
    /// The limits as they are now.
    policy: ArcSwap<Policy>,
    /// Of whoever accepts, dials and stops, and is no I/O thread.
    pub(in crate::engine) counters: Arc<Counters>,
    /// Of the I/O threads.
    io_counters: Box<[Arc<Counters>]>,
    /// I/O threads that have asked for theirs.
    counting: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes an acceptor that is a thread and waits for the listener. The listener itself is left as it is: another
    /// process may hold it, to go on with it.
    bell: OnceLock<Arc<Notify>>,
    /// The engine has stopped; shared with every post box.
    stopped: Arc<AtomicBool>,
    /// How the engine makes a connection that has its place.
    dial: OnceLock<DialFn>,
}

type DialFn = Box<dyn Fn(&Arc<ConnectionRegistry>, DialRequest, RegistrySlot) + Send + Sync>;

/// Where a connection comes from.
pub(in crate::engine) enum Caller {
    /// It was accepted from there, if that is known.
    Accepted(Option<SocketAddr>),
    /// This end has dialled it.
    Dialled(DialRequest),
}

impl Caller {
    pub(in crate::engine) fn origin(&self) -> Origin {
        match self {
            Self::Accepted(_) => Origin::Accepted,
            Self::Dialled(request) => Origin::Dialled { tag: request.dial().tag },
        }
    }

    /// The connection stands, and is served from now on.
    pub(in crate::engine) fn served(self, post: &Arc<Inbox>) {
        if let Self::Dialled(request) = self {
            request.connected(|| Mailbox { office: post.clone(), token: ALONE });
        }
    }
}

#[derive(Default)]
struct State {
    open: usize,
    /// Connections that sessions have dialled, or are dialling. They have places of their own.
    dialled: usize,
    /// An acceptor may be about to bring in one more connection.
    accepting: bool,
    /// The last order that all were given.
    stopping: Option<Order>,
    pause: AcceptPause,
    next: u64,
    posts: HashMap<u64, Weak<Inbox>>,
    /// An acceptor that is a task rather than a thread.
    acceptor: Option<Waker>,
}

/// What a connection is told besides its mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Order {
    /// Finish what is in flight, then close.
    Drain,
    /// Close now.
    Stop,
}

impl ConnectionRegistry {
    pub(in crate::engine) fn new(mut config: EngineConfig, io_counters: Vec<Arc<Counters>>) -> Arc<Self> {
        let counters = Arc::new(Counters::new(Writers::Many));
        Arc::new(Self {
            policy: ArcSwap::new(config.policy.clone()),
            listener: Mutex::new(config.listener.take()),
            config,
            counters,
            io_counters: io_counters.into(),
            counting: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: OnceLock::new(),
            stopped: Arc::default(),
            dial: OnceLock::new(),
        })
    }

    /// How connections are dialled.
    pub(in crate::engine) fn dials_by(
        &self,
        dial: impl Fn(&Arc<Self>, DialRequest, RegistrySlot) + Send + Sync + 'static,
    ) {
        let _ = self.dial.set(Box::new(dial)); // there is one engine
    }

    /// The gate, the counters and the threads of an engine whose control is behind the gate.
    pub(in crate::engine) fn handle(
        &self,
        gate: Arc<CommandQueue>,
        threads: Vec<JoinHandle<()>>,
    ) -> EngineHandle {
        EngineHandle {
            gates: vec![gate],
            counters: self.io_counters.to_vec(),
            others: vec![self.counters.clone()],
            threads,
        }
    }

    /// Counters that belong to the calling I/O thread from now on: each of them asks once. More threads than there are
    /// sets share one with the acceptor.
    pub(in crate::engine) fn counters_of_next(&self) -> Arc<Counters> {
        let next = self.counting.fetch_add(1, Relaxed);
        self.io_counters.get(next).unwrap_or(&self.counters).clone()
    }

    /// Counters for the connection with this place, which takes them in turn with others.
    pub(in crate::engine) fn counters_in_turn(&self, seat: &RegistrySlot) -> Arc<Counters> {
        self.io_counters[seat.id as usize % self.io_counters.len()].clone()
    }

    /// Hands over the listener to the one who accepts. When that one ends, so that nobody comes who would not be
    /// served, it is closed.
    pub(in crate::engine) fn take_listener(&self) -> Option<Arc<Listener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The limits as they are now. Costs a few nanoseconds.
    #[inline]
    pub(in crate::engine) fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Goes on with other limits, and has every connection look at them.
    pub(in crate::engine) fn set_policy(&self, policy: Arc<Policy>) {
        self.policy.store(policy);
        let posts: Vec<_> = {
            let mut state = self.lock();
            if let Some(acceptor) = state.acceptor.take() {
                acceptor.wake();
            }
            state.posts.values().cloned().collect()
        };
        self.changed.notify_all();
        for post in posts.iter().filter_map(Weak::upgrade) {
            post.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The acceptor begins its work; the registry is not empty until it has ended.
    pub(in crate::engine) fn begin_accepting(self: &Arc<Self>) -> Duty {
        self.lock().accepting = true;
        Duty(self.clone())
    }

    /// What the acceptor is to be woken with.
    pub(in crate::engine) fn set_bell(&self, bell: Arc<Notify>) {
        let _ = self.bell.set(bell); // there is one acceptor
    }

    /// Takes a place for a connection.
    fn enter(self: &Arc<Self>) -> RegistrySlot {
        let mut state = self.lock();
        state.open += 1;
        self.seat(state, false)
    }

    /// Takes a place for a connection that is to be dialled, if there is one.
    fn enter_to_dial(self: &Arc<Self>, request: &DialRequest) -> io::Result<RegistrySlot> {
        let mut state = self.lock();
        let (by_session, most, each) =
            (request.is_by_session(), self.policy().max_connections, self.config.service.dials());
        let accepted = admitted(most, each);
        let room = DialRoom {
            stopping: state.stopping.is_some(),
            stopped: state.stopping == Some(Order::Stop),
            has_place: state.open < accepted,
            dialled: state.dialled,
            dials: accepted.saturating_mul(each),
        };
        room.admit(request)?;
        match by_session {
            true => state.dialled += 1,
            false => state.open += 1,
        }
        Ok(self.seat(state, by_session))
    }

    /// Dials, or says why not. The place is taken before, so that a stop waits for what comes of it.
    pub(in crate::engine) fn dial(self: &Arc<Self>, request: DialRequest) {
        self.counters.attempted.add(1);
        match (self.enter_to_dial(&request), self.dial.get()) {
            (Ok(seat), Some(dial)) => dial(self, request, seat),
            (Ok(_), None) => self.dial_failed(request, io::ErrorKind::Unsupported.into()), // every engine sets it
            (Err(e), _) => self.dial_failed(request, e),
        }
    }

    /// Counts a failed dial and tells who asked.
    pub(in crate::engine) fn dial_failed(&self, request: DialRequest, e: io::Error) {
        admission::dial_failed(&*self.config.service, &self.counters, request, e);
    }

    fn seat(self: &Arc<Self>, mut state: MutexGuard<'_, State>, dialled_by_session: bool) -> RegistrySlot {
        state.next += 1;
        let id = state.next;
        let bound = self.policy().mail_queue;
        let post = Arc::new(Inbox {
            state: Mutex::default(),
            bound,
            stopped: self.stopped.clone(),
            registry: Arc::downgrade(self),
        });
        post.lock().order = state.stopping;
        state.posts.insert(id, Arc::downgrade(&post));
        RegistrySlot { registry: self.clone(), id, dialled_by_session, post }
    }

    /// Makes the session for a connection, or counts the refusal.
    pub(in crate::engine) fn open_session(
        &self,
        caller: &mut Caller,
        thread: usize,
        counters: &Counters,
    ) -> Option<Box<dyn Session>> {
        let service = &*self.config.service;
        match caller {
            Caller::Accepted(addr) => admission::open_accepted(service, counters, *addr, thread),
            Caller::Dialled(request) => admission::open_dialled(service, counters, request, thread),
        }
    }

    /// Waits until a connection may come in, or is to be refused; `None` once the registry stops.
    pub(in crate::engine) fn wait_for_admission(&self) -> Option<Admission> {
        let mut state = self.lock();
        loop {
            state = match self.turn(&state) {
                Turn::Accept(admission) => return Some(admission),
                Turn::Over => return None,
                Turn::Wait(None) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Turn::Wait(Some(until)) => {
                    let limit = until.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The same for a task, which is woken when something changes, but not when a pause ends.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only tasks of tokio poll, and tests"))]
    pub(in crate::engine) fn poll_turn(&self, task: &TaskContext<'_>) -> Turn {
        let mut state = self.lock();
        state.acceptor = Some(task.waker().clone());
        self.turn(&state)
    }

    fn turn(&self, state: &State) -> Turn {
        if state.stopping.is_some() {
            return Turn::Over;
        }
        let now = Instant::now();
        match self.admission(state, now) {
            Admission::Wait => Turn::Wait(state.pause.until(now)),
            admission => Turn::Accept(admission),
        }
    }

    fn admission(&self, state: &State, now: Instant) -> Admission {
        if state.pause.until(now).is_some() {
            return Admission::Wait;
        }
        let policy = self.policy();
        let (open, most) = (state.open, self.most(&policy));
        admission(Fullness { open, share: most, total: open, most }, policy.when_full)
    }

    /// Connections that may be open, beside those that sessions dial.
    fn most(&self, policy: &Policy) -> usize {
        admitted(policy.max_connections, self.config.service.dials())
    }

    /// Connections that are open.
    pub(in crate::engine) fn open(&self) -> usize {
        let state = self.lock();
        state.open + state.dialled
    }

    /// Accepts once; `take` gets what comes, with its place, or with none if it is to be closed. Whether there was
    /// something to accept.
    pub(in crate::engine) fn accept_next<T>(
        self: &Arc<Self>,
        admission: Admission,
        accept: impl FnOnce() -> io::Result<T>,
        take: impl FnOnce(T, Option<RegistrySlot>),
    ) -> bool {
        match accept() {
            Ok(socket) if admission == Admission::Admit => {
                self.counters.attempted.add(1);
                take(socket, Some(self.enter()));
            }
            Ok(socket) => {
                admission::count_refusal(&self.counters);
                take(socket, None);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Err(e) => self.accept_failed(&e),
        }
        true
    }

    /// Takes those for whom the kernel had already opened the connection when the registry was told to stop, without
    /// waiting for more.
    pub(in crate::engine) fn sweep<T>(
        self: &Arc<Self>,
        mut accept: impl FnMut() -> io::Result<T>,
        mut take: impl FnMut(T, Option<RegistrySlot>),
    ) {
        for _ in 0..self.policy().accept.backlog {
            let admission = self.admission(&self.lock(), Instant::now());
            if admission == Admission::Wait || !self.accept_next(admission, &mut accept, &mut take) {
                return;
            }
        }
    }

    /// An accept has failed: see [the table](mod@super::admission).
    pub(in crate::engine) fn accept_failed(&self, e: &io::Error) {
        self.lock().pause.accept_failed(e, &self.counters, Instant::now());
    }

    /// Stops accepting, and gives every connection that is there, or still comes, an order.
    pub(in crate::engine) fn order_all(&self, order: Order) {
        let posts: Vec<_> = {
            let mut state = self.lock();
            state.stopping = state.stopping.max(Some(order));
            if let Some(acceptor) = state.acceptor.take() {
                acceptor.wake();
            }
            state.posts.values().cloned().collect()
        };
        self.changed.notify_all();
        if let Some(bell) = self.bell.get() {
            bell.wake();
        }
        for post in posts.iter().filter_map(Weak::upgrade) {
            post.order(order);
        }
    }

    /// Notes that the engine has stopped.
    pub(in crate::engine) fn close(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Waits until no connection is open and none can come; `false` if that takes longer than `limit`.
    pub(in crate::engine) fn wait_empty(&self, limit: Duration) -> bool {
        let empty = self.changed.wait_timeout_while(self.lock(), limit, |state| {
            state.open > 0 || state.dialled > 0 || state.accepting
        });
        !empty.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// What an acceptor may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Turn {
    /// Accept a connection, to serve or to refuse it.
    Accept(Admission),
    /// Nothing, until then or until something changes.
    Wait(Option<Instant>),
    /// Only [sweep](ConnectionRegistry::sweep) the backlog: the registry stops.
    Over,
}

/// An acceptor's time of work; ends when dropped.
pub(in crate::engine) struct Duty(Arc<ConnectionRegistry>);

impl Drop for Duty {
    fn drop(&mut self) {
        self.0.lock().accepting = false;
        self.0.changed.notify_all();
    }
}

/// A connection's place in the registry; given back when dropped.
pub(in crate::engine) struct RegistrySlot {
    registry: Arc<ConnectionRegistry>,
    id: u64,
    dialled_by_session: bool,
    pub(in crate::engine) post: Arc<Inbox>,
}

impl RegistrySlot {
    /// Why a connection attempt is to be given up now, if it is.
    pub(in crate::engine) fn gives_up(&self, request: &DialRequest) -> Option<io::Error> {
        let stops = match self.post.lock().order {
            Some(Order::Stop) => true,
            Some(Order::Drain) => !request.is_by_session(),
            None => false,
        };
        if stops {
            return Some(io::Error::other("the client is stopping"));
        }
        request.is_late(Instant::now())
    }
}

impl Drop for RegistrySlot {
    fn drop(&mut self) {
        self.post.close();
        let mut state = self.registry.lock();
        match self.dialled_by_session {
            true => state.dialled -= 1,
            false => state.open -= 1,
        }
        let open = state.open + state.dialled;
        state.pause.end();
        state.posts.remove(&self.id);
        if let Some(acceptor) = state.acceptor.take() {
            acceptor.wake();
        }
        drop(state);
        self.registry.config.peak.closed(open);
        self.registry.changed.notify_all();
    }
}

/// Mail and orders for one connection.
pub(in crate::engine) struct Inbox {
    state: Mutex<PostState>,
    bound: usize,
    stopped: Arc<AtomicBool>,
    registry: Weak<ConnectionRegistry>,
}

#[derive(Default)]
struct PostState {
    mail: VecDeque<Contained<Mail>>,
    order: Option<Order>,
    waker: Option<Waker>,
    /// The connection is gone: mail for it is dropped.
    closed: bool,
}

/// The token that a connection with a post box of its own has.
pub(in crate::engine) const ALONE: Token = Token { index: 0, generation: 0 };

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, PostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) {
        let mut state = self.lock();
        state.order = state.order.max(Some(order));
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.lock().waker {
            waker.wake_by_ref();
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waker = None;
        let undelivered = std::mem::take(&mut state.mail);
        drop(state);
        drop(undelivered); // values of the application: not under the lock
    }

    /// Whom to wake from now on.
    pub(in crate::engine) fn wakes(&self, waker: &Waker) {
        let mut state = self.lock();
        if !state.waker.as_ref().is_some_and(|w| w.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
    }

    /// Whether there is an order or mail.
    pub(in crate::engine) fn has_delivery(&self) -> bool {
        let state = self.lock();
        state.order.is_some() || !state.mail.is_empty()
    }

    /// Pieces of mail that wait; an order counts as more than any number of them. `None` if there is neither.
    pub(in crate::engine) fn waiting(&self) -> Option<usize> {
        let state = self.lock();
        match (state.order, state.mail.len()) {
            (Some(_), _) => Some(usize::MAX),
            (None, 0) => None,
            (None, mail) => Some(mail),
        }
    }

    /// The next order or piece of mail.
    pub(in crate::engine) fn take(&self) -> Option<Delivery> {
        let mut state = self.lock();
        match state.order.take() {
            Some(order) => Some(Delivery::Order(order)),
            None => state.mail.pop_front().map(Delivery::Mail),
        }
    }
}

/// What a post box held.
pub(in crate::engine) enum Delivery {
    Order(Order),
    Mail(Contained<Mail>),
}

impl Delivery {
    /// As an event of the core.
    pub(in crate::engine) fn into_event(self) -> crate::proto::Event<'static> {
        match self {
            Self::Order(Order::Drain) => crate::proto::Event::Drain,
            Self::Order(Order::Stop) => crate::proto::Event::Stop,
            Self::Mail(mail) => crate::proto::Event::Mail(mail),
        }
    }
}

impl MailSink for Inbox {
    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        let registry = self.registry.upgrade().ok_or(MailboxError::Stopped)?;
        registry.dial(request);
        Ok(())
    }

    fn has_room(&self, pieces: usize) -> bool {
        let waiting = self.lock().mail.len();
        waiting == 0 || waiting + pieces <= self.bound
    }

    fn post(&self, _: Token, mail: Mail) -> Result<(), MailboxError> {
        if self.stopped.load(Relaxed) {
            return Err(MailboxError::Stopped);
        }
        let mail = Contained::new(mail); // dropped, if it is, when the lock has been let go
        let mut state = self.lock();
        if state.closed {
            return Ok(()); // dropped, as to a session that goes before it reads
        }
        // The results of jobs are bounded by the queue of jobs.
        if state.mail.len() >= self.bound && mail.is_bounded() {
            return Err(MailboxError::Full);
        }
        state.mail.push_back(mail);
        if let Some(waker) = &state.waker {
            waker.wake_by_ref();
        }
        Ok(())
    }
}
