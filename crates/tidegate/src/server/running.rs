//! A running server, and what it shares with a client: threads, counters, and what can be changed while it runs.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use tidegate_os::endpoint::Endpoint;
use tidegate_os::local::SocketFile;
use tidegate_os::socket::Listener;

use super::StartError;
use crate::engine::{self, Command, CommandQueue, EngineConfig, EngineHandle, Growth, Model};
use crate::policy::{Policy, PolicyError};
use crate::proto::erased::ErasedService;
use crate::stats::{Counters, Stats, each, sum};

/// A running server. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "the server stops when this is dropped"]
pub struct Running {
    handle: ServerHandle,
    threads: Threads,
    /// Removed after the threads have ended: fields are dropped in order.
    file: Option<SocketFile>,
}

impl Running {
    pub(super) fn new(
        (threads, run): (Threads, RunHandle),
        local_addr: Endpoint,
        file: Option<SocketFile>,
    ) -> Self {
        Self { handle: ServerHandle { run, local_addr: Arc::new(local_addr) }, threads, file }
    }

    /// A handle for other threads: to stop the server, to change its limits, or to read its counters, while this one
    /// [waits](Self::join).
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// The listening address.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        self.handle.local_addr()
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.handle.model()
    }

    /// The current counters; see [`ServerHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// The current counters of each I/O thread; see [`ServerHandle::thread_stats`].
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        self.handle.thread_stats()
    }

    /// The policy it was started with.
    #[must_use]
    pub fn first_policy(&self) -> &Policy {
        &self.handle.run.properties.policy
    }

    /// Changes the limits; see [`ServerHandle::set_policy`].
    ///
    /// # Errors
    /// A policy that cannot be applied; nothing is changed then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        self.handle.set_policy(policy)
    }

    /// Whether an I/O thread has ended unexpectedly: its connections are lost, and it accepts no more. Panics of
    /// services, sessions and their destructors are caught, so this indicates a bug in an engine. Threads that
    /// `blocking` starts for connections, and tasks of `tokio`, are not monitored.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.threads.is_broken()
    }

    /// Begins to stop; see [`ServerHandle::stop`].
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Keeps the file of the Unix socket when the server ends: a successor accepts from the same socket.
    pub fn keep_socket_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
    }

    /// Waits until the server has stopped and returns the final counters. Does not stop it: another thread does, by a
    /// [handle](Self::handle).
    ///
    /// # Panics
    /// One of its threads has panicked, which is a fault of this library: panics of sessions end at their connection.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.stats()
    }
}

/// A running server as other threads see it: for a signal handler that stops it, or an exporter of its counters. Cheap
/// to clone: three reference counts. It does not keep the server running; of a server that has ended, the counters
/// stay, and a stop or a change of limits has no effect.
///
/// ```
/// use tidegate::{Consumed, Outbox, Peer, Refusal, Server, Service, Session};
/// # struct Echo;
/// # impl Service for Echo {
/// #     type Session = Echo;
/// #     fn open(&self, _: &Peer) -> Result<Echo, Refusal> {
/// #         Ok(Echo)
/// #     }
/// # }
/// # impl Session for Echo {
/// #     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
/// #         out.write(input);
/// #         Consumed::all(input)
/// #     }
/// # }
///
/// let running = Server::new(Echo).bind("127.0.0.1:0")?.start()?;
/// let handle = running.handle();
/// // In place of this thread: `ctrlc::set_handler(move || handle.stop())`, of the crate `ctrlc`.
/// let stopper = std::thread::spawn(move || handle.stop());
/// println!("served {} connections", running.join().accepted);
/// # stopper.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerHandle {
    run: RunHandle,
    local_addr: Arc<Endpoint>,
}

