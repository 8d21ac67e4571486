//! The other direction: dialling out, with the same sessions on the same engines.

mod datagram;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_os::endpoint::Endpoint;

use crate::engine::{self, Command, CommandQueue, EngineConfig, Model};
use crate::policy::Policy;
use crate::server::{StartError, Threads, choose};
use crate::service::{Dial, MailboxError, Service};
use crate::stats::Stats;

pub use datagram::DatagramClient;

/// A client to be: a service and how it is to run.
pub struct Client<S: Service> {
    service: S,
    policy: Policy,
    model: Option<Model>,
}

impl<S: Service> Client<S> {
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

    /// Starts the I/O threads. Nothing is dialled yet.
    ///
    /// # Errors
    /// A wrong policy, an unavailable model, or a system that gave no thread, ring or memory.
    pub fn start(self) -> Result<RunningClient, StartError> {
        self.policy.check()?;
        self.policy.check_dials(self.service.dials())?;
        let model = choose(self.model, &self.policy)?;
        engine::check_client(model, &self.policy)?;
        let config = EngineConfig::new(Arc::new(self.service), self.policy, None);
        let started = engine::start(model, config).map_err(|error| StartError::Engine { model, error })?;
        let threads = Threads::new(started);
        let dialler = Dialler { gates: threads.gates.clone().into(), next: Arc::default() };
        Ok(RunningClient { threads, dialler, model })
    }
}

/// Makes connections. Cheap to clone; may be used from any thread, sessions included.
#[derive(Clone)]
pub struct Dialler {
    gates: Arc<[Arc<CommandQueue>]>,
    next: Arc<AtomicUsize>,
}

impl Dialler {
    /// Asks for a connection. Its session comes from [`Service::open`], or
    /// [`Service::dial_failed`] is told why there is none.
    ///
    /// # Errors
    /// The client has stopped, or [`Policy::mail_queue`] dials wait already.
    pub fn dial(&self, dial: Dial) -> Result<(), MailboxError> {
        let thread = dial.thread.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed));
        self.gates[thread % self.gates.len()].push(Command::Dial(dial.into()))
    }

    /// Number of I/O threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.gates.len()
    }
}

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialler").field("threads", &self.gates.len()).finish_non_exhaustive()
    }
}

/// A running client. Dropping it stops it and waits.
#[derive(Debug)]
pub struct RunningClient {
    threads: Threads,
    dialler: Dialler,
    model: Model,
}

impl RunningClient {
    /// Makes connections.
    #[must_use]
    pub fn dialler(&self) -> Dialler {
        self.dialler.clone()
    }

    /// Asks for a connection to `to`; see [`Dialler::dial`].
    ///
    /// # Errors
    /// The client has stopped, or too many dials wait already.
    pub fn dial(&self, to: impl Into<Endpoint>) -> Result<(), MailboxError> {
        self.dialler.dial(Dial::to(to))
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

    /// Lets connections finish what is in flight, at most for [`Policy::drain_timeout`]. Returns at once.
    pub fn stop(&self) {
        self.threads.stop();
    }

    /// Waits until the client has stopped and returns its last counters. Does not stop it.
    pub fn join(mut self) -> Stats {
        self.threads.join();
        self.threads.stats()
    }
}
