//! Overlapped operations on sockets: handed to the kernel, and their outcomes taken back, in one of two ways ([`Notify`]).
//!
//! The safety of the whole module rests on one rule: **what the kernel may touch is owned here until the completion
//! came back**. An [`Operation`] is boxed and in the queue's table, with its bytes, from the call until its `Internal` field no longer
//! says *pending* and the [`Notify`] has said so.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::windows::io::{AsRawSocket, BorrowedSocket};
use std::time::{Duration, Instant};

use slab::Slab;
use socket2::{Domain, SockAddr, SockRef, Socket};
use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, HANDLE};
use windows_sys::Win32::Networking::WinSock::{
    SO_CONNECT_TIME, SO_UPDATE_ACCEPT_CONTEXT, SO_UPDATE_CONNECT_CONTEXT, SOCKET, SOL_SOCKET, WSABUF,
    WSARecv, WSASend, getsockopt, setsockopt,
};
use windows_sys::Win32::System::IO::{CancelIoEx, OVERLAPPED};

use super::descriptor::RawFd;
use super::extension::Extensions;
use super::pages::Residence;
pub use super::pool::Buffer;
use super::pool::Pool;
use super::status;
use super::winsock::{check, handle, last_error};
use crate::endpoint::Endpoint;
pub use crate::payload::Payload;

/// How the kernel tells that an operation has ended.
pub trait Notify: Sized {
    /// Where accepts are posted.
    type Door;

    /// Has operations of a socket reported here.
    fn attach(&self, socket: RawFd) -> io::Result<()>;
    /// Prepares an operation that is about to be handed over.
    fn prepare(&mut self, operation: &mut Operation);
    /// An operation that was prepared has come back, or was not taken.
    fn finished(&mut self, operation: &Operation);
    /// Waits, and appends the places of operations that have ended.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        operations: &Slab<Box<Operation>>,
        into: &mut VecDeque<usize>,
    ) -> io::Result<()>;
    /// The listening socket behind a door.
    fn listener(door: &Self::Door) -> RawFd;
}

/// What an operation is, and what the kernel may touch for it.
pub(super) enum Held {
    Nothing,
    /// A receive; without a buffer it only waits for data.
    Receive(Option<Buffer>),
    Send(Payload),
    Accept(Accept),
}

/// A connection that is to come.
pub(super) struct Accept {
    socket: Socket,
    listener: RawFd,
    /// Where the first data goes, with the addresses behind it; without it, the addresses have a place of their own.
    first: Option<Buffer>,
    addresses: Box<[u8; 2 * ADDRESS_BYTES]>,
}

/// Room for an address, 16 bytes more than its structure (`AcceptEx`).
const ADDRESS_BYTES: usize = 28 + 16;

/// One operation. The kernel's part comes first, so that its address is that of the whole.
#[repr(C)]
pub struct Operation {
    pub(super) overlapped: OVERLAPPED,
    /// Its place in the table.
    pub(super) place: usize,
    /// The completion port of the thread that it belongs to; only accepts are reported elsewhere first.
    pub(super) home: HANDLE,
    /// The event that a receive has for itself.
    pub(super) event: Option<usize>,
    key: u64,
    /// Its socket, as long as that is open.
    socket: Option<RawFd>,
    held: Held,
}

impl Operation {
    /// Whether the kernel has finished with it.
    pub(super) fn has_ended(&self) -> bool {
        // SAFETY: the kernel writes this field once, last; a volatile read sees either value.
        unsafe { std::ptr::read_volatile(&raw const self.overlapped.Internal) as i32 != status::PENDING }
    }

    /// Whether it is a receive.
    pub(super) fn receives(&self) -> bool {
        matches!(self.held, Held::Receive(_))
    }

    /// Whether it is a receive, or an attempt to connect, of this socket.
    fn is_armed_on(&self, socket: RawFd) -> bool {
        self.socket == Some(socket) && matches!(self.held, Held::Receive(_) | Held::Nothing)
    }
}

