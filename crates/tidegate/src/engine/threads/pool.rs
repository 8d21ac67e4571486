//! `pool`: a fixed number of threads, fed by a queue of accepted sockets.
//!
//! # How it waits
//! An acceptor puts sockets into a queue; each worker takes one and stays with it, sleeping in `poll` on that one
//! socket. While others queue, a worker gives a connection back to the end of the queue when it has had its turn
//! ([`drain_budget`](crate::Policy::drain_budget) batches), so that more connections than workers are all served. One
//! that has been quiet for 1 ms is parked: a separate thread watches all that are, and puts them into the queue when
//! there is something to do.
//!
//! # What it bounds
//! `threads` workers (256 by default), each with a stack and a receive buffer. Connections beyond that are open and
//! wait.
//!
//! # What it costs
//! A `poll`, a receive and a send for each request of a connection that is kept alive; the first receive is tried at
//! once. With more connections than workers, two `epoll_ctl` and a thread switch for each that is parked and comes
//! back.
//!
//! # Where it differs
//! Timers and mail of a connection that is in the queue wait for its turn. `Peer::thread` is the worker it first had.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker as TaskWaker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_os::descriptor::borrowed;

use tidegate_os::poll::{Readiness, wait_pair};
use tidegate_os::socket::{Blocking, Stream};
use tidegate_os::waker::Waker;

use super::super::readiness::{Progress, ReadinessEntry, ReceiveBuffers};
use super::super::worker::capacity::POOL_WORKERS;
use super::super::worker::control::ControlThread;
use super::super::worker::loop_driver::Phase;
use super::super::worker::registry::{Caller, ConnectionRegistry, RegistrySlot};
use super::super::worker::threads::{all_or_none, rest_after_failed_wait};
use super::super::worker::transport::{SocketTransport, Transport};
use super::super::{Availability, Command, EngineConfig, EngineHandle, Model};
use super::acceptor::{settle, spawn, start_acceptor};
use super::idle_set::IdleSet;
use crate::policy::Policy;
use crate::policy::sends::{MAIL_QUANTUM, QUIET_QUANTUM};
use crate::proto::dial::DialRequest;
use crate::proto::spliced::PipePool;
use crate::proto::{Connection, Event};
use crate::stats::{Counters, Writers};

/// Whether it works here.
pub(in crate::engine) fn probe() -> Availability {
    Availability::Available(format!("{POOL_WORKERS} threads unless --threads is given"))
}

/// Starts the workers, the acceptor and the control.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    if let Some(listener) = &config.listener {
        listener.set_blocking(Blocking::Never)?;
    }
    let policy = config.policy.clone();
    let workers = config.threads(Model::Pool);
    let control = ControlThread::new(policy.mail_queue);
    let command_queue = control.command_queue.clone();
    let registry = ConnectionRegistry::new(config, Counters::sets(workers, Writers::One));
    let queue: Arc<WorkQueue> = Arc::new(WorkQueue::default());
    let idle_set = IdleSet::new(queue.clone())?;
    let start = |threads: &mut Vec<_>| {
        for index in 0..workers {
            let worker = PoolWorker::new(index, registry.clone(), queue.clone(), idle_set.clone())?;
            threads.push(spawn(&registry, "worker", move || worker.run())?);
        }
        start_others(&registry, &queue, &idle_set, control, threads)
    };
    let threads = all_or_none(start, || {
        idle_set.close();
        queue.close();
        let _ = command_queue.push(Command::Drain); // the control, if it has started, waits for nothing else
    })?;
    Ok(registry.handle(command_queue, threads))
}

/// Starts the watcher, the acceptor and the control.
fn start_others(
    registry: &Arc<ConnectionRegistry>,
    queue: &Arc<WorkQueue>,
    idle_set: &Arc<IdleSet>,
    control: ControlThread,
    threads: &mut Vec<JoinHandle<()>>,
) -> io::Result<()> {
    let feed = queue.clone();
    let (back, dials, close) = (registry.clone(), queue.clone(), idle_set.clone());
    let watcher = idle_set.clone();
    threads.push(spawn(registry, "watch", move || watcher.watch())?);
    let asked = queue.clone();
    registry.dials_by(move |request, slot| asked.push(WorkItem::Dial { request, slot }));
    threads.push(spawn(registry, "control", move || {
        control.run(&back);
        close.close();
        dials.close();
    })?);
    threads.push(start_acceptor(registry, Blocking::Never, move |stream, peer, slot| {
        feed.push(WorkItem::Accepted { stream, peer, slot });
    })?);
    Ok(())
}