impl ServerHandle {
    /// The listening address.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        &self.local_addr
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.run.model()
    }

    /// The current counters: the sum of those of all threads, in microseconds, without a lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.run.stats()
    }

    /// The current counters of each I/O thread; those of models with a loop and of `pool` in the order of
    /// [`Peer::thread`](crate::Peer). On `blocking`, connections use the sets of counters in turn. Counts of a separate
    /// accepting or dialling thread are only in [`stats`](Self::stats). On models that start I/O threads as connections
    /// come (`event-select`, `overlapped`) they are those of the threads started so far.
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        self.run.thread_stats()
    }

    /// Changes the limits, for example to another strategy; open connections apply them immediately. Limits fixed at
    /// the start must not change: [`Policy::as_far_as_possible`] applies only the others.
    ///
    /// # Errors
    /// An invalid policy, one that the model cannot enforce, one that [contradicts](crate::Service::check_limits) the
    /// limits of the service, one with fewer permits than there are I/O threads, or one that changes a fixed limit;
    /// nothing is changed then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        self.run.set_policy(policy)
    }

    /// Stops accepting and lets connections finish what is in flight, for at most [`Policy::drain_timeout`]. Returns
    /// immediately; [`Running::join`] waits.
    pub fn stop(&self) {
        self.run.stop();
    }
}

/// What is known of a server or client from its start.
#[derive(Debug)]
struct Properties {
    model: Model,
    /// Of its service.
    dials: usize,
    /// Its service has limits, too. The engine owns it.
    service: Weak<dyn ErasedService>,
    /// The policy at the start.
    policy: Arc<Policy>,
}

/// A running server or client as other threads see it.
#[derive(Clone, Debug)]
pub(crate) struct RunHandle {
    control: Arc<RunControl>,
    properties: Arc<Properties>,
}

impl RunHandle {
    pub(crate) fn model(&self) -> Model {
        self.properties.model
    }

    pub(crate) fn stats(&self) -> Stats {
        self.control.stats()
    }

    pub(crate) fn thread_stats(&self) -> Vec<Stats> {
        each(self.control.of_io_threads())
    }

    pub(crate) fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        let Properties { model, dials, service, policy: first } = &*self.properties;
        policy.check()?;
        engine::check_policy(*model, &policy)?;
        policy.check_dials(*dials)?;
        if let Some(service) = service.upgrade() {
            service.check_limits(&policy)?;
        }
        policy.check_permits(self.control.of_io_threads().len())?;
        first.check_change(&policy)?;
        self.control.set_policy(&Arc::new(policy))
    }

    pub(crate) fn stop(&self) {
        self.control.stop();
    }
}

/// Starts the threads of a server, or without a listener those of a client.
pub(crate) fn start(
    model: Model,
    service: Arc<dyn ErasedService>,
    policy: Policy,
    listener: Option<Listener>,
) -> Result<(Threads, RunHandle), StartError> {
    let (dials, of_service) = (service.options().dials, Arc::downgrade(&service));
    let config = EngineConfig::new(service, policy, listener);
    let policy = config.policy.clone();
    let rendezvous = config.rendezvous.as_ref().map(|rendezvous| rendezvous.counters());
    let mut started = engine::start(model, config).map_err(|error| StartError::Engine { model, error })?;
    started.others.extend(rendezvous);
    let threads = Threads::new(started);
    let properties = Arc::new(Properties { model, dials, service: of_service, policy });
    let control = threads.control.clone();
    Ok((threads, RunHandle { control, properties }))
}

/// The threads of a running server or client.
pub(crate) struct Threads {
    pub(crate) control: Arc<RunControl>,
    handles: Vec<JoinHandle<()>>,
}

/// What is asked of threads, and what they have counted.
pub(crate) struct RunControl {
    pub(crate) command_queues: Arc<[Arc<CommandQueue>]>,
    /// The counters of I/O threads, also of those that are not started yet.
    io: Vec<Arc<Counters>>,
    /// Those of threads that accept or dial for them.
    others: Vec<Arc<Counters>>,
    growth: Option<Arc<Growth>>,
    stopping: AtomicBool,
    /// One change of the limits at a time: all threads end with the same.
    changes: Mutex<()>,
}

