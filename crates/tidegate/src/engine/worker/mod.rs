//! What every engine is given and shares: a configuration for all threads, and a worker for each.
//!
//! | what | where | for |
//! |---|---|---|
//! | who comes in: accept errors, dials, sessions | [`admission`] | all |
//! | the way in for other threads: mail, dials, the order to stop | [`command_queue`] | all |
//! | sending what is next | [`queue_writer`] | readiness loops, `pool`, `blocking`, `tokio` |
//! | the state and the turn of a loop, permits, sharing connections among threads | [`loop_state`], [`loop_driver`], [`permits`], [`balance`] | loops |
//! | open connections, their inboxes, accepting and stopping | [`registry`], [`control`] | models without a loop |
//! | offloaded jobs; starting threads; what the machine holds; memory given back | [`blocking_pool`], [`threads`], [`capacity`], [`trim`] | all |
//!
//! Arrows point from the families to here, and from here to [`proto`](crate::proto): nothing in this folder knows a
//! family.

pub(in crate::engine) mod admission;
pub(in crate::engine) mod balance;
pub(in crate::engine) mod blocking_pool;
pub(in crate::engine) mod capacity;
pub(in crate::engine) mod command_queue;
pub(in crate::engine) mod control;
pub(in crate::engine) mod loop_driver;
pub(in crate::engine) mod loop_state;
pub(in crate::engine) mod permits;
pub(in crate::engine) mod queue_writer;
pub(in crate::engine) mod registry;
pub(in crate::engine) mod threads;
pub(in crate::engine) mod trim;

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tidegate_os::socket::{DEFERS_ACCEPT, Listener};

use super::Model;
use crate::fastpath::{Meeting, Ways};
use crate::policy::{Policy, accept};
use crate::service::ErasedService;
use crate::stats::{Counters, Writers};
use balance::Balance;
use blocking_pool::BlockingPool;
use command_queue::{Command, CommandQueue};
use threads::STACK_BYTES;
use trim::Peak;

/// What all threads of one server or client share.
pub(crate) struct EngineConfig {
    pub(crate) service: Arc<dyn ErasedService>,
    pub(crate) policy: Arc<Policy>,
    /// Present for a server.
    pub(crate) listener: Option<Arc<Listener>>,
    /// What connections may use besides TCP.
    pub(crate) ways: Arc<Ways>,
    meeting: Option<Arc<Meeting>>,
    pub(crate) blocking_pool: Arc<BlockingPool>,
    /// Connections that all I/O threads have open, and had.
    total: Arc<AtomicUsize>,
    pub(crate) peak: Arc<Peak>,
}

/// The threads of a running engine, and the doors to them.
#[derive(Default)]
pub(crate) struct EngineHandle {
    pub(crate) gates: Vec<Arc<CommandQueue>>,
    /// One set for each I/O thread; `blocking` has sets for its connections to take in turn.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// Those of whoever else counts: acceptors, control threads, the fast path.
    pub(crate) others: Vec<Arc<Counters>>,
    pub(crate) threads: Vec<JoinHandle<()>>,
}

/// What one I/O thread has.
pub(crate) struct WorkerContext {
    /// Which of the threads it is, from 0.
    pub(crate) index: usize,
    pub(crate) service: Arc<dyn ErasedService>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) ways: Arc<Ways>,
    /// Whether it accepts connections.
    pub(crate) listens: bool,
    pub(crate) command_queue: Arc<CommandQueue>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) blocking_pool: Arc<BlockingPool>,
    /// Connections that all I/O threads have open.
    pub(crate) total: Arc<AtomicUsize>,
    pub(crate) peak: Arc<Peak>,
    /// The threads as they see each other.
    pub(crate) balance: Arc<Balance>,
    /// Connections this thread may have open, beside those that its sessions dial.
    pub(crate) share: usize,
    /// Connections its sessions may have dialled.
    pub(crate) dials: usize,
    /// Connections it can have open whatever it may.
    pub(crate) holds: usize,
    /// I/O threads there are.
    pub(crate) threads: usize,
}

impl WorkerContext {
    /// This thread's share of the descriptors that the process has not reserved for something else.
    pub(crate) fn descriptors(&self) -> usize {
        capacity::descriptors_of_loop(self.threads)
    }

    /// This thread's share of something that is limited for all of them.
    pub(crate) fn share_of(&self, total: usize) -> usize {
        accept::share(total, self.index, self.threads).max(1)
    }

    /// Bounds what this thread may have open by what it can.
    pub(crate) fn hold(&mut self, holds: usize) {
        self.holds = holds;
        if holds < self.share + self.dials {
            let (asked, thread) = (self.share + self.dials, self.index);
            tracing::warn!(
                thread,
                asked,
                holds,
                "this thread can hold fewer connections than its share; raise RLIMIT_NOFILE or threads"
            );
            (self.share, self.dials) = self.places(&self.policy);
        }
    }

