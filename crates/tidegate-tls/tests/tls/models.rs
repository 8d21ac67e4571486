//! The layer over real sockets, on every model: random pieces in both directions, HTTP, and the client side.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::version::TLS13;
use rustls::{ClientConnection, StreamOwned};
use tidegate::{
    Client, CloseReason, Consumed, Dial, Endpoint, Flow, Mail, Model, Outbox, Peer, Policy, Refusal, Running,
    Server, Service, ServiceOptions, Session,
};
use tidegate_services::{Echo, Http};
use tidegate_tls::{TlsClient, TlsCounters, TlsServer, Trust};

use crate::papers::Papers;

pub const DEADLINE: Duration = Duration::from_secs(50);

fn models() -> impl Iterator<Item = Model> {
    Model::available().into_iter()
}

pub fn until(what: &str, mut met: impl FnMut() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < DEADLINE, "waited in vain until {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

struct Scene {
    papers: Papers,
    server: Running,
    counters: Arc<TlsCounters>,
}

impl Scene {
    fn new(model: Model, service: impl Service, protocols: &[&str], at: Endpoint) -> Self {
        let (papers, counters) = (Papers::of("localhost"), Arc::<TlsCounters>::default());
        let service = TlsServer::new(service, papers.identity(protocols)).count_in(counters.clone());
        let server = Server::new(service).model(model).policy(Policy::default()).bind(at).unwrap();
        Self { papers, server: server.start().unwrap(), counters }
    }

    fn connect(&self) -> StreamOwned<ClientConnection, Choppy> {
        let config = Arc::new(self.papers.trusting(&[&TLS13]));
        let stream = TcpStream::connect(self.server.local_addr()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let tls = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(tls, Choppy(stream, fastrand::Rng::with_seed(7)))
    }

    fn finish(self) {
        self.server.stop();
        let stats = self.server.join();
        assert_eq!(stats.accepted, stats.closed_total());
        assert_eq!(stats.closed_by(CloseReason::Panicked), 0);
    }
}

fn loopback() -> Endpoint {
    "127.0.0.1:0".parse().unwrap()
}

/// Reads and writes in pieces of any size.
struct Choppy(TcpStream, fastrand::Rng);

impl Read for Choppy {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(1 << self.1.u32(..15));
        self.0.read(&mut into[..most])
    }
}

impl Write for Choppy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = bytes.len().min(1 << self.1.u32(..15));
        self.0.write(&bytes[..most])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn echo_comes_back_exactly_on_every_model() {
    for model in models() {
        let scene = Scene::new(model, Echo, &[], loopback());
        let mut stream = scene.connect();
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..60 {
            let length = random.usize(1..40_000);
            let said: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
            stream.write_all(&said).unwrap();
            let mut back = vec![0; said.len()];
            stream.read_exact(&mut back).unwrap();
            assert!(back == said, "{model}");
        }
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "{model}: the end is said");
        scene.finish();
    }
}

/// A stream that ends without `close_notify` is an error to this client.
#[test]
fn a_stop_is_said_to_connections_that_rest_on_every_model() {
    for model in models() {
        let scene = Scene::new(model, Echo, &[], loopback());
        let mut stream = scene.connect();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        scene.server.stop();
        let end = stream.read(&mut [0]);
        assert!(matches!(end, Ok(0)), "{model}: {end:?}");
        scene.finish();
    }
}

#[test]
fn pages_are_served_on_every_model() {
    for model in models() {
        let scene = Scene::new(model, Http::default(), &["http/1.1"], loopback());
        let mut stream = scene.connect();
        for last in [false, true] {
            let connection = if last { "close" } else { "keep-alive" };
            write!(stream, "GET / HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n").unwrap();
            if last {
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap(); // an error, if the end were not said
                assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.len() > 4096, "{model}");
            } else {
                let mut start = [0; 12];
                stream.read_exact(&mut start).unwrap();
                assert_eq!(&start, b"HTTP/1.1 200", "{model}");
                let mut rest = Vec::new();
                while !rest.ends_with(b"</html>\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    rest.extend(byte);
                }
            }
        }
        assert_eq!(scene.counters.handshakes(), 1);
        scene.finish();
    }
}

const BYTES: usize = 200_000;

/// Sends so many bytes, and wants them back.
#[derive(Default)]
struct Calls {
    right: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// What it counts in, bytes that came back, and whether the other end has said that it ends.
struct Call(Arc<Calls>, usize, bool);

#[derive(Clone)]
struct Caller(Arc<Calls>);

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

impl Service for Caller {
    type Session = Call;