/// A socket whose operations a [`Queue`] reports.
pub struct Overlapped {
    socket: Socket,
    /// Where the receive that is armed, or the attempt to connect, is in the table. May be out of date.
    armed: Cell<Option<usize>>,
    /// First data that came with the accept.
    first: Cell<Option<Buffer>>,
}

impl Overlapped {
    fn new(socket: Socket, first: Option<Buffer>) -> Self {
        Self { socket, armed: Cell::new(None), first: Cell::new(first) }
    }

    pub(super) fn raw(&self) -> RawFd {
        self.socket.as_raw_socket()
    }

    /// Whether data that came with the accept has not been received yet.
    pub(super) fn has_first(&self) -> bool {
        let first = self.first.take();
        let has = first.is_some();
        self.first.set(first);
        has
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }
}

/// What came back.
pub struct Done<S = Overlapped, B = Buffer> {
    /// The number the operation was submitted with.
    pub key: u64,
    /// What became of it.
    pub outcome: Outcome<S, B>,
}

/// What became of an operation.
pub enum Outcome<S = Overlapped, B = Buffer> {
    /// The queue was woken.
    Woken,
    /// A connection was accepted.
    Accepted(io::Result<S>),
    /// A connection was made.
    Connected(io::Result<()>),
    /// Bytes came; none is the end of the stream. [`io::ErrorKind::ResourceBusy`]: there are, and no buffer for them.
    Received(io::Result<Option<B>>),
    /// Bytes were taken; what was not comes back.
    Sent(io::Result<usize>, Option<Payload>),
}

/// What sockets are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// Overlapped operations.
    Plain,
    /// Requests of Registered I/O, too.
    Registered,
}

/// How a queue is set up.
pub struct QueueSetup {
    /// What the sockets are made for that it accepts with and dials with.
    pub sockets: SocketKind,
    /// Receive buffers.
    pub buffers: usize,
    /// Bytes of each.
    pub buffer_bytes: usize,
    /// Whether they are locked in memory.
    pub residence: Residence,
    /// Whether a receive takes a buffer when it is armed, while there are enough, rather than when there is data.
    pub posted: bool,
}

/// A thread's operations.
pub struct Queue<N: Notify> {
    notify: N,
    extensions: Extensions,
    operations: Slab<Box<Operation>>,
    ended: VecDeque<usize>,
    /// Outcomes that no operation has: first data, and calls that failed at once.
    ready: VecDeque<Done>,
    pool: Pool,
    posted: bool,
    sockets: SocketKind,
    /// Buffers that armed operations have.
    pinned: usize,
    /// Where the send of each socket that has one in flight is in the table.
    sends: HashMap<RawFd, usize>,
    /// Receives that wait for a send to be told first, by its place.
    held_back: HashMap<usize, usize>,
}

/// A buffer is always left for data that is there.
const SPARE_BUFFERS: usize = 1;

impl<N: Notify> Queue<N> {
    /// A queue that is told by `notify`.
    pub fn new(notify: N, setup: &QueueSetup) -> io::Result<Self> {
        Ok(Self {
            notify,
            extensions: Extensions::load()?,
            operations: Slab::new(),
            ended: VecDeque::new(),
            ready: VecDeque::new(),
            pool: Pool::new(setup.buffers, setup.buffer_bytes, setup.residence)?,
            posted: setup.posted,
            sockets: setup.sockets,
            pinned: 0,
            sends: HashMap::new(),
            held_back: HashMap::new(),
        })
    }

    /// Whether the functions that it needs are here.
    pub fn probe() -> io::Result<()> {
        Extensions::load().map(drop)
    }

    /// How it is told.
    pub fn notify(&self) -> &N {
        &self.notify
    }

    pub(super) fn notify_mut(&mut self) -> &mut N {
        &mut self.notify
    }

