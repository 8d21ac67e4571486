//! What the lessons share: servers of the library on one thread, and clients of one exchange at a time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tidegate::server::Running;
use tidegate::{Model, Policy, Server, Service};

/// No answer of a healthy server takes so long.
const DEADLINE: Duration = Duration::from_secs(30);

/// Any free port.
pub fn anywhere() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// One I/O thread; connections are accepted before they have sent anything, and a stop waits for nobody.
pub fn policy() -> Policy {
    let mut policy = Policy::default().threads(Some(NonZeroUsize::MIN)).drain_timeout(Duration::ZERO);
    policy.accept.defer = None;
    policy.max_connections = 10_000;
    policy.first_byte_timeout = None;
    policy
}

/// Starts a service on this model, or on the best one that needs no ring.
pub fn serve<S: Service>(
    service: S,
    policy: Policy,
    model: Option<Model>,
    at: SocketAddr,
) -> anyhow::Result<(SocketAddr, Running)> {
    let readiness = if Model::Epoll.availability().is_available() { Model::Epoll } else { Model::Select };
    let server = Server::new(service).policy(policy).model(model.unwrap_or(readiness));
    let running = server.bind(at)?.start()?;
    let addr = running.local_addr().addr().context("the server has no address")?;
    Ok((addr, running))
}

/// A connection on which nothing waits for ever.
pub fn connect(addr: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, DEADLINE).context("cannot connect")?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends a message and waits for as many bytes.
pub fn exchange(stream: &mut TcpStream, message: &[u8]) -> anyhow::Result<Vec<u8>> {
    stream.write_all(message)?;
    let mut answer = vec![0; message.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Waits for a condition.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > DEADLINE {
            bail!("{what}: not within {DEADLINE:?}; is the machine overloaded?");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