    fn open(&self, _: &Peer) -> Result<Call, Refusal> {
        Ok(Call(self.0.clone(), 0, false))
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.0.failed.lock().unwrap().push(format!("{} {}: {error}", dial.tag, dial.to));
    }
}

impl Session for Call {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&(0..BYTES).map(byte).collect::<Vec<_>>());
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        let right = input.iter().enumerate().all(|(i, &b)| b == byte(self.1 + i));
        assert!(right, "other bytes came back than were sent");
        self.1 += input.len();
        Consumed::all(input).then(if self.1 == BYTES { Flow::Shutdown } else { Flow::Continue })
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        self.2 = true;
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        match self.2 && self.1 == BYTES {
            true => _ = self.0.right.fetch_add(1, SeqCst),
            false => self.0.failed.lock().unwrap().push(format!("closed ({why}) after {} bytes", self.1)),
        }
    }
}

fn dial(model: Model, scene: &Scene, name: &str, trust: Trust, calls: usize) -> Arc<Calls> {
    let (to, log) = (scene.server.local_addr(), Arc::new(Calls::default()));
    let client = TlsClient::new(Caller(log.clone()), to.clone(), name, trust).unwrap();
    let client = Client::new(client).model(model).start().unwrap();
    for tag in 0..calls as u64 {
        client.dialler().dial(Dial::to(to).tag(tag)).unwrap();
    }
    until("all calls have ended", || log.right.load(SeqCst) + log.failed.lock().unwrap().len() == calls);
    client.stop();
    client.join();
    log
}

#[test]
fn both_sides_may_be_ours_on_every_model() {
    let folder = tempfile::tempdir().unwrap();
    for model in models() {
        for at in [loopback(), Endpoint::unix(folder.path().join("socket"))] {
            let scene = Scene::new(model, Echo, &[], at);
            let trust = Trust::file(scene.papers.cert()).unwrap();
            let log = dial(model, &scene, "localhost", trust, 10);
            assert_eq!(*log.failed.lock().unwrap(), [""; 0], "{model}");
            assert_eq!(scene.counters.handshakes(), 10);
            scene.finish();
        }
    }
}

#[test]
fn a_certificate_that_is_not_trusted_is_a_dial_that_failed() {
    for model in models() {
        let scene = Scene::new(model, Echo, &[], loopback());
        let others = Papers::of("localhost");
        for (name, trust, why) in [
            ("localhost", Trust::file(others.cert()).unwrap(), "certificate"),
            ("example.org", Trust::file(scene.papers.cert()).unwrap(), "not valid for name"),
        ] {
            let log = dial(model, &scene, name, trust, 2);
            let failed = log.failed.lock().unwrap();
            assert_eq!(failed.len(), 2, "{model}");
            assert!(failed.iter().all(|text| text.contains(why)), "{model}: {failed:?}");
        }
        assert_eq!(dial(model, &scene, "example.org", Trust::anything().unwrap(), 2).right.load(SeqCst), 2);
        scene.finish();
    }
}

/// Each session dials one connection; what became of them.
#[derive(Clone)]
struct Dials(Endpoint, Arc<Mutex<Vec<String>>>);

impl Service for Dials {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().dials(1)
    }
}

impl Session for Dials {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.dial(&self.0, DEADLINE, Ignores).unwrap();
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, mail: Mail, _: &mut Outbox<'_>) -> Flow {
        if let Mail::Dialled(dialled) = mail {
            self.1.lock().unwrap().push(format!("{:?}", dialled.result));
        }
        Flow::Continue
    }
}

struct Ignores;

impl Session for Ignores {
    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }
}

#[test]
fn sessions_dial_inside_either_side_on_every_model() {
    let third = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for model in models() {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let dials = Dials(third.local_addr().unwrap().into(), log.clone());
        let scene = Scene::new(model, dials.clone(), &[], loopback());
        let to = scene.server.local_addr();
        let trust = Trust::file(scene.papers.cert()).unwrap();
        let client = TlsClient::new(Arc::new(dials), to.clone(), "localhost", trust).unwrap();
        let client = Client::new(client).model(model).start().unwrap();
        client.dialler().dial(to).unwrap();
        until("both have an answer", || log.lock().unwrap().len() == 2);
        assert_eq!(*log.lock().unwrap(), ["Ok(())", "Ok(())"], "{model}");
        client.stop();
        client.join();
        scene.finish();
    }
}
