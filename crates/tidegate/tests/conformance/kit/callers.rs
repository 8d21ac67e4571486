//! Plain clients: the standard library's sockets, used from the threads of the cases.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use tidegate::Endpoint;

use super::any_loopback::any_loopback;
use super::streams::{send_all, was_reset};
use super::timeout;

/// How a stream ended, as the reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    EndOfStream,
    Reset,
}

/// Connects; no read or write waits longer than [`timeout`].
///
/// A Unix socket comes as a `TcpStream`, too: what the cases do with it, reading, writing and shutting down, is the
/// same for both.
#[track_caller]
pub fn connect(to: impl Into<Endpoint>) -> TcpStream {
    let to = to.into();
    #[cfg(target_os = "linux")]
    if let (true, &Endpoint::Tcp(addr)) = (super::is_fast(), &to) {
        return be_patient(super::relay::connect(addr, None));
    }
    let Some(path) = to.path() else { return be_patient(TcpStream::connect(to).expect("connect")) };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("socket");
    socket.connect(&SockAddr::unix(path).expect("an address")).expect("connect");
    be_patient(socket.into())
}

/// The same for clients that come and go in thousands: over TCP they come from many addresses.
#[track_caller]
pub fn connect_from_anywhere(to: impl Into<Endpoint>) -> TcpStream {
    let to = to.into();
    let plain = cfg!(target_os = "linux") && !super::is_fast();
    let Some(addr @ SocketAddr::V4(_)) = to.addr().filter(|_| plain) else { return connect(to) };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
    socket.bind(&SocketAddr::from((any_loopback(), 0)).into()).expect("bind");
    socket.connect(&addr.into()).expect("connect");
    be_patient(socket.into())
}

/// The same for cases in which a connection may have to stay with TCP.
#[track_caller]
pub fn connect_somehow(to: impl Into<Endpoint>) -> TcpStream {
    let to = to.into();
    #[cfg(target_os = "linux")]
    if let (true, &Endpoint::Tcp(addr)) = (super::is_fast(), &to) {
        return be_patient(super::relay::connect_somehow(addr));
    }
    connect(to)
}

/// The address of a caller as the server sees it.
#[track_caller]
pub fn caller(stream: &TcpStream) -> SocketAddr {
    let addr = stream.local_addr().expect("address");
    #[cfg(target_os = "linux")]
    let addr = super::relay::seen(addr).unwrap_or(addr);
    addr
}

/// Connects with small kernel buffers, so that what a peer does not read is soon felt.
#[track_caller]
pub fn connect_narrow(to: impl Into<Endpoint>) -> TcpStream {
    let to = to.into();
    #[cfg(target_os = "linux")]
    if let (true, &Endpoint::Tcp(addr)) = (super::is_fast(), &to) {
        return be_patient(super::relay::connect(addr, Some(16 * 1024)));
    }
    let (domain, address) = match (to.addr(), to.path()) {
        (Some(addr), _) => (Domain::for_address(addr), addr.into()),
        (None, path) => (Domain::UNIX, SockAddr::unix(path.expect("a path")).expect("an address")),
    };
    let socket = Socket::new(domain, Type::STREAM, None).expect("socket");
    socket.set_recv_buffer_size(16 * 1024).expect("receive buffer");
    socket.set_send_buffer_size(16 * 1024).expect("send buffer");
    socket.connect(&address).expect("connect");
    be_patient(socket.into())
}

fn be_patient(stream: TcpStream) -> TcpStream {
    if stream.local_addr().is_ok() {
        stream.set_nodelay(true).expect("nodelay"); // a Unix socket has no address of this kind, and no delay
    }
    stream.set_read_timeout(Some(timeout())).expect("read timeout");
    stream.set_write_timeout(Some(timeout())).expect("write timeout");
    stream
}

/// Sends and expects the same bytes back.
#[track_caller]
pub fn exchange(stream: &mut TcpStream, bytes: &[u8]) {
    send_all(stream, bytes).expect("send");
    let back = hear(stream, bytes.len());
    assert!(back == bytes, "other bytes came back than were sent");
}

/// Receives exactly this many bytes.
#[track_caller]
pub fn hear(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut heard = vec![0; bytes];
    stream.read_exact(&mut heard).expect("receive");
    heard
}

/// Receives what is there, at least one byte; 0 is the end of the stream.
///
/// A call that was interrupted is made again: with a timeout set the kernel does not do so itself (`signal(7)`).
pub fn hear_some(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Receives until the stream ends, and says how it did.
#[track_caller]
pub fn hear_all(stream: &mut TcpStream) -> (Vec<u8>, Ending) {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) if was_reset(stream) => (heard, Ending::Reset),
        Ok(_) => (heard, Ending::EndOfStream),
        Err(e) if e.kind() == ErrorKind::ConnectionReset => (heard, Ending::Reset),
        Err(e) => panic!("neither an end nor a reset after {} bytes: {e}", heard.len()),
    }
}

/// Ends a connection with a reset.
pub fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("linger");
}

/// A plain echo server for the cases of the client side: a thread for each connection.
pub struct EchoPeer {
    pub addr: SocketAddr,
    /// Connections that ended as they should: the peer finished and had everything back.
    finished: Arc<AtomicUsize>,
}

/// More than a case dials at once. Past the 128 of the standard library the kernel may reset connections that their
/// callers take for open, if accepting is slow, as it is under Wine.
const ECHO_BACKLOG: i32 = 1024;

impl EchoPeer {
    /// Opens it; `greet` looks at each connection first. It closes with the process.
    pub fn open(greet: impl Fn(&TcpStream, SocketAddr) + Send + 'static) -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        listener.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("bind");
        listener.listen(ECHO_BACKLOG).expect("listen");
        let listener = TcpListener::from(listener);
        let addr = listener.local_addr().expect("address");
        let finished = Arc::new(AtomicUsize::new(0));
        let count = finished.clone();
        let accept = move || {
            while let Ok((stream, peer)) = listener.accept() {
                greet(&stream, peer);
                let count = count.clone();
                std::thread::spawn(move || {
                    if echo(be_patient(stream)).is_ok() {
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        };
        std::thread::spawn(accept);
        Self { addr, finished }
    }

    pub fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match hear_some(&mut stream, &mut buffer)? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n])?,
        }
    }
}
