//! Operations on their way to the kernel.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::os::windows::io::{AsRawSocket, AsSocket, BorrowedSocket};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::Networking::WinSock::{WSABUF, WSARecv};
use windows_sys::Win32::System::IO::CancelIoEx;

use super::super::descriptor::{AsRawFd, RawFd};
use super::super::extension::{Extensions, no_reuse};
use super::super::pool::{Buffer, Pool};
use super::super::registered;
use super::super::socket::{Listener, address};
use super::super::winsock::{check, handle, last_error};
use super::calls::{cancel, connected_for, domain};
use super::sends::Sends;
use super::table::OperationTable;
use super::{
    ADDRESS_BYTES, AcceptAt, Closing, Done, Notifier, Operation, OperationData, OperationQueue, Outcome,
    OverlappedSocket, Payload, PendingAccept, QueueSetup, SocketKind, seal::OfQueue,
};
use crate::endpoint::Endpoint;
use crate::reuse::{self, Shelf};

/// A thread's operations.
pub struct Queue<N: Notifier> {
    pub(super) table: OperationTable<N>,
    pub(super) extensions: Extensions,
    /// Outcomes that no operation has: first data, and calls that failed at once.
    pub(super) ready: VecDeque<Done>,
    /// Sends that were not taken, and their sockets.
    pub(super) refusals: VecDeque<(RawFd, Done)>,
    pub(super) pool: Pool,
    pub(super) posted: bool,
    pub(super) shelf: Shelf<Socket>,
    pub(super) sockets: SocketKind,
    /// Buffers that armed operations have.
    pub(super) pinned: usize,
    pub(super) sends: Sends,
    /// Receives that wait for a send to be reported first, by its place.
    pub(super) held_back: HashMap<usize, Vec<usize>>,
}

/// A buffer is always left for data that is there.
const SPARE_BUFFERS: usize = 1;

impl<N: Notifier> Queue<N> {
    /// A queue whose completions `notify` reports.
    pub fn new(notify: N, setup: &QueueSetup) -> io::Result<Self> {
        let extensions = Extensions::load()?;
        let mut shelf = Shelf::new(setup.reuse);
        if let Some(why) = no_reuse() {
            shelf.give_up(why);
        }
        Ok(Self {
            table: OperationTable::new(notify, setup.residence)?,
            extensions,
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            pool: Pool::new(setup.buffers, setup.buffer_bytes, setup.residence)?,
            posted: setup.posted,
            shelf,
            sockets: setup.sockets,
            pinned: 0,
            sends: Sends::default(),
            held_back: HashMap::new(),
        })
    }

    /// Whether the functions that it needs are here.
    pub fn probe() -> io::Result<()> {
        Extensions::load().map(drop)
    }

    /// Reports its completions.
    pub(in crate::windows) fn notify(&self) -> &N {
        &self.table.notify
    }

    pub(in crate::windows) fn notify_mut(&mut self) -> &mut N {
        &mut self.table.notify
    }

    /// Puts an operation into the table and hands it over by `call`, which is lent what calls need.
    pub(super) fn submit(
        &mut self,
        id: (u64, RawFd),
        held: OperationData,
        call: impl FnOnce(&mut Operation, &Pool, &Extensions) -> io::Result<()>,
    ) -> Result<usize, (OperationData, io::Error)> {
        self.table.submit(id, held, |operation| call(operation, &self.pool, &self.extensions))
    }

