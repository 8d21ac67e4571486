//! Dialling: outgoing connections, with the same sessions on the same engines.

mod datagram;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::{self, Command, CommandQueue, Model};
use crate::policy::{Policy, PolicyError};
use crate::proto::erased::erase;
use crate::server::{RunHandle, StartError, Threads, check, choose, start};
use crate::service::{Dial, DialError, Service};
use crate::stats::Stats;

pub use datagram::DatagramClient;

/// A client that is not started yet: a service and how to run it.
#[must_use = "a client dials nothing until it is started"]
pub struct Client<S: Service> {
    service: S,
    policy: Policy,
    model: Option<Model>,
}

impl<S: Service> std::fmt::Debug for Client<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("model", &self.model)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<S: Service> Client<S> {
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

    /// Starts the I/O threads. Nothing is dialled yet.
    ///
    /// # Errors
    /// An invalid policy or invalid [limits of the service](Service::check_limits), an unavailable model, or the
    /// system has no thread, ring or memory left.
    pub fn start(self) -> Result<RunningClient, StartError> {
        let service = erase(self.service);
        check(&self.policy, service.options().dials, |policy| service.check_limits(policy))?;
        let model = choose(self.model, &self.policy, service.options())?;
        engine::check_client(model, &self.policy)?;
        let (threads, run) = start(model, service, self.policy, None)?;
        let dialler =
            Dialler { command_queues: threads.control.command_queues.clone(), next: Arc::default() };
        Ok(RunningClient { handle: ClientHandle(run), threads, dialler })
    }
}

/// Dials connections. Cheap to clone; usable from any thread, including from sessions.
#[derive(Clone)]
pub struct Dialler {
    command_queues: Arc<[Arc<CommandQueue>]>,
    next: Arc<AtomicUsize>,
}

impl Dialler {
    /// Requests a connection: `dial` is an address, as [`Server::bind`](crate::Server::bind) takes one, or a [`Dial`]
    /// with more to say. Names of hosts are not looked up. [`Service::open`] creates its session; if the dial fails,
    /// [`Service::dial_failed`] is called instead.
    ///
    /// # Errors
    /// The text is not an address, the client has stopped, or [`Policy::mail_queue`] dials are already pending.
    pub fn dial(&self, dial: impl TryInto<Dial, Error: Into<DialError>>) -> Result<(), DialError> {
        let dial = dial.try_into().map_err(Into::into)?;
        let thread = dial.thread.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        self.command_queues[thread % self.command_queues.len()].push(Command::Dial(dial.into()))?;
        Ok(())
    }

    /// Number of I/O threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.command_queues.len()
    }
}

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialler").field("threads", &self.command_queues.len()).finish_non_exhaustive()
    }
}

/// A running client. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "the client stops when this is dropped"]
pub struct RunningClient {
    handle: ClientHandle,
    threads: Threads,
    dialler: Dialler,
}

impl RunningClient {
    /// A handle for other threads: to stop the client, to change its limits, or to read its counters, while this one
    /// [waits](Self::join).
    #[must_use]
    pub fn handle(&self) -> ClientHandle {
        self.handle.clone()
    }

    /// A handle that dials connections.
    #[must_use]
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }

    /// Dials an address, or a [`Dial`]; see [`Dialler::dial`].
    ///
    /// # Errors
    /// Those of [`Dialler::dial`].
    pub fn dial(&self, dial: impl TryInto<Dial, Error: Into<DialError>>) -> Result<(), DialError> {
        self.dialler.dial(dial)
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.handle.model()
    }

    /// The current counters; see [`ClientHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.stats()
    }

    /// The current counters of each I/O thread; see [`ClientHandle::thread_stats`].
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        self.handle.thread_stats()
    }

    /// Changes the limits; see [`ClientHandle::set_policy`].
    ///
    /// # Errors
    /// A policy that cannot be applied; nothing is changed then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        self.handle.set_policy(policy)
    }

    /// Begins to stop; see [`ClientHandle::stop`].
    pub fn stop(&self) {
        self.handle.stop();
    }

    /// Waits until the client has stopped and returns the final counters. Does not stop it: another thread does, by a
    /// [handle](Self::handle).
    ///
    /// # Panics
    /// One of its threads has panicked, which is a fault of this library: panics of sessions end at their connection.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.stats()
    }
}

/// A running client as other threads see it, as [`ServerHandle`](crate::ServerHandle) is a server. Cheap to clone: two
/// reference counts. It does not keep the client running; of a client that has ended, the counters stay, and a stop or
/// a change of limits has no effect.
#[derive(Clone, Debug)]
pub struct ClientHandle(RunHandle);

impl ClientHandle {
    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.0.model()
    }

    /// The current counters: the sum of those of all threads, in microseconds, without a lock.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The current counters of each I/O thread, as [`ServerHandle::thread_stats`](crate::ServerHandle::thread_stats)
    /// has them for a server.
    #[must_use]
    pub fn thread_stats(&self) -> Vec<Stats> {
        self.0.thread_stats()
    }

    /// Changes the limits; open connections apply them immediately. Limits fixed at the start must not change:
    /// [`Policy::as_far_as_possible`] applies only the others.
    ///
    /// # Errors
    /// Those of [`ServerHandle::set_policy`](crate::ServerHandle::set_policy); nothing is changed then.
    pub fn set_policy(&self, policy: Policy) -> Result<(), PolicyError> {
        self.0.set_policy(policy)
    }

    /// Dials nothing more and lets connections finish what is in flight, for at most [`Policy::drain_timeout`]. Returns
    /// immediately; [`RunningClient::join`] waits.
    pub fn stop(&self) {
        self.0.stop();
    }
}
