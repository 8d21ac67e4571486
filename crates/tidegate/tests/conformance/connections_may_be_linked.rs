//! A session may dial on the thread of its connection, and two connections may be linked: bytes, back-pressure, the end
//! of a stream and a reset go from one to the other.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::link::{self, Link};
use tidegate::{
    CloseReason, Consumed, Dial, Dialled, Endpoint, Flow, Mail, Model, Outbox, Peer, Policy, PolicyError,
    Refusal, Server, Service, ServiceOptions, Session, Spliced, StartError,
};

use crate::kit::{self, ClosedPort, EchoPeer, Ending, Tape};

on_every_model!(case);

/// What a link holds of each direction.
pub(super) const LINK_BYTES: usize = 16 * 1024;

/// How long a dial may take where it is to succeed.
const LONG: Duration = Duration::from_secs(45);

fn case(model: Model) {
    bytes_go_both_ways(model, kit::policy(model), 24 << 20);
    bytes_go_both_ways(model, tight(model), 1 << 20);
    the_caller_finishes_first(model);
    the_upstream_finishes_first(model);
    the_caller_resets(model);
    the_upstream_resets(model);
    nobody_listens(model);
    nobody_answers_in_time(model);
    a_slow_upstream_holds_the_caller_back(model);
    a_slow_caller_holds_the_upstream_back(model);
    many_pairs_share_the_places(model);
    a_stop_waits_for_an_answer(model);
    a_stop_closes_what_rests(model);
    there_have_to_be_places_for_both(model);
}

fn tight(model: Model) -> Policy {
    // Callers that are held back may take the only buffers of a thread; two are enough for nobody to wait for another.
    kit::tight(model).max_connections(8)
}

/// Links each connection to one that it dials.
struct Relay {
    to: Endpoint,
    within: Duration,
    failures: Arc<Mutex<Vec<ErrorKind>>>,
    draining: Arc<AtomicBool>,
    open: Arc<Open>,
}

impl Relay {
    fn to(to: SocketAddr) -> Self {
        let (failures, draining, open) = Default::default();
        Self { to: to.into(), within: kit::slow(LONG), failures, draining, open }
    }
}

/// Sessions between `on_open` and `on_close`, of callers and of what is dialled for them.
#[derive(Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Open {
    fn opened(&self) {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
    }

    fn closed(&self) {
        self.now.fetch_sub(1, SeqCst);
    }
}

impl Service for Relay {
    type Session = Near;

    fn open(&self, _: &Peer) -> Result<Near, Refusal> {
        let (near, far) = link::pair(LINK_BYTES);
        let dial = Dial::to(self.to.clone());
        let failures = self.failures.clone();
        let draining = self.draining.clone();
        let open = self.open.clone();
        let far = Some(RemoteEnd(far, open.clone()));
        Ok(Near { link: near, far, dial, within: self.within, failures, draining, open })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true).dials(1)
    }
}

struct Near {
    link: Link,
    far: Option<RemoteEnd>,
    dial: Dial,
    within: Duration,
    failures: Arc<Mutex<Vec<ErrorKind>>>,
    draining: Arc<AtomicBool>,
    open: Arc<Open>,
}

impl Session for Near {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.open.opened();
        if let Some(far) = self.far.take() {
            out.dial(self.dial.clone(), self.within, far).expect("the server runs");
        }
        self.link.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.link.on_bytes(input, out)
    }

    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        self.link.on_spliced(bytes, out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.link.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Dialled(Dialled { result: Ok(()), .. }) => Flow::Continue,
            // The other half of a pair whose caller has gone may still be closing.
            Mail::Dialled(Dialled { result: Err(e), .. }) if e.kind() == ErrorKind::QuotaExceeded => {
                out.wake_at(out.now() + Duration::from_millis(2));
                Flow::Continue
            }
            Mail::Timer => {
                let far = RemoteEnd(self.link.other(), self.open.clone());
                out.dial(self.dial.clone(), self.within, far).expect("the server runs");
                Flow::Continue
            }
            Mail::Dialled(Dialled { result: Err(e), .. }) => {
                self.failures.lock().expect("failures").push(e.kind());
                Flow::Abort
            }
            mail => self.link.on_mail(mail, out),
        }
    }

    fn on_drain(&mut self, _out: &mut Outbox<'_>) -> Flow {
        self.draining.store(true, SeqCst);
        Flow::Continue
    }

    fn on_close(&mut self, why: CloseReason) {
        self.open.closed();
        self.link.on_close(why);
    }
}

