//! A TCP proxy: every connection is linked to one that is dialled on the same I/O thread.
//!
//! `cargo run --release --bin proxy -- --to 127.0.0.1:9000 --listen 127.0.0.1:8080`. What `tidegate serve proxy` does
//! besides (several upstreams, health, PROXY protocol) is in `tidegate_services::proxy`.

use std::time::Duration;

use tidegate::link::{self, Link};
use tidegate::{Endpoint, Peer, Refusal, Service, ServiceOptions};

/// Bytes that may wait between the two connections, in each direction.
const LINK_BYTES: usize = 128 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

struct Proxy {
    to: Endpoint,
}

impl Service for Proxy {
    type Session = Link;

    fn open(&self, _: &Peer) -> Result<Link, Refusal> {
        Ok(link::dialling(&self.to, CONNECT_TIMEOUT, LINK_BYTES)?)
    }

    /// The upstream may speak first. Each connection dials one: places for both are set aside.
    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

fn main() -> anyhow::Result<()> {
    let (to, arguments) = tidegate_apps::to()?;
    tidegate_apps::serve_with(Proxy { to }, arguments)
}