/// What a worker can take on.
pub(super) enum WorkItem {
    Accepted {
        stream: Stream,
        peer: Option<SocketAddr>,
        slot: RegistrySlot,
    },
    Dial {
        request: DialRequest,
        slot: RegistrySlot,
    },
    /// A connection that was given back.
    Rotated(Box<PooledConnection>),
}

/// A connection in a worker's hands.
pub(super) struct PooledConnection {
    pub(super) entry: ReadinessEntry,
    /// How its last turn ended.
    progress: Progress,
    /// Given back after the socket was closed: fields are dropped in order.
    pub(super) slot: RegistrySlot,
}

impl PooledConnection {
    /// When the connection has to be handed its deadline.
    pub(super) fn deadline(&self, policy: &Policy) -> Option<Instant> {
        self.entry.phase.connection()?.deadline(policy)
    }

    /// Whether its session is called next, and may keep the worker for long.
    fn has_work(&self, ready: Readiness, policy: &Policy) -> bool {
        ready != Readiness::default()
            || self.progress == Progress::Yield
            || self.slot.inbox.has_delivery()
            || self.deadline(policy).is_some_and(|at| at <= Instant::now())
    }
}

/// The queue of connections that wait for a worker. As long as `max_connections` allows.
#[derive(Default)]
pub(super) struct WorkQueue {
    state: Mutex<QueueState>,
    filled: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<WorkItem>,
    closed: bool,
    workers: Resting,
}

/// Workers without work.
#[derive(Default)]
struct Resting {
    /// Those that wait for a job.
    idle: usize,
    /// Those that sleep on a connection because nobody waited when they looked. If there are more jobs than workers
    /// that wait for one, one of them is woken, in turn, to see whether its connection can wait instead. Those that
    /// have work again are passed over: an application may keep them for long.
    asleep: VecDeque<Arc<Alarm>>,
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: WorkItem) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        state.wake_for_jobs();
        drop(state);
        self.filled.notify_one();
    }

    /// A worker was woken for the queue and has other work: another one is woken in its place.
    fn pass_on(&self) {
        self.lock().wake_for_jobs();
    }

    /// The next job; `None` once the queue is closed and empty.
    fn pop(&self) -> Option<WorkItem> {
        let mut state = self.lock();
        state.workers.idle += 1;
        let waited = self.filled.wait_while(state, |state| state.jobs.is_empty() && !state.closed);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        state.workers.idle -= 1;
        state.jobs.pop_front()
    }

    /// Whether others wait for a worker. If not, the worker is woken when a connection queues.
    fn others_wait(&self, alarm: &Arc<Alarm>) -> bool {
        let mut state = self.lock();
        if !state.jobs.is_empty() {
            return true;
        }
        alarm.asleep.store(true, Relaxed);
        if !alarm.listed.swap(true, Relaxed) {
            state.workers.asleep.push_back(alarm.clone());
        }
        false
    }

    fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }
}

impl QueueState {
    fn wake_for_jobs(&mut self) {
        self.workers.wake_for(self.jobs.len());
    }
}

impl Resting {
    /// If there are more jobs than workers that wait for one, wakes the next worker that sleeps on a connection. Who
    /// waits counts until it has its job, so two jobs in a row do not count on the same worker.
    fn wake_for(&mut self, jobs: usize) {
        if jobs <= self.idle {
            return;
        }
        while let Some(alarm) = self.asleep.pop_front() {
            alarm.listed.store(false, Relaxed);
            if alarm.asleep.swap(false, Relaxed) {
                alarm.waker.wake();
                return;
            }
        }
    }
}

/// Wakes a worker from its wait on a socket.
struct Alarm {
    waker: Waker,
    /// It is in the queue's list of sleepers; written under the queue's lock.
    listed: AtomicBool,
    /// It sleeps, or is about to, and the queue has not woken it. Who sets it back, the worker or the queue, decides
    /// whether the worker has to see to the queue.
    asleep: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.waker.wake();
    }
}

