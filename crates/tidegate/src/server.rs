//! Listening: a service, a policy, a model and an address make a running server.

mod datagram;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use tidegate_os::descriptor::OwnedFd;

use tidegate_os::endpoint::{Endpoint, ParseEndpointError};
use tidegate_os::local::SocketFile;
use tidegate_os::loopback::Loopback;
use tidegate_os::socket::{Blocking, ListenOptions, Listener};

use crate::engine::{self, Availability, Command, CommandQueue, EngineConfig, EngineHandle, Growth, Model};
use crate::policy::accept::deferral;
use crate::policy::{DatagramPath, Policy, PolicyError};
use crate::proto::erased::{ErasedService, erase};
use crate::service::Service;
use crate::stats::{Counters, Stats, each, sum};

pub(crate) use datagram::ip_address as datagram_address;
pub use datagram::{BoundDatagramServer, DatagramServer, RunningDatagrams};

/// Why a server could not be started. Everything started before the error is undone.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The limits contradict each other.
    Policy(PolicyError),
    /// The model cannot be used on this system. A model selected by name is never replaced by another.
    Unavailable {
        /// The model.
        model: Model,
        /// Why it cannot be used.
        why: String,
    },
    /// The datagram path cannot be used on this system. A path selected by name is never replaced by another.
    PathUnavailable {
        /// The path.
        path: DatagramPath,
        /// Why it cannot be used.
        why: String,
    },
    /// The text is not an address.
    Address(ParseEndpointError),
    /// Datagrams go to IP addresses only.
    NotForDatagrams {
        /// The address.
        at: Endpoint,
    },
    /// There is no route to the address.
    Connect {
        /// The address.
        addr: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The address cannot be listened on.
    Listen {
        /// The address.
        at: Endpoint,
        /// The system's error.
        error: io::Error,
    },
    /// The given socket is not a listening stream socket.
    Adopt {
        /// What is wrong with it.
        error: io::Error,
    },
    /// The datagram sockets of another process cannot be used.
    AdoptDatagrams {
        /// The problem with them, or with the model or number of threads.
        error: io::Error,
    },
    /// The threads or their kernel objects could not be made.
    Engine {
        /// The model.
        model: Model,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(e) => e.fmt(f),
            Self::Unavailable { model, why } => write!(f, "the model {model} is unavailable: {why}"),
            Self::PathUnavailable { path, why } => write!(f, "the path {path} is unavailable: {why}"),
            Self::Address(e) => e.fmt(f),
            Self::NotForDatagrams { at } => {
                write!(f, "{at} takes no datagrams: write ADDR:PORT, such as 127.0.0.1:8080")
            }
            Self::Connect { addr, error } => {
                write!(f, "cannot send to {addr}: {error}; check the address and the routes of this machine")
            }
            Self::Listen { at, error } => {
                write!(f, "cannot listen on {at}: {error}{}", remedy(error, at))
            }
            Self::Adopt { error } => write!(
                f,
                "cannot take over the listening socket: {error}; pass a listening TCP or Unix stream socket"
            ),
            Self::AdoptDatagrams { error } => write!(f, "cannot take over the datagram sockets: {error}"),
            Self::Engine { model, error } => write!(
                f,
                "cannot start the model {model}: {error}; lower `threads`, `max_connections` or `buffers`, or raise \
                 the process limits"
            ),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Their text is the text of this error.
            Self::Policy(e) => e.source(),
            Self::Address(e) => e.source(),
            _ => None,
        }
    }
}

impl From<PolicyError> for StartError {
    fn from(e: PolicyError) -> Self {
        Self::Policy(e)
    }
}

impl From<ParseEndpointError> for StartError {
    fn from(e: ParseEndpointError) -> Self {
        Self::Address(e)
    }
}

/// An address that is one already: `bind` takes it as it takes text.
impl From<Infallible> for StartError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
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
            "; no interface of this machine has that address: use 127.0.0.1, 0.0.0.0 or a local address"
                .into()
        }
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need a privilege (CAP_NET_BIND_SERVICE): choose a higher port".into()
        }
        _ => String::new(),
    }
}

fn unix_remedy(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AddrInUse => "; stop the server that listens there, or choose another path",
        io::ErrorKind::AlreadyExists => "; remove it, or choose another path",
        io::ErrorKind::NotFound => "; the directory does not exist: create it, or choose another path",
        io::ErrorKind::PermissionDenied => {
            "; this user may not write to the directory, or to the existing socket"
        }
        _ => "",
    }
}

/// A server that is not started yet: a service and how to run it.
#[must_use = "a server accepts nothing until it is bound and started"]
pub struct Server<S: Service> {
    service: S,
    policy: Policy,
    model: Option<Model>,
}

