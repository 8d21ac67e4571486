//! What every engine is given and shares: a configuration for all threads, and a worker for each.
//!
//! | what | where | for |
//! |---|---|---|
//! | admission: accept errors, dials, sessions | [`admission`] | all |
//! | the commands of other threads: mail, dials, the order to stop | [`command_queue`] | all |
//! | a listener and connections, over TCP or shared memory | [`transport`] | all but completion models of Windows |
//! | sending what is next | [`queue_writer`] | readiness loops, `pool`, `blocking`, `tokio` |
//! | the state and the turn of a loop, permits, sharing connections among threads | [`loop_state`], [`loop_driver`], [`permits`], [`balance`] | loops |
//! | pauses that let events gather | [`coalescing`] | loops |
//! | looking at shared memory between waits | [`rings`] | loops |
//! | open connections, their inboxes, accepting and stopping | [`registry`], [`control`] | models without a loop |
//! | threads that are started as connections come | [`growth`] | loops whose threads hold few connections |
//! | what the simulation looks at in a loop | `view` | loops |
//! | offloaded jobs; starting threads; what the machine holds; memory given back | [`blocking_pool`], [`threads`], [`capacity`], [`trim`] | all |
//!
//! Arrows point from the families to here, and from here to [`proto`](crate::proto): nothing in this folder knows a
//! family.

pub(in crate::engine) mod admission;
pub(in crate::engine) mod balance;
pub(in crate::engine) mod blocking_pool;
pub(in crate::engine) mod capacity;
pub(in crate::engine) mod coalescing;
pub(in crate::engine) mod command_queue;
pub(in crate::engine) mod control;
pub(crate) mod growth;
pub(in crate::engine) mod loop_driver;
pub(in crate::engine) mod loop_state;
pub(in crate::engine) mod permits;
pub(in crate::engine) mod queue_writer;
pub(in crate::engine) mod registry;
pub(in crate::engine) mod rings;
pub(in crate::engine) mod threads;
pub(in crate::engine) mod transport;
pub(in crate::engine) mod trim;
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
pub(in crate::engine) mod view;

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tidegate_os::socket::{DEFERS_ACCEPT, Listener};
use tidegate_os::waker::Waker;

use super::Model;
use crate::fastpath::{Rendezvous, Transports};
use crate::policy::{Policy, accept};
use crate::proto::erased::ErasedService;
use crate::stats::{Counters, Writers};
use balance::ThreadBalance;
use blocking_pool::BlockingPool;
use command_queue::{Command, CommandQueue};
use growth::{Growth, Start};
pub(crate) use threads::Ready;
use threads::{STACK_BYTES, Starting, start_all};
use trim::Peak;

/// What all threads of one server or client share.
#[derive(Clone)]
pub(crate) struct EngineConfig {
    pub(crate) service: Arc<dyn ErasedService>,
    pub(crate) policy: Arc<Policy>,
    /// Present for a server.
    pub(crate) listener: Option<Arc<Listener>>,
    /// What connections may use besides TCP.
    pub(crate) transports: Arc<Transports>,
    /// Where offers for the fast path are left.
    pub(crate) rendezvous: Option<Arc<Rendezvous>>,
    pub(crate) blocking_pool: Arc<BlockingPool>,
    /// Connections that all I/O threads have open, and had.
    total: Arc<AtomicUsize>,
    pub(crate) peak: Arc<Peak>,
}

/// The threads of a running engine, and the doors to them.
#[derive(Default)]
pub(crate) struct EngineHandle {
    pub(crate) command_queues: Vec<Arc<CommandQueue>>,
    /// One set for each I/O thread; `blocking` has sets for its connections to take in turn.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// Those of other threads: acceptors, control threads, the fast path.
    pub(crate) others: Vec<Arc<Counters>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
    /// Where more of the I/O threads are started as connections come.
    pub(crate) growth: Option<Arc<Growth>>,
}

/// What one I/O thread has.
pub(crate) struct WorkerContext {
    /// Which of the threads it is, from 0.
    pub(crate) index: usize,
    pub(crate) service: Arc<dyn ErasedService>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) transports: Arc<Transports>,
    /// Whether it accepts connections.
    pub(crate) listens: bool,
    pub(crate) command_queue: Arc<CommandQueue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) blocking_pool: Arc<BlockingPool>,
    /// Connections that all I/O threads have open.
    pub(crate) total: Arc<AtomicUsize>,
    pub(crate) peak: Arc<Peak>,
    /// The threads as they see each other.
    pub(crate) balance: Arc<ThreadBalance>,
    pub(crate) growth: Option<Arc<Growth>>,
    /// Connections this thread may have open, beside those that its sessions dial.
    pub(crate) share: usize,
    /// Connections its sessions may have dialled.
    pub(crate) dials: usize,
    /// Connections it can have open whatever it may.
    pub(crate) holds: usize,
    /// I/O threads there are, or may be.
    pub(crate) threads: usize,
}