    /// Puts an operation into the table and its address into the kernel's hands by `call`, which returns whether it was taken.
    fn submit(
        &mut self,
        (key, socket): (u64, RawFd),
        held: Held,
        call: impl FnOnce(&mut Operation, &Pool, &Extensions) -> io::Result<()>,
    ) -> Result<usize, (Held, io::Error)> {
        let vacant = self.operations.vacant_entry();
        let place = vacant.key();
        // SAFETY: integers and handles: all zeroes are a value.
        let overlapped = unsafe { std::mem::zeroed() };
        let home = std::ptr::null_mut();
        let operation = vacant.insert(Box::new(Operation {
            overlapped,
            place,
            home,
            event: None,
            key,
            socket: Some(socket),
            held,
        }));
        self.notify.prepare(operation);
        match call(operation, &self.pool, &self.extensions) {
            Ok(()) => Ok(place),
            Err(e) if e.raw_os_error() == Some(ERROR_IO_PENDING as i32) => Ok(place),
            Err(e) => {
                let operation = self.operations.remove(place);
                self.notify.finished(&operation);
                Err((operation.held, e))
            }
        }
    }

    /// Posts an accept; with `first`, and if there are enough buffers, it completes with the first data of the connection.
    pub fn accept(&mut self, door: &N::Door, key: u64, first: bool) {
        let listener = N::listener(door);
        let accept = self.prepare_accept(listener, first);
        let accept = match accept {
            Ok(accept) => accept,
            Err(e) => return self.fail(key, Outcome::Accepted(Err(e))),
        };
        let submitted = self.submit((key, listener), Held::Accept(accept), |operation, pool, extensions| {
            let overlapped = &raw mut operation.overlapped;
            let Held::Accept(accept) = &mut operation.held else { return Ok(()) };
            let (space, bytes) = match &accept.first {
                Some(buffer) => (pool.at(buffer), pool.bytes() - 2 * ADDRESS_BYTES),
                None => (accept.addresses.as_mut_ptr(), 0),
            };
            let (socket, each) = (handle(accept.socket.as_raw_socket()), ADDRESS_BYTES as u32);
            let mut at_once = 0; // set only if it completes at once, and then known from the OVERLAPPED too
            // SAFETY: both sockets are open; `space` has `bytes` and two addresses, and it and the OVERLAPPED are owned by the table
            // until the operation has ended.
            let accepted = unsafe {
                (extensions.accept)(
                    handle(listener),
                    socket,
                    space.cast(),
                    bytes as u32,
                    each,
                    each,
                    &raw mut at_once,
                    overlapped,
                )
            };
            if accepted == 0 { Err(last_error()) } else { Ok(()) }
        });
        if let Err((held, e)) = submitted {
            self.release(held);
            self.fail(key, Outcome::Accepted(Err(e)));
        }
    }

    fn prepare_accept(&mut self, listener: RawFd, first: bool) -> io::Result<Accept> {
        let socket = super::registered::open(domain(listener)?, self.sockets)?;
        self.notify.attach(socket.as_raw_socket())?;
        let (count, free) = self.pool.count();
        // At most half of the buffers wait for first data; the rest is for connections that are there.
        let first = if first && free > count / 2 { self.pool.take() } else { None };
        self.pinned += usize::from(first.is_some());
        Ok(Accept { socket, listener, first, addresses: Box::new([0; 2 * ADDRESS_BYTES]) })
    }

