//! What a queue of the completion models of Windows can be asked to do, and the overlapped queue as one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_os::overlapped::{
    AcceptAt, Buffer, Closing, Done, Notifier, OverlappedSocket, Payload, Queue, QueueSetup, SocketKind,
};
use tidegate_os::waker::Waker;

use crate::engine::completion::Setup;
use crate::engine::worker::capacity;
use crate::fastpath::Transports;
use crate::policy::ReceiveStyle;
use crate::policy::sends::MOST_POSTED;
use crate::proto::queue::FileSending;
use crate::service::Dial;

/// A way to be notified that an overlapped operation has ended, as a leaf brings it.
pub(crate) trait OverlappedNotifier: Notifier + 'static {
    /// Connections that one thread can have.
    const HOLDS: usize;
    /// Accepts that a thread keeps posted, if it is to accept without end; more while it is behind.
    const ACCEPTS: usize;
    /// The most accepts that a thread can have posted.
    const MOST_ACCEPTS: usize;
    /// Whether several receives of one connection can be posted.
    const RECEIVES_AHEAD: bool;

    /// For the calling thread; takes `events` at once, where that can be set.
    fn open(events: usize) -> io::Result<Self>;
    /// Has the waker end waits here.
    fn hear(&self, waker: &Waker);
    /// Whether connections wait to be accepted.
    fn has_waiting(acceptor: &Self::Acceptor) -> bool;
}

/// A thread's operations, each under a key: with those the kernel is asked to do something, and [`next`](Self::next)
/// says what became of it.
pub(crate) trait Operations: Sized + 'static {
    type Socket;
    type Buffer;
    type Acceptor: Send + Sync + 'static;
    /// Accepts that a thread keeps posted, if it is to accept without end; more while it is behind.
    const ACCEPTS: usize;
    /// The most accepts that a thread can have posted.
    const MOST_ACCEPTS: usize;

    /// The most sends of one connection that can be in flight.
    const MOST_SENDS: usize = 1;

    /// For the calling thread, and how many connections it can have.
    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)>;
    fn hear(&self, waker: &Waker);
    fn files(&self) -> FileSending;
    fn has_waiting(acceptor: &Self::Acceptor) -> bool;
    fn accept(&mut self, acceptor: &Arc<Self::Acceptor>, key: u64, at: AcceptAt);
    fn stop_accepting(&self);
    /// Connections accepted on used sockets since the last call, and why there will be no more; reported once.
    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        (0, None)
    }
    fn drop_silent(&self, limit: Duration);
    fn connect(&mut self, dial: &Dial, transports: &Transports, key: u64) -> io::Result<Self::Socket>;
    fn peer_addr(socket: &Self::Socket) -> Option<SocketAddr>;
    fn local_addr(socket: &Self::Socket) -> Option<SocketAddr>;
    fn receive(&mut self, socket: &Self::Socket, key: u64);
    /// Whether a receive can be posted behind those that are armed.
    fn may_receive_ahead(&self, socket: &Self::Socket) -> bool {
        let _ = socket;
        false
    }
    /// Receives once what may be there already.
    fn receive_more(&mut self, socket: &Self::Socket, key: u64) {
        self.receive(socket, key);
    }
    /// Whether the receive that filled this buffer may have left more for [`receive_more`](Self::receive_more).
    fn may_have_left(&self, buffer: &Self::Buffer) -> bool {
        let _ = buffer;
        false
    }
    /// Waits for something to receive, and completes as a receive of nothing; a queue that cannot receives it.
    fn poll_readable(&mut self, socket: &Self::Socket, key: u64) {
        self.receive(socket, key);
    }
    fn stop_receiving(&self, socket: &Self::Socket);
    fn stop_all(&self, socket: &Self::Socket);
    fn send(&mut self, socket: &Self::Socket, payload: Payload, key: u64);
    fn finish_sending(&self, socket: &Self::Socket) -> io::Result<()>;
    fn close(&mut self, socket: Self::Socket, how: Closing);
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    fn next(&mut self) -> Option<Done<Self::Socket, Self::Buffer>>;
    fn bytes<'a>(&'a self, buffer: &'a Self::Buffer) -> &'a [u8];
    fn recycle(&mut self, buffer: Self::Buffer);
    /// Whether receives take a buffer when they are posted, from now on.
    fn set_posted(&mut self, posted: bool);
}

