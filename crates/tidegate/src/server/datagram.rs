//! Serving datagrams: a service, a policy, a model and an address make a running server.

use std::io;
use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst, fence};
use std::thread::JoinHandle;

use tidegate_os::datagram::{DatagramSocket, PortSharing};
use tidegate_os::descriptor::OwnedFd;
use tidegate_os::endpoint::Endpoint;

use super::StartError;
use crate::engine::datagram::{DatagramConfig, StopOrder, StopSignal};
use crate::engine::{self, Availability, Model, datagram};
use crate::policy::{DatagramPath, DatagramPolicy};
use crate::service::DatagramService;
use crate::stats::{DatagramCounters, DatagramStats};

/// A datagram server that is not started yet.
///
/// ```
/// # use std::net::SocketAddr;
/// # use tidegate::{DatagramServer, DatagramService, Model, Replies};
/// # struct Echo;
/// # impl DatagramService for Echo {
/// #     fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
/// #         out.send(from, bytes);
/// #     }
/// # }
/// let server = DatagramServer::new(|_thread| Echo).model(Model::Poll).bind("127.0.0.1:0")?;
/// println!("listening on {}", server.local_addr());
/// let running = server.start()?;
/// running.stop();
/// assert_eq!(running.join().datagrams_in, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a server receives nothing until it is bound and started"]
pub struct DatagramServer<F> {
    make: F,
    policy: DatagramPolicy,
    model: Option<Model>,
}

impl<F> std::fmt::Debug for DatagramServer<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramServer")
            .field("model", &self.model)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<S: DatagramService, F: Fn(usize) -> S + Send + 'static> DatagramServer<F> {
    /// Uses the default policy and the best model available. `make` creates the service of each I/O thread; its
    /// argument is the thread's index, from 0.
    pub fn new(make: F) -> Self {
        Self { make, policy: DatagramPolicy::default(), model: None }
    }

    /// Sets the limits.
    pub fn policy(self, policy: DatagramPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Selects the model; it is never replaced by another one.
    pub fn model(self, model: Model) -> Self {
        Self { model: Some(model), ..self }
    }

    /// Creates and binds the sockets: datagrams queue in the kernel from now on. Port 0 lets the system pick one.
    ///
    /// Takes an address as [`Server::bind`](crate::Server::bind) does: text, a [`SocketAddr`], or a pair of an IP
    /// address and a port.
    ///
    /// # Errors
    /// An invalid policy, an unavailable model or path, an unusable address, or a Unix socket; nothing is left behind.
    pub fn bind(
        self,
        at: impl TryInto<Endpoint, Error: Into<StartError>>,
    ) -> Result<BoundDatagramServer, StartError> {
        let addr = ip_address(at.try_into().map_err(Into::into)?)?;
        let (model, path) = self.choose()?;
        let listen = |error| StartError::Listen { at: addr.into(), error };
        let threads = self.policy.threads.map_or(datagram::default_threads(model), usize::from);
        let options = datagram::options(model, path, &self.policy);
        let first = Arc::new(DatagramSocket::bind(addr, PortSharing::Own, &options).map_err(listen)?);
        let local_addr = first.local_addr().map_err(listen)?;
        let mut sockets = vec![first.clone()];
        if datagram::shares_socket(model) {
            sockets.resize(threads, first);
        } else if threads > 1 {
            first.share_port().map_err(listen)?;
            for _ in 1..threads {
                let socket =
                    DatagramSocket::bind(local_addr, PortSharing::Shared, &options).map_err(listen)?;
                sockets.push(Arc::new(socket));
            }
        }
        let plan = DatagramConfig { model, policy: Arc::new(self.policy), path, sockets };
        Ok(BoundDatagramServer { make: erased(self.make), plan, local_addr })
    }

    /// Receives from sockets that another process has bound and [shared](BoundDatagramServer::share_sockets), with one
    /// thread for each. Both processes may serve them at the same time, on models that
    /// [can share them](Model::shares_listener_with) and on the same path: each datagram goes to one of them.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind); sockets that are not datagram sockets or have different addresses; a number of
    /// sockets that differs from [`DatagramPolicy::threads`]; or the models `blocking` and `pool`, which cannot share
    /// sockets.
    pub fn receive_on(self, sockets: Vec<OwnedFd>) -> Result<BoundDatagramServer, StartError> {
        let adopt = |error| StartError::AdoptDatagrams { error };
        let wrong = |why: String| adopt(io::Error::new(io::ErrorKind::InvalidInput, why));
        let (model, path) = self.choose()?;
        datagram::hands_over(model).map_err(wrong)?;
        let count = sockets.len();
        if count == 0 || self.policy.threads.is_some_and(|threads| usize::from(threads) != count) {
            return Err(wrong(format!(
                "there are {count} sockets, one for each thread; leave threads out, or set it to {count}"
            )));
        }
        let options = datagram::options(model, path, &self.policy);
        let own = |socket| DatagramSocket::adopt(socket, &options).map(Arc::new);
        let sockets: Vec<_> = sockets.into_iter().map(own).collect::<Result<_, _>>().map_err(adopt)?;
        let addresses: Vec<_> =
            sockets.iter().map(|one| one.local_addr()).collect::<Result<_, _>>().map_err(adopt)?;
        let Some(&local_addr) =
            addresses.first().filter(|first| addresses.iter().all(|other| other == *first))
        else {
            return Err(wrong("they have different addresses".into()));
        };
        let plan = DatagramConfig { model, policy: Arc::new(self.policy), path, sockets };
        Ok(BoundDatagramServer { make: erased(self.make), plan, local_addr })
    }

    /// The selected model and path, or the best ones; they must be available, and able to enforce the policy.
    fn choose(&self) -> Result<(Model, DatagramPath), StartError> {
        self.policy.check()?;
        let model = self.model.unwrap_or_else(engine::best_for_datagrams);
        if let Availability::Unavailable(why) = model.serves_datagrams() {
            return Err(StartError::Unavailable { model, why });
        }
        engine::check_datagrams(model, &self.policy)?;
        let path = self.policy.path.unwrap_or_else(|| DatagramPath::default_on(model));
        if let Availability::Unavailable(why) = path.availability() {
            return Err(StartError::PathUnavailable { path, why });
        }
        Ok((model, path))
    }
}