impl<S: Service> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("model", &self.model)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// Uses the default policy and the best model available.
    pub fn new(service: S) -> Self {
        Self { service, policy: Policy::default(), model: None }
    }

    /// Sets the limits.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Selects the model; it is never replaced by another one.
    pub fn model(self, model: Model) -> Self {
        Self { model: Some(model), ..self }
    }

    /// Binds and listens: connections queue in the backlog from now on. Port 0 lets the system pick one.
    ///
    /// Takes everything that converts into an [`Endpoint`]: text (`"127.0.0.1:7000"`, `"unix:/run/app.sock"`), a
    /// [`SocketAddr`], a pair of an IP address and a port, the path of a Unix socket.
    ///
    /// The file of a Unix socket is created with the permissions that the umask leaves (every user who may write to it
    /// may connect), and removed when the server has stopped; a stale file of a dead server is replaced. Limits of TCP
    /// that are on by default ([`accept.defer`](crate::policy::Accept::defer)) have no effect there; others are refused
    /// by name.
    ///
    /// # Errors
    /// An invalid policy or invalid [limits of the service](Service::check_limits), an unavailable model, a text that
    /// is not an address, or an unusable address; nothing is left behind.
    pub fn bind(
        self,
        at: impl TryInto<Endpoint, Error: Into<StartError>>,
    ) -> Result<BoundServer, StartError> {
        self.bind_to(at.try_into().map_err(Into::into)?)
    }

    fn bind_to(self, at: Endpoint) -> Result<BoundServer, StartError> {
        let (service, policy, model) = self.checked()?;
        engine::check_endpoint(&at, &policy)?;
        let listen = |error| StartError::Listen { at: at.clone(), error };
        let listener = Listener::bind(&at, &listen_options(&*service, &policy)).map_err(listen)?;
        let file = at.path().map(SocketFile::at).transpose().map_err(listen)?;
        let local_addr = listener.local_addr().map_err(listen)?;
        Ok(BoundServer { service, policy, model, listener, local_addr, file })
    }

    /// Accepts from a TCP or Unix stream socket that listens already: from a service manager, or from a predecessor
    /// process.
    ///
    /// Sets the options that [`bind`](Self::bind) sets, including the backlog. Other processes may hold the same socket
    /// and accept from it at the same time, on models that [can share it](Model::shares_listener_with); it is never
    /// shut down, only closed. The file of a Unix socket stays when this server ends, unless
    /// [`own_socket_file`](BoundServer::own_socket_file) is called.
    ///
    /// # Errors
    /// An invalid policy or invalid [limits of the service](Service::check_limits), an unavailable model, or a
    /// descriptor that is not a listening stream socket.
    pub fn listen_on(self, socket: OwnedFd) -> Result<BoundServer, StartError> {
        let (service, policy, model) = self.checked()?;
        let adopt = |error| StartError::Adopt { error };
        let listener = Listener::adopt(socket, &listen_options(&*service, &policy)).map_err(adopt)?;
        let local_addr = listener.local_addr().map_err(adopt)?;
        engine::check_endpoint(&local_addr, &policy)?;
        if model == Model::Uring {
            // The others say for themselves that they need the contrary.
            listener.set_blocking(Blocking::Waits).map_err(adopt)?;
        }
        Ok(BoundServer { service, policy, model, listener, local_addr, file: None })
    }

    /// The service without its type, asked for what it needs this once, and the model, if all of it fits together.
    fn checked(self) -> Result<(Arc<dyn ErasedService>, Policy, Model), StartError> {
        let service = erase(self.service);
        check(&*service, &self.policy)?;
        let model = choose(self.model, &self.policy)?;
        Ok((service, self.policy, model))
    }
}

fn listen_options(service: &dyn ErasedService, policy: &Policy) -> ListenOptions {
    ListenOptions {
        backlog: policy.accept.backlog,
        defer_accept: deferral(policy).filter(|_| !service.options().speaks_first),
        fast_open: policy.accept.fast_open,
        send_buffer: policy.socket_send_buffer,
        receive_buffer: policy.socket_receive_buffer,
        busy_poll: policy.busy_poll,
        loopback: policy.fast_path.map_or(Loopback::Tcp, |_| Loopback::Fast),
    }
}

/// Checks a policy, and that the service can run under it.
pub(crate) fn check(service: &dyn ErasedService, policy: &Policy) -> Result<(), PolicyError> {
    policy.check()?;
    policy.check_dials(service.options().dials)?;
    service.check_limits(policy)
}

/// The selected model, or the best one; it must be available, and able to enforce the policy.
pub(crate) fn choose(asked: Option<Model>, policy: &Policy) -> Result<Model, StartError> {
    let model = asked.unwrap_or_else(|| Model::best_for(policy).model);
    if let Availability::Unavailable(why) = model.availability() {
        return Err(StartError::Unavailable { model, why });
    }
    engine::check_policy(model, policy)?;
    Ok(model)
}

