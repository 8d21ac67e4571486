//! A caller of the fast path, written on its own from the layout and the protocol: it carries what a plain socket of a
//! case says through shared memory, and back. Two threads for each connection; one sends, one receives.

use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use tidegate::fastpath::layout::{LinkEnd, OfferState, RingMemory, Rings};
use tidegate::fastpath::protocol::{hello, name};
use tidegate::fastpath::ring::{Ended, Reader, Writer};
use tidegate::policy::FastPath;
use tidegate_os::{abstract_socket, handover};

use super::any_loopback::any_loopback;

const RING: usize = 4096;

/// Callers that may wait for the server's answer at once. It keeps 512 offers of a user and hangs up on others, who
/// stay with TCP; that is not what these cases are about.
const MOST_WAITING: usize = 256;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Connects to a server of the fast path, and returns a plain socket that leads there.
#[track_caller]
pub fn connect(to: SocketAddr, buffers: Option<usize>) -> TcpStream {
    begin(to, buffers, None)
}

/// The same, but the server may leave the connection with TCP: it has as long as a dialler would give it.
#[track_caller]
pub fn connect_somehow(to: SocketAddr) -> TcpStream {
    begin(to, None, Some(FastPath::default().handshake_timeout))
}

#[track_caller]
fn begin(to: SocketAddr, buffers: Option<usize>, timeout: Option<Duration>) -> TcpStream {
    super::until("the server has answered some callers", || WAITING.load(SeqCst) < MOST_WAITING);
    let call = match Call::make(to) {
        Err(_) if timeout.is_some() => return TcpStream::connect(to).expect("connect"),
        call => call.expect("the server has the option"),
    };
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    // What the relay holds on its way is to be little beside what the server holds.
    listener.set_recv_buffer_size(4096).expect("receive buffer");
    listener.set_send_buffer_size(4096).expect("send buffer");
    let anywhere = SocketAddr::from((any_loopback(), 0)).into();
    listener.bind(&anywhere).expect("bind");
    listener.listen(1).expect("listen");
    let listener = TcpListener::from(listener);
    let outer = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    if let Some(bytes) = buffers {
        outer.set_recv_buffer_size(bytes).expect("receive buffer");
        outer.set_send_buffer_size(bytes).expect("send buffer");
    }
    outer.bind(&anywhere).expect("bind");
    outer.connect(&listener.local_addr().expect("address").into()).expect("connect");
    let (inner, _) = listener.accept().expect("accept");
    inner.set_nodelay(true).expect("nodelay");
    let (outside, inside) = (outer.local_addr().expect("address"), call.tcp.local_addr().expect("address"));
    seen_as().lock().expect("addresses").insert(outside.as_socket().expect("address"), inside);
    WAITING.fetch_add(1, SeqCst);
    std::thread::Builder::new()
        .stack_size(128 * 1024)
        .spawn(move || call.carry(inner, timeout))
        .expect("a thread");
    outer.into()
}

/// The address that the server sees for a socket that [`connect`] returned.
pub fn seen(outside: SocketAddr) -> Option<SocketAddr> {
    seen_as().lock().expect("addresses").get(&outside).copied()
}

fn seen_as() -> &'static Mutex<HashMap<SocketAddr, SocketAddr>> {
    static SEEN: OnceLock<Mutex<HashMap<SocketAddr, SocketAddr>>> = OnceLock::new();
    SEEN.get_or_init(Mutex::default)
}

/// A connection whose offer the server has still to take.
struct Call {
    tcp: TcpStream,
    rings: Rings,
    control: std::os::unix::net::UnixStream,
}

impl Call {
    /// Leaves an offer, and connects; fails if there is nobody to leave it with.
    #[track_caller]
    fn make(to: SocketAddr) -> std::io::Result<Self> {
        let control = abstract_socket::connect(&name(to))?;
        let (rings, memory) = Rings::create(RING).expect("memory");
        let tcp = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("socket");
        let from = if to.is_ipv4() { any_loopback().into() } else { to.ip() };
        tcp.bind(&SocketAddr::new(from, 0).into()).expect("bind");
        let from = tcp.local_addr().ok().and_then(|addr| addr.as_socket()).expect("address");
        handover::send(&control, &hello(from, to), &[memory.as_fd(), tcp.as_fd()])?;
        tcp.connect(&to.into()).expect("connect");
        tcp.set_tcp_nodelay(true).expect("nodelay");
        Ok(Self { tcp: tcp.into(), rings, control })
    }

