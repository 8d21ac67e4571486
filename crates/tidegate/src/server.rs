//! Listening: a service, a policy, a model and an address make a running server.

mod datagram;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use tidegate_os::descriptor::OwnedFd;

use tidegate_os::endpoint::Endpoint;
use tidegate_os::local::SocketFile;
use tidegate_os::loopback::Loopback;
use tidegate_os::socket::{Blocking, ListenOptions, Listener};

use crate::engine::{self, Availability, Command, CommandQueue, EngineConfig, EngineHandle, Model};
use crate::policy::accept::deferral;
use crate::policy::{DatagramPath, Policy, PolicyError};
use crate::service::{ErasedService, Service};
use crate::stats::{Counters, Stats, each, sum};

pub use datagram::{BoundDatagramServer, DatagramServer, RunningDatagrams};

/// A server could not be started. Nothing was left half-started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The limits contradict each other.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The model cannot be used here. A model asked for by name is never replaced by another.
    #[error("the model {model} is unavailable: {why}")]
    Unavailable {
        /// The model asked for.
        model: Model,
        /// Why it cannot be used.
        why: String,
    },
    /// The way of datagrams through the kernel cannot be used here. One asked for by name is never replaced by another.
    #[error("the path {path} is unavailable: {why}")]
    PathUnavailable {
        /// The path asked for.
        path: DatagramPath,
        /// Why it cannot be used.
        why: String,
    },
    /// There is no way to the address.
    #[error("cannot send to {addr}: {error}; look at the address and the routes of this machine")]
    Connect {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {at}: {error}{}", remedy(.error, .at))]
    Listen {
        /// The address asked for.
        at: Endpoint,
        /// What the system said.
        error: io::Error,
    },
    /// The socket given cannot be listened on.
    #[error("cannot take over the listening socket: {error}; pass a listening TCP or Unix stream socket")]
    Adopt {
        /// What is wrong with it.
        error: io::Error,
    },
    /// The sockets of another process cannot be received from.
    #[error("cannot take over the sockets of datagrams: {error}")]
    AdoptDatagrams {
        /// What is wrong with them, or with the model or number of threads.
        error: io::Error,
    },
    /// The threads or their kernel objects could not be made.
    #[error(
        "cannot start the model {model}: {error}; lower `threads`, `max_connections` or `buffers`, or raise the limits of the process"
    )]
    Engine {
        /// The model asked for.
        model: Model,
        /// What the system said.
        error: io::Error,
    },
}

fn remedy(e: &io::Error, at: &Endpoint) -> String {
    let Some(addr) = at.addr() else { return unix_remedy(e).into() };
    match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "; another program uses port {}: stop it, or choose another port (0 lets the system pick one)",
                addr.port()
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            "; no interface of this machine has that address: use 127.0.0.1, 0.0.0.0 or one of its own".into()
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need the right to bind them: choose a higher port".into()
        }
        _ => String::new(),
    }
}

fn unix_remedy(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AddrInUse => "; stop the server that listens there, or choose another path",
        io::ErrorKind::AlreadyExists => "; remove it, or choose another path",
        io::ErrorKind::NotFound => "; the folder does not exist: make it, or choose another path",
        io::ErrorKind::PermissionDenied => {
            "; this user may not write to the folder, or not to the socket that is there"
        }
        _ => "",
    }
}

/// A server to be: a service and how it is to run.
pub struct Server<S: Service> {
    service: S,
    policy: Policy,
    model: Option<Model>,
}

impl<S: Service> Server<S> {
    /// With the default policy and the best model available.
    pub fn new(service: S) -> Self {
        Self { service, policy: Policy::default(), model: None }
    }

    /// With these limits.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// On this model, and no other.
    #[must_use]
    pub fn model(self, model: Model) -> Self {
        Self { model: Some(model), ..self }
    }

    /// Binds and listens: connections wait in the backlog from now on. Port 0 lets the system pick one.
    ///
    /// The file of a Unix socket is made with the rights that the umask leaves (whoever may write to it may connect),
    /// and removed when the server has stopped; a file that a dead server left behind is replaced. Limits of TCP that
    /// are on by default ([`accept.defer`](crate::policy::Accept::defer)) mean nothing there; others are refused by
    /// name.
    ///
    /// # Errors
    /// A wrong policy, an unavailable model or an unusable address; nothing is left behind.
    pub fn bind(self, at: Endpoint) -> Result<BoundServer, StartError> {
        self.policy.check()?;
        self.policy.check_dials(self.service.dials())?;
        let model = choose(self.model, &self.policy)?;
        engine::check_endpoint(&at, &self.policy)?;
        let listen = |error| StartError::Listen { at: at.clone(), error };
        let listener = Listener::bind(&at, &self.listen_options()).map_err(listen)?;
        let file = at.path().map(SocketFile::at).transpose().map_err(listen)?;
        let local_addr = listener.local_addr().map_err(listen)?;
        Ok(self.bound(model, listener, local_addr, file))
    }