impl WorkerContext {
    /// This thread's share of the descriptors that the process has not reserved for something else.
    pub(crate) fn descriptors(&self) -> usize {
        capacity::descriptors_of_loop(self.threads)
    }

    /// This thread's share of permits that are limited for all of them. There are never fewer permits than threads
    /// ([`Policy::check_permits`]).
    pub(crate) fn share_of(&self, total: usize) -> usize {
        debug_assert!(total >= self.threads, "{total} permits for {} threads", self.threads);
        accept::share(total, self.index, self.threads)
    }

    /// Bounds what this thread may have open by what it can.
    pub(crate) fn hold(&mut self, holds: usize) {
        self.holds = holds;
        // What is shared among threads and then among accepted and dialled connections may be one more than the
        // thread's part of `max_connections`: that is not a shortage.
        let of_all = accept::share(self.policy.max_connections, self.index, self.threads);
        let asked = of_all.min(self.share + self.dials);
        (self.share, self.dials) = self.places(&self.policy);
        if holds < asked {
            let thread = self.index;
            tracing::warn!(
                thread,
                asked,
                holds,
                "this thread can hold fewer connections than its share; raise RLIMIT_NOFILE or threads"
            );
        }
    }

    /// Connections it may have open under these limits, and those its sessions may have dialled.
    fn places(&self, policy: &Policy) -> (usize, usize) {
        let each = self.service.options().dials;
        let all = accept::admitted(policy.max_connections, each);
        let share = match &self.growth {
            Some(growth) => growth.share(all, self.index),
            None => accept::share(all, self.index, self.threads),
        };
        let share = share.min(accept::admitted(self.holds, each));
        (share, share.saturating_mul(each))
    }

    /// Goes on with other limits.
    pub(crate) fn set_policy(&mut self, policy: Arc<Policy>) {
        if let Some(growth) = &self.growth {
            self.threads = growth.most();
        }
        (self.share, self.dials) = self.places(&policy);
        self.policy = policy;
    }

    /// Whether accepted connections bring their first data.
    pub(crate) fn defers(&self) -> bool {
        DEFERS_ACCEPT && self.wants_first_data()
    }

    /// Whether accepts that can bring the first data are to do so.
    pub(crate) fn wants_first_data(&self) -> bool {
        accept::deferral(&self.policy).is_some() && !self.service.options().speaks_first
    }
}

impl EngineConfig {
    pub(crate) fn new(service: Arc<dyn ErasedService>, policy: Policy, listener: Option<Listener>) -> Self {
        let transports = Transports::new(policy.fast_path);
        Self {
            blocking_pool: Arc::new(BlockingPool::new(policy.offload)),
            service,
            rendezvous: listener
                .as_ref()
                .and_then(|listener| Rendezvous::of(listener, &transports))
                .map(Arc::new),
            transports: Arc::new(transports),
            policy: Arc::new(policy),
            listener: listener.map(Arc::new),
            total: Arc::default(),
            peak: Arc::default(),
        }
    }

    /// I/O threads to start, by the policy or, where that leaves it open, by the model. A server whose threads are
    /// [started as connections come](Self::each_fills) begins with some of them.
    pub(crate) fn threads(&self, model: Model) -> usize {
        let dials = self.service.options().dials;
        let default = match &self.listener {
            Some(_) => self.places(model).unwrap_or(model.default_threads()),
            None => model.threads_of_client(),
        };
        accept::threads(&self.policy, default, dials)
    }

    /// Stack of a thread that runs sessions, where the policy has no say in it.
    pub(crate) fn stack_bytes(&self) -> usize {
        STACK_BYTES.max(self.service.options().stack_bytes)
    }

    /// Threads that all connections need, where each [fills](Self::each_fills) before the next is started.
    fn places(&self, model: Model) -> Option<usize> {
        let all = accept::admitted(self.policy.max_connections, self.service.options().dials);
        self.each_fills(model).map(|each| all.div_ceil(each))
    }

    /// Connections of a thread, if more threads are started as connections come: those of a server whose policy leaves
    /// the number open.
    fn each_fills(&self, model: Model) -> Option<usize> {
        let of_thread = model.connections_of_thread().filter(|_| self.listener.is_some())?;
        let each = accept::admitted(of_thread, self.service.options().dials).max(1);
        self.policy.threads.is_none().then_some(each)
    }