struct RemoteEnd(Link, Arc<Open>);

impl Session for RemoteEnd {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.1.opened();
        self.0.on_open(out)
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        self.0.on_bytes(input, out)
    }

    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        self.0.on_spliced(bytes, out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_drained(out)
    }

    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.0.on_end(out)
    }

    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        self.0.on_mail(mail, out)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.1.closed();
        self.0.on_close(why);
    }
}

/// A port whose connections the case gets to hold.
pub(super) fn upstream() -> (SocketAddr, Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let (comes, come) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_read_timeout(Some(kit::timeout())).expect("read timeout");
            stream.set_write_timeout(Some(kit::timeout())).expect("write timeout");
            if comes.send(stream).is_err() {
                return;
            }
        }
    });
    (addr, come)
}

/// A server, a caller, and what the server has dialled for it.
fn linked(model: Model) -> (tidegate::Running, TcpStream, TcpStream) {
    let (addr, come) = upstream();
    linked_by(model, Relay::to(addr), &come)
}

fn linked_by(
    model: Model,
    relay: Relay,
    come: &Receiver<TcpStream>,
) -> (tidegate::Running, TcpStream, TcpStream) {
    let server = kit::serve(model, kit::policy(model), relay);
    let mut near = kit::connect(server.local_addr().clone());
    let mut far = come.recv_timeout(kit::timeout()).expect("the server dials");
    // Both are open, and each knows of the other.
    near.write_all(b"?").expect("send");
    assert_eq!(kit::hear(&mut far, 1), b"?");
    far.write_all(b"!").expect("send");
    assert_eq!(kit::hear(&mut near, 1), b"!");
    (server, near, far)
}

fn bytes_go_both_ways(model: Model, policy: Policy, bytes: usize) {
    let echo_peer = EchoPeer::open(|_, _| {});
    let server = kit::serve(model, policy, Relay::to(echo_peer.addr));
    let calls = |tag: u64| {
        let mut stream = kit::connect(server.local_addr().clone());
        let (tape, mut sender) = (Tape::new(tag), stream.try_clone().expect("clone"));
        std::thread::spawn(move || {
            let tape = Tape::new(tag);
            let mut at = 0;
            while at < bytes {
                let piece = tape.piece(at as u64, 10_007.min(bytes - at));
                at += piece.len();
                kit::send_all(&mut sender, &piece).expect("send");
            }
            sender.shutdown(Shutdown::Write).expect("shutdown");
        });
        std::thread::spawn(move || {
            let (mut at, mut buffer) = (0, vec![0; 64 * 1024]);
            loop {
                let n = kit::hear_some(&mut stream, &mut buffer).expect("receive");
                if n == 0 {
                    return assert_eq!(at, bytes as u64, "the end comes behind all bytes");
                }
                tape.check(at, &buffer[..n]);
                at += n as u64;
            }
        })
    };
    let callers: Vec<_> = (0..2).map(calls).collect();
    for caller in callers {
        caller.join().expect("a caller");
    }
    kit::until("the upstream has seen the ends", || echo_peer.finished() == 2);
    let stats = kit::finish(server);
    assert_eq!((stats.accepted, stats.closed_by(CloseReason::Finished)), (4, 4));
    assert_eq!((stats.bytes_in, stats.bytes_out), (4 * bytes as u64, 4 * bytes as u64));
}

fn the_caller_finishes_first(model: Model) {
    let (server, mut near, mut far) = linked(model);
    near.write_all(b"the last word").expect("send");
    near.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(kit::hear_all(&mut far), (b"the last word".to_vec(), Ending::EndOfStream));
    far.write_all(b"long after it").expect("send");
    drop(far);
    assert_eq!(kit::hear_all(&mut near), (b"long after it".to_vec(), Ending::EndOfStream));
    assert_eq!(kit::finish(server).closed_by(CloseReason::Finished), 2);
}