    /// Accepts from a TCP or Unix stream socket that listens already: from a service manager, or from the process this
    /// one succeeds.
    ///
    /// Gets the options that [`bind`](Self::bind) sets, the backlog among them. Other processes may hold the same
    /// socket and accept from it at the same time, on models that [go together](Model::shares_listener_with); it is
    /// never shut down, only closed. The file of a Unix socket stays when this server ends, unless it
    /// [takes it over](BoundServer::own_socket_file).
    ///
    /// # Errors
    /// A wrong policy, an unavailable model, or a descriptor that is no listening stream socket.
    pub fn listen_on(self, socket: OwnedFd) -> Result<BoundServer, StartError> {
        self.policy.check()?;
        self.policy.check_dials(self.service.dials())?;
        let model = choose(self.model, &self.policy)?;
        let adopt = |error| StartError::Adopt { error };
        let listener = Listener::adopt(socket, &self.listen_options()).map_err(adopt)?;
        let local_addr = listener.local_addr().map_err(adopt)?;
        engine::check_endpoint(&local_addr, &self.policy)?;
        if model == Model::Uring {
            // The others say for themselves that they need the contrary.
            listener.set_blocking(Blocking::Waits).map_err(adopt)?;
        }
        Ok(self.bound(model, listener, local_addr, None))
    }

    /// From here on the type of the service is of no concern.
    fn bound(
        self,
        model: Model,
        listener: Listener,
        local_addr: Endpoint,
        file: Option<SocketFile>,
    ) -> BoundServer {
        BoundServer {
            service: Arc::new(self.service),
            policy: self.policy,
            model,
            listener,
            local_addr,
            file,
        }
    }

    fn listen_options(&self) -> ListenOptions {
        ListenOptions {
            backlog: self.policy.accept.backlog,
            defer_accept: deferral(&self.policy).filter(|_| !self.service.speaks_first()),
            fast_open: self.policy.accept.fast_open,
            send_buffer: self.policy.socket_send_buffer,
            receive_buffer: self.policy.socket_receive_buffer,
            busy_poll: self.policy.busy_poll,
            loopback: self.policy.fast_path.map_or(Loopback::Tcp, |_| Loopback::Fast),
        }
    }
}

/// The model asked for, or the best one; it must be available, and able to keep the policy.
pub(crate) fn choose(asked: Option<Model>, policy: &Policy) -> Result<Model, StartError> {
    let model = asked.unwrap_or_else(|| Model::best_for(policy).model);
    if let Availability::Unavailable(why) = model.availability() {
        return Err(StartError::Unavailable { model, why });
    }
    engine::check(model, policy)?;
    Ok(model)
}

/// A server that listens and does not serve yet.
pub struct BoundServer {
    service: Arc<dyn ErasedService>,
    policy: Policy,
    model: Model,
    listener: Listener,
    local_addr: Endpoint,
    file: Option<SocketFile>,
}

impl BoundServer {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        &self.local_addr
    }

    /// The model it will run on.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// Removes the file of a Unix socket when the server has stopped, as if it had made it: for a successor.
    ///
    /// # Errors
    /// The file is not there any more.
    pub fn own_socket_file(mut self) -> io::Result<Self> {
        self.file = self.local_addr.path().map(SocketFile::at).transpose()?;
        Ok(self)
    }

    /// A second descriptor of the listening socket, to be given to another process.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn share_listener(&self) -> io::Result<OwnedFd> {
        self.listener.share()
    }

    /// Starts the I/O threads; returns once all of them serve.
    ///
    /// # Errors
    /// The system gave no thread, ring or memory.
    pub fn start(self) -> Result<Running, StartError> {
        let model = self.model;
        let dials = self.service.dials();
        let config = EngineConfig::new(self.service, self.policy, Some(self.listener));
        let policy = config.policy.clone();
        let meeting = config.meeting().map(|meeting| meeting.counters());
        let mut started =
            engine::start(model, config).map_err(|error| StartError::Engine { model, error })?;
        let io_threads = started.counters.clone();
        started.others.extend(meeting);
        let (local_addr, file) = (self.local_addr, self.file);
        Ok(Running { threads: Threads::new(started), io_threads, local_addr, model, dials, policy, file })
    }
}

