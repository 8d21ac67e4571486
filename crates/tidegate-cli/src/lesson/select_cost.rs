//! The cost of select: it grows with the connections that say nothing.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tidegate::server::Running;
use tidegate::{Model, system};
use tidegate_services::Echo;

use super::host::{self, anywhere};
use super::question::{Measured, Question, Value};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "the cost of select",
    about: "Three echo servers, one is slow. Which one, and why that one?",
    server: "Three echo servers run the same code. Two of them wait with select, one with something better; two of them
also hold many connections that say nothing (up to 2,000 each, fewer if the descriptor limit is low).
Server A is at {a}, server B at {b}, server C at {c}.",
    task: "Find out which server takes longest for one request of one more connection: A, B or C. Compare the medians (p50)
of the three.",
    commands: &[
        "tidegate load ping {a} -n 3000",
        "tidegate load ping {b} -n 3000",
        "tidegate load ping {c} -n 3000",
    ],
    question: Question::Choice(&[
        ("A", "A has idle connections, but does not look at each of them in each wait. Compare p50 of the three."),
        ("B", "compare p50 of the three, one after the other, with nothing else running."),
        ("C", "C waits with select, but has no other connections to look at. Compare p50 of the three."),
    ]),
    explanation: "select and poll receive the whole set with each call, and the kernel looks at every member of it: one
request costs time in proportion to all connections, idle ones included. Server B pays that; C waits with select, too,
and has nothing to look at; A has as many idle connections and pays nothing for them, because epoll, io_uring and
completion ports keep the set in the kernel and return only what is ready. With few connections select is as good as
anything.",
    page: "models/select.md",
    start,
    measure,
};

/// Idle connections of A and of B, if the descriptor limit allows.
const IDLE: usize = 2_000;
/// The same while an answer is checked.
const IDLE_TO_CHECK: usize = 50;
/// Descriptors that are left for the check and for the rest of the process.
const KEPT_BACK: usize = 4 * IDLE_TO_CHECK + 200;

/// An echo server and its idle connections.
struct Crowded {
    name: &'static str,
    addr: SocketAddr,
    running: Running,
    idle: Vec<TcpStream>,
}

impl Crowded {
    fn start(name: &'static str, model: Model, idle: usize, at: SocketAddr) -> anyhow::Result<Self> {
        let (addr, running) = host::serve(Echo, host::policy(), Some(model), at)?;
        let idle = (0..idle).map(|_| host::connect(addr)).collect::<anyhow::Result<Vec<_>>>()?;
        host::wait_until("idle connections", || running.stats().open() >= idle.len() as u64)?;
        Ok(Self { name, addr, running, idle })
    }

    /// Whether each wait looks at many connections.
    fn is_slow(&self) -> bool {
        self.running.model() == Model::Select && !self.idle.is_empty()
    }

    /// The median of some round trips.
    fn round_trip(&self) -> anyhow::Result<Duration> {
        let mut client = host::connect(self.addr)?;
        let mut times = Vec::new();
        for _ in 0..201 {
            let begun = Instant::now();
            host::exchange(&mut client, &[7; 64])?;
            times.push(begun.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    }
}

/// C first: its sockets then have small numbers, and the set of select ends early.
fn servers(idle: usize, at: SocketAddr) -> anyhow::Result<[Crowded; 3]> {
    let other = Model::available().into_iter().find(|model| [Model::Epoll, Model::Iocp].contains(model));
    let c = Crowded::start("C", Model::Select, 0, SocketAddr::new(at.ip(), 0))?;
    let a = Crowded::start("A", other.unwrap_or(Model::Tokio), idle, at)?;
    let b = Crowded::start("B", Model::Select, idle, SocketAddr::new(at.ip(), 0))?;
    Ok([a, b, c])
}

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let _ = system::raise_descriptor_limit(); // with fewer descriptors there are fewer idle connections
    let limit = usize::try_from(system::descriptor_limit().0).unwrap_or(usize::MAX);
    // Both ends are of this process, which needs some more for itself and for checking the answer.
    let servers = servers(IDLE.min(limit.saturating_sub(KEPT_BACK) / 4), at)?;
    Ok(Scene { addrs: servers.iter().map(|server| server.addr).collect(), _servers: Box::new(servers) })
}

fn measure() -> anyhow::Result<Measured> {
    let servers = servers(IDLE_TO_CHECK, anywhere())?;
    let mut evidence = Vec::new();
    for server in &servers {
        let (model, idle, time) = (server.running.model(), server.idle.len(), server.round_trip()?);
        evidence.push(format!("{} ({model}, {idle} idle connections) {time:.0?}", server.name));
    }
    let slow = servers.iter().find(|server| server.is_slow()).map_or("", |server| server.name);
    let evidence = format!(
        "{slow} looks at all its connections in each wait. A round trip just now, with few of them: {}",
        evidence.join(", ")
    );
    Ok(Measured { value: Value::Choice(slow), evidence })
}