fn the_upstream_finishes_first(model: Model) {
    let (server, mut near, mut far) = linked(model);
    far.write_all(b"the last word").expect("send");
    far.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!(kit::hear_all(&mut near), (b"the last word".to_vec(), Ending::EndOfStream));
    near.write_all(b"long after it").expect("send");
    drop(near);
    assert_eq!(kit::hear_all(&mut far), (b"long after it".to_vec(), Ending::EndOfStream));
    assert_eq!(kit::finish(server).closed_by(CloseReason::Finished), 2);
}

fn the_caller_resets(model: Model) {
    let (server, near, mut far) = linked(model);
    kit::reset(near);
    assert_eq!(kit::hear_all(&mut far).1, Ending::Reset);
    kit::until("both are gone", || server.stats().open() == 0);
    kit::finish(server);
}

fn the_upstream_resets(model: Model) {
    let (server, mut near, mut far) = linked(model);
    far.write_all(b"it begins").expect("send");
    assert_eq!(kit::hear(&mut near, 9), b"it begins");
    kit::reset(far);
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::Reset));
    kit::until("both are gone", || server.stats().open() == 0);
    kit::finish(server);
}

fn nobody_listens(model: Model) {
    let closed = ClosedPort::new();
    let relay = Relay::to(closed.addr);
    let failures = relay.failures.clone();
    let server = kit::serve(model, kit::policy(model), relay);
    let mut near = kit::connect(server.local_addr().clone());
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::Reset));
    assert_eq!(*failures.lock().expect("failures"), [ErrorKind::ConnectionRefused]);
    let stats = kit::finish(server);
    assert_eq!((stats.attempted, stats.accepted, stats.dial_failed), (2, 1, 1));
}

/// A Linux listener whose backlog is full answers no SYN.
fn nobody_answers_in_time(model: Model) {
    if !cfg!(target_os = "linux") {
        return;
    }
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("socket");
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bind");
    listener.listen(0).expect("listen");
    let to = listener.local_addr().ok().and_then(|addr| addr.as_socket()).expect("address");
    let _fills_it = TcpStream::connect(to).expect("the only place");
    let relay = Relay { within: Duration::from_millis(50), ..Relay::to(to) };
    let failures = relay.failures.clone();
    let server = kit::serve(model, kit::policy(model), relay);
    let mut near = kit::connect(server.local_addr().clone());
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::Reset));
    assert_eq!(*failures.lock().expect("failures"), [ErrorKind::TimedOut]);
    kit::until("nothing is left of it", || server.stats().open() == 0);
    // A dial that is under way at the stop is waited for, and given up with the connection that asked.
    let relay = Relay::to(to);
    let failures = relay.failures.clone();
    let again = kit::serve(model, kit::policy(model).drain_timeout(Duration::from_millis(200)), relay);
    let mut near = kit::connect(again.local_addr().clone());
    kit::until("it dials", || again.stats().attempted == 2);
    let stats = kit::finish(again);
    assert_eq!((stats.accepted, stats.dial_failed), (1, 1), "{:?}", failures.lock());
    assert_eq!(kit::hear_all(&mut near).1, Ending::Reset);
    kit::finish(server);
}

/// Sends until nothing more is taken for a while; returns how much was.
pub(super) fn flood(stream: &mut TcpStream, most: usize) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(300))).expect("write timeout");
    let (tape, mut at) = (Tape::new(7), 0);
    while at < most {
        match stream.write(&tape.piece(at as u64, (64 * 1024).min(most - at))) {
            Ok(n) => at += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    }
    at
}

/// More than all buffers of the kernel on the way take; what is held in between has no room for it.
pub(super) const FLOOD: usize = 64 << 20;