struct PoolWorker {
    index: usize,
    registry: Arc<ConnectionRegistry>,
    queue: Arc<WorkQueue>,
    idle_set: Arc<IdleSet>,
    counters: Arc<Counters>,
    alarm: Arc<Alarm>,
    wakes: TaskWaker,
}

/// What became of a connection a worker had.
enum TurnOutcome {
    Over,
    /// It has had its turn.
    GiveBack,
    /// It has nothing to do for now.
    Park,
}

impl PoolWorker {
    fn new(
        index: usize,
        registry: Arc<ConnectionRegistry>,
        queue: Arc<WorkQueue>,
        idle_set: Arc<IdleSet>,
    ) -> io::Result<Self> {
        let alarm = Arc::new(Alarm {
            waker: Waker::new()?,
            listed: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
        });
        let wakes = TaskWaker::from(alarm.clone());
        let counters = registry.counters_of_next();
        Ok(Self { index, registry, queue, idle_set, counters, alarm, wakes })
    }

    fn run(&self) {
        let mut memory = vec![0; self.registry.policy().buffer_bytes];
        let mut into = ReceiveBuffers { memory: &mut memory, pipes: &PipePool::new(0) };
        while let Some(job) = self.queue.pop() {
            let Some(mut pooled) = self.take_on(job, &mut into) else { continue };
            match self.stay_with(&mut pooled, &mut into) {
                TurnOutcome::Over => drop(pooled),
                TurnOutcome::GiveBack => self.queue.push(WorkItem::Rotated(pooled)),
                TurnOutcome::Park => self.idle_set.park(pooled, &self.registry),
            }
        }
    }

    /// Gets a connection going. A new one is looked at for data at once.
    fn take_on(&self, job: WorkItem, into: &mut ReceiveBuffers<'_>) -> Option<Box<PooledConnection>> {
        let (transport, mut caller, slot) = match job {
            WorkItem::Rotated(pooled) => {
                pooled.slot.inbox.wakes(&self.wakes);
                return Some(pooled);
            }
            WorkItem::Accepted { stream, peer, slot } => {
                let transport =
                    SocketTransport::accepted(stream, peer, self.registry.config.rendezvous.as_deref());
                (transport, Caller::Accepted(peer), slot)
            }
            WorkItem::Dial { request, slot } => match self.connect(&request, &slot) {
                Ok(transport) => (transport, Caller::Dialled(request), slot),
                Err(e) => {
                    self.registry.dial_failed(request, e);
                    return None;
                }
            },
        };
        let session =
            self.registry.open_session(&mut caller, || transport.local_addr(), self.index, &self.counters)?;
        self.counters.fast_paths.add(transport.is_shared().into());
        slot.inbox.wakes(&self.wakes);
        let connection = Connection::new(session, caller.origin(), Instant::now());
        let mut pooled = Box::new(PooledConnection {
            entry: ReadinessEntry::new(transport, Phase::Open(connection)),
            progress: Progress::Idle,
            slot,
        });
        let policy = self.registry.policy();
        let context = pooled.slot.context(&policy, &self.counters);
        let progress = match pooled.entry.dispatch(Event::Opened, &context) {
            Progress::Closed => Progress::Closed,
            _ => pooled.entry.resume(into, &context),
        };
        pooled.progress = progress;
        caller.served();
        Some(pooled)
    }

    fn connect(&self, request: &DialRequest, slot: &RegistrySlot) -> io::Result<SocketTransport> {
        let dial = request.dial();
        let transport = SocketTransport::dial(&dial.to, dial.source, &self.registry.config.transports)?;
        settle(transport, request, slot)
    }

