//! Latency and waking up: a server that sleeps between two looks at its sockets.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "latency and waking up",
    about: "A server with nothing to do answers slowly. What is it waiting for?",
    server: "The server at {addr} (process {pid}) is an echo server. Nothing waits for its sockets: it looks at all of
them, then sleeps, then looks again.",
    task: "Find out how many milliseconds it sleeps between two looks.",
    commands: &[
        "tidegate load ping {addr} -n 100",
        "strace -f -e trace=clock_nanosleep -p {pid}   # Linux, as root or with sudo: what it asks the kernel for; Ctrl-C ends it",
    ],
    question: Question::Number {
        unit: "ms",
        tolerance_percent: 25.0,
        too_low: "it sleeps longer. A ping arrives while the server sleeps, and is answered when it looks again: p50 of \
the round trip is nearly the whole sleep.",
        too_high: "it sleeps less. Look at p50 of the pings (in µs there: 1 ms is 1,000 µs), on a machine that does \
nothing else.",
    },
    explanation: "A client that answers at once meets a server that has just gone to sleep: each round trip takes the
whole sleep, however fast the machine is. And an idle server still wakes up fifty times a second. Wait for readiness
instead, and the kernel wakes the thread when there is something to do; that costs tens of microseconds. Who needs less
must not sleep at all: `--wait spin`, which takes a processor. Where throughput matters more than latency, a bounded sleep
is a tool (`--coalesce`): it answers several requests with one wake-up.",
    page: "coalescing.md",
    start,
    measure,
};

const SLEEP: Duration = Duration::from_millis(20);
/// Round trips that are measured.
const ROUND_TRIPS: usize = 11;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let server = SleepyServer::start(at)?;
    Ok(Scene::of(server.addr, server))
}

/// Counts looks, not time: a round trip takes the sleeps between two looks, whatever else the machine does.
fn measure() -> anyhow::Result<Measured> {
    let server = SleepyServer::start(anywhere())?;
    let mut client = host::connect(server.addr)?;
    host::exchange(&mut client, b"hello")?;
    let mut looks = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let before = server.shared.looks.load(SeqCst);
        host::exchange(&mut client, b"hello")?;
        looks.push(server.shared.looks.load(SeqCst) - before);
    }
    looks.sort_unstable();
    let slept = SLEEP.as_millis() as usize * looks[ROUND_TRIPS / 2];
    let evidence = format!(
        "in the middle one of {ROUND_TRIPS} round trips, the server slept {slept} ms (25% off is fine)"
    );
    Ok(Measured::number(slept, evidence))
}

/// A thread that looks at all its sockets now and then.
struct SleepyServer {
    addr: SocketAddr,
    shared: Arc<WakingShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WakingShared {
    is_stopping: AtomicBool,
    /// Times it has looked at its sockets.
    looks: AtomicUsize,
}

impl SleepyServer {
    fn start(at: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
        listener.set_nonblocking(true)?;
        let (addr, shared) = (listener.local_addr()?, Arc::<WakingShared>::default());
        let own = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("lesson".into());
        let thread = builder.spawn(move || look_now_and_then(&listener, &own))?;
        Ok(Self { addr, shared, thread: Some(thread) })
    }
}

fn look_now_and_then(listener: &TcpListener, shared: &WakingShared) {
    let mut connections: Vec<TcpStream> = Vec::new();
    while !shared.is_stopping.load(SeqCst) {
        shared.looks.fetch_add(1, SeqCst);
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() {
                connections.push(stream);
            }
        }
        connections.retain_mut(echo_what_is_there);
        std::thread::sleep(SLEEP); // the fault
    }
}

/// Echoes once, and says whether the connection goes on. One whose peer does not read is dropped.
fn echo_what_is_there(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 16 << 10];
    match stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(length) => stream.write_all(&buffer[..length]).is_ok(),
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}

impl Drop for SleepyServer {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
