//! Overlapped operations on sockets: handed to the kernel, and their outcomes taken back, in one of two ways
//! ([`Notifier`]).
//!
//! The safety of the whole module rests on one rule: **what the kernel may touch is owned here until the completion
//! came back**. An [`Operation`] is in the pages of the queue's table, with its bytes, from the call until its
//! `Internal` field no longer says *pending* and the [`Notifier`] has said so.

mod calls;
mod completions;
mod datagram;
mod queue;
mod sends;
mod table;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::windows::io::AsRawSocket;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use socket2::Socket;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::IO::OVERLAPPED;

use super::descriptor::{BorrowedFd, RawFd};
pub use super::pool::Buffer;
use super::pool::PoolId;
use super::socket::Listener;
use super::status;
use crate::pages::Residence;
pub use crate::payload::Payload;
pub use crate::transmit::Parts;
use crate::transmit::Transmission;
#[cfg(test)]
pub(super) use calls::is_open;
use datagram::DatagramData;
pub use datagram::{Datagram, DatagramDone, DatagramQueue, is_aborted};
pub use queue::Queue;
pub use table::PlacedOperation;

/// What only a queue has: without it nobody can ask a [`Notifier`] for what has ended, or be one.
mod seal {
    #[derive(Clone, Copy)]
    pub struct OfQueue(pub(in crate::windows) ());
}
pub(super) use seal::OfQueue;

/// How the kernel reports that an operation has ended: it reports the memory of a queue. Sealed.
pub trait Notifier: Sized {
    /// Where accepts are posted.
    type Acceptor: Send + Sync + 'static;

    /// Wakes the thread that waits, from any thread.
    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static;
    /// Has operations of a socket reported here.
    fn attach(&self, socket: BorrowedFd<'_>, _: OfQueue) -> io::Result<()>;
    /// Prepares an operation that is about to be handed over.
    fn prepare(&mut self, operation: &mut Operation);
    /// An operation that was prepared has come back, or was not taken.
    fn finished(&mut self, operation: &Operation);
    /// Waits, and appends the places of operations that have ended.
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        operations: &Slab<PlacedOperation>,
        into: &mut VecDeque<usize>,
        _: OfQueue,
    ) -> io::Result<()>;
    /// Is notified from now on when a connection found no accept posted at an acceptor.
    fn join(&mut self, acceptor: &Self::Acceptor);
    /// The listening socket behind an acceptor.
    fn listener(acceptor: &Arc<Self::Acceptor>) -> Arc<Listener>;
}

/// A thread's operations, each under a key: with those the kernel is asked to do something, and [`next`](Self::next)
/// says what became of it.
///
/// A socket or buffer of another queue is a mistake of the caller: functions that take one panic then.
pub trait OperationQueue {
    /// A socket whose operations it reports. To be given back with [`close`](Self::close).
    type Socket;
    /// A buffer with what was received.
    type Buffer;
    /// Where accepts are posted.
    type Acceptor: Send + Sync + 'static;

    /// Wakes the thread that waits, from any thread.
    fn wake_event(&self) -> impl Fn() + Send + Sync + 'static;
    /// The listening socket behind an acceptor.
    fn listener(acceptor: &Arc<Self::Acceptor>) -> Arc<Listener>;
    /// A socket as it is for overlapped operations.
    fn overlapped(socket: &Self::Socket) -> &OverlappedSocket;
    /// Posts an accept, which completes then.
    fn accept(&mut self, acceptor: &Arc<Self::Acceptor>, key: u64, at: AcceptAt);
    /// Ends all accepts; each still completes, and its socket is closed then and not before.
    fn stop_accepting(&self);
    /// Ends accepts whose connection has been established for `limit` without a byte (`SO_CONNECT_TIME`); each
    /// completes as aborted.
    fn drop_silent(&self, limit: Duration);
    /// Sockets that were accepted with once more since this was asked last, and why there will be no more, reported
    /// once.
    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        (0, None)
    }
    /// Receives once.
    fn receive(&mut self, socket: &Self::Socket, key: u64);
    /// Receives once: what is there already, if no buffer is taken before data is there. To be called where an earlier
    /// receive has left more.
    fn receive_more(&mut self, socket: &Self::Socket, key: u64) {
        self.receive(socket, key);
    }
    /// Whether the receive that filled this buffer may have left more for [`receive_more`](Self::receive_more).
    fn may_have_left(&self, buffer: &Self::Buffer) -> bool {
        let _ = buffer;
        false
    }
    /// Waits until there is something to receive, or the end, and takes nothing: completes as a receive of nothing. A
    /// queue that cannot receives it.
    fn poll_readable(&mut self, socket: &Self::Socket, key: u64) {
        self.receive(socket, key);
    }
    /// Ends the receives that are armed on a socket; they still complete. One that cannot be ended comes back with
    /// data, or with the end of its socket.
    fn stop_receiving(&self, socket: &Self::Socket) {
        let _ = socket;
    }
    /// Ends everything that is in flight on a socket, or leaves that to its close.
    fn stop_all(&self, socket: &Self::Socket) {
        let _ = socket;
    }
    /// Sends it, or as much of it as one operation takes, behind what is in flight on the socket.
    fn send(&mut self, socket: &Self::Socket, payload: Payload, key: u64);
    /// Shuts the sending side down.
    ///
    /// # Errors
    /// As `shutdown`.
    fn finish_sending(&self, socket: &Self::Socket) -> io::Result<()>;
    /// Closes; what is in flight comes back with an error.
    fn close(&mut self, socket: Self::Socket, how: Closing);
    /// Waits until something has ended, or an outcome is there anyway.
    ///
    /// # Errors
    /// The system's.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    /// The next outcome. None is not the end: there is more after the next wait.
    fn next(&mut self) -> Option<Done<Self::Socket, Self::Buffer>>;
    /// The bytes in a buffer.
    fn bytes<'a>(&'a self, buffer: &'a Self::Buffer) -> &'a [u8];
    /// Takes a buffer back.
    fn recycle(&mut self, buffer: Self::Buffer);
    /// Whether receives take a buffer when they are armed ([`QueueSetup::posted`]), from now on.
    fn set_posted(&mut self, posted: bool);
}

