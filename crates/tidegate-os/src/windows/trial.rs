//! What is done with functions that are asked for at run time, on the system itself: files, sockets that are used
//! again, and the signal that too few accepts are posted.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::events::{EventAcceptor, Events};
use super::extension;
use super::overlapped::{
    AcceptAt, Buffer, Closing, Done, Notifier, OperationQueue, Outcome, OverlappedSocket, Parts, Payload,
    Queue, QueueSetup, SocketKind, is_aborted, is_open,
};
use super::port::{AcceptPort, CompletionPort};
use crate::file::FileRange;
use crate::pages::Residence;
use crate::socket::{ListenOptions, Listener};

/// Nothing here takes a second; a machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);

/// Bytes of a file that go in one operation.
const STEP: usize = 64 * 1024;

/// Buffers of a queue.
const BUFFERS: usize = 8;

struct Bench<N: Notifier> {
    queue: Queue<N>,
    acceptor: Arc<N::Acceptor>,
    addr: SocketAddr,
}

fn listener() -> Arc<Listener> {
    Arc::new(Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(16)).unwrap())
}

fn setup() -> QueueSetup {
    QueueSetup {
        sockets: SocketKind::Plain,
        buffers: BUFFERS,
        buffer_bytes: 4096,
        residence: Residence::Pageable,
        posted: true,
        reuse: 0,
    }
}

impl Bench<CompletionPort> {
    fn new(reuse: usize) -> Self {
        on_a_port(&QueueSetup { reuse, ..setup() })
    }
}

impl<N: Notifier> Bench<N> {
    fn over(notify: N, acceptor: Arc<N::Acceptor>, setup: &QueueSetup) -> Self {
        let addr = N::listener(&acceptor).local_addr().unwrap().addr().unwrap();
        Self { queue: Queue::new(notify, setup).unwrap(), acceptor, addr }
    }

    fn next(&mut self) -> Done {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(done) = self.queue.next() {
                return done;
            }
            assert!(Instant::now() < deadline, "nothing has come back");
            self.queue.wait(Some(Duration::from_millis(100))).unwrap();
        }
    }

    fn dial(&self) -> TcpStream {
        let far = TcpStream::connect_timeout(&self.addr, DEADLINE).unwrap();
        far.set_read_timeout(Some(DEADLINE)).unwrap();
        far
    }

    /// The next connection.
    fn accepted(&mut self) -> OverlappedSocket {
        loop {
            match self.next().outcome {
                Outcome::Accepted(outcome) => return outcome.unwrap(),
                Outcome::Behind => {}
                _ => panic!("something else than an accept"),
            }
        }
    }

    fn pair(&mut self) -> (OverlappedSocket, TcpStream) {
        self.queue.accept(&self.acceptor, 1, AcceptAt::Connection);
        let far = self.dial();
        (self.accepted(), far)
    }

    fn sent(&mut self) -> (io::Result<usize>, Option<Payload>) {
        loop {
            match self.next().outcome {
                Outcome::Sent(outcome, rest) => return (outcome, rest),
                Outcome::Behind => {}
                _ => panic!("something else than a send"),
            }
        }
    }

    /// Whether a send of so many bytes has ended within a second.
    fn is_sent_soon(&mut self, bytes: usize) -> bool {
        for _ in 0..5 {
            self.queue.wait(Some(Duration::from_millis(200))).unwrap();
            match self.queue.next().map(|done| done.outcome) {
                None | Some(Outcome::Behind) => {}
                Some(Outcome::Sent(outcome, _)) => {
                    assert_eq!(outcome.unwrap(), bytes);
                    return true;
                }
                Some(_) => panic!("something else than a send"),
            }
        }
        false
    }

    /// Sends all of it, so much of a file in one operation; returns what each operation took.
    fn send(&mut self, socket: &OverlappedSocket, payload: Payload, most: usize) -> Vec<usize> {
        let (mut left, mut steps) = (Some(payload), Vec::new());
        while let Some(mut payload) = left {
            if let Payload::Parts(parts) = &mut payload {
                parts.begin_step(most, Instant::now());
            }
            self.queue.send(socket, payload, 2);
            let (outcome, rest) = self.sent();
            steps.push(outcome.unwrap());
            left = rest;
        }
        steps
    }

    fn received(&mut self, socket: &OverlappedSocket) -> Option<Buffer> {
        self.queue.receive(socket, 3);
        self.outcome().unwrap()
    }

    /// Of the next receive that comes back.
    fn outcome(&mut self) -> io::Result<Option<Buffer>> {
        loop {
            match self.next().outcome {
                Outcome::Received(outcome) => return outcome,
                Outcome::Behind => {}
                _ => panic!("something else than a receive"),
            }
        }
    }

    /// A silent connection holds an accept, and others find none.
    fn connections_without_an_accept_are_reported(&mut self) {
        self.queue.accept(&self.acceptor, 1, AcceptAt::FirstData);
        let _silent = self.dial();
        for _ in 0..3 {
            let _far = self.dial();
            assert!(matches!(self.next().outcome, Outcome::Behind));
            self.queue.accept(&self.acceptor, 1, AcceptAt::Connection);
            drop(self.accepted());
        }
    }

    /// A connection alone does not end such an accept.
    fn an_accept_brings_the_first_data(mut self) {
        self.queue.accept(&self.acceptor, 1, AcceptAt::FirstData);
        let mut far = self.dial();
        self.queue.wait(Some(Duration::from_millis(200))).unwrap();
        assert!(matches!(self.queue.next().map(|done| done.outcome), None | Some(Outcome::Behind)));
        far.write_all(b"ask").unwrap();
        let socket = self.accepted();
        self.queue.receive(&socket, 3);
        let first = self.queue.next().expect("it has come with the accept");
        let Outcome::Received(Ok(Some(buffer))) = first.outcome else { panic!("no data") };
        assert_eq!(self.queue.bytes(&buffer), b"ask");
        self.queue.recycle(buffer);
    }

    /// More than there are, one after the other: filled and given back, or ended.
    fn buffers_are_used_again(mut self) {
        let (socket, mut far) = self.pair();
        for round in 0..3 * BUFFERS as u8 {
            far.write_all(&[round]).unwrap();
            let buffer = self.received(&socket).expect("a byte");
            assert_eq!(self.queue.bytes(&buffer), [round]);
            self.queue.recycle(buffer);
            self.queue.receive(&socket, 3);
            self.queue.stop_receiving(&socket);
            assert!(is_aborted(&self.outcome().unwrap_err()), "round {round}");
        }
        // None was lost, and none is two by now.
        let mut take = |round| {
            far.write_all(&[round]).unwrap();
            self.received(&socket).expect("a byte")
        };
        let all: Vec<_> = (0..BUFFERS as u8).map(&mut take).collect();
        for (round, buffer) in all.iter().enumerate() {
            assert_eq!(self.queue.bytes(buffer), [round as u8]);
        }
    }
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n % 251) as u8).collect()
}

