//! The other direction: sessions that dial out, on the same models, receive their tags and have every byte verified.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::service::Origin;
use tidegate::{
    Client, CloseReason, Consumed, Dial, DialError, Endpoint, Flow, MailboxError, Model, Outbox, Peer,
    PolicyError, Refusal, Service, ServiceOptions, Session,
};

use crate::kit::{self, ClosedPort, EchoPeer, Tape};

on_every_model!(case);

/// What the sessions of a case reported.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Ending>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    Closed { tag: u64, why: CloseReason, verified: bool },
    Failed { tag: u64, to: Endpoint, kind: std::io::ErrorKind },
}

impl Log {
    fn add(&self, ending: Ending) {
        self.0.lock().expect("log").push(ending);
    }

    fn all(&self) -> Vec<Ending> {
        self.0.lock().expect("log").clone()
    }
}

/// Dials sessions that send so many bytes and want them back.
struct Verify {
    bytes: usize,
    log: Log,
}

struct Verifier {
    tag: u64,
    tape: Tape,
    bytes: usize,
    sent: usize,
    heard: usize,
    log: Log,
}

impl Service for Verify {
    type Session = Verifier;

    fn open(&self, peer: &Peer) -> Result<Verifier, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        peer.addr.ok_or(Refusal)?; // always there for a dialled connection
        let tape = Tape::new(tag);
        Ok(Verifier { tag, tape, bytes: self.bytes, sent: 0, heard: 0, log: self.log.clone() })
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().speaks_first(true)
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        self.log.add(Ending::Failed { tag: dial.tag, to: dial.to.clone(), kind: error.kind() });
    }
}

impl Verifier {
    fn say(&mut self, out: &mut Outbox<'_>) -> Flow {
        while self.sent < self.bytes && !out.is_full() {
            let piece = self.tape.piece(self.sent as u64, 9_000.min(self.bytes - self.sent));
            self.sent += piece.len();
            out.share(piece);
        }
        Flow::Continue
    }
}

impl Session for Verifier {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.say(out)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.say(out)
    }

    fn on_bytes(&mut self, input: &[u8], _out: &mut Outbox<'_>) -> Consumed {
        if self.tape.piece(self.heard as u64, input.len()) != input {
            return Consumed::all(input).then(Flow::Abort);
        }
        self.heard += input.len();
        let flow = if self.heard == self.bytes { Flow::Close } else { Flow::Continue };
        Consumed::all(input).then(flow)
    }

    fn on_close(&mut self, why: CloseReason) {
        self.log.add(Ending::Closed { tag: self.tag, why, verified: self.heard == self.bytes });
    }
}

fn case(model: Model) {
    many_dials(model, 500, 1_000);
    many_dials(model, 6, 400_000);
    a_closed_port(model);
    a_chosen_source(model);
    another_thread_has_its_handle(model);
}

fn client(model: Model, bytes: usize) -> (tidegate::RunningClient, Log) {
    let log = Log::default();
    let service = Verify { bytes, log: log.clone() };
    let client = Client::new(service).model(model).policy(kit::policy(model)).start().expect("start");
    assert_eq!(client.model(), model);
    (client, log)
}

fn finish(client: tidegate::RunningClient) -> tidegate::Stats {
    client.stop();
    let stats = client.join();
    kit::check(&stats);
    stats
}

