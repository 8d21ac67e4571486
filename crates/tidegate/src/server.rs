//! Listening: a service, a policy, a model and an address make a running server.

mod datagram;
mod running;

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_os::descriptor::OwnedFd;

use tidegate_os::endpoint::{Endpoint, ParseEndpointError};
use tidegate_os::local::SocketFile;
use tidegate_os::loopback::Loopback;
use tidegate_os::socket::{Blocking, ListenOptions, Listener};

use crate::engine::{self, Availability, Model};
use crate::policy::accept::deferral;
use crate::policy::{DatagramPath, Policy, PolicyError};
use crate::proto::erased::{ErasedService, erase};
use crate::service::{Service, ServiceOptions};

pub(crate) use datagram::ip_address as datagram_address;
pub use datagram::{BoundDatagramServer, DatagramHandle, DatagramServer, RunningDatagrams};
pub(crate) use running::{RunHandle, Threads, start};
pub use running::{Running, ServerHandle};

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
    /// may connect), and removed when the server has stopped; a stale file of a dead server is replaced, under a lock
    /// (`PATH.tidegate-lock`, removed again): of servers that start at once, one has the path. Limits of TCP that are
    /// on by default ([`accept.defer`](crate::policy::Accept::defer)) have no effect there; others are refused by name.
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
        check(&self.policy, service.options().dials, |policy| service.check_limits(policy))?;
        let model = choose(self.model, &self.policy, service.options())?;
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

/// Checks a policy, and that a service can run under it that dials so many connections, and has these limits.
pub(crate) fn check(
    policy: &Policy,
    dials: usize,
    limits: impl FnOnce(&Policy) -> Result<(), PolicyError>,
) -> Result<(), PolicyError> {
    policy.check()?;
    policy.check_dials(dials)?;
    limits(policy)
}

/// The selected model, or the best one; it must be available, and able to enforce the policy for a service that needs
/// this.
pub(crate) fn choose(
    asked: Option<Model>,
    policy: &Policy,
    needs: ServiceOptions,
) -> Result<Model, StartError> {
    let model = asked.unwrap_or_else(|| Model::best_for(policy).model);
    if let Availability::Unavailable(why) = model.availability() {
        return Err(StartError::Unavailable { model, why });
    }
    engine::check_policy(model, policy)?;
    if matches!(model, Model::Blocking | Model::Pool) {
        policy.check_stack(needs.stack_bytes)?;
    }
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
        let run = start(self.model, self.service, self.policy, Some(self.listener))?;
        Ok(Running::new(run, self.local_addr, self.file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{Consumed, Outbox, Peer, Refusal, Session};

    pub(super) struct Deaf;

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

    /// Needs more stack than the default.
    struct Deep;

    impl Service for Deep {
        type Session = Deaf;
        fn open(&self, _peer: &Peer) -> Result<Deaf, Refusal> {
            Ok(Deaf)
        }
        fn options(&self) -> ServiceOptions {
            ServiceOptions::default().stack_bytes(1 << 20)
        }
    }

    #[test]
    fn a_stack_that_is_too_small_is_refused_where_the_policy_sets_it() {
        let bind = |model, stack| {
            let policy = Policy::default().thread_stack_bytes(stack);
            Server::new(Deep).model(model).policy(policy).bind("127.0.0.1:0").map(drop)
        };
        for model in [Model::Blocking, Model::Pool] {
            assert!(bind(model, None).is_ok() && bind(model, Some(1 << 20)).is_ok(), "{model}");
            let why = bind(model, Some(512 << 10)).unwrap_err().to_string();
            assert_eq!(
                why,
                "`thread_stack_bytes` is 512KiB; it must be at least 1MiB, which this service needs, or left out"
            );
        }
        assert!(bind(Model::Poll, Some(512 << 10)).is_ok(), "it has no effect there");
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
}