/// The address that datagrams go to or come from.
pub(crate) fn ip_address(at: Endpoint) -> Result<SocketAddr, StartError> {
    match at {
        Endpoint::Tcp(addr) => Ok(addr), // an address without a protocol, as it is written
        at => Err(StartError::NotForDatagrams { at }),
    }
}

/// Creates the service of an I/O thread, whatever its type.
type Make = Box<dyn Fn(usize) -> Box<dyn DatagramService> + Send>;

fn erased<S: DatagramService>(make: impl Fn(usize) -> S + Send + 'static) -> Make {
    Box::new(move |thread| Box::new(make(thread)))
}

/// A datagram server that is bound and does not receive yet.
#[must_use = "a bound server receives nothing until it is started"]
pub struct BoundDatagramServer {
    make: Make,
    plan: DatagramConfig,
    local_addr: SocketAddr,
}

impl std::fmt::Debug for BoundDatagramServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundDatagramServer").field("local_addr", &self.local_addr).finish_non_exhaustive()
    }
}

impl BoundDatagramServer {
    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The model that will run it.
    #[must_use]
    pub fn model(&self) -> Model {
        self.plan.model
    }

    /// How datagrams pass through the kernel.
    #[must_use]
    pub fn path(&self) -> DatagramPath {
        self.plan.path
    }

    /// Duplicates of its sockets, for a process that continues with them ([`receive_on`](DatagramServer::receive_on));
    /// afterwards call [`leave`](RunningDatagrams::leave).
    ///
    /// # Errors
    /// The model is `blocking` or `pool`, which shut a socket down for every process when they stop, or no descriptor
    /// is left.
    pub fn share_sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let plan = &self.plan;
        datagram::hands_over(plan.model).map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
        plan.sockets.iter().map(|socket| socket.share()).collect()
    }

    /// Starts the I/O threads; returns once all of them serve.
    ///
    /// # Errors
    /// The system has no thread, ring or memory left.
    pub fn start(self) -> Result<RunningDatagrams, StartError> {
        let Self { make, plan, local_addr } = self;
        let model = plan.model;
        let started =
            engine::start_datagrams(&plan, &*make).map_err(|error| StartError::Engine { model, error })?;
        let control = DatagramControl {
            local_addr,
            model,
            path: plan.path,
            stop_signals: started.stop_signals,
            counters: started.counters,
            stopping: AtomicBool::new(false),
        };
        Ok(RunningDatagrams { handle: DatagramHandle(Arc::new(control)), threads: started.threads })
    }
}