    fn carry(self, inner: TcpStream, timeout: Option<Duration>) {
        self.control.set_nonblocking(false).expect("blocking");
        self.control.set_read_timeout(timeout).expect("timeout");
        let answer = (&self.control).read(&mut [0; 1]);
        WAITING.fetch_sub(1, SeqCst);
        if timeout.is_some() && (self.rings.decide(OfferState::Withdrawn) || !self.rings.is_taken()) {
            drop(self.control); // as who withdraws does: an offer that was withdrawn holds a descriptor of the server
            return carry_plain(&self.tcp, &inner);
        }
        if !self.rings.is_taken() {
            // The server went before it accepted; otherwise the case would not be about the fast path.
            let end = (&self.tcp).read(&mut [0; 1]);
            assert!(matches!(end, Ok(0) | Err(_)), "plain TCP, and {answer:?} from the meeting");
            return reset(&inner);
        }
        let (reader, writer) = self.rings.sides(LinkEnd::Dialler);
        let both = Arc::new(Both {
            tcp: self.tcp,
            inner,
            over: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        });
        let its = both.clone();
        let up = move || its.up(writer);
        std::thread::Builder::new().stack_size(128 * 1024).spawn(up).expect("a thread");
        both.down(reader);
    }
}

struct Both {
    tcp: TcpStream,
    inner: TcpStream,
    /// The server reads no more.
    over: AtomicBool,
    /// The case has had all that the server sent.
    finished: AtomicBool,
}

impl Both {
    /// From the case to the server.
    fn up(&self, mut writer: Writer<RingMemory>) {
        let mut buffer = [0; RING];
        loop {
            let n = match (&self.inner).read(&mut buffer) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.give_up(&mut writer),
            };
            if n == 0 && self.was_reset() {
                return self.give_up(&mut writer);
            }
            if n == 0 {
                if writer.end(Ended::Finished) {
                    self.ring();
                }
                return;
            }
            let mut left = &buffer[..n];
            while !left.is_empty() {
                if self.over.load(SeqCst) {
                    return reset(&self.inner);
                }
                let moved = writer.write(&[IoSlice::new(left)]).expect("a sound ring");
                if moved.ring {
                    self.ring();
                }
                left = &left[moved.bytes..];
                if moved.bytes == 0 {
                    // The bells are the other thread's to hear: this one looks now and then, and for a caller that has
                    // gone.
                    if SockRef::from(&self.inner).take_error().expect("an error or none").is_some() {
                        return self.give_up(&mut writer);
                    }
                    if SockRef::from(&self.tcp).take_error().expect("an error or none").is_some() {
                        return self.cut_off();
                    }
                    std::thread::park_timeout(Duration::from_micros(200));
                }
            }
        }
    }

    /// Whether a read that returned nothing means a reset: its error is reported once, and the other thread's write may
    /// have had it. A connection that is no more has no peer; so has one that both sides have finished, but then that
    /// thread wrote nothing any more.
    fn was_reset(&self) -> bool {
        !self.finished.load(SeqCst) && self.inner.peer_addr().is_err()
    }

    /// The case has reset its end.
    fn give_up(&self, writer: &mut Writer<RingMemory>) {
        if !self.over.load(SeqCst) {
            let _ = writer.end(Ended::Reset); // the end of the connection, which follows, is heard
            reset(&self.tcp);
        }
    }

    /// From the server to the case.
    fn down(&self, mut reader: Reader<RingMemory>) {
        let mut buffer = [0; RING];
        let mut cut = false;
        loop {
            let moved = reader.read(&mut buffer).expect("a sound ring");
            if moved.ring {
                self.ring();
            }
            if moved.bytes > 0 {
                if (&self.inner).write_all(&buffer[..moved.bytes]).is_err() {
                    // The case has reset its end; the first call that reports an error is the only one that does.
                    self.over.store(true, SeqCst);
                    return reset(&self.tcp);
                }
                continue;
            }
            let ended = reader.ended().expect("a sound ring");
            if ended != Ended::No && reader.available() != Ok(0) {
                continue;
            }
            match ended {
                Ended::Reset => return self.cut_off(),
                Ended::No if cut => return self.cut_off(),
                Ended::Finished if cut => return self.cut_off(),
                Ended::Gone => {
                    self.over.store(true, SeqCst);
                    return self.finish();
                }
                Ended::Finished => self.finish(),
                Ended::No => {}
            }
            if ended == Ended::Finished || reader.prepare_sleep().expect("a sound ring") {
                cut = !matches!((&self.tcp).read(&mut [0; 64]), Ok(1..));
            }
        }
    }

    fn finish(&self) {
        self.finished.store(true, SeqCst);
        let _ = self.inner.shutdown(Shutdown::Write); // it may have gone, too
    }

    fn cut_off(&self) {
        self.over.store(true, SeqCst);
        reset(&self.inner);
    }

    fn ring(&self) {
        let _ = (&self.tcp).write_all(&[0]); // it may have gone; the reads say so
    }
}

/// What a case says goes by TCP.
fn carry_plain(tcp: &TcpStream, inner: &TcpStream) {
    let pass = |mut from: &TcpStream, mut to: &TcpStream| match std::io::copy(&mut from, &mut to) {
        Ok(_) => _ = to.shutdown(Shutdown::Write), // it may have gone, too
        Err(_) => [from, to].map(reset).into_iter().for_each(drop),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pass(inner, tcp));
        pass(tcp, inner);
    });
}

/// Ends a connection with a reset now, though the other thread still has it: a connection to nowhere (`connect(2)`).
fn reset(stream: &TcpStream) {
    let _ = rustix::net::connect_unspec(stream); // it may have ended already
}