fn file(content: &[u8]) -> Arc<std::fs::File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    Arc::new(file)
}

fn is_here(name: &str) -> bool {
    extension::found().iter().any(|found| found.name == name && found.refused.is_none())
}

#[test]
fn the_socket_of_an_accept_is_closed_when_that_has_come_back_and_not_before() {
    let mut bench = Bench::new(0);
    for at in [AcceptAt::Connection, AcceptAt::FirstData] {
        bench.queue.accept(&bench.acceptor, 1, at);
    }
    let sockets = bench.queue.accept_sockets();
    assert_eq!(sockets.len(), 2);
    let silent = TcpStream::connect(bench.addr).unwrap();
    while !matches!(bench.next().outcome, Outcome::Accepted(Ok(_))) {}
    bench.queue.stop_accepting();
    let held = bench.queue.accept_sockets();
    assert!(held.len() == 1 && sockets.contains(&held[0]) && is_open(held[0]), "{held:?} of {sockets:?}");
    let outcome = loop {
        match bench.next().outcome {
            Outcome::Accepted(outcome) => break outcome,
            Outcome::Behind => assert!(is_open(held[0])),
            _ => panic!("something else than an accept"),
        }
    };
    assert!(outcome.is_err() && !is_open(held[0]) && bench.queue.accept_sockets().is_empty());
    drop(silent);
}

#[test]
fn a_socket_that_is_closed_leaves_the_operations_of_others_alone() {
    let mut bench = Bench::new(0);
    assert!(bench.queue.sends_files(), "every Windows sends files, and so does Wine");
    let [(first, mut far), (second, _heard), (third, _file)] = [(); 3].map(|()| bench.pair());
    far.write_all(b"ask").unwrap();
    let buffer = bench.received(&first).expect("three bytes");
    bench.queue.recycle(buffer);
    // Each operation from here on has the place in the table that the one before it had, the receive first.
    bench.queue.send(&second, Payload::One(Bytes::from_static(b"one")), 2);
    bench.queue.close(first, Closing::Orderly);
    assert_eq!(bench.sent().0.unwrap(), 3);
    let mut parts = Parts::new(vec![], FileRange::new(file(&content(2 * STEP)), 0, 2 * STEP), vec![]);
    parts.begin_step(STEP, Instant::now());
    bench.queue.send(&third, Payload::Parts(Box::new(parts)), 3);
    bench.queue.send(&second, Payload::One(Bytes::from_static(b"two")), 4);
    let mut sent = [0, 0];
    for _ in 0..2 {
        match bench.next() {
            Done { key, outcome: Outcome::Sent(outcome, _) } => sent[key as usize - 3] = outcome.unwrap(),
            _ => panic!("something else than a send"),
        }
    }
    assert_eq!(sent, [STEP, 3], "the send of one waits for the file of another");
}