fn held_back(writer: &mut TcpStream, reader: &mut TcpStream, server: &tidegate::Running) {
    let before = server.stats();
    let sent = flood(writer, FLOOD);
    assert!(sent < FLOOD, "nothing held it back");
    let after = server.stats();
    let (came, left) = (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out);
    // The link, the outbox, a receive buffer for each side, and what arrived before the receive ended.
    let most = (LINK_BYTES + 64 * 1024 + 4 * 16 * 1024 + 256 * 16 * 1024) as u64;
    assert!(came - left <= most, "{} bytes are held", came - left);
    writer.shutdown(Shutdown::Write).expect("shutdown");
    let (tape, mut at, mut buffer) = (Tape::new(7), 0, vec![0; 64 * 1024]);
    while let n @ 1.. = kit::hear_some(reader, &mut buffer).expect("receive") {
        tape.check(at, &buffer[..n]);
        at += n as u64;
    }
    assert_eq!(at, sent as u64);
}

fn a_slow_upstream_holds_the_caller_back(model: Model) {
    let (server, mut near, mut far) = linked(model);
    held_back(&mut near, &mut far, &server);
    drop(far);
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::EndOfStream));
    kit::finish(server);
}

fn a_slow_caller_holds_the_upstream_back(model: Model) {
    let (server, mut near, mut far) = linked(model);
    held_back(&mut far, &mut near, &server);
    drop(near);
    assert_eq!(kit::hear_all(&mut far), (Vec::new(), Ending::EndOfStream));
    kit::finish(server);
}

/// With places for four pairs, twelve callers are served, and no connection too many is ever open.
fn many_pairs_share_the_places(model: Model) {
    let echo_peer = EchoPeer::open(|_, _| {});
    let policy = kit::policy(model).max_connections(8);
    let relay = Relay::to(echo_peer.addr);
    let open = relay.open.clone();
    let server = kit::serve(model, policy, relay);
    let at = server.local_addr().clone();
    let call = |tag: u64| {
        let at = at.clone();
        std::thread::spawn(move || {
            let mut stream = kit::connect(at);
            kit::exchange(&mut stream, &Tape::new(tag).first(5_000));
        })
    };
    let callers: Vec<_> = (0..12).map(call).collect();
    for caller in callers {
        caller.join().expect("a caller");
    }
    let stats = kit::finish(server);
    assert_eq!((stats.accepted, stats.refused), (24, 0));
    // Not by `Stats::open`, which reads the counters of one thread after those of another.
    let most = open.most.load(SeqCst);
    assert!((2..=8).contains(&most), "{most} sessions were open at once");
}

fn a_stop_waits_for_an_answer(model: Model) {
    let (addr, come) = upstream();
    let relay = Relay::to(addr);
    let draining = relay.draining.clone();
    let (server, mut near, mut far) = linked_by(model, relay, &come);
    near.write_all(b"a question").expect("send");
    assert_eq!(kit::hear(&mut far, 10), b"a question");
    server.stop();
    kit::until("it drains", || draining.load(SeqCst));
    far.write_all(b"the answer").expect("send");
    assert_eq!(kit::hear(&mut near, 10), b"the answer");
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::EndOfStream));
    assert_eq!(kit::hear_all(&mut far), (Vec::new(), Ending::EndOfStream));
    assert_eq!(kit::finish(server).closed_by(CloseReason::Finished), 2);
}

fn a_stop_closes_what_rests(model: Model) {
    let (server, mut near, mut far) = linked(model);
    server.stop();
    assert_eq!(kit::hear_all(&mut near), (Vec::new(), Ending::EndOfStream));
    assert_eq!(kit::hear_all(&mut far), (Vec::new(), Ending::EndOfStream));
    assert_eq!(kit::finish(server).closed_by(CloseReason::Finished), 2);
}

fn there_have_to_be_places_for_both(model: Model) {
    let policy = kit::policy(model).max_connections(1).threads(None);
    let relay = Relay::to(SocketAddr::from(([127, 0, 0, 1], 9)));
    let bound = Server::new(relay).model(model).policy(policy).bind(kit::somewhere());
    match bound {
        Err(StartError::Policy(PolicyError::Range { name: "max_connections", .. })) => {}
        other => panic!("{:?}", other.map(|_| "bound")),
    }
}