/// A server that listens and does not accept yet.
#[must_use = "a bound server accepts nothing until it is started"]
pub struct BoundServer {
    service: Arc<dyn ErasedService>,
    policy: Policy,
    model: Model,
    listener: Listener,
    local_addr: Endpoint,
    file: Option<SocketFile>,
}

impl fmt::Debug for BoundServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundServer")
            .field("local_addr", &self.local_addr)
            .field("model", &self.model)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl BoundServer {
    /// The listening address.
    #[must_use]
    pub fn local_addr(&self) -> &Endpoint {
        &self.local_addr
    }

    /// The model that will run it.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// Makes this server remove the file of the Unix socket when it stops, as if it had created it: for a successor
    /// process.
    ///
    /// # Errors
    /// The file does not exist any more.
    pub fn own_socket_file(mut self) -> io::Result<Self> {
        self.file = self.local_addr.path().map(SocketFile::at).transpose()?;
        Ok(self)
    }

    /// A duplicate of the listening socket, to be passed to another process.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn share_listener(&self) -> io::Result<OwnedFd> {
        self.listener.share()
    }

    /// Starts the I/O threads; returns once all of them serve.
    ///
    /// # Errors
    /// The system has no thread, ring or memory left.
    pub fn start(self) -> Result<Running, StartError> {
        let model = self.model;
        let (dials, service) = (self.service.options().dials, Arc::downgrade(&self.service));
        let config = EngineConfig::new(self.service, self.policy, Some(self.listener));
        let policy = config.policy.clone();
        let rendezvous = config.rendezvous.as_ref().map(|rendezvous| rendezvous.counters());
        let mut started =
            engine::start(model, config).map_err(|error| StartError::Engine { model, error })?;
        started.others.extend(rendezvous);
        let (local_addr, file) = (self.local_addr, self.file);
        Ok(Running { threads: Threads::new(started), local_addr, model, dials, service, policy, file })
    }
}

/// A running server. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "the server stops when this is dropped"]
pub struct Running {
    threads: Threads,
    local_addr: Endpoint,
    model: Model,
    /// Properties of its service.
    dials: usize,
    /// Its service has limits, too. The engine owns it.
    service: Weak<dyn ErasedService>,
    /// The policy at the start.
    policy: Arc<Policy>,
    /// Removed after the threads have ended: fields are dropped in order.
    file: Option<SocketFile>,
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
    /// An invalid policy, one that the model cannot enforce, one that [contradicts](Service::check_limits) the limits
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
    fn an_address_may_be_text_or_what_it_stands_for() {
        let server = || Server::new(Deaf).model(Model::Poll);
        let v4 = std::net::Ipv4Addr::LOCALHOST;
        assert!(server().bind((v4, 0)).is_ok() && server().bind(([127, 0, 0, 1], 0)).is_ok());
        assert!(server().bind(SocketAddr::from((v4, 0))).is_ok());
        assert!(
            server().bind("127.0.0.1:0".to_owned()).is_ok()
                && server().bind("127.0.0.1:0".to_owned()).is_ok()
        );
        let why = server().bind("localhost:80").err().unwrap();
        assert!(matches!(why, StartError::Address(_)), "{why:?}");
        assert!(why.to_string().contains("write ADDR:PORT"), "{why}");
    }

    /// Has a limit of its own.
    struct Roomy;

    impl Service for Roomy {
        type Session = Deaf;
        fn open(&self, _peer: &Peer) -> Result<Deaf, Refusal> {
            Ok(Deaf)
        }
        fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
            let must = "at least 50000: this service needs them".to_owned();
            let value = policy.input_bytes;
            let error = PolicyError::Range { name: "input_bytes", value: value.to_string(), must };
            if value < 50_000 { Err(error) } else { Ok(()) }
        }
    }

    #[test]
    fn a_policy_that_contradicts_the_service_is_refused_wherever_it_is_given() {
        let (small, large) = (Policy::default().input_bytes(10_000), Policy::default().input_bytes(60_000));
        let is_refused = |error: StartError| {
            matches!(error, StartError::Policy(PolicyError::Range { name: "input_bytes", .. }))
        };
        let server = |policy: &Policy| Server::new(Roomy).model(Model::Poll).policy(policy.clone());
        assert!(is_refused(server(&small).bind("127.0.0.1:0").unwrap_err()));
        let listener = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
        assert!(is_refused(server(&small).listen_on(listener()).unwrap_err()));
        assert!(server(&large).listen_on(listener()).is_ok());
        let client = crate::Client::new(Arc::new(Roomy)).model(Model::Poll).policy(small.clone());
        assert!(is_refused(client.start().unwrap_err()));
        let running = server(&large).bind("127.0.0.1:0").unwrap().start().unwrap();
        assert!(running.set_policy(small).unwrap_err().to_string().contains("this service needs them"));
        assert_eq!(running.set_policy(large.input_bytes(50_000)), Ok(()));
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
