//! `iocp`: Windows I/O completion ports, one for each I/O thread.
//!
//! # How it waits
//! `GetQueuedCompletionStatusEx` takes a batch of completions. Accepts (`AcceptEx`), receives, sends and dials
//! (`ConnectEx`) are overlapped operations: handed over one by one, and reported here when they have ended.
//!
//! # What it bounds
//! A receive is posted with a buffer of the thread's pool while there are enough; else, and always with
//! `receive = ZeroByte`, with none: then it completes when there is data, a buffer is taken and what is there is
//! received at once. So the pool bounds what is pinned, however many connections are idle. 64 accepts are posted by
//! each thread, or what `accept.posted` says, and more while connections find none (FD_ACCEPT); every second of them
//! completes with the first data of its connection (`accept.defer`). Sockets that are kept to be accepted with again
//! are bounded by `accept.reuse`.
//!
//! # What it costs
//! A call for each operation, and a completion; a wait for each batch. The pool (`buffers` x `buffer_bytes` for each
//! thread), and an operation of about 200 bytes for each that is in flight. One thread waits for FD_ACCEPT. Each accept
//! passes through a thread that hands it to the port of who posted it: a socket reports to one port only, and the
//! listener is shared.
//!
//! # Where it differs
//! A connection that stands in an accept and says nothing for `first_byte_timeout` is dropped there
//! (`SO_CONNECT_TIME`): it is counted as attempted, and was never accepted. A listening socket that reports to the port
//! of one server cannot be taken over by another.

use std::io;
use std::sync::Arc;

use tidegate_os::overlapped::Queue;
use tidegate_os::port::{AcceptPort, CompletionPort};
use tidegate_os::socket::Listener;
use tidegate_os::waker::Waker;

use super::winsock::{Waits, Winsock};
use crate::engine::{Availability, Engine, EngineConfig, EngineHandle, Model};

/// The model.
pub(in crate::engine) struct Leaf;

impl Engine for Leaf {
    const MODEL: Model = Model::Iocp;

    /// Whether it works here: asks for the functions, and makes a port.
    fn probe() -> Availability {
        match CompletionPort::new(1).and_then(|_| Queue::<CompletionPort>::probe()) {
            Ok(()) => Availability::Available("AcceptEx, ConnectEx, batched completions".into()),
            Err(e) => Availability::Unavailable(format!("{e}; use event-select or select")),
        }
    }

    fn start(config: EngineConfig) -> io::Result<EngineHandle> {
        crate::engine::completion::start::<Iocp>(config, Self::MODEL, open)
    }
}

/// A completion port.
pub(crate) type Iocp = Winsock<Queue<CompletionPort>>;

/// The listener as accepts are posted to it.
fn open(listener: Arc<Listener>) -> io::Result<Arc<AcceptPort>> {
    AcceptPort::new(listener).map(Arc::new)
}

impl Waits for CompletionPort {
    const HOLDS: usize = usize::MAX;
    const ACCEPTS: usize = 64;
    const MOST_ACCEPTS: usize = usize::MAX;

    fn open(events: usize) -> io::Result<Self> {
        Self::new(events)
    }

    fn hear(&self, waker: &Waker) {
        waker.ring_with(self.bell());
    }

    fn has_waiting(door: &AcceptPort) -> bool {
        door.listener().has_waiting()
    }
}