/// What both kinds of queue have under the names of [`Operations`].
macro_rules! operations_of_queue {
    () => {
        fn accept(&mut self, acceptor: &Arc<Self::Acceptor>, key: u64, at: AcceptAt) {
            self.accept(acceptor, key, at);
        }

        fn stop_accepting(&self) {
            self.stop_accepting();
        }

        fn drop_silent(&self, limit: Duration) {
            self.drop_silent(limit);
        }

        fn receive(&mut self, socket: &Self::Socket, key: u64) {
            self.receive(socket, key);
        }

        fn send(&mut self, socket: &Self::Socket, payload: Payload, key: u64) {
            self.send(socket, payload, key);
        }

        fn finish_sending(&self, socket: &Self::Socket) -> io::Result<()> {
            self.finish_sending(socket)
        }

        fn close(&mut self, socket: Self::Socket, how: Closing) {
            self.close(socket, how);
        }

        fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
            self.wait(timeout)
        }

        fn next(&mut self) -> Option<Done<Self::Socket, Self::Buffer>> {
            self.next()
        }

        fn bytes<'a>(&'a self, buffer: &'a Self::Buffer) -> &'a [u8] {
            self.bytes(buffer)
        }

        fn recycle(&mut self, buffer: Self::Buffer) {
            self.recycle(buffer);
        }

        fn set_posted(&mut self, posted: bool) {
            self.set_posted(posted);
        }
    };
}
pub(super) use operations_of_queue;

impl<W: OverlappedNotifier> Operations for Queue<W>
where
    W::Acceptor: Send + Sync + 'static,
{
    type Socket = OverlappedSocket;
    type Buffer = Buffer;
    type Acceptor = W::Acceptor;
    const ACCEPTS: usize = W::ACCEPTS;
    const MOST_ACCEPTS: usize = W::MOST_ACCEPTS;
    const MOST_SENDS: usize = MOST_POSTED;

    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        let queue = Self::new(
            W::open(policy.events_per_wait)?,
            &QueueSetup {
                sockets: SocketKind::Plain,
                buffers: policy.buffers.min(W::HOLDS.saturating_add(1)),
                buffer_bytes: policy.buffer_bytes,
                residence: capacity::residence(policy),
                posted: policy.receive == ReceiveStyle::Posted,
                reuse: policy.accept.reuse.map_or(0, |most| most.get() as usize),
            },
        )?;
        Ok((queue, W::HOLDS))
    }

    fn hear(&self, waker: &Waker) {
        self.notify().hear(waker);
    }

    fn files(&self) -> FileSending {
        if self.sends_files() { FileSending::Among } else { FileSending::Read }
    }

    fn has_waiting(acceptor: &W::Acceptor) -> bool {
        W::has_waiting(acceptor)
    }

    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        self.take_reuse()
    }

    fn connect(&mut self, dial: &Dial, transports: &Transports, key: u64) -> io::Result<OverlappedSocket> {
        self.connect(&dial.to, dial.source, key, |socket| {
            transports.hasten(socket);
            Ok(())
        })
    }

    fn peer_addr(socket: &OverlappedSocket) -> Option<SocketAddr> {
        socket.peer_addr()
    }

    fn local_addr(socket: &OverlappedSocket) -> Option<SocketAddr> {
        socket.local_addr()
    }

    fn may_receive_ahead(&self, socket: &OverlappedSocket) -> bool {
        W::RECEIVES_AHEAD && self.may_receive_ahead(socket)
    }

    fn receive_more(&mut self, socket: &OverlappedSocket, key: u64) {
        self.receive_more(socket, key);
    }

    fn may_have_left(&self, buffer: &Buffer) -> bool {
        self.is_full(buffer)
    }

    fn poll_readable(&mut self, socket: &OverlappedSocket, key: u64) {
        self.poll_readable(socket, key);
    }

    fn stop_receiving(&self, socket: &OverlappedSocket) {
        self.stop_receiving(socket);
    }

    fn stop_all(&self, socket: &OverlappedSocket) {
        self.stop_all(socket);
    }

    operations_of_queue!();
}
