//! What the engines without a loop share (`blocking`, `pool`, `tokio`): how many connections
//! are open, where their mail goes, and stopping.

mod inbox;
#[cfg(all(test, unix, not(tidegate_loom)))]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context as TaskContext, Waker as TaskWaker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use tidegate_os::socket::Listener;
use tidegate_os::waker::Waker;

use super::admission::{self, AcceptPause, DialRoom, Quota};
use super::{CommandQueue, EngineConfig, EngineHandle};
use crate::policy::Policy;
use crate::policy::accept::{Admission, Fullness, admission, admitted};
use crate::policy::pressure::{Relief, victims};
use crate::proto::Context;
use crate::proto::dial::DialRequest;
use crate::proto::mail::MailSink;
use crate::service::{Origin, Session};
use crate::stats::{Counters, Writers};
pub(in crate::engine) use inbox::{ALONE, Inbox, Order};

/// What all connections of a server or client without loops share.
pub(in crate::engine) struct ConnectionRegistry {
    pub(in crate::engine) config: EngineConfig,
    /// Until somebody accepts.
    listener: Mutex<Option<Arc<Listener>>>,
    /// The limits as they are now.
    policy: ArcSwap<Policy>,
    /// Of the threads that accept, dial and stop, and are no I/O threads.
    pub(in crate::engine) counters: Arc<Counters>,
    /// Of the I/O threads.
    io_counters: Box<[Arc<Counters>]>,
    /// I/O threads that have asked for theirs.
    counting: AtomicUsize,
    state: Mutex<RegistryState>,
    changed: Condvar,
    /// Wakes an acceptor that is a thread and waits for the listener. The listener itself is left as it is: another
    /// process may hold it, to go on with it.
    waker: OnceLock<Arc<Waker>>,
    /// The engine has stopped; shared with every inbox.
    stopped: Arc<AtomicBool>,
    /// How the engine makes a connection that has its place.
    dial: OnceLock<DialFn>,
}

type DialFn = Box<dyn Fn(DialRequest, RegistrySlot) + Send + Sync>;

/// The origin of a connection.
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

    /// The connection is established, and is served from now on.
    pub(in crate::engine) fn served(self) {
        if let Self::Dialled(request) = self {
            request.connected();
        }
    }
}

#[derive(Default)]
struct RegistryState {
    open: usize,
    /// Connections that sessions have dialled, or are dialling. They are counted separately.
    dialled: usize,
    /// An acceptor may be about to bring in one more connection.
    accepting: bool,
    /// The last order that all were given.
    stopping: Option<Order>,
    pause: AcceptPause,
    next: u64,
    inboxes: HashMap<u64, Weak<Inbox>>,
    /// An acceptor that is a task rather than a thread.
    acceptor: Option<TaskWaker>,
}