    fn worker(
        &self,
        index: usize,
        command_queue: Arc<CommandQueue>,
        balance: &Arc<ThreadBalance>,
        threads: usize,
    ) -> WorkerContext {
        let mut worker = WorkerContext {
            index,
            service: self.service.clone(),
            policy: self.policy.clone(),
            transports: self.transports.clone(),
            listens: self.listener.is_some(),
            command_queue,
            counters: Arc::new(Counters::new(Writers::One)),
            growth: None,
            blocking_pool: self.blocking_pool.clone(),
            total: self.total.clone(),
            peak: self.peak.clone(),
            balance: balance.clone(),
            share: 0,
            dials: 0,
            holds: usize::MAX,
            threads,
        };
        worker.set_policy(self.policy.clone());
        worker
    }

    /// Starts one loop on a thread for each worker and waits until all of them are ready to work.
    ///
    /// `run` runs on the worker's own thread with what wakes it and with what all of them share, says through `Ready`
    /// whether it could start, and returns when it has stopped.
    pub(crate) fn start_loops<S: Clone + Send + Sync + 'static>(
        &self,
        model: Model,
        shared: &S,
        run: fn(WorkerContext, Arc<Waker>, S, Ready),
    ) -> io::Result<EngineHandle> {
        trim::keep_a_batch();
        let (each, most) = (self.each_fills(model), self.threads(model));
        let places = self.places(model).unwrap_or(most); // limits that change may allow more threads than now
        let first = each.map_or(most, |_| most.min(model.default_threads()));
        let wakers: Arc<[_]> = (0..places).map(|_| Arc::<PlaceWaker>::default()).collect();
        let command_queue = |waker: &Arc<PlaceWaker>| {
            let wakes = waker.clone();
            Arc::new(CommandQueue::new(self.policy.mail_queue, move || wakes.wake()))
        };
        let command_queues: Vec<_> = wakers.iter().map(command_queue).collect();
        let counters = Counters::sets(places, Writers::One);
        let balance = Arc::new(ThreadBalance::new(&command_queues, first));
        let (config, shared, sets) = (self.clone(), shared.clone(), counters.clone());
        let (queues, balances) = (command_queues.clone(), balance.clone());
        let start: Start = Arc::new(move |index, policy, growth| {
            let waker = Arc::new(Waker::new()?);
            let in_place = InPlace::new(wakers[index].clone(), waker.clone());
            let mut worker = config.worker(index, queues[index].clone(), &balances, places);
            worker.counters = sets[index].clone();
            worker.growth = growth.cloned();
            worker.set_policy(policy.clone());
            let shared = shared.clone();
            let run = move |ready| {
                let _in_place = in_place;
                run(worker, waker, shared, ready);
            };
            Starting::spawn(format!("tidegate-{index}"), config.stack_bytes(), run)
        });
        let growth = each.map(|each| {
            let of_thread = (each, self.service.options().dials);
            Growth::new(start.clone(), balance, of_thread, places, self.policy.clone())
        });
        let first = (0..first).map(|index| start(index, &self.policy, growth.as_ref()));
        let threads = start_all(first, || {
            for command_queue in &command_queues {
                let _ = command_queue.push(Command::Drain);
            }
        })?;
        Ok(EngineHandle { command_queues, counters, others: Vec::new(), threads, growth })
    }
}

/// A thread in its place. The descriptor of its waker goes with it, however long its command queue is kept.
struct InPlace(Arc<PlaceWaker>);

impl InPlace {
    fn new(place: Arc<PlaceWaker>, waker: Arc<Waker>) -> Self {
        place.set(Some(waker));
        Self(place)
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// What wakes the thread of a place while that runs. Each is on separate cache lines: threads that wake different ones
/// do not meet.
#[repr(align(128))]
#[derive(Default)]
struct PlaceWaker(Mutex<Option<Arc<Waker>>>);

impl PlaceWaker {
    fn set(&self, waker: Option<Arc<Waker>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waker; // nothing under the lock can panic
    }

    fn wake(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_leaves_no_waker_to_its_place() {
        let place = Arc::<PlaceWaker>::default();
        let waker = Arc::new(Waker::new().unwrap());
        let kept = Arc::downgrade(&waker);
        let in_place = InPlace::new(place.clone(), waker);
        place.wake();
        assert!(kept.upgrade().is_some());
        drop(in_place);
        assert!(kept.upgrade().is_none());
        place.wake(); // nobody
    }
}
