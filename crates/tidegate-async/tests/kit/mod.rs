//! What the cases share: a server on each model, plain sockets, and counts to wait for.
#![allow(dead_code, reason = "each file of cases uses a part of it")]

#[path = "../../../tidegate/tests/harness/streams.rs"]
pub mod streams;

use std::io::Read;
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tidegate::{Model, Policy, Running, Server, Service};
use tidegate_async::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long anything may take before a case fails.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub fn policy(model: Model) -> Policy {
    // One thread, so that connections meet on it; models that have threads for connections choose for themselves.
    let fixed = !matches!(model, Model::Blocking | Model::Pool);
    let threads = if fixed { NonZeroUsize::new(1) } else { None };
    Policy::default().threads(threads).drain_timeout(TIMEOUT) // a crowded machine is no slow peer
}

/// Runs a case on every model that works here, or on those that `TIDEGATE_MODELS` names (`iocp,select`).
pub fn on_every_model(case: impl Fn(Model)) {
    let mut models = Model::available();
    assert!(models.len() >= 4, "too few models work here: {models:?}");
    if let Ok(names) = std::env::var("TIDEGATE_MODELS") {
        let asked: Vec<Model> = names.split(',').map(|name| name.parse().unwrap()).collect();
        models.retain(|model| asked.contains(model));
        assert_eq!(models.len(), asked.len(), "of {names} only {models:?} work here");
    }
    for model in models {
        eprintln!("on {model}");
        case(model);
    }
}

pub fn start(model: Model, policy: Policy, service: impl Service) -> Running {
    let server = Server::new(service).model(model).policy(policy);
    server.bind("127.0.0.1:0").unwrap().start().unwrap()
}

pub fn connect(running: &Running) -> TcpStream {
    let stream = TcpStream::connect(running.local_addr().addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Vec<u8> {
    streams::send_all(stream, bytes).unwrap();
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).unwrap();
    answer
}

pub fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

pub async fn echo(mut conn: Connection) {
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = conn.read(&mut buffer).await {
        if conn.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// Bytes that differ from their neighbours, so that a lost or doubled one shows.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}

/// Waits until a count has begun to grow, and has then stood for a moment.
pub fn comes_to_rest(count: &AtomicUsize) {
    let mut last = (0, Instant::now());
    while last.0 == 0 || last.1.elapsed() < Duration::from_millis(300) {
        let now = count.load(SeqCst);
        if now != last.0 {
            last = (now, Instant::now());
        }
        assert!(last.1.elapsed() < TIMEOUT, "nothing moves");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Counts when it is dropped.
pub struct Dropped(pub Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Ends a connection by a reset.
pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}