    /// Makes a connection to `to`; the outcome comes under `key`.
    pub fn connect(&mut self, to: &Endpoint, from: Option<SocketAddr>, key: u64) -> io::Result<Overlapped> {
        let to = super::socket::address(to)?;
        let socket = super::registered::open(Domain::for_address(to), self.sockets)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        socket.bind(&from.unwrap_or(any).into())?; // ConnectEx wants a bound socket
        self.notify.attach(socket.as_raw_socket())?;
        let (fd, address) = (socket.as_raw_socket(), SockAddr::from(to));
        let submitted = self.submit((key, fd), Held::Nothing, |operation, _, extensions| {
            // SAFETY: the socket is open and bound; the address is copied by the call; the OVERLAPPED is owned by the table.
            let connected = unsafe {
                (extensions.connect)(
                    handle(fd),
                    address.as_ptr().cast(),
                    address.len(),
                    std::ptr::null(),
                    0,
                    std::ptr::null_mut(),
                    &raw mut operation.overlapped,
                )
            };
            if connected == 0 { Err(last_error()) } else { Ok(()) }
        });
        let place = submitted.map_err(|(_, e)| e)?;
        let socket = Overlapped::new(socket, None);
        socket.armed.set(Some(place));
        Ok(socket)
    }

    /// Receives once.
    pub fn receive(&mut self, socket: &Overlapped, key: u64) {
        if let Some(first) = socket.first.take() {
            return self.ready.push_back(Done { key, outcome: Outcome::Received(Ok(Some(first))) });
        }
        let pins = self.posted && self.pool.count().1 > SPARE_BUFFERS;
        let buffer = if pins { self.pool.take() } else { None };
        self.pinned += usize::from(buffer.is_some());
        let fd = socket.raw();
        let submitted = self.submit((key, fd), Held::Receive(buffer), |operation, pool, _| {
            let space = match &operation.held {
                Held::Receive(Some(buffer)) => WSABUF { len: pool.bytes() as u32, buf: pool.at(buffer) },
                _ => WSABUF { len: 0, buf: std::ptr::null_mut() },
            };
            let mut flags = 0;
            // SAFETY: the socket is open; `space` is copied by the call and lies in a buffer that the operation owns until it has ended,
            // as is the OVERLAPPED.
            check(unsafe {
                WSARecv(
                    handle(fd),
                    &raw const space,
                    1,
                    std::ptr::null_mut(),
                    &raw mut flags,
                    &raw mut operation.overlapped,
                    None,
                )
            })
        });
        match submitted {
            Ok(place) => socket.armed.set(Some(place)),
            Err((held, e)) => {
                self.release(held);
                self.fail(key, Outcome::Received(Err(e)));
            }
        }
    }

    /// Sends all of it.
    pub fn send(&mut self, socket: &Overlapped, payload: Payload, key: u64) {
        let fd = socket.raw();
        let submitted = self.submit((key, fd), Held::Send(payload), |operation, _, _| {
            let mut slices = [const { WSABUF { len: 0, buf: std::ptr::null_mut() } }; Payload::MAX_PIECES];
            let count = match &operation.held {
                Held::Send(payload) => describe(payload, &mut slices),
                _ => 0,
            };
            // SAFETY: the socket is open; the array is copied by the call; the bytes are shared ones that the operation holds until it has
            // ended, and Winsock only reads them; the OVERLAPPED is owned by the table.
            check(unsafe {
                WSASend(
                    handle(fd),
                    slices.as_ptr(),
                    count,
                    std::ptr::null_mut(),
                    0,
                    &raw mut operation.overlapped,
                    None,
                )
            })
        });
        match submitted {
            Ok(place) => _ = self.sends.insert(fd, place),
            Err((held, e)) => {
                self.release(held);
                self.fail(key, Outcome::Sent(Err(e), None));
            }
        }
    }

    /// An outcome without an operation.
    fn fail(&mut self, key: u64, outcome: Outcome) {
        self.ready.push_back(Done { key, outcome });
    }

    /// Ends the receive that is armed on a socket, if it is; it still completes.
    pub fn stop_receiving(&self, socket: &Overlapped) {
        let armed = socket.armed.get().and_then(|place| self.operations.get(place));
        // The place may have been given to another operation since; but no other socket has this handle while it is open.
        if let Some(operation) = armed.filter(|operation| operation.is_armed_on(socket.raw())) {
            cancel(socket.raw(), &operation.overlapped);
        }
    }