    /// Serves a connection until it is over or others should have their turn.
    fn stay_with(&self, pooled: &mut PooledConnection, into: &mut ReceiveBuffers<'_>) -> TurnOutcome {
        let mut turns = 0;
        loop {
            if pooled.progress == Progress::Closed {
                return TurnOutcome::Over;
            }
            if self.deliver(pooled) == Progress::Closed {
                return TurnOutcome::Over;
            }
            let has_mail = pooled.slot.inbox.has_delivery();
            let others = self.queue.others_wait(&self.alarm);
            turns += 1;
            if others && turns > self.registry.policy().drain_budget {
                return TurnOutcome::GiveBack;
            }
            let ready = match pooled.progress {
                Progress::Yield => self.wait(pooled, Some(Duration::ZERO)),
                _ if has_mail => self.wait(pooled, Some(Duration::ZERO)),
                _ => self.wait(pooled, others.then_some(QUIET_QUANTUM)),
            };
            let policy = self.registry.policy();
            let sees_to_queue = !self.alarm.asleep.swap(false, Relaxed); // also where others waited before
            if sees_to_queue && pooled.has_work(ready, &policy) {
                self.queue.pass_on();
            }
            let context = pooled.slot.context(&policy, &self.counters);
            let quiet = !ready.readable && !ready.writable;
            let failed = self.counters.no_memory.get();
            pooled.progress = match pooled.progress {
                Progress::Yield => pooled.entry.resume(into, &context),
                _ if quiet => Progress::Idle,
                _ => pooled.entry.ready(ready, into, &context),
            };
            // Also of one whose peer is never quiet, or whose limits have changed meanwhile.
            if pooled.progress != Progress::Closed
                && (quiet || pooled.deadline(&policy).is_some_and(|at| at <= context.now))
            {
                let progress = pooled.entry.dispatch(Event::Deadline, &context);
                pooled.progress = pooled.progress.max(progress);
            }
            if self.counters.no_memory.get() != failed {
                self.registry.relieve();
            }
            if quiet && others && pooled.progress == Progress::Idle && !has_mail {
                // What it waits for may have changed since the wait: it has to be woken for what it wants now.
                let sees = pooled.entry.stream.prepare_sleep(pooled.entry.wants());
                return if sees == Readiness::default() { TurnOutcome::Park } else { TurnOutcome::GiveBack };
            }
        }
    }

    /// Hands out mail and orders, as many as have their turn.
    fn deliver(&self, pooled: &mut PooledConnection) -> Progress {
        for _ in 0..MAIL_QUANTUM {
            let Some(event) = pooled.slot.inbox.take() else { break };
            let policy = self.registry.policy();
            let context = pooled.slot.context(&policy, &self.counters);
            let progress = pooled.entry.dispatch(event, &context);
            pooled.progress = pooled.progress.max(progress);
        }
        pooled.progress
    }

    /// Sleeps until the socket is ready for what the connection wants, mail comes, or a deadline does.
    fn wait(&self, pooled: &PooledConnection, limit: Option<Duration>) -> Readiness {
        let deadline = pooled.deadline(&self.registry.policy());
        let deadline = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = deadline.into_iter().chain(limit).min();
        let (transport, wants) = (&pooled.entry.stream, pooled.entry.wants());
        let sees = transport.prepare_sleep(wants);
        let limit = if sees == Readiness::default() { limit } else { Some(Duration::ZERO) };
        let wake = Some(borrowed(&self.alarm.waker));
        let waited = wait_pair(transport.borrowed(), transport.interest(wants), wake, limit);
        let (ready, woken) = waited.unwrap_or_else(|e| {
            rest_after_failed_wait("a connection", &e);
            (Readiness { readable: true, writable: true }, false) // look at the socket, and come back
        });
        let ready = transport.heed(ready, wants).or(sees);
        if woken {
            self.alarm.waker.clear();
        }
        self.counters.wake_ups.add(1);
        self.counters.events.add(u64::from(ready != Readiness::default()));
        ready
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    fn sleeper() -> Arc<Alarm> {
        let waker = Waker::new().expect("a waker");
        Arc::new(Alarm { waker, listed: AtomicBool::new(true), asleep: AtomicBool::new(true) })
    }

    #[test]
    fn a_worker_that_waits_takes_one_job_and_the_next_wakes_a_sleeper() {
        let [first, second] = [sleeper(), sleeper()];
        let mut resting = Resting { idle: 1, asleep: [first.clone(), second.clone()].into() };
        let asleep = || [&first, &second].map(|one| one.asleep.load(Relaxed));
        resting.wake_for(1);
        assert_eq!(asleep(), [true, true]);
        resting.wake_for(2); // nobody has taken the first
        assert_eq!(asleep(), [false, true]);
        second.asleep.store(false, Relaxed); // it has work again
        resting.wake_for(3);
        assert!(resting.asleep.is_empty() && !second.listed.load(Relaxed));
    }
}
