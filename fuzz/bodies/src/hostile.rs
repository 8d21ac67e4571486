//! A peer of the fast path that does what it likes with the shared memory, against a server that runs.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tidegate::fastpath::layout::Rings;
use tidegate::fastpath::protocol::{hello, name};
use tidegate::policy::{FastPath, Wait};
use tidegate::{Model, Policy, Running, Server};
use tidegate_os::shared::SharedMemory;
use tidegate_os::{abstract_socket, handover};
use tidegate_services::Echo;

/// Bytes of each ring, and of the page of words in front of them.
const RING: usize = 4096;
const HEAD: usize = 4096;
/// How long the server may take to be rid of the peer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two servers for the whole run: one that sleeps, one that spins a while first.
fn server(spins: bool) -> &'static Running {
    static SERVERS: [OnceLock<Running>; 2] = [OnceLock::new(), OnceLock::new()];
    SERVERS[usize::from(spins)].get_or_init(|| {
        let wait = if spins { Wait::SpinThenBlock(Duration::from_millis(1)) } else { Wait::Block };
        let policy = Policy::default()
            .threads(std::num::NonZeroUsize::new(1))
            .fast_path(Some(FastPath::default().ring_bytes(RING)))
            .wait(wait);
        let server = Server::new(Echo).model(Model::Epoll).policy(policy);
        server.bind(([127, 0, 0, 1], 0)).expect("bind").start().expect("start")
    })
}

/// What the peer does: steps of six bytes, a kind, a place and a value. The server neither ends nor hangs, is rid of
/// the peer when that goes, and serves the next one.
pub fn hostile(data: &[u8]) {
    let Some((&first, steps)) = data.split_first() else { return };
    let server = server(first & 1 != 0);
    let addr = server.local_addr().addr().expect("an address");
    let mut peer = Peer::attach(addr);
    for step in steps.chunks_exact(6).take(64) {
        let value = u32::from_le_bytes([step[2], step[3], step[4], step[5]]);
        peer.step(step[0], usize::from(step[1]), value);
    }
    drop(peer);
    wait("the server is rid of the peer", || server.stats().open() == 0);
    assert!(!server.is_broken(), "an I/O thread has ended");
    if first & 2 != 0 {
        let plain = from_somewhere();
        plain.connect(&addr.into()).expect("it still accepts");
        let mut plain = TcpStream::from(plain);
        plain.write_all(b"still there?").expect("send");
        plain.read_exact(&mut [0; 12]).expect("it still serves");
        drop(plain);
        wait("the server has closed", || server.stats().open() == 0);
    }
}

fn wait(what: &str, met: impl Fn() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

/// A socket bound to one of many addresses of this host, which is reset when dropped: thousands of peers a second for
/// as long as one likes would otherwise leave no port, each being kept for a minute after its connection (TIME_WAIT).
fn from_somewhere() -> Socket {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, _, high, low] = (NEXT.fetch_add(1, Relaxed) % 0xfffe + 1).to_be_bytes();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.set_linger(Some(Duration::ZERO)).expect("linger");
    socket.bind(&SocketAddr::from(([127, 1, high, low], 0)).into()).expect("bind");
    socket
}

struct Peer {
    tcp: TcpStream,
    memory: SharedMemory,
}

impl Peer {
    /// Shakes hands as one should.
    fn attach(to: SocketAddr) -> Self {
        let control: UnixStream = abstract_socket::connect(&name(to)).expect("the server has the option");
        let (rings, fd) = Rings::create(RING).expect("memory");
        let memory = SharedMemory::open(&fd, HEAD + 2 * RING).expect("the same memory");
        let tcp = from_somewhere();
        let from = tcp.local_addr().ok().and_then(|addr| addr.as_socket()).expect("address");
        handover::send(&control, &hello(from, to), &[fd.as_fd(), tcp.as_fd()]).expect("offer");
        tcp.connect(&to.into()).expect("connect");
        control.set_nonblocking(false).expect("blocking");
        let answer = (&control).read(&mut [0; 1]); // it hangs up: an end, or a reset once its socket is closed
        assert!(!matches!(answer, Ok(1..)), "{answer:?}");
        assert!(rings.is_taken(), "the server has taken the offer");
        let tcp = TcpStream::from(tcp);
        tcp.set_nonblocking(true).expect("nonblocking");
        Self { tcp, memory }
    }

    fn step(&mut self, kind: u8, place: usize, value: u32) {
        match kind % 8 {
            // Any word of the first page, those of the rings more often.
            0 => self.word(place * 4 % HEAD).store(value, Release),
            1 => self.word(512 + place % 16 * 128).store(value, Release),
            2 => self.word(516 + place % 2 * 1024).store(value % 8, Release),
            // A position a little on, as if bytes had been written or read.
            3 => {
                let word = self.word(512 + place % 16 * 128);
                word.store(word.load(Acquire).wrapping_add(value % 5000), Release);
            }
            4 => self.memory.write(HEAD + place * 16, &value.to_le_bytes()),
            5 => self.bells(1),
            6 => self.bells(value as usize % 300),
            _ => _ = self.tcp.shutdown(if value & 1 == 0 { Shutdown::Write } else { Shutdown::Both }),
        }
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU32 {
        self.memory.word(at)
    }

    fn bells(&mut self, n: usize) {
        let _ = self.tcp.write(&vec![0; n]); // the server may have closed already: that is its right
    }
}