    /// Ends everything that is in flight on a socket.
    pub fn stop_all(&self, socket: &Overlapped) {
        // SAFETY: the socket is open. What is ended still completes.
        unsafe { CancelIoEx(socket.raw() as HANDLE, std::ptr::null()) };
    }

    /// Ends all accepts; each still completes.
    pub fn stop_accepting(&self) {
        for (_, operation) in &self.operations {
            if let Held::Accept(accept) = &operation.held {
                cancel(accept.listener, &operation.overlapped);
            }
        }
    }

    /// Ends accepts whose connection has stood for `limit` without a byte (`SO_CONNECT_TIME`); each completes as aborted.
    pub fn drop_silent(&self, limit: Duration) {
        for (_, operation) in &self.operations {
            if let Held::Accept(accept) = &operation.held
                && accept.first.is_some()
                && connected_for(&accept.socket).is_some_and(|time| time >= limit)
            {
                cancel(accept.listener, &operation.overlapped);
            }
        }
    }

    /// Shuts the sending side down.
    pub fn finish_sending(&self, socket: &Overlapped) -> io::Result<()> {
        socket.socket.shutdown(std::net::Shutdown::Write)
    }

    /// Closes; what is in flight comes back with an error.
    pub fn close(&mut self, socket: Overlapped, reset: bool) {
        let armed = socket.armed.get().and_then(|place| self.operations.get_mut(place));
        if let Some(operation) = armed.filter(|operation| operation.is_armed_on(socket.raw())) {
            operation.socket = None; // its handle may soon be another's
        }
        if let Some(first) = socket.first.take() {
            self.recycle(first);
        }
        if reset {
            let _ = socket.socket.set_linger(Some(Duration::ZERO)); // it is closed either way
        }
    }