/// A running datagram server. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "the server stops when this is dropped"]
pub struct RunningDatagrams {
    handle: DatagramHandle,
    threads: Vec<JoinHandle<()>>,
}

impl RunningDatagrams {
    /// A handle for other threads: to stop the server or to read its counters, while this one [waits](Self::join).
    #[must_use]
    pub fn handle(&self) -> DatagramHandle {
        self.handle.clone()
    }

    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.local_addr()
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.handle.model()
    }

    /// How datagrams pass through the kernel.
    #[must_use]
    pub fn path(&self) -> DatagramPath {
        self.handle.path()
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> DatagramStats {
        self.handle.stats()
    }

    /// The current counters of each I/O thread.
    #[must_use]
    pub fn thread_stats(&self) -> Vec<DatagramStats> {
        self.handle.thread_stats()
    }

    /// Whether an I/O thread has ended unexpectedly.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        // In this order, because another thread may stop it now.
        let has_ended = self.threads.iter().any(JoinHandle::is_finished);
        fence(SeqCst);
        has_ended && !self.handle.0.stopping.load(SeqCst)
    }

    /// Begins to stop; see [`DatagramHandle::stop`].
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Begins to stop, and leaves what is queued to another process; see [`DatagramHandle::leave`].
    pub fn leave(&self) {
        self.handle.leave();
    }

    /// Waits until the server has stopped and returns the final counters. Does not stop it: another thread does, by a
    /// [handle](Self::handle).
    ///
    /// # Panics
    /// One of its threads has panicked, which is a fault of this library: panics of sessions end at their connection.
    pub fn join(mut self) -> DatagramStats {
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        self.stats()
    }
}

impl Drop for RunningDatagrams {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // A caller interested in panics has called `join`.
            let _ = thread.join();
        }
    }
}

/// A running datagram server as other threads see it; see [`ServerHandle`](super::ServerHandle). It outlives the
/// server; then its counters stay, and a stop has no effect.
#[derive(Clone)]
pub struct DatagramHandle(Arc<DatagramControl>);

struct DatagramControl {
    local_addr: SocketAddr,
    model: Model,
    path: DatagramPath,
    stop_signals: Vec<Arc<StopSignal>>,
    counters: Vec<Arc<DatagramCounters>>,
    stopping: AtomicBool,
}

impl DatagramHandle {
    /// The bound address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.0.model
    }

    /// How datagrams pass through the kernel.
    #[must_use]
    pub fn path(&self) -> DatagramPath {
        self.0.path
    }

    /// The current counters: the sum of those of all threads, in microseconds, without a lock.
    #[must_use]
    pub fn stats(&self) -> DatagramStats {
        DatagramStats::sum(&self.0.counters)
    }

    /// The current counters of each I/O thread.
    #[must_use]
    pub fn thread_stats(&self) -> Vec<DatagramStats> {
        self.0.counters.iter().map(|one| DatagramStats::sum(std::slice::from_ref(one))).collect()
    }

    /// Serves what has arrived until now, sends the replies and stops, after at most [`DatagramPolicy::drain_timeout`].
    /// Returns immediately; [`RunningDatagrams::join`] waits.
    pub fn stop(&self) {
        self.0.stop(StopOrder::Serve);
    }

    /// Stops, and leaves datagrams queued in the sockets to the process that
    /// [shares](BoundDatagramServer::share_sockets) them: nothing more is received, and what was received already is
    /// answered, until at most [`DatagramPolicy::drain_timeout`]. Returns immediately. Models whose threads block in
    /// the receive (`blocking`, `pool`) cannot share sockets; there queued datagrams are lost.
    pub fn leave(&self) {
        self.0.stop(StopOrder::Leave);
    }
}

impl DatagramControl {
    fn stop(&self, order: StopOrder) {
        self.stopping.store(true, SeqCst);
        StopSignal::ask(&self.stop_signals, order);
    }
}

impl std::fmt::Debug for DatagramHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramHandle").field("local_addr", &self.0.local_addr).finish_non_exhaustive()
    }
}
