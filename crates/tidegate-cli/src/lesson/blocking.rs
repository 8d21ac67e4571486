//! Blocking and threads: as many clients as threads, and nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;

use super::host::{self, anywhere};
use super::question::{Measured, Question};
use super::{Lesson, Scene};

pub const LESSON: Lesson = Lesson {
    title: "blocking and threads",
    about: "A thread for each connection. How many clients lock all others out?",
    server: "The server at {addr} is an echo server with a few threads. Each thread accepts a connection, and serves it
with blocking calls until its client closes it.",
    task: "Find out how many clients that stay connected are enough to lock all others out.",
    commands: &[
        "tidegate load echo {addr} -c 1 -n 100 --timeout 3s",
        "tidegate load echo {addr} -c 8 -n 100 --timeout 3s   # established: the kernel connected; verified: an answer came",
    ],
    question: Question::Number {
        unit: "clients",
        tolerance_percent: 0.0,
        too_low: "so many clients are served, and there is still a thread for one more. The report of `-c 8` says how \
many connections were verified: those got an answer.",
        too_high: "fewer are enough. Connections are established by the kernel, also when no thread is left to accept \
them; the report of `-c 8` says how many were verified.",
    },
    explanation: "A blocking receive occupies its thread for as long as the client likes, also when the client says
nothing. Clients beyond the number of threads are connected (the kernel completes the handshake and queues them in the
backlog) and never served: three silent connections are a denial of service. Either have a thread for every connection
you admit, and limit those (`blocking`), or let threads wait for many connections at once (every other model). In both
cases limit how long a client may be silent: `first_byte_timeout`, `idle_timeout`.",
    page: "models/blocking.md",
    start,
    measure,
};

const THREADS: usize = 3;

fn start(at: SocketAddr) -> anyhow::Result<Scene> {
    let server = ThreadServer::start(at, THREADS)?;
    Ok(Scene::of(server.addr, server))
}

fn measure() -> anyhow::Result<Measured> {
    let served = clients_served(THREADS)?;
    let evidence = format!("{served} clients were answered; then no thread was left to accept another one");
    Ok(Measured::number(served, evidence))
}

/// Connects clients that stay, one after the other, until no thread is left for one more.
fn clients_served(threads: usize) -> anyhow::Result<usize> {
    let server = ThreadServer::start(anywhere(), threads)?;
    let mut clients = Vec::new();
    while server.shared.free.load(SeqCst) > 0 {
        let mut client = host::connect(server.addr)?;
        host::exchange(&mut client, b"hello")?;
        clients.push(client);
    }
    Ok(clients.len())
}

/// Threads that each serve one connection at a time.
struct ThreadServer {
    addr: SocketAddr,
    shared: Arc<BlockingShared>,
    threads: Vec<JoinHandle<()>>,
}

struct BlockingShared {
    /// Threads that serve nobody.
    free: AtomicUsize,
    is_stopping: AtomicBool,
    /// The connection of each thread, so that a stop can end it.
    serving: Mutex<Vec<Option<TcpStream>>>,
}

impl ThreadServer {
    fn start(at: SocketAddr, threads: usize) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at}"))?;
        let shared = Arc::new(BlockingShared {
            free: AtomicUsize::new(threads),
            is_stopping: AtomicBool::new(false),
            serving: Mutex::new((0..threads).map(|_| None).collect()),
        });
        let mut server = Self { addr: listener.local_addr()?, shared, threads: Vec::new() };
        for number in 0..threads {
            let (listener, shared) = (listener.try_clone()?, Arc::clone(&server.shared));
            let builder = std::thread::Builder::new().name(format!("lesson-{number}"));
            server.threads.push(builder.spawn(move || serve(&listener, &shared, number))?);
        }
        Ok(server)
    }
}

impl BlockingShared {
    fn serving(&self, number: usize, stream: Option<TcpStream>) {
        let mut all = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(number) {
            *own = stream;
        }
    }
}

fn serve(listener: &TcpListener, shared: &BlockingShared, number: usize) {
    while !shared.is_stopping.load(SeqCst) {
        let Ok((mut stream, _)) = listener.accept() else { continue };
        shared.free.fetch_sub(1, SeqCst);
        shared.serving(number, stream.try_clone().ok());
        let mut buffer = [0; 4096];
        // Looked at behind `serving`: either this thread sees the stop, or the stop ends its connection.
        while !shared.is_stopping.load(SeqCst) {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(length) if stream.write_all(&buffer[..length]).is_err() => break,
                Ok(_) => {}
            }
        }
        shared.serving(number, None);
        shared.free.fetch_add(1, SeqCst);
    }
}

impl Drop for ThreadServer {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, SeqCst);
        for stream in self.shared.serving.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both); // one that is gone already needs none
        }
        for thread in self.threads.drain(..) {
            while !thread.is_finished() {
                drop(TcpStream::connect(self.addr)); // wakes an accept
                std::thread::yield_now();
            }
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_serves_one_client() {
        for threads in [1, 2, 5] {
            assert_eq!(clients_served(threads).unwrap(), threads);
        }
    }
}
