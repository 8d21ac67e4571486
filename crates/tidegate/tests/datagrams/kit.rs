//! Models, servers and peers for the cases.

#[path = "../conformance/kit/deadline.rs"]
mod deadline;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use tidegate::{
    DatagramPath, DatagramPolicy, DatagramServer, DatagramService, DatagramStats, Model, Replies,
    RunningDatagrams,
};

pub const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Sends everything back.
pub struct Echo;

impl DatagramService for Echo {
    fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
        out.send(from, bytes);
    }
}

/// Runs a case on every model and path that go together, each under a deadline.
pub fn everywhere(case: &str, run: impl Fn(Model, DatagramPolicy)) {
    let mut ran = 0;
    for model in Model::available() {
        for &path in DatagramPath::ALL {
            let lacks = model == Model::Rio || model == Model::Uring && path == DatagramPath::Batched;
            if lacks || !path.availability().is_available() {
                continue; // `what_cannot_be_is_refused` looks at those
            }
            let _deadline = deadline::Deadline::new(format!("{case} on {model}, {path}"));
            let policy = DatagramPolicy::default()
                .path(Some(path))
                .threads(NonZeroUsize::new(1))
                .drain_timeout(Duration::from_secs(60)); // a crowded machine is no slow service
            run(model, policy);
            ran += 1;
        }
    }
    assert!(ran >= 7, "only {ran} models and paths could be tried");
}

pub fn start<S: DatagramService>(
    model: Model,
    policy: DatagramPolicy,
    ip: IpAddr,
    make: impl Fn(usize) -> S + Send + 'static,
) -> RunningDatagrams {
    DatagramServer::new(make).model(model).policy(policy).bind((ip, 0)).unwrap().start().unwrap()
}

/// Whether several threads of a model can have one port: on Windows only those that share a socket.
pub fn has_threads(model: Model) -> bool {
    cfg!(unix) || model == Model::Pool
}

/// Looks that several threads are refused, and that it is said what to do.
pub fn refuses_threads(model: Model, policy: DatagramPolicy) {
    assert!(policy.threads.is_some_and(|threads| threads.get() > 1), "{policy:?}");
    let refusal = DatagramServer::new(|_| Echo).model(model).policy(policy).bind((LOCALHOST, 0));
    let why = refusal.expect_err("several sockets on one port").to_string();
    assert!(why.contains("use one thread"), "{model}: {why}");
}

/// A plain socket that talks to the server only.
pub fn peer(server: &RunningDatagrams) -> UdpSocket {
    let to = server.local_addr();
    let socket = UdpSocket::bind((to.ip(), 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket
}

/// One datagram there, and what comes back.
pub fn ask(peer: &UdpSocket, bytes: &[u8]) -> Vec<u8> {
    peer.send(bytes).unwrap();
    take(peer)
}

pub fn take(peer: &UdpSocket) -> Vec<u8> {
    let mut room = vec![0; 70_000];
    let n = loop {
        match peer.recv(&mut room) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            outcome => break outcome.unwrap(),
        }
    };
    room.truncate(n);
    room
}

/// Waits for a condition.
pub fn until(server: &RunningDatagrams, what: &str, holds: impl Fn(&DatagramStats) -> bool) {
    let start = Instant::now();
    while !holds(&server.stats()) {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "never: {what}; {} {:?}",
            server.model(),
            server.stats()
        );
        std::thread::yield_now();
    }
}

pub fn end(server: RunningDatagrams) -> DatagramStats {
    server.stop();
    server.join()
}