#[test]
fn a_reset_is_a_reset_also_where_several_sends_are_in_flight() {
    let mut bench = Bench::new(0);
    let (socket, far) = bench.pair();
    let bytes = Bytes::from(content(16 << 20));
    (0..3).for_each(|_| bench.queue.send(&socket, Payload::One(bytes.clone()), 2));
    socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
    drop(far);
    for _ in 0..3 {
        let kind = bench.sent().0.unwrap_err().kind();
        assert!(matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted), "{kind}");
    }
}

#[test]
fn a_file_leaves_among_the_bytes_around_it() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.queue.sends_files(), is_here("TransmitFile") || is_here("TransmitPackets"));
    assert!(bench.queue.sends_files(), "every Windows sends files, and so does Wine");
    let content = content(3 * STEP + 1234);
    let (socket, mut far) = bench.pair();
    for (at, bytes) in [(0, content.len()), (5, 1), (STEP, STEP), (70_001, STEP + 1000)] {
        let range = FileRange::new(file(&content), at as u64, bytes);
        let pieces = |text: &[&'static str]| text.iter().map(|t| Bytes::from_static(t.as_bytes())).collect();
        let parts = Parts::new(pieces(&["be", "fore"]), range, pieces(&["after"]));
        let reader = std::thread::spawn(move || {
            let mut heard = vec![0; 6 + bytes + 5];
            far.read_exact(&mut heard).map(|()| (heard, far))
        });
        let steps = bench.send(&socket, Payload::Parts(Box::new(parts)), STEP);
        assert_eq!((steps.len(), steps.iter().sum()), (bytes.div_ceil(STEP), 6 + bytes + 5), "{steps:?}");
        let (heard, stream) = reader.join().unwrap().unwrap();
        assert!(heard == [b"before", &content[at..at + bytes], b"after"].concat(), "{at} {bytes}");
        far = stream;
    }
}

#[test]
fn a_gibibyte_of_a_file_is_one_operation() {
    const BYTES: usize = 1 << 30;
    let mut bench = Bench::new(0);
    assert!(bench.queue.sends_files(), "every Windows sends files, and so does Wine");
    let (socket, mut far) = bench.pair();
    let long = tempfile::tempfile().unwrap();
    long.set_len(BYTES as u64).unwrap();
    let parts = Parts::new(vec![], FileRange::new(Arc::new(long), 0, BYTES), vec![]);
    let reader = std::thread::spawn(move || {
        let (mut heard, mut buffer) = (0, vec![0; 1 << 20]);
        while heard < BYTES {
            heard += far.read(&mut buffer).unwrap();
        }
        heard
    });
    assert_eq!(bench.send(&socket, Payload::Parts(Box::new(parts)), usize::MAX), [BYTES]);
    assert_eq!(reader.join().unwrap(), BYTES);
}