fn many_dials(model: Model, dials: u64, bytes: usize) {
    let echo_peer = EchoPeer::open(|_, _| {});
    let (client, log) = client(model, bytes);
    let dialler = client.dialler();
    for tag in 0..dials {
        dialler.dial(Dial::to(echo_peer.addr).tag(tag).thread(tag as usize)).expect("dial");
    }
    kit::until("every dial has come to its end", || log.all().len() as u64 == dials);
    kit::until("the other side has seen the ends", || echo_peer.finished() as u64 == dials);
    let mut reports = log.all();
    reports.sort_by_key(|ending| match ending {
        Ending::Closed { tag, .. } | Ending::Failed { tag, .. } => *tag,
    });
    for (tag, ending) in (0..dials).zip(reports) {
        assert_eq!(ending, Ending::Closed { tag, why: CloseReason::Finished, verified: true });
    }
    let stats = finish(client);
    let total = dials * bytes as u64;
    assert_eq!((stats.attempted, stats.accepted, stats.dial_failed), (dials, dials, 0));
    assert_eq!((stats.bytes_in, stats.bytes_out), (total, total));
    let stopped = dialler.dial(echo_peer.addr.to_string()).expect_err("the client has stopped");
    assert_eq!(stopped, DialError::Queue(MailboxError::Stopped));
}

fn a_closed_port(model: Model) {
    let closed = ClosedPort::new();
    let to = closed.addr;
    let (client, log) = client(model, 10);
    let name = client.dial("localhost:80").expect_err("names are not looked up");
    assert!(matches!(name, DialError::Address(_)), "{name}");
    for tag in 0..10 {
        client.dialler().dial(to.to_string().parse::<Dial>().expect("an address").tag(tag)).expect("dial");
    }
    kit::until("every dial has failed", || log.all().len() == 10);
    for tag in 0..10 {
        assert!(log.all().contains(&Ending::Failed {
            tag,
            to: to.into(),
            kind: std::io::ErrorKind::ConnectionRefused
        }));
    }
    let stats = finish(client);
    assert_eq!((stats.attempted, stats.accepted, stats.dial_failed), (10, 0, 10));
}

fn a_chosen_source(model: Model) {
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let callers = Arc::new(Mutex::new(Vec::new()));
    let seen = callers.clone();
    let echo_peer = EchoPeer::open(move |_, peer| seen.lock().expect("callers").push(peer.ip()));
    let (client, log) = client(model, 1_000);
    for tag in 0..5 {
        client.dialler().dial(Dial::to(echo_peer.addr).source(SocketAddr::new(source, 0)).tag(tag)).expect("dial");
    }
    kit::until("every dial has come to its end", || log.all().len() == 5);
    assert!(
        log.all().iter().all(|ending| matches!(ending, Ending::Closed { verified: true, .. })),
        "{:?}",
        log.all()
    );
    assert_eq!(*callers.lock().expect("callers"), [source; 5]);
    finish(client);
}

/// It reads counters, changes limits, and stops the client, whose counters it outlives.
fn another_thread_has_its_handle(model: Model) {
    let silent = TcpListener::bind("127.0.0.1:0").expect("bind");
    let to = silent.local_addr().expect("address");
    let (client, log) = client(model, 1_000);
    let handle = client.handle();
    assert_eq!(handle.model(), model);
    for tag in 0..4 {
        client.dial(Dial::to(to).tag(tag)).expect("dial");
    }
    kit::until("all are sent", || handle.stats().bytes_out == 4_000);
    assert_eq!(handle.thread_stats().iter().map(|thread| thread.bytes_out).sum::<u64>(), 4_000);

    let policy = kit::policy(model);
    assert_eq!(handle.set_policy(policy.clone().mail_queue(7)), Err(PolicyError::Fixed("mail_queue")));
    let brief = policy.first_byte_timeout(None).idle_timeout(Some(Duration::from_millis(200)));
    handle.set_policy(brief).expect("a shorter time limit");
    kit::until("nobody has answered in time", || log.all().len() == 4);
    assert!(log.all().iter().all(|ending| matches!(ending, Ending::Closed { why: CloseReason::IdleTimeout, .. })));

    let stopper = std::thread::spawn({
        let handle = handle.clone();
        move || handle.stop()
    });
    let stats = client.join();
    stopper.join().expect("it stops");
    kit::check(&stats);
    assert_eq!((stats.accepted, handle.stats()), (4, stats));
}