    /// Connections it may have open under these limits, and those its sessions may have dialled.
    fn places(&self, policy: &Policy) -> (usize, usize) {
        let each = self.service.dials();
        let share = accept::share(accept::admitted(policy.max_connections, each), self.index, self.threads);
        let share = share.min(accept::admitted(self.holds, each));
        (share, share.saturating_mul(each))
    }

    /// Goes on with other limits.
    pub(crate) fn set_policy(&mut self, policy: Arc<Policy>) {
        (self.share, self.dials) = self.places(&policy);
        self.policy = policy;
    }

    /// Whether accepted connections come with their first data.
    pub(crate) fn defers(&self) -> bool {
        DEFERS_ACCEPT && self.wants_first_data()
    }

    /// Whether accepts that can bring the first data are to do so.
    pub(crate) fn wants_first_data(&self) -> bool {
        accept::deferral(&self.policy).is_some() && !self.service.speaks_first()
    }
}

impl EngineConfig {
    pub(crate) fn new(service: Arc<dyn ErasedService>, policy: Policy, listener: Option<Listener>) -> Self {
        let ways = Ways::new(policy.fast_path);
        Self {
            blocking_pool: Arc::new(BlockingPool::new(policy.offload)),
            service,
            meeting: listener.as_ref().and_then(|listener| Meeting::of(listener, &ways)).map(Arc::new),
            ways: Arc::new(ways),
            policy: Arc::new(policy),
            listener: listener.map(Arc::new),
            total: Arc::default(),
            peak: Arc::default(),
        }
    }

    /// Where offers for the fast path are left.
    pub(crate) fn meeting(&self) -> Option<&Arc<Meeting>> {
        self.meeting.as_ref()
    }

    /// I/O threads to start, by the policy or, where that leaves it open, by the model.
    pub(crate) fn threads(&self, model: Model) -> usize {
        let most = accept::admitted(self.policy.max_connections, self.service.dials());
        let default = model.default_threads().min(most);
        self.policy.threads.map_or(default, Into::into)
    }

    fn worker(
        &self,
        index: usize,
        command_queue: Arc<CommandQueue>,
        balance: &Arc<Balance>,
        threads: usize,
    ) -> WorkerContext {
        let mut worker = WorkerContext {
            index,
            service: self.service.clone(),
            policy: self.policy.clone(),
            ways: self.ways.clone(),
            listens: self.listener.is_some(),
            command_queue,
            counters: Arc::new(Counters::new(Writers::One)),
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

    /// Starts one thread for each worker and waits until all of them are ready to work.
    ///
    /// `prepare` runs on the caller's thread and makes the worker's command_queue and whatever goes with it; `run` runs
    /// on the worker's own thread, says through `Ready` whether it could start, and returns when it has stopped.
    pub(crate) fn start_workers<W: Send + 'static>(
        &self,
        count: usize,
        prepare: impl Fn(usize) -> io::Result<(CommandQueue, W)>,
        run: fn(WorkerContext, W, Ready),
    ) -> io::Result<EngineHandle> {
        let (ready, answers) = mpsc::channel();
        let prepared: Vec<_> = (0..count).map(prepare).collect::<io::Result<_>>()?;
        let (gates, extras): (Vec<_>, Vec<_>) =
            prepared.into_iter().map(|(command_queue, extra)| (Arc::new(command_queue), extra)).unzip();
        let balance = Arc::new(Balance::new(&gates));
        let mut started = EngineHandle::default();
        let outcome =
            gates.into_iter().zip(extras).enumerate().try_for_each(|(index, (command_queue, extra))| {
                let worker = self.worker(index, command_queue, &balance, count);
                started.gates.push(worker.command_queue.clone());
                started.counters.push(worker.counters.clone());
                let ready = Ready(ready.clone());
                let thread = threads::spawn(format!("tidegate-{index}"), STACK_BYTES, move || {
                    run(worker, extra, ready)
                });
                started.threads.push(thread?);
                Ok(())
            });
        drop(ready);
        let outcome = outcome.and_then(|()| answers.iter().take(count).collect());
        if outcome.is_err() {
            started.abandon();
        }
        outcome.map(|()| started)
    }
}

impl EngineHandle {
    /// Stops what did start, because the rest could not: nothing stays half-started.
    fn abandon(&mut self) {
        for command_queue in &self.gates {
            let _ = command_queue.push(Command::Drain);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Says once whether a thread could start.
pub(crate) struct Ready(pub(in crate::engine) mpsc::Sender<io::Result<()>>);

impl Ready {
    /// Reports the outcome of the set-up; passes it on.
    pub(crate) fn report<T>(self, outcome: io::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => {
                let _ = self.0.send(Ok(()));
                Some(value)
            }
            Err(e) => {
                let _ = self.0.send(Err(e));
                None
            }
        }
    }
}
