//! `serve --metrics`: the counters for Prometheus, and two probes, on a separate listener, which servers may share.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | every counter of [`Stats`] or [`DatagramStats`], text exposition format 0.0.4 |
//! | `/healthz` | 200 as long as the process answers |
//! | `/readyz` | 200 while all servers accept, 503 before and once one drains |
//!
//! It is an ordinary service of the library on a dedicated thread with small limits, so a client that stalls it affects
//! nothing else.

mod board;
mod exposition;
mod pages;
mod source;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::OutboxMarks;
use tidegate::system::descriptor::OwnedFd;
#[cfg(doc)]
use tidegate::{DatagramStats, Stats};
use tidegate::{Model, Policy, Running, Server, StartError};
use tidegate_services::http::access::Host;
use tidegate_services::http::{Access, Generated, Generates, HttpLimits, Made};

use board::Board;
pub use board::Entry;
pub use pages::MetricsPages;
use source::ServerPhase;
pub use source::StatsSource;

/// The pages behind `--metrics`.
struct Metrics(Arc<Board>);

impl Generates for Metrics {
    fn page(&self, path: &str) -> Made {
        match path {
            "/metrics" => match self.0.exposition() {
                Ok(body) => Made { status: "200 OK", content_type: prometheus::TEXT_FORMAT, body },
                Err(e) => {
                    Made::line("500 Internal Server Error", &format!("the metrics cannot be written: {e}"))
                }
            },
            "/healthz" => Made::line("200 OK", "alive"),
            "/readyz" => match self.0.phase() {
                ServerPhase::Accepting => Made::line("200 OK", "accepting"),
                ServerPhase::Starting => Made::line("503 Service Unavailable", "starting"),
                ServerPhase::Draining => Made::line("503 Service Unavailable", "draining"),
            },
            _ => Made::line("404 Not Found", "here are /metrics, /healthz and /readyz"),
        }
    }
}

/// Limits of scrapers and probes.
fn limits() -> HttpLimits {
    HttpLimits::default()
        .head_bytes(8 * 1024)
        .body_bytes(8 * 1024)
        .request_timeout(Some(Duration::from_secs(5)))
}

/// Few connections, short times: a scraper connects every few seconds and reads a few kilobytes.
fn policy() -> Policy {
    Policy::default()
        .max_connections(32)
        .first_byte_timeout(Some(Duration::from_secs(5)))
        .idle_timeout(Some(Duration::from_secs(5)))
        .send_timeout(Some(Duration::from_secs(5)))
        .linger_timeout(Duration::from_secs(1))
        .drain_timeout(Duration::from_secs(1))
        .buffer_bytes(tidegate::policy::whole_pages(4096))
        .input_bytes(limits().head_bytes)
        .outbox(OutboxMarks::default().low(4 * 1024).high(64 * 1024))
        .threads(NonZeroUsize::new(1))
}

/// Starts serving: on `socket` if one was inherited, otherwise on `addr`. Also returns a duplicate of the socket, for a
/// successor. The model is `poll`: available everywhere, and sufficient for this.
fn serve(
    addr: SocketAddr,
    socket: Option<OwnedFd>,
    board: Arc<Board>,
    hosts: Vec<Host>,
) -> Result<(Running, std::io::Result<OwnedFd>), StartError> {
    let service = Generated::new(Metrics(board), limits(), Access::of(hosts, Vec::new()));
    let server = Server::new(service).policy(policy()).model(Model::Poll);
    let bound = match socket {
        Some(socket) => server.listen_on(socket)?,
        None => server.bind(addr)?,
    };
    let share = bound.share_listener();
    Ok((bound.start()?, share))
}
