//! `serve --metrics`: the counters for Prometheus, and two probes, on a listener of their own, which servers may share.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | every counter of [`Stats`] or [`DatagramStats`], text exposition format 0.0.4 |
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 while all servers take what comes, 503 before and once one drains |
//!
//! It is an ordinary service of the library on one thread with small limits, so whoever stalls it stalls nothing else.

mod board;
mod exposition;
mod pages;
mod session;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::system::descriptor::OwnedFd;
#[cfg(doc)]
use tidegate::{DatagramStats, Stats};
use tidegate::{Model, Peer, Policy, Refusal, Running, Server, Service, StartError};

use board::Board;
pub use board::{Entry, Source};
pub use pages::Pages;
use session::Scrape;

/// The service behind `--metrics`.
struct Metrics(Arc<Board>);

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
fn serve(
    addr: SocketAddr,
    socket: Option<OwnedFd>,
    board: Arc<Board>,
) -> Result<(Running, std::io::Result<OwnedFd>), StartError> {
    let server = Server::new(Metrics(board)).policy(policy()).model(Model::Poll);
    let bound = match socket {
        Some(socket) => server.listen_on(socket)?,
        None => server.bind(addr.into())?,
    };
    let share = bound.share_listener();
    Ok((bound.start()?, share))
}
