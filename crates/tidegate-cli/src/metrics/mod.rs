//! `serve --metrics`: the counters for Prometheus, and two probes, on a listener of their own.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | every counter of [`Stats`], text exposition format 0.0.4 |
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 while connections are accepted, 503 before and once draining |
//!
//! It is an ordinary service of the library on one thread with small limits, so whoever stalls it stalls nothing else.

mod exposition;
mod session;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::system::descriptor::OwnedFd;
use tidegate::{Model, Peer, Policy, Refusal, Running, Server, Service, StartError, Stats};

use session::Scrape;

/// Whether the server takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Not yet.
    Starting,
    /// Yes.
    Accepting,
    /// No longer.
    Draining,
}

/// What is published. Shared by the server's main thread and the one that answers.
pub struct Board {
    phase: AtomicU8,
    source: OnceLock<Source>,
}

struct Source {
    service: &'static str,
    model: Model,
    stats: Box<dyn Fn() -> Stats + Send + Sync>,
}

impl Board {
    /// Empty: nothing runs yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { phase: AtomicU8::new(Phase::Starting as u8), source: OnceLock::new() })
    }

    /// The server runs and takes connections: from now on its counters are published.
    pub fn accepting(&self, service: &'static str, running: &Running) {
        let stats = Box::new(running.watch());
        // A server starts once.
        let _ = self.source.set(Source { service, model: running.model(), stats });
        self.phase.store(Phase::Accepting as u8, Ordering::Release);
    }

    /// The server takes no more connections.
    pub fn draining(&self) {
        self.phase.store(Phase::Draining as u8, Ordering::Release);
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            n if n == Phase::Starting as u8 => Phase::Starting,
            n if n == Phase::Accepting as u8 => Phase::Accepting,
            _ => Phase::Draining,
        }
    }

    fn exposition(&self) -> Result<String, prometheus::Error> {
        let source = self.source.get();
        exposition::text(self.phase(), source.map(|from| (from.service, from.model, (from.stats)())))
    }
}

/// The service behind `--metrics`.
pub struct Metrics(Arc<Board>);

impl Service for Metrics {
    type Session = Scrape;

    fn open(&self, _peer: &Peer) -> Result<Scrape, Refusal> {
        Ok(Scrape::new(Arc::clone(&self.0)))
    }
}

/// Few connections, short times: a scraper comes every few seconds and takes a few kilobytes.
fn policy() -> Policy {
    Policy {
        max_connections: 32,
        first_byte_timeout: Some(Duration::from_secs(5)),
        idle_timeout: Some(Duration::from_secs(5)),
        send_timeout: Some(Duration::from_secs(5)),
        linger_timeout: Duration::from_secs(1),
        drain_timeout: Duration::from_secs(1),
        buffer_bytes: 4096,
        input_bytes: session::HEAD_BYTES,
        outbox: OutboxMarks { low: 4 * 1024, high: 64 * 1024 },
        threads: NonZeroUsize::new(1),
        ..Policy::default()
    }
}

/// Answers from now on: on `socket` if one was inherited, else on `addr`. Also gives a second descriptor of the socket, for a successor.
/// The model is `poll`: everywhere available, and enough for this.
pub fn serve(
    addr: SocketAddr,
    socket: Option<OwnedFd>,
    board: &Arc<Board>,
) -> Result<(Running, std::io::Result<OwnedFd>), StartError> {
    let server = Server::new(Metrics(Arc::clone(board))).policy(policy()).model(Model::Poll);
    let bound = match socket {
        Some(socket) => server.listen_on(socket)?,
        None => server.bind(addr.into())?,
    };
    let share = bound.share_listener();
    Ok((bound.start()?, share))
}
