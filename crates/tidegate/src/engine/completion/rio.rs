//! `rio`: Windows Registered I/O, over memory that the kernel has mapped once.
//!
//! # How it waits
//! Receives and sends are requests, written into queues that the kernel reads; each thread has one completion queue for
//! all its sockets. While a loop spins (`wait`) it looks there and makes no system call for it; before it sleeps it has
//! the queue announce itself (`RIONotify`) at the completion port of the thread, where accepts (`AcceptEx`) and dials
//! (`ConnectEx`) end, too. With `wait = Spin` the queue is only ever polled.
//!
//! # What it bounds
//! The buffers of the thread are registered at the start, and what is sent is copied into them, or read into them if it
//! is of a file: `buffers` bounds receives and sends together. At most half of them are posted with receives; else, and
//! always with `receive = ZeroByte`, a receive has none until there is data. A send waits until there is one, and one
//! that is longer than a buffer goes piece by piece. Two places of the completion queue belong to each connection.
//!
//! # What it costs
//! One copy of what is sent, or one read for each buffer of a file; and memory that stays in place: it is locked by
//! being registered. No call into the kernel to find out what has ended.
//!
//! # Where it differs
//! A request takes one buffer or none. It cannot be taken back, only ended with its socket: a paused connection may be
//! given what one receive brings, and `max_receiving` is refused. Sockets have to be made for it
//! (`WSA_FLAG_REGISTERED_IO`), which those of a plain accept are not. Wine has none of it: it was not run there.

use std::io;

use tidegate_os::overlapped::{QueueSetup, SocketKind};
use tidegate_os::registered::{self, NotifyMode, Registered, RegisteredQueue, RequestSetup};

use super::operations::Operations;
use super::winsock::{Winsock, accept_port};
use crate::engine::completion::Setup;
use crate::engine::{Availability, EngineConfig, EngineHandle, Model, capacity};
use crate::fastpath::Transports;
use crate::policy::accept::ACCEPTS_POSTED;
use crate::policy::{ReceiveStyle, Wait};
use crate::proto::queue::FileSending;
use crate::service::Dial;

/// Whether it works here: asks for the table of functions.
pub(in crate::engine) fn probe() -> Availability {
    match registered::probe() {
        Ok(()) => Availability::Available("registered buffers, notified through a completion port".into()),
        Err(e) => Availability::Unavailable(format!("{e}; use iocp")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::completion::start::<Rio>(config, Model::Rio, accept_port)
}

/// A thread's requests.
pub(crate) type Rio = Winsock<RegisteredQueue>;

/// Sockets that the completion queue has room for at first; it grows.
const SOCKETS: u32 = 1024;

impl Operations for RegisteredQueue {
    const ACCEPTS: usize = ACCEPTS_POSTED;
    const MOST_ACCEPTS: usize = usize::MAX;

    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        let requests = RequestSetup {
            buffers: policy.buffers,
            buffer_bytes: policy.buffer_bytes,
            residence: capacity::residence(policy),
            posted: policy.receive == ReceiveStyle::Posted,
            sockets: SOCKETS,
            events: policy.events_per_wait,
        };
        // Half of the accepts may bring first data, and at most half of the buffers wait for that.
        let buffers = if setup.first_data { ACCEPTS_POSTED } else { 1 };
        let first = QueueSetup {
            sockets: SocketKind::Registered,
            buffers,
            buffer_bytes: policy.buffer_bytes,
            residence: capacity::residence(policy),
            posted: false,
            reuse: 0,
        };
        let look = if policy.wait == Wait::Spin { NotifyMode::Polls } else { NotifyMode::Notified };
        Ok((Self::new(&requests, &first, look)?, usize::MAX))
    }

    fn files(&self) -> FileSending {
        FileSending::Among // each is read into a registered buffer
    }

    fn connect(&mut self, dial: &Dial, transports: &Transports, key: u64) -> io::Result<Registered> {
        self.connect(&dial.to, dial.source, key, |socket| transports.hasten(socket))
    }
}