/// A running server. Dropping it stops it and waits.
#[derive(Debug)]
pub struct Running {
    threads: Threads,
    /// The counters of I/O threads alone: those of `threads` are also of whoever accepts for them.
    io_threads: Vec<Arc<Counters>>,
    local_addr: Endpoint,
    model: Model,
    /// What its service says of its sessions.
    dials: usize,
    /// As it was at the start.
    policy: Arc<Policy>,
    /// Removed after the threads have ended: fields are dropped in order.
    file: Option<SocketFile>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        &self.local_addr
    }

    /// The model it runs on.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// The counters as they are now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.threads.stats()
    }

    /// The counters of each I/O thread as they are now; those of loops and of `pool` in the order of
    /// [`Peer::thread`](crate::Peer). On `blocking` connections take sets in turn. What a thread of its own accepts and
    /// dials is only in [`stats`](Self::stats).
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        each(&self.io_threads)
    }

    /// The limits it was started with.
    #[must_use]
    pub fn first_policy(&self) -> &Policy {
        &self.policy
    }

    /// Goes on with other limits, such as another strategy; connections that are open look at them at once. What was
    /// laid out at the start has to stay: [`Policy::as_far_as_possible`] takes the rest over.
    ///
    /// # Errors
    /// A wrong policy, one that the model cannot keep, or one that changes a limit that is fixed; nothing is changed
    /// then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        policy.check()?;
        engine::check(self.model, &policy)?;
        policy.check_dials(self.dials)?;
        self.policy.check_change(&policy)?;
        self.threads.set_policy(&Arc::new(policy));
        Ok(())
    }

    /// The same counters for another thread, such as one that publishes them. Outlives the server; then they stand
    /// still. Each call sums the counters of all I/O threads: microseconds, and no lock.
    pub fn watch(&self) -> impl Fn() -> Stats + Clone + Send + Sync + use<> {
        let counters = self.threads.counters.clone();
        move || sum(&counters)
    }

    /// [`thread_stats`](Self::thread_stats) for another thread, as [`watch`](Self::watch) is.
    pub fn watch_threads(&self) -> impl Fn() -> Vec<Stats> + Clone + Send + Sync + use<> {
        let counters = self.io_threads.clone();
        move || each(&counters)
    }

    /// Whether one of the I/O threads has ended without having been told to: its connections are gone, and it accepts
    /// no more. Panics of services and sessions are caught; so are those of their destructors; this would be a
    /// mistake in an engine. Of the threads that `blocking` starts for connections, and of the tasks of `tokio`, it
    /// knows nothing.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.threads.is_broken()
    }

    /// Stops accepting and lets connections finish what is in flight, at most for
    /// [`Policy::drain_timeout`]. Returns at once; [`join`](Self::join) waits.
    pub fn stop(&self) {
        self.threads.stop();
    }

    /// Leaves the file of a Unix socket where it is when the server ends: a successor accepts from the same socket.
    pub fn keep_socket_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
    }

    /// Waits until the server has stopped and returns its last counters. Does not stop it.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.threads.stats()
    }
}

/// The threads of a running server or client.
pub(crate) struct Threads {
    pub(crate) gates: Vec<Arc<CommandQueue>>,
    counters: Vec<Arc<Counters>>,
    handles: Vec<JoinHandle<()>>,
    stopping: AtomicBool,
}

impl Threads {
    pub(crate) fn new(started: EngineHandle) -> Self {
        Self {
            gates: started.gates,
            counters: [started.counters, started.others].concat(),
            handles: started.threads,
            stopping: AtomicBool::new(false),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        sum(&self.counters)
    }

    fn is_broken(&self) -> bool {
        !self.stopping.load(Relaxed) && self.handles.iter().any(JoinHandle::is_finished)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
        for command_queue in &self.gates {
            // A command_queue that is closed belongs to a thread that has stopped already.
            let _ = command_queue.push(Command::Drain);
        }
    }

    fn set_policy(&self, policy: &Arc<Policy>) {
        for command_queue in &self.gates {
            // A thread that has stopped needs no limits.
            let _ = command_queue.push(Command::Policy(policy.clone()));
        }
    }

    pub(crate) fn join(&mut self) {
        for handle in self.handles.drain(..) {
            if let Err(panic) = handle.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.handles.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Consumed, Outbox, Peer, Refusal, Session};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    struct Deaf;

    impl Session for Deaf {
        fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
            Consumed::all(input)
        }
    }

    impl Service for Deaf {
        type Session = Self;
        fn open(&self, _peer: &Peer) -> Result<Self, Refusal> {
            Ok(Self)
        }
    }

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
        let running = server.bind("127.0.0.1:0".parse().unwrap()).unwrap().start().unwrap();
        running.stop();
        assert!(!running.is_broken());
        assert_eq!(running.join().accepted, 0);
    }
}
