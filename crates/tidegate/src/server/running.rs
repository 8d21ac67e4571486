//! A running server: its threads, its counters, and what can be changed while it runs.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tidegate_os::endpoint::Endpoint;
use tidegate_os::local::SocketFile;

use crate::engine::{self, Command, CommandQueue, EngineHandle, Growth, Model};
use crate::policy::{Policy, PolicyError};
use crate::proto::erased::ErasedService;
use crate::stats::{Counters, Stats, each, sum};

/// A running server. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "the server stops when this is dropped"]
pub struct Running {
    pub(super) threads: Threads,
    pub(super) local_addr: Endpoint,
    pub(super) model: Model,
    /// Properties of its service.
    pub(super) dials: usize,
    /// Its service has limits, too. The engine owns it.
    pub(super) service: Weak<dyn ErasedService>,
    /// The policy at the start.
    pub(super) policy: Arc<Policy>,
    /// Removed after the threads have ended: fields are dropped in order.
    pub(super) file: Option<SocketFile>,
}

impl Running {
    /// The listening address.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        &self.local_addr
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.threads.stats()
    }

    /// The current counters of each I/O thread; those of models with a loop and of `pool` in the order of
    /// [`Peer::thread`](crate::Peer). On `blocking`, connections use the sets of counters in turn. Counts of a separate
    /// accepting or dialling thread are only in [`stats`](Self::stats). On models that start I/O threads as connections
    /// come (`event-select`, `overlapped`) they are those of the threads started so far.
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        each(self.threads.counters.of_io_threads())
    }

    /// The policy it was started with.
    #[must_use]
    pub fn first_policy(&self) -> &Policy {
        &self.policy
    }

    /// Changes the limits, for example to another strategy; open connections apply them immediately. Limits fixed at
    /// the start must not change: [`Policy::as_far_as_possible`] applies only the others.
    ///
    /// # Errors
    /// An invalid policy, one that the model cannot enforce, one that [contradicts](crate::Service::check_limits) the limits
    /// of the service, one with fewer permits than there are I/O threads, or one that changes a fixed limit; nothing is
    /// changed then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        policy.check()?;
        engine::check_policy(self.model, &policy)?;
        policy.check_dials(self.dials)?;
        if let Some(service) = self.service.upgrade() {
            service.check_limits(&policy)?;
        }
        policy.check_permits(self.threads.counters.of_io_threads().len())?;
        self.policy.check_change(&policy)?;
        self.threads.set_policy(&Arc::new(policy))
    }

    /// A handle to the counters for another thread, for example one that exports them. It outlives the server; then the
    /// values no longer change. Each call sums the counters of all I/O threads: microseconds, without a lock.
    pub fn watch(&self) -> impl Fn() -> Stats + Clone + Send + Sync + use<> {
        let counters = self.threads.counters.clone();
        move || counters.sum()
    }

    /// A handle to [`thread_stats`](Self::thread_stats) for another thread; see [`watch`](Self::watch).
    pub fn watch_threads(&self) -> impl Fn() -> Vec<Stats> + Clone + Send + Sync + use<> {
        let counters = self.threads.counters.clone();
        move || each(counters.of_io_threads())
    }

    /// Whether an I/O thread has ended unexpectedly: its connections are lost, and it accepts no more. Panics of
    /// services, sessions and their destructors are caught, so this indicates a bug in an engine. Threads that
    /// `blocking` starts for connections, and tasks of `tokio`, are not monitored.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.threads.is_broken()
    }

    /// Stops accepting and lets connections finish what is in flight, for at most [`Policy::drain_timeout`]. Returns
    /// immediately; [`join`](Self::join) waits.
    pub fn stop(&self) {
        self.threads.stop();
    }

    /// Keeps the file of the Unix socket when the server ends: a successor accepts from the same socket.
    pub fn keep_socket_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
    }

    /// Waits until the server has stopped and returns the final counters. Does not stop it.
    ///
    /// # Panics
    /// One of its threads has panicked, which is a fault of this library: panics of sessions end at their connection.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.threads.stats()
    }
}

/// The threads of a running server or client.
pub(crate) struct Threads {
    pub(crate) command_queues: Vec<Arc<CommandQueue>>,
    counters: CounterSets,
    handles: Vec<JoinHandle<()>>,
    stopping: AtomicBool,
}

/// The counters of the threads of a server or client.
#[derive(Clone)]
struct CounterSets {
    /// Those of I/O threads, also of those that are not started yet.
    io: Arc<[Arc<Counters>]>,
    /// Those of threads that accept or dial for them.
    others: Arc<[Arc<Counters>]>,
    growth: Option<Arc<Growth>>,
}

impl CounterSets {
    fn of_io_threads(&self) -> &[Arc<Counters>] {
        let started = self.growth.as_ref().map_or(self.io.len(), |growth| growth.started());
        &self.io[..started]
    }

    fn sum(&self) -> Stats {
        sum(self.of_io_threads().iter().chain(&*self.others))
    }
}

impl Threads {
    pub(crate) fn new(started: EngineHandle) -> Self {
        Self {
            command_queues: started.command_queues,
            counters: CounterSets {
                io: started.counters.into(),
                others: started.others.into(),
                growth: started.growth,
            },
            handles: started.threads,
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.counters.sum()
    }

    fn is_broken(&self) -> bool {
        let later = || self.counters.growth.as_ref().is_some_and(|growth| growth.has_ended());
        !self.stopping.load(Relaxed) && (self.handles.iter().any(JoinHandle::is_finished) || later())
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        for command_queue in &self.command_queues {
            // A closed command queue belongs to a thread that has already stopped.
            let _ = command_queue.push(Command::Drain);
        }
    }

    fn set_policy(&self, policy: &Arc<Policy>) -> Result<(), PolicyError> {
        if let Some(growth) = &self.counters.growth {
            return growth.set_policy(policy);
        }
        for command_queue in &self.command_queues {
            // A thread that has stopped needs no limits.
            let _ = command_queue.push(Command::Policy(policy.clone()));
        }
        Ok(())
    }

    pub(crate) fn join(&mut self) {
        self.join_all(|outcome| {
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Waits for all threads. A thread that starts another one leaves its handle before it ends.
    fn join_all(&mut self, each: impl Fn(std::thread::Result<()>)) {
        while !self.handles.is_empty() {
            self.handles.drain(..).for_each(|handle| each(handle.join()));
            self.handles.extend(self.counters.growth.iter().flat_map(|growth| growth.take_handles()));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
        self.join_all(drop);
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.handles.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Server;
    use super::super::tests::Deaf;
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn a_thread_that_ends_by_itself_is_noticed() {
        let (end, ended) = mpsc::channel::<()>();
        // Nothing of an application makes a thread end: this one is no engine's.
        let thread = std::thread::spawn(move || _ = ended.recv());
        let threads = Threads::new(EngineHandle { threads: vec![thread], ..EngineHandle::default() });
        assert!(!threads.is_broken());
        drop(end);
        let start = Instant::now();
        while !threads.is_broken() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody noticed");
            std::thread::yield_now();
        }
        threads.stop();
        assert!(!threads.is_broken());
    }

    #[test]
    fn a_thread_that_was_told_to_stop_is_not_broken() {
        let policy = Policy { threads: std::num::NonZeroUsize::new(1), ..Policy::default() };
        let server = Server::new(Deaf).model(Model::Poll).policy(policy);
        let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        running.stop();
        assert!(!running.is_broken());
        assert_eq!(running.join().accepted, 0);
    }
}
