//! What a queue of the completion models of Windows can be asked to do, and the overlapped queue as one.

use std::io;

use tidegate_os::overlapped::{Notifier, OperationQueue, OverlappedSocket, Queue, QueueSetup, SocketKind};

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
}

/// A queue as an engine uses it.
pub(crate) trait Operations: OperationQueue + Sized + 'static {
    /// Accepts that a thread keeps posted, if it is to accept without end; more while it is behind.
    const ACCEPTS: usize;
    /// The most accepts that a thread can have posted.
    const MOST_ACCEPTS: usize;
    /// The most sends of one connection that can be in flight.
    const MOST_SENDS: usize = 1;

    /// For the calling thread, and how many connections it can have.
    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)>;
    fn files(&self) -> FileSending;
    fn connect(&mut self, dial: &Dial, transports: &Transports, key: u64) -> io::Result<Self::Socket>;
    /// Whether a receive can be posted behind those that are armed.
    fn may_receive_ahead(&self, socket: &Self::Socket) -> bool {
        let _ = socket;
        false
    }
}

impl<W: OverlappedNotifier> Operations for Queue<W> {
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

    fn files(&self) -> FileSending {
        if self.sends_files() { FileSending::Among } else { FileSending::Read }
    }

    fn connect(&mut self, dial: &Dial, transports: &Transports, key: u64) -> io::Result<OverlappedSocket> {
        self.connect(&dial.to, dial.source, key, |socket| {
            transports.hasten(socket);
            Ok(())
        })
    }

    fn may_receive_ahead(&self, socket: &OverlappedSocket) -> bool {
        W::RECEIVES_AHEAD && self.may_receive_ahead(socket)
    }
}
