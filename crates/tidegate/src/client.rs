//! Dialling: outgoing connections, with the same sessions on the same engines.

mod datagram;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::{self, Command, CommandQueue, EngineConfig, Model};
use crate::policy::Policy;
use crate::proto::erased::erase;
use crate::server::{StartError, Threads, check, choose};
use crate::service::{Dial, MailboxError, Service};
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
        let model = choose(self.model, &self.policy)?;
        engine::check_client(model, &self.policy)?;
        let config = EngineConfig::new(service, self.policy, None);
        let started = engine::start(model, config).map_err(|error| StartError::Engine { model, error })?;
        let threads = Threads::new(started);
        let dialler =
            Dialler { command_queues: threads.control.command_queues.clone(), next: Arc::default() };
        Ok(RunningClient { threads, dialler, model })
    }
}

/// Dials connections. Cheap to clone; usable from any thread, including from sessions.
#[derive(Clone)]
pub struct Dialler {
    command_queues: Arc<[Arc<CommandQueue>]>,
    next: Arc<AtomicUsize>,
}

impl Dialler {
    /// Requests a connection: `dial` is an address, or a [`Dial`] with more to say. [`Service::open`] creates its
    /// session; if the dial fails, [`Service::dial_failed`] is called instead.
    ///
    /// # Errors
    /// The client has stopped, or [`Policy::mail_queue`] dials are already pending.
    pub fn dial(&self, dial: impl Into<Dial>) -> Result<(), MailboxError> {
        let dial = dial.into();
        let thread = dial.thread.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        self.command_queues[thread % self.command_queues.len()].push(Command::Dial(dial.into()))
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
    threads: Threads,
    dialler: Dialler,
    model: Model,
}

impl RunningClient {
    /// A handle that dials connections.
    #[must_use]
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }

    /// Dials an address, or a [`Dial`]; see [`Dialler::dial`].
    ///
    /// # Errors
    /// The client has stopped, or too many dials are already pending.
    pub fn dial(&self, dial: impl Into<Dial>) -> Result<(), MailboxError> {
        self.dialler.dial(dial)
    }

    /// The model in use.
    #[must_use]
    pub fn model(&self) -> Model {
        self.model
    }

    /// The current counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.threads.control.stats()
    }

    /// Lets connections finish what is in flight, for at most [`Policy::drain_timeout`]. Returns immediately.
    pub fn stop(&self) {
        self.threads.control.stop();
    }

    /// Waits until the client has stopped and returns the final counters. Does not stop it.
    ///
    /// # Panics
    /// One of its threads has panicked, which is a fault of this library: panics of sessions end at their connection.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.threads.control.stats()
    }
}