    fn post_accept(
        &mut self,
        listener: &Arc<Listener>,
        key: u64,
        at: AcceptAt,
        used: Option<Socket>,
    ) -> Result<(), (OperationData, io::Error)> {
        let accept = self.prepare_accept(listener, at, used).map_err(|e| (OperationData::Nothing, e))?;
        let listener = listener.as_raw_fd();
        let submitted =
            self.submit((key, listener), OperationData::Accept(accept), |operation, pool, extensions| {
                let overlapped = &raw mut operation.overlapped;
                let OperationData::Accept(accept) = &mut operation.held else { return Ok(()) };
                let (space, bytes) = match &accept.first {
                    Some(buffer) => (pool.at(buffer), pool.bytes() - 2 * ADDRESS_BYTES),
                    None => (accept.addresses.as_mut_ptr(), 0),
                };
                let (socket, each) = (handle(accept.socket.as_raw_socket()), ADDRESS_BYTES as u32);
                let mut at_once = 0; // set only if it completes at once, and then known from the OVERLAPPED too
                // SAFETY: both sockets are open; `space` has `bytes` and two addresses; it and the OVERLAPPED are owned
                // by the table until the operation has ended.
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
        submitted.map(drop)
    }

    fn prepare_accept(
        &mut self,
        listener: &Arc<Listener>,
        at: AcceptAt,
        used: Option<Socket>,
    ) -> io::Result<PendingAccept> {
        let was_used = used.is_some();
        let socket = match used {
            Some(socket) => socket, // it reports here already
            None => {
                let socket = registered::open(domain(&**listener)?, self.sockets)?;
                self.table.notify.attach(socket.as_socket(), OfQueue(()))?;
                socket
            }
        };
        let (count, free) = self.pool.count();
        // At most half of the buffers wait for first data; the rest is for connections that are there.
        let waits = at == AcceptAt::FirstData && free > count / 2;
        let first = if waits { self.pool.take() } else { None };
        self.pinned += usize::from(first.is_some());
        let (listener, addresses) = (listener.clone(), Box::new([0; 2 * ADDRESS_BYTES]));
        Ok(PendingAccept { socket, used: was_used, listener, first, addresses })
    }

    /// Makes a connection to `to`, after what is to be done `before` with its socket; the outcome comes under `key`.
    pub fn connect(
        &mut self,
        to: &Endpoint,
        from: Option<SocketAddr>,
        key: u64,
        before: impl FnOnce(&BorrowedSocket<'_>) -> io::Result<()>,
    ) -> io::Result<OverlappedSocket> {
        let to = address(to)?;
        let socket = registered::open(Domain::for_address(to), self.sockets)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        socket.bind(&from.unwrap_or(any).into())?; // ConnectEx wants a bound socket
        before(&socket.as_socket())?;
        self.table.notify.attach(socket.as_socket(), OfQueue(()))?;
        let (fd, address) = (socket.as_raw_socket(), SockAddr::from(to));
        let submitted = self.submit((key, fd), OperationData::Nothing, |operation, _, extensions| {
            // SAFETY: the socket is open and bound; the address is copied by the call; the OVERLAPPED is owned by the
            // table.
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
        let socket = OverlappedSocket::dialled(socket, self.pool.id());
        socket.armed.borrow_mut().push(place);
        Ok(socket)
    }

    /// A socket of another queue would have its operations reported there, and their memory freed there.
    pub(super) fn check(&self, socket: &OverlappedSocket) {
        assert!(socket.pool == self.pool.id(), "a socket of another queue");
    }

    /// Has the kernel receive into a buffer, or wait for data without one. The operation, if it was taken.
    fn arm(&mut self, socket: &OverlappedSocket, key: u64, buffer: Option<Buffer>) -> Option<&mut Operation> {
        let fd = socket.raw();
        let submitted = self.submit((key, fd), OperationData::Receive(buffer), |operation, pool, _| {
            let space = match &operation.held {
                OperationData::Receive(Some(buffer)) => {
                    WSABUF { len: pool.bytes() as u32, buf: pool.at(buffer) }
                }
                _ => WSABUF { len: 0, buf: std::ptr::null_mut() },
            };
            let mut flags = 0;
            // SAFETY: the socket is open; `space` is copied by the call and lies in a buffer that the operation owns
            // until it has ended, as is the OVERLAPPED.
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
            Ok(place) => {
                let mut armed = socket.armed.borrow_mut();
                armed.retain(|&place| {
                    self.table.operations.get(place).is_some_and(|other| other.is_armed_on(fd))
                });
                armed.push(place);
                self.table.operations.get_mut(place).map(DerefMut::deref_mut)
            }
            Err((held, e)) => {
                self.release(held);
                self.fail(key, Outcome::Received(Err(e)));
                None
            }
        }
    }

    /// Whether a receive takes a buffer when it is armed.
    fn pins(&self) -> bool {
        self.posted && self.pool.count().1 > SPARE_BUFFERS
    }

    /// Whether a receive can be posted behind those that are armed on a socket: it has a buffer, and so have they. One
    /// that only waits for data would take that behind those which were posted after it.
    pub fn may_receive_ahead(&self, socket: &OverlappedSocket) -> bool {
        let fill =
            |place: &usize| self.table.operations.get(*place).is_none_or(|operation| operation.has_buffer());
        self.pins() && !socket.has_first() && socket.armed.borrow().iter().all(fill)
    }

    /// An outcome without an operation.
    pub(super) fn fail(&mut self, key: u64, outcome: Outcome) {
        self.ready.push_back(Done { key, outcome });
    }

    /// Has a socket disconnected, to be used again; if that cannot be, it is closed.
    fn disconnect(&mut self, socket: OverlappedSocket) {
        let Some(function) = self.extensions.disconnect else { return };
        self.stop_all(&socket); // the receive that is armed
        let fd = socket.raw();
        let submitted = self.submit((0, fd), OperationData::Disconnect(socket.socket), |operation, _, _| {
            let overlapped = (&raw mut operation.overlapped).cast();
            // SAFETY: the operation has the socket, and the table the operation until it has ended.
            unsafe { reuse::disconnect(function, last_error, handle(fd), overlapped) }
        });
        if submitted.is_ok() {
            self.shelf.leave();
        }
    }

    /// Ends what may take as long as TIME_WAIT does.
    pub(super) fn stop_disconnecting(&self) {
        for (_, operation) in &self.table.operations {
            if let OperationData::Disconnect(socket) = &operation.held {
                cancel(socket, &operation.overlapped);
            }
        }
    }

    /// The sockets that accepts have which have not come back.
    #[cfg(test)]
    pub(in crate::windows) fn accept_sockets(&self) -> Vec<RawFd> {
        let socket = |operation: &Operation| match &operation.held {
            OperationData::Accept(accept) => Some(accept.socket.as_raw_socket()),
            _ => None,
        };
        self.table.operations.iter().filter_map(|(_, operation)| socket(operation)).collect()
    }

    /// Of the pages that the kernel may touch: buffers, then operations.
    #[cfg(test)]
    pub(in crate::windows) fn residences(&self) -> Vec<crate::pages::Residence> {
        let operations = self.table.pages().iter();
        std::iter::once(self.pool.pages()).chain(operations).map(crate::pages::Pages::residence).collect()
    }

    /// Gives back what an operation had that was not taken.
    pub(super) fn release(&mut self, held: OperationData) {
        let buffer = match held {
            OperationData::Receive(buffer) => buffer,
            OperationData::Accept(accept) => accept.first,
            OperationData::Nothing
            | OperationData::Send(_)
            | OperationData::Transmit(_)
            | OperationData::Disconnect(_)
            | OperationData::Datagram(_) => None,
        };
        if let Some(buffer) = buffer {
            self.pinned -= 1;
            self.pool.recycle(buffer);
        }
    }
}

impl<N: Notifier> OperationQueue for Queue<N> {
    type Socket = OverlappedSocket;
    type Buffer = Buffer;
    type Acceptor = N::Acceptor;

    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static {
        self.table.notify.wake_event()
    }

    fn listener(acceptor: &Arc<N::Acceptor>) -> Arc<Listener> {
        N::listener(acceptor)
    }

    fn overlapped(socket: &OverlappedSocket) -> &OverlappedSocket {
        socket
    }

    /// With a socket that had a connection before, if one is kept. Should the system take none, none is kept from then
    /// on.
    fn accept(&mut self, acceptor: &Arc<N::Acceptor>, key: u64, at: AcceptAt) {
        self.table.notify.join(acceptor);
        let listener = &N::listener(acceptor);
        let used = self.shelf.take();
        let was_used = used.is_some();
        let mut posted = self.post_accept(listener, key, at, used);
        if was_used && let Err((held, why)) = posted {
            self.release(held);
            self.note_refusal(why);
            posted = self.post_accept(listener, key, at, None);
        }
        if let Err((held, e)) = posted {
            self.release(held);
            self.fail(key, Outcome::Accepted(Err(e)));
        }
    }

    fn stop_accepting(&self) {
        for (_, operation) in &self.table.operations {
            if let OperationData::Accept(accept) = &operation.held {
                cancel(&*accept.listener, &operation.overlapped);
            }
        }
    }

    fn drop_silent(&self, limit: Duration) {
        for (_, operation) in &self.table.operations {
            if let OperationData::Accept(accept) = &operation.held
                && accept.first.is_some()
                && connected_for(&accept.socket).is_some_and(|time| time >= limit)
            {
                cancel(&*accept.listener, &operation.overlapped);
            }
        }
    }

    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        (self.shelf.take_used(), self.shelf.take_refusal())
    }

    fn receive(&mut self, socket: &OverlappedSocket, key: u64) {
        self.check(socket);
        if let Some(first) = socket.first.take() {
            return self.ready.push_back(Done { key, outcome: Outcome::Received(Ok(Some(first))) });
        }
        let buffer = if self.pins() { self.pool.take() } else { None };
        self.pinned += usize::from(buffer.is_some());
        self.arm(socket, key, buffer);
    }

    /// A send that is in flight on the socket has to be reported before what the peer answers, which is known of
    /// operations only.
    fn receive_more(&mut self, socket: &OverlappedSocket, key: u64) {
        self.check(socket);
        let at_once = !self.pins() && !socket.has_first() && !self.sends.are_in_flight(socket.raw());
        match at_once.then(|| self.take_what_is_there(Some(socket.socket.as_socket()))) {
            None => self.receive(socket, key),
            Some(Err(e)) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ResourceBusy) => {
                self.receive(socket, key);
            }
            Some(taken) => {
                let outcome = self.filled(Some(socket.socket.as_socket()), taken);
                self.ready.push_back(Done { key, outcome: Outcome::Received(outcome) });
            }
        }
    }

    fn may_have_left(&self, buffer: &Buffer) -> bool {
        buffer.filled as usize == self.pool.bytes()
    }

    fn poll_readable(&mut self, socket: &OverlappedSocket, key: u64) {
        self.check(socket);
        if socket.has_first() {
            return self.ready.push_back(Done { key, outcome: Outcome::Received(Ok(None)) });
        }
        if let Some(polls) = self.arm(socket, key, None) {
            polls.polls = true;
        }
    }

    fn stop_receiving(&self, socket: &OverlappedSocket) {
        self.check(socket);
        for operation in socket.armed.borrow().iter().filter_map(|&place| self.table.operations.get(place)) {
            // The place may have been given to another operation since; but no other socket has this handle while it is
            // open.
            if operation.is_armed_on(socket.raw()) {
                cancel(&socket.socket, &operation.overlapped);
            }
        }
    }

    fn stop_all(&self, socket: &OverlappedSocket) {
        // SAFETY: the socket is open. What is ended still completes.
        unsafe { CancelIoEx(socket.raw() as HANDLE, std::ptr::null()) };
    }

    fn send(&mut self, socket: &OverlappedSocket, payload: Payload, key: u64) {
        self.send(socket, payload, key);
    }

    fn finish_sending(&self, socket: &OverlappedSocket) -> io::Result<()> {
        socket.socket.shutdown(std::net::Shutdown::Write)
    }

    fn close(&mut self, socket: OverlappedSocket, how: Closing) {
        self.check(&socket);
        let sends = self.sends.forget(socket.raw());
        for &place in socket.armed.borrow().iter().chain(&sends) {
            // The place may have been given to an operation of another socket since.
            if let Some(operation) = self.table.operations.get_mut(place)
                && operation.socket == Some(socket.raw())
            {
                operation.socket = None; // its handle may soon be another's
            }
        }
        if let Some(first) = socket.first.take() {
            self.recycle(first);
        }
        if how == Closing::Reset {
            let _ = socket.socket.set_linger(Some(Duration::ZERO)); // it is closed either way
        } else if socket.was_accepted && self.shelf.has_room() && sends.is_empty() {
            self.disconnect(socket);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait(timeout)
    }

    fn next(&mut self) -> Option<Done> {
        self.next()
    }

    fn bytes(&self, buffer: &Buffer) -> &[u8] {
        self.pool.received(buffer)
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.pool.recycle(buffer);
    }

    fn set_posted(&mut self, posted: bool) {
        self.posted = posted;
    }
}