impl RegistryState {
    fn count(&mut self, quota: Quota) -> &mut usize {
        match quota {
            Quota::Share => &mut self.open,
            Quota::Dials => &mut self.dialled,
        }
    }
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
            waker: OnceLock::new(),
            stopped: Arc::default(),
            dial: OnceLock::new(),
        })
    }

    /// How connections are dialled.
    pub(in crate::engine) fn dials_by(
        &self,
        dial: impl Fn(DialRequest, RegistrySlot) + Send + Sync + 'static,
    ) {
        let _ = self.dial.set(Box::new(dial)); // there is one engine
    }

    /// The command queue, the counters and the threads of an engine whose control thread has that queue.
    pub(in crate::engine) fn handle(
        &self,
        command_queue: Arc<CommandQueue>,
        threads: Vec<JoinHandle<()>>,
    ) -> EngineHandle {
        EngineHandle {
            command_queues: vec![command_queue],
            counters: self.io_counters.to_vec(),
            others: vec![self.counters.clone()],
            threads,
            growth: None,
        }
    }

    /// Counters that belong to the calling I/O thread from now on: each of them asks once. More threads than there are
    /// sets share one with the acceptor.
    pub(in crate::engine) fn counters_of_next(&self) -> Arc<Counters> {
        let next = self.counting.fetch_add(1, Relaxed);
        self.io_counters.get(next).unwrap_or(&self.counters).clone()
    }

    /// Counters for the connection with this place, which takes them in turn with others.
    pub(in crate::engine) fn counters_in_turn(&self, slot: &RegistrySlot) -> Arc<Counters> {
        self.io_counters[slot.id as usize % self.io_counters.len()].clone()
    }

    /// Hands over the listener to the one who accepts. When that one ends, it is closed: later
    /// connections would not be served.
    pub(in crate::engine) fn take_listener(&self) -> Option<Arc<Listener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The limits as they are now. Costs a few nanoseconds.
    #[inline]
    pub(in crate::engine) fn policy(&self) -> Guard<Arc<Policy>> {
        self.policy.load()
    }

    /// Stack of a thread of `blocking` and `pool`.
    pub(in crate::engine) fn stack_bytes(&self) -> usize {
        self.policy().stack_bytes(self.config.service.options().stack_bytes)
    }

    /// Goes on with other limits, and has every connection look at them.
    pub(in crate::engine) fn set_policy(&self, policy: Arc<Policy>) {
        self.policy.store(policy);
        for inbox in self.wake_all(|_| {}).iter().filter_map(Weak::upgrade) {
            inbox.wake();
        }
    }

    /// Changes something that the acceptor has to know; returns where the mail of all connections goes.
    fn wake_all(&self, change: impl FnOnce(&mut RegistryState)) -> Vec<Weak<Inbox>> {
        let mut state = self.lock();
        change(&mut state);
        let (inboxes, acceptor) = (state.inboxes.values().cloned().collect(), state.acceptor.take());
        drop(state);
        self.changed.notify_all();
        wake(acceptor);
        inboxes
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        // Nothing that can panic runs under the lock, and no waker: it is code of others, which may come back.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The acceptor begins its work; the registry is not empty until it has ended.
    pub(in crate::engine) fn begin_accepting(self: &Arc<Self>) -> Duty {
        self.lock().accepting = true;
        Duty(self.clone())
    }

    /// What the acceptor is to be woken with.
    pub(in crate::engine) fn set_waker(&self, waker: Arc<Waker>) {
        let _ = self.waker.set(waker); // there is one acceptor
    }

    /// Takes a place for a connection.
    fn enter(self: &Arc<Self>) -> RegistrySlot {
        self.slot(self.lock(), Quota::Share)
    }

    /// Takes a place for a connection that is to be dialled, if there is one.
    fn enter_to_dial(self: &Arc<Self>, request: &DialRequest) -> io::Result<RegistrySlot> {
        let state = self.lock();
        let accepted = self.most(&self.policy());
        let room = DialRoom {
            stopping: state.stopping.is_some(),
            stopped: state.stopping == Some(Order::Stop),
            has_place: state.open < accepted,
            dialled: state.dialled,
            dials: accepted.saturating_mul(self.config.service.options().dials),
        };
        room.admit(request)?;
        Ok(self.slot(state, Quota::of(request)))
    }

    /// Dials, or says why not. The place is taken before, so that a stop waits for what comes of it.
    pub(in crate::engine) fn dial(self: &Arc<Self>, request: DialRequest) {
        self.counters.attempted.add(1);
        match (self.enter_to_dial(&request), self.dial.get()) {
            (Ok(slot), Some(dial)) => dial(request, slot),
            (Ok(_), None) => self.dial_failed(request, io::ErrorKind::Unsupported.into()), // every engine sets it
            (Err(e), _) => self.dial_failed(request, e),
        }
    }

    /// Counts a failed dial and answers its request.
    pub(in crate::engine) fn dial_failed(&self, request: DialRequest, e: io::Error) {
        admission::dial_failed(&*self.config.service, &self.counters, request, e);
    }

    /// The place of a connection, which counts from now on.
    fn slot(self: &Arc<Self>, mut state: MutexGuard<'_, RegistryState>, quota: Quota) -> RegistrySlot {
        *state.count(quota) += 1;
        state.next += 1;
        let id = state.next;
        let bound = self.policy().mail_queue;
        let inbox = Arc::new(Inbox::new(self, bound, state.stopping));
        state.inboxes.insert(id, Arc::downgrade(&inbox));
        RegistrySlot { registry: self.clone(), id, quota, mail_sink: inbox.clone(), inbox }
    }

    /// Makes the session for a connection, or counts the refusal. `local` finds out the address of this end.
    pub(in crate::engine) fn open_session(
        &self,
        caller: &mut Caller,
        local: impl FnOnce() -> Option<SocketAddr>,
        thread: usize,
        counters: &Counters,
    ) -> Option<Box<dyn Session>> {
        let service = &*self.config.service;
        let (session, addr) = match caller {
            Caller::Accepted(addr) => {
                (admission::open_accepted(service, counters, *addr, local, thread)?, *addr)
            }
            Caller::Dialled(request) => {
                let session = admission::open_dialled(service, counters, request, local, thread)?;
                (session, request.dial().to.addr())
            }
        };
        self.config.transports.count_option(caller.origin(), addr, counters);
        Some(session)
    }

    /// Waits until a connection may be accepted, or is to be refused; `None` once the registry stops.
    pub(in crate::engine) fn wait_for_admission(&self) -> Option<Admission> {
        let mut state = self.lock();
        loop {
            state = match self.turn(&state) {
                AcceptStep::Accept(admission) => return Some(admission),
                AcceptStep::Over => return None,
                AcceptStep::Wait(None) => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                AcceptStep::Wait(Some(until)) => {
                    let limit = until.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// The same for a task, which is woken when something changes, but not when a pause ends.
    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only tasks of tokio poll, and tests"))]
    pub(in crate::engine) fn poll_turn(&self, task: &TaskContext<'_>) -> AcceptStep {
        let waker = task.waker().clone();
        let mut state = self.lock();
        let before = state.acceptor.replace(waker);
        let turn = self.turn(&state);
        drop(state);
        drop(before); // not under the lock
        turn
    }

    fn turn(&self, state: &RegistryState) -> AcceptStep {
        if state.stopping.is_some() {
            return AcceptStep::Over;
        }
        let now = Instant::now();
        match self.admission(state, now) {
            Admission::Wait => AcceptStep::Wait(state.pause.until(now)),
            admission => AcceptStep::Accept(admission),
        }
    }

    fn admission(&self, state: &RegistryState, now: Instant) -> Admission {
        if state.pause.until(now).is_some() {
            return Admission::Wait;
        }
        let policy = self.policy();
        let (open, most) = (state.open, self.most(&policy));
        admission(Fullness { open, share: most, total: open, most }, policy.when_full)
    }

    /// Connections that may be open, beside those that sessions dial.
    fn most(&self, policy: &Policy) -> usize {
        admitted(policy.max_connections, self.config.service.options().dials)
    }

    /// Connections that are open.
    pub(in crate::engine) fn open(&self) -> usize {
        let state = self.lock();
        state.open + state.dialled
    }

    /// Accepts once; `take` gets what was accepted, with its place, or with none if it is to be closed. Whether there
    /// was something to accept.
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

    /// Takes those for whom the kernel had already opened the connection when the registry was asked to stop, without
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

    /// A send or receive has failed for lack of memory: while they do, accepting pauses, and in the end connections are
    /// closed.
    pub(in crate::engine) fn relieve(&self) {
        let sum =
            |of: fn(&Counters) -> u64| self.io_counters.iter().chain([&self.counters]).map(|c| of(c)).sum();
        let (policy, now) = (self.policy(), Instant::now());
        let mut state = self.lock();
        let relief = state.pause.relieve(sum, &policy, now);
        let inboxes: Vec<_> = state.inboxes.values().cloned().collect();
        drop(state);
        if relief == Relief::Shed {
            let inboxes = inboxes.iter().filter_map(Weak::upgrade).filter_map(|inbox| inbox.candidate());
            victims(inboxes).for_each(|inbox| inbox.order(Order::Shed));
        }
    }

    /// Stops accepting, and orders this of every connection, later ones too.
    pub(in crate::engine) fn order_all(&self, order: Order) {
        let inboxes = self.wake_all(|state| state.stopping = state.stopping.max(Some(order)));
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
        for inbox in inboxes.iter().filter_map(Weak::upgrade) {
            inbox.order(order);
        }
    }

    /// Notes that the engine has stopped.
    pub(in crate::engine) fn close(&self) {
        self.stopped.store(true, Relaxed);
    }

    /// Waits until no connection is open or can be opened; `false` if that takes longer than `limit`.
    pub(in crate::engine) fn wait_empty(&self, limit: Duration) -> bool {
        let empty = self.changed.wait_timeout_while(self.lock(), limit, |state| {
            state.open > 0 || state.dialled > 0 || state.accepting
        });
        !empty.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn wake(waker: Option<TaskWaker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// What an acceptor may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum AcceptStep {
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
    pub(in crate::engine) registry: Arc<ConnectionRegistry>,
    id: u64,
    quota: Quota,
    pub(in crate::engine) inbox: Arc<Inbox>,
    /// The same, as its session knows it.
    mail_sink: Arc<dyn MailSink>,
}

impl RegistrySlot {
    /// What the connection needs to know during one event.
    pub(in crate::engine) fn context<'a>(
        &'a self,
        policy: &'a Policy,
        counters: &'a Counters,
    ) -> Context<'a> {
        let now = Instant::now();
        Context {
            now,
            timestamp: now.into(),
            policy,
            counters,
            mail_sink: &self.mail_sink,
            workers: &*self.registry.config.blocking_pool,
            token: ALONE,
        }
    }

    /// Why a connection attempt is to be given up now, if it is.
    pub(in crate::engine) fn gives_up(&self, request: &DialRequest) -> Option<io::Error> {
        let stops = match self.inbox.last_order() {
            Some(Order::Stop) => true,
            Some(Order::Drain) => !request.is_by_session(),
            Some(Order::Shed) | None => false,
        };
        if stops {
            return Some(io::Error::other("the client is stopping"));
        }
        request.is_late(Instant::now())
    }
}

impl Drop for RegistrySlot {
    fn drop(&mut self) {
        self.inbox.close();
        let mut state = self.registry.lock();
        *state.count(self.quota) -= 1;
        let open = state.open + state.dialled;
        state.pause.end();
        state.inboxes.remove(&self.id);
        let acceptor = state.acceptor.take();
        drop(state);
        wake(acceptor);
        self.registry.config.peak.closed(open);
        self.registry.changed.notify_all();
    }
}