impl RunControl {
    fn of_io_threads(&self) -> &[Arc<Counters>] {
        let started = self.growth.as_ref().map_or(self.io.len(), |growth| growth.started());
        &self.io[..started]
    }

    fn stats(&self) -> Stats {
        sum(self.of_io_threads().iter().chain(&self.others))
    }

    fn stop(&self) {
        if self.stopping.swap(true, SeqCst) {
            return; // threads that are started later find the first order
        }
        for command_queue in &*self.command_queues {
            // A closed command queue belongs to a thread that has already stopped.
            let _ = command_queue.push(Command::Drain);
        }
    }

    fn set_policy(&self, policy: &Arc<Policy>) -> Result<(), PolicyError> {
        if let Some(growth) = &self.growth {
            return growth.set_policy(policy);
        }
        let _one = self.changes.lock().unwrap_or_else(PoisonError::into_inner); // it guards no data
        for command_queue in &*self.command_queues {
            // A thread that has stopped needs no limits.
            let _ = command_queue.push(Command::Policy(policy.clone()));
        }
        Ok(())
    }
}

impl std::fmt::Debug for RunControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunControl").field("stopping", &self.stopping).finish_non_exhaustive()
    }
}

impl Threads {
    pub(crate) fn new(started: EngineHandle) -> Self {
        let control = RunControl {
            command_queues: started.command_queues.into(),
            io: started.counters,
            others: started.others,
            growth: started.growth,
            stopping: AtomicBool::new(false),
            changes: Mutex::default(),
        };
        Self { control: Arc::new(control), handles: started.threads }
    }

    /// Whether one has ended, and none was asked to: looked at in this order, because another thread may stop it now.
    fn is_broken(&self) -> bool {
        let later = || self.control.growth.as_ref().is_some_and(|growth| growth.has_ended());
        let has_ended = self.handles.iter().any(JoinHandle::is_finished) || later();
        fence(SeqCst);
        has_ended && !self.control.stopping.load(SeqCst)
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
            self.handles.extend(self.control.growth.iter().flat_map(|growth| growth.take_handles()));
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.control.stop();
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
        threads.control.stop();
        assert!(!threads.is_broken());
    }

    #[test]
    fn a_thread_that_was_asked_to_stop_is_not_broken() {
        let policy = Policy { threads: std::num::NonZeroUsize::new(1), ..Policy::default() };
        let server = Server::new(Deaf).model(Model::Poll).policy(policy);
        let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        running.stop();
        assert!(!running.is_broken());
        assert_eq!(running.join().accepted, 0);
    }

    #[test]
    fn the_order_to_stop_is_given_once() {
        let queue = Arc::new(CommandQueue::new(8, || {}));
        let command_queues = vec![queue.clone()];
        let threads = Threads::new(EngineHandle { command_queues, ..EngineHandle::default() });
        threads.control.stop();
        threads.control.stop();
        drop(threads);
        let mut orders = std::collections::VecDeque::new();
        queue.close(&mut orders);
        assert_eq!(orders.len(), 1);
    }

    #[test]
    fn another_thread_stops_it_by_a_handle_that_outlives_it() {
        let running = Server::new(Deaf).model(Model::Poll).bind("127.0.0.1:0").unwrap().start().unwrap();
        let handle = running.handle();
        let client = std::net::TcpStream::connect(handle.local_addr().to_string()).unwrap();
        let start = Instant::now();
        while handle.stats().accepted == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody is accepted");
            std::thread::yield_now();
        }
        drop(client);
        let stopper = std::thread::spawn({
            let handle = handle.clone();
            move || handle.stop()
        });
        let stats = running.join();
        stopper.join().unwrap();
        assert_eq!((stats.accepted, handle.stats()), (1, stats));
        assert_eq!(handle.thread_stats().iter().map(|thread| thread.accepted).sum::<u64>(), 1);
        handle.stop();
        assert_eq!(handle.set_policy(Policy::default()), Ok(()));
        assert!(handle.set_policy(Policy::default().max_connections(0)).is_err());
    }
}