    /// Waits until something has ended, or an outcome is there anyway.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let has_more = !self.ready.is_empty() || !self.ended.is_empty();
        let timeout = if has_more { Some(Duration::ZERO) } else { timeout };
        self.notify.wait(timeout, &self.operations, &mut self.ended)?;
        // What was sent is told before what the peer said to it: an answer, or a reset, may end the connection.
        let receives =
            |place: &usize| self.operations.get(*place).is_some_and(|operation| operation.receives());
        self.ended.make_contiguous().sort_by_key(receives);
        Ok(())
    }

    /// The next outcome.
    pub fn next(&mut self) -> Option<Done> {
        if let Some(done) = self.ready.pop_front() {
            return Some(done);
        }
        loop {
            let place = self.ended.pop_front()?;
            if place == WOKEN {
                return Some(Done { key: 0, outcome: Outcome::Woken });
            }
            if let Some(send) = self.send_to_be_told_first(place) {
                self.held_back.insert(send, place);
                continue;
            }
            let operation = self.operations.try_remove(place)?;
            self.notify.finished(&operation);
            if matches!(operation.held, Held::Send(_)) {
                self.send_is_told(place, operation.socket);
            }
            return Some(self.finish(*operation));
        }
    }

    /// A send on the same socket that has ended before this receive, but was not reported yet: the answer to it, or a reset, may end
    /// the connection, and then nobody would count what was sent.
    fn send_to_be_told_first(&self, place: usize) -> Option<usize> {
        let receive = self.operations.get(place).filter(|operation| operation.receives())?;
        let send = *self.sends.get(&receive.socket?)?;
        self.operations.get(send).filter(|operation| operation.has_ended()).map(|_| send)
    }

    /// Lets the receive go on that waited for this send, if one did.
    fn send_is_told(&mut self, place: usize, socket: Option<RawFd>) {
        if let Some(socket) = socket.filter(|socket| self.sends.get(socket) == Some(&place)) {
            self.sends.remove(&socket);
        }
        if let Some(receive) = self.held_back.remove(&place) {
            self.ended.retain(|&other| other != receive); // it may have been found again
            self.ended.push_front(receive);
        }
    }

    fn finish(&mut self, operation: Operation) -> Done {
        let Operation { overlapped, key, socket, held, .. } = operation;
        let result = status::outcome(overlapped.Internal as i32, overlapped.InternalHigh);
        let outcome = match held {
            Held::Nothing => Outcome::Connected(result.and_then(|_| socket.map_or(Ok(()), connected))),
            Held::Receive(buffer) => Outcome::Received(self.received(socket, result, buffer)),
            Held::Send(payload) => match result {
                Ok(n) => Outcome::Sent(Ok(n), payload.advance(n)),
                Err(e) => Outcome::Sent(Err(e), None),
            },
            Held::Accept(accept) => Outcome::Accepted(self.accepted(accept, result)),
        };
        Done { key, outcome }
    }

    fn received(
        &mut self,
        socket: Option<RawFd>,
        result: io::Result<usize>,
        buffer: Option<Buffer>,
    ) -> io::Result<Option<Buffer>> {
        self.pinned -= usize::from(buffer.is_some());
        let outcome = match (result, buffer) {
            (Ok(n), Some(buffer)) => Ok((n, buffer)),
            (Err(e), Some(buffer)) => {
                self.pool.recycle(buffer);
                Err(e)
            }
            (Err(e), None) => Err(e),
            (Ok(_), None) => self.take_what_is_there(socket),
        };
        match outcome? {
            (0, buffer) => {
                self.pool.recycle(buffer);
                socket.map_or(Ok(()), confirm_end).map(|()| None)
            }
            (n, buffer) => Ok(Some(Buffer { filled: n as u32, ..buffer })),
        }
    }

    /// There is data, or the end: a receive without a buffer has completed.
    fn take_what_is_there(&mut self, socket: Option<RawFd>) -> io::Result<(usize, Buffer)> {
        let socket = socket.ok_or(io::ErrorKind::ConnectionAborted)?; // closed meanwhile
        let buffer = self.pool.take().ok_or(io::ErrorKind::ResourceBusy)?;
        let received = receive_now(socket, self.pool.whole(&buffer));
        match received {
            Ok(n) => Ok((n, buffer)),
            Err(e) => {
                self.pool.recycle(buffer);
                Err(e)
            }
        }
    }

    fn accepted(&mut self, accept: Accept, result: io::Result<usize>) -> io::Result<Overlapped> {
        self.pinned -= usize::from(accept.first.is_some());
        let made = result.and_then(|n| {
            update_accepted(&accept.socket, accept.listener)?;
            accept.socket.set_nonblocking(true)?;
            accept.socket.set_tcp_nodelay(true)?;
            Ok(n)
        });
        match (made, accept.first) {
            (Ok(n), Some(first)) if n > 0 => {
                Ok(Overlapped::new(accept.socket, Some(Buffer { filled: n as u32, ..first })))
            }
            (made, first) => {
                first.into_iter().for_each(|buffer| self.pool.recycle(buffer));
                made.map(|_| Overlapped::new(accept.socket, None))
            }
        }
    }

    /// Gives back what an operation had that was not taken.
    fn release(&mut self, held: Held) {
        let buffer = match held {
            Held::Receive(buffer) => buffer,
            Held::Accept(accept) => accept.first,
            Held::Nothing | Held::Send(_) => None,
        };
        if let Some(buffer) = buffer {
            self.pinned -= 1;
            self.pool.recycle(buffer);
        }
    }

    /// The bytes in a buffer.
    pub fn bytes(&self, buffer: &Buffer) -> &[u8] {
        self.pool.received(buffer)
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Buffer) {
        self.pool.recycle(buffer);
    }
}

/// A place that no operation has.
pub(super) const WOKEN: usize = usize::MAX;

/// How long a queue that goes waits for what it has in flight.
const PATIENCE: Duration = Duration::from_secs(5);