#[test]
fn a_file_that_has_become_shorter_ends_in_an_error() {
    let mut bench = Bench::new(0);
    assert!(bench.queue.sends_files(), "every Windows sends files, and so does Wine");
    for tail in [vec![], vec![Bytes::from_static(b"after")]] {
        let (socket, _far) = bench.pair();
        let range = FileRange::new(file(b"0123456789"), 4, 20_000);
        let mut left = Some(Payload::Parts(Box::new(Parts::new(vec![], range, tail))));
        let error = loop {
            bench.queue.send(&socket, left.take().expect("the file promised more"), 2);
            match bench.sent() {
                (Err(e), _) => break e,
                (Ok(_), rest) => left = rest,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    }
}

#[test]
fn a_file_that_nobody_takes_is_ended_with_its_socket() {
    let mut bench = Bench::new(0);
    assert!(bench.queue.sends_files(), "every Windows sends files, and so does Wine");
    let (socket, far) = bench.pair();
    let content = file(&content(STEP));
    let shared = || FileRange::new(content.clone(), 0, STEP);
    // Until one has to wait for the reader who never reads.
    let waits = (0..1000).any(|_| {
        bench.queue.send(&socket, Payload::Parts(Box::new(Parts::new(vec![], shared(), vec![]))), 2);
        !bench.is_sent_soon(STEP)
    });
    assert!(waits, "somebody takes it all");
    bench.queue.stop_all(&socket);
    bench.queue.close(socket, Closing::Reset);
    assert!(bench.sent().0.is_err());
    assert_eq!(Arc::strong_count(&content), 1, "nobody holds the file any more");
    drop(far);
}

#[test]
fn a_socket_is_used_again_or_closed_and_the_next_connection_is_served() {
    let mut bench = Bench::new(2);
    let (mut reused, mut refusals) = (0, 0);
    for round in 0..4 {
        let (socket, mut far) = bench.pair();
        far.write_all(b"ask").unwrap();
        let buffer = bench.received(&socket).expect("three bytes");
        assert_eq!(bench.queue.bytes(&buffer), b"ask", "round {round}");
        bench.queue.recycle(buffer);
        bench.send(&socket, Payload::One(Bytes::from_static(b"answer")), STEP);
        let mut heard = [0; 6];
        far.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"answer", "round {round}");
        drop(far);
        assert!(bench.received(&socket).is_none(), "the peer has closed first");
        bench.queue.close(socket, Closing::Orderly);
        bench.queue.wait(Some(Duration::from_millis(200))).unwrap();
        assert!(bench.queue.next().is_none(), "a disconnect tells nobody");
        let (again, refusal) = bench.queue.take_reuse();
        reused += again;
        refusals += u64::from(refusal.is_some());
    }
    println!("{reused} connections came in on a used socket; refused: {refusals}");
    assert!(reused > 0 || refusals == 1, "neither used nor refused");
}

#[test]
fn a_connection_without_an_accept_is_reported() {
    let mut bench = Bench::new(0);
    Notifier::join(bench.queue.notify_mut(), &bench.acceptor);
    for _ in 0..3 {
        let _far = bench.dial();
        assert!(matches!(bench.next().outcome, Outcome::Behind));
        bench.queue.accept(&bench.acceptor, 1, AcceptAt::Connection);
        drop(bench.accepted());
    }
}

fn on_a_port(setup: &QueueSetup) -> Bench<CompletionPort> {
    Bench::over(CompletionPort::new(16).unwrap(), Arc::new(AcceptPort::new(listener()).unwrap()), setup)
}

fn by_events(setup: &QueueSetup) -> Bench<Events> {
    Bench::over(Events::new().unwrap(), Arc::new(EventAcceptor::new(listener()).unwrap()), setup)
}

#[test]
fn a_connection_without_an_accept_beside_a_held_one_is_reported_on_a_port() {
    on_a_port(&setup()).connections_without_an_accept_are_reported();
}

#[test]
fn a_connection_without_an_accept_beside_a_held_one_is_reported_by_events() {
    let mut full = by_events(&setup());
    let mut bench = Bench::over(Events::new().unwrap(), full.acceptor.clone(), &setup());
    Notifier::join(full.queue.notify_mut(), &full.acceptor);
    bench.connections_without_an_accept_are_reported();
    full.queue.wait(Some(Duration::ZERO)).unwrap();
    assert!(full.queue.next().is_none(), "who has no accepts is not woken");
}

#[test]
fn an_accept_on_a_port_brings_the_first_data() {
    on_a_port(&setup()).an_accept_brings_the_first_data();
}

#[test]
fn an_accept_by_events_brings_the_first_data() {
    by_events(&setup()).an_accept_brings_the_first_data();
}

#[test]
fn buffers_are_used_again_on_a_port() {
    for posted in [true, false] {
        on_a_port(&QueueSetup { posted, ..setup() }).buffers_are_used_again();
    }
}

#[test]
fn buffers_are_used_again_by_events() {
    for posted in [true, false] {
        by_events(&QueueSetup { posted, ..setup() }).buffers_are_used_again();
    }
}

#[test]
fn buffers_and_operations_are_locked_if_that_is_asked_for_on_a_port() {
    for residence in [Residence::Locked, Residence::Pageable] {
        assert_eq!(on_a_port(&QueueSetup { residence, ..setup() }).queue.residences(), [residence; 2]);
    }
}

#[test]
fn buffers_and_operations_are_locked_if_that_is_asked_for_by_events() {
    for residence in [Residence::Locked, Residence::Pageable] {
        assert_eq!(by_events(&QueueSetup { residence, ..setup() }).queue.residences(), [residence; 2]);
    }
}