/// When an accept completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptAt {
    /// As soon as the connection is established.
    Connection,
    /// With its first data, if there are buffers enough to wait for that.
    FirstData,
}

/// How a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The peer gets what was sent, and the end of the stream.
    Orderly,
    /// What was not sent yet is lost, and the peer gets a reset.
    Reset,
}

/// What an operation is, and what the kernel may touch for it.
pub(super) enum OperationData {
    Nothing,
    /// A receive; without a buffer it only waits for data.
    Receive(Option<Buffer>),
    Send(Payload),
    /// A send with a file in it.
    Transmit(Box<Transmission>),
    Accept(PendingAccept),
    /// A socket on its way to being used again.
    Disconnect(Socket),
    /// Of a [`DatagramQueue`].
    Datagram(DatagramData),
}

/// A connection that is awaited.
///
/// Its socket is closed only when the accept has come back, also when that is to end: closed before, it would leave
/// memory with the kernel that nobody gets back.
pub(super) struct PendingAccept {
    socket: Socket,
    /// It had a connection before.
    used: bool,
    /// Open until the accept has come back.
    listener: Arc<Listener>,
    /// Where the first data goes, with the addresses behind it; without it, the addresses have a separate place.
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
    /// A send that another one was posted behind.
    is_followed: bool,
    /// A receive that waits for data, and leaves it there.
    polls: bool,
    held: OperationData,
}

impl Operation {
    /// One that is not begun yet.
    fn new(place: usize, (key, socket): (u64, RawFd), held: OperationData) -> Self {
        Self {
            // SAFETY: integers and handles: all zeroes are a value.
            overlapped: unsafe { std::mem::zeroed() },
            place,
            home: std::ptr::null_mut(),
            event: None,
            key,
            socket: Some(socket),
            is_followed: false,
            polls: false,
            held,
        }
    }

    /// Whether the kernel has finished with it.
    pub(super) fn has_ended(&self) -> bool {
        // SAFETY: the kernel writes this field once, last; a volatile read sees either value.
        unsafe { std::ptr::read_volatile(&raw const self.overlapped.Internal) as i32 != status::PENDING }
    }

    /// Whether it is a receive.
    pub(super) fn receives(&self) -> bool {
        matches!(self.held, OperationData::Receive(_) | OperationData::Datagram(DatagramData::Receive(_)))
    }

    /// Whether it is an accept.
    pub(super) fn accepts(&self) -> bool {
        matches!(self.held, OperationData::Accept(_))
    }

    /// Whether it is a send.
    fn sends(&self) -> bool {
        matches!(self.held, OperationData::Send(_) | OperationData::Transmit(_))
    }

    /// Whether it is a send that leaves a part of what it was given.
    fn sends_in_part(&self) -> bool {
        match &self.held {
            OperationData::Send(payload) => matches!(payload, Payload::Parts(_)), // only what is before the file
            OperationData::Transmit(transmission) => !transmission.is_whole(),
            _ => false,
        }
    }

    /// Whether it is a receive that is filled as soon as there is data.
    fn has_buffer(&self) -> bool {
        !matches!(self.held, OperationData::Receive(None))
    }

    /// Whether it is a receive, or an attempt to connect, of this socket.
    fn is_armed_on(&self, socket: RawFd) -> bool {
        self.socket == Some(socket) && matches!(self.held, OperationData::Receive(_) | OperationData::Nothing)
    }
}

/// A socket whose operations a [`Queue`] reports; other queues refuse it. To be given back with
/// [`OperationQueue::close`].
pub struct OverlappedSocket {
    socket: Socket,
    /// The pool of its queue.
    pool: PoolId,
    /// Where the receives that are armed, or the attempt to connect, are in the table. May be out of date.
    armed: RefCell<Vec<usize>>,
    /// First data that came with the accept.
    first: Cell<Option<Buffer>>,
    /// It was accepted, not dialled.
    was_accepted: bool,
}

impl OverlappedSocket {
    fn accepted(socket: Socket, pool: PoolId, first: Option<Buffer>) -> Self {
        Self { socket, pool, armed: RefCell::default(), first: Cell::new(first), was_accepted: true }
    }

    fn dialled(socket: Socket, pool: PoolId) -> Self {
        Self { socket, pool, armed: RefCell::default(), first: Cell::new(None), was_accepted: false }
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

    /// The address of this end.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()?.as_socket()
    }
}

/// What came back.
pub struct Done<S = OverlappedSocket, B = Buffer> {
    /// The number the operation was submitted with.
    pub key: u64,
    /// What became of it.
    pub outcome: Outcome<S, B>,
}

/// What became of an operation.
pub enum Outcome<S = OverlappedSocket, B = Buffer> {
    /// The queue was woken.
    Woken,
    /// A connection has found no accept posted.
    Behind,
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
    /// Whether they, and the operations, are locked in memory.
    pub residence: Residence,
    /// Whether a receive takes a buffer when it is armed, while there are enough, rather than when there is data.
    pub posted: bool,
    /// Sockets that are kept to be accepted with again, at most.
    pub reuse: usize,
}

/// Indices that no operation has, and their meaning.
pub(super) const WOKEN: usize = usize::MAX;
pub(super) const BEHIND: usize = usize::MAX - 1;