impl<N: Notify> Drop for Queue<N> {
    fn drop(&mut self) {
        self.stop_accepting();
        let deadline = Instant::now() + PATIENCE;
        while !self.operations.is_empty() && Instant::now() < deadline {
            if self.wait(Some(Duration::from_millis(100))).is_err() {
                break;
            }
            while self.next().is_some() {}
        }
        if !self.operations.is_empty() {
            // The kernel may still write there.
            std::mem::forget(std::mem::take(&mut self.operations));
            let pool = Pool::new(1, 4096, Residence::Pageable);
            if let Ok(small) = pool {
                std::mem::forget(std::mem::replace(&mut self.pool, small));
            }
        }
    }
}

fn describe(payload: &Payload, slices: &mut [WSABUF; Payload::MAX_PIECES]) -> u32 {
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(payload.pieces()) {
        *slice = WSABUF { len: piece.len() as u32, buf: piece.as_ptr().cast_mut() };
        count += 1;
    }
    count
}

/// Asks for an operation to be ended. It may have ended already, or end well all the same.
fn cancel(socket: RawFd, overlapped: &OVERLAPPED) {
    // SAFETY: the OVERLAPPED is one of an operation in the table; if it is no longer in flight, nothing is found.
    unsafe { CancelIoEx(socket as HANDLE, overlapped) };
}

/// The family of a socket.
fn domain(socket: RawFd) -> io::Result<Domain> {
    with_socket(socket, |socket| Ok(SockRef::from(socket).local_addr()?.domain()))
}

/// Uses a socket that somebody else owns.
fn with_socket<T>(socket: RawFd, run: impl FnOnce(&BorrowedSocket<'_>) -> T) -> T {
    // SAFETY: the owner keeps it open: operations forget their socket when it is closed.
    run(&unsafe { BorrowedSocket::borrow_raw(socket) })
}

fn receive_now(socket: RawFd, into: &mut [u8]) -> io::Result<usize> {
    with_socket(socket, |socket| (&*SockRef::from(socket)).read(into))
}

/// See [`confirm_end`](super::socket::confirm_end).
fn confirm_end(socket: RawFd) -> io::Result<()> {
    with_socket(socket, |socket| super::socket::confirm_end(socket))
}

/// Makes an accepted socket an ordinary one (`SO_UPDATE_ACCEPT_CONTEXT`).
fn update_accepted(socket: &Socket, listener: RawFd) -> io::Result<()> {
    let listener: SOCKET = handle(listener);
    // SAFETY: the socket is open, and pointer and length describe `listener`.
    check(unsafe {
        setsockopt(
            handle(socket.as_raw_socket()),
            SOL_SOCKET,
            SO_UPDATE_ACCEPT_CONTEXT,
            std::ptr::from_ref(&listener).cast(),
            size_of::<SOCKET>() as i32,
        )
    })
}

/// Makes a connected socket an ordinary one (`SO_UPDATE_CONNECT_CONTEXT`).
fn connected(socket: RawFd) -> io::Result<()> {
    // SAFETY: the option has no value.
    check(unsafe { setsockopt(handle(socket), SOL_SOCKET, SO_UPDATE_CONNECT_CONTEXT, std::ptr::null(), 0) })
}

/// For how long a socket has been connected; `None` if it is not.
fn connected_for(socket: &Socket) -> Option<Duration> {
    let (mut seconds, mut bytes) = (u32::MAX, size_of::<u32>() as i32);
    // SAFETY: the socket is open, and pointer and length describe `seconds`.
    let asked = check(unsafe {
        getsockopt(
            handle(socket.as_raw_socket()),
            SOL_SOCKET,
            SO_CONNECT_TIME,
            std::ptr::from_mut(&mut seconds).cast(),
            &raw mut bytes,
        )
    });
    (asked.is_ok() && seconds != u32::MAX).then(|| Duration::from_secs(seconds.into()))
}
