//! `iocp`: Windows I/O completion ports, one for each I/O thread.
//!
//! # How it waits
//! `GetQueuedCompletionStatusEx` takes a batch of completions. Accepts (`AcceptEx`), receives, sends and dials
//! (`ConnectEx`) are overlapped operations: handed over one by one, and reported here when they have ended.
//!
//! # What it bounds
//! A receive is posted with a buffer of the thread's pool while there are enough; else, and always with `receive =
//! ZeroByte`, with none: then it completes when there is data, a buffer is taken and what is there is received at
//! once, and what did not fit into the buffer after it, up to `drain_budget` buffers in a row. So the pool bounds
//! what is pinned, however many connections are idle. Of receives with buffers and of sends a connection may have
//! several (`posted_receives`, `posted_sends`): Winsock keeps their order, and the loop that of their completions.
//! 64 accepts are posted by each thread, or what `accept.posted` says, and more while connections find none
//! (FD_ACCEPT); half of them complete with the first data of their connection (`accept.defer`). Sockets that are
//! kept to be accepted with again are bounded by `accept.reuse`.
//!
//! # What it costs
//! A call for each operation, and a completion; a wait for each batch. The pool (`buffers` x `buffer_bytes` for each
//! thread), and an operation of about 200 bytes for each that is in flight. One thread waits for FD_ACCEPT. Each accept
//! passes through a thread that hands it to the port of who posted it: a socket reports to one port only, and the
//! listener is shared.
//!
//! # Where it differs
//! A connection that is held by an accept and sends nothing for `first_byte_timeout` is dropped there
//! (`SO_CONNECT_TIME`), which is looked at by time, and when a connection finds no accept: it is counted as attempted,
//! and was never accepted. A listening socket that reports to the port
//! of one server cannot be taken over by another.

use std::io;

use tidegate_os::overlapped::Queue;
use tidegate_os::port::CompletionPort;

use super::operations::OverlappedNotifier;
use super::winsock::{Winsock, accept_port};
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};
use crate::policy::accept::ACCEPTS_POSTED;

/// Whether it works here: asks for the functions, and makes a port.
pub(in crate::engine) fn probe() -> Availability {
    match CompletionPort::new(1).and_then(|_| Queue::<CompletionPort>::probe()) {
        Ok(()) => Availability::Available("AcceptEx, ConnectEx, batched completions".into()),
        Err(e) => Availability::Unavailable(format!("{e}; use event-select or select")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::completion::start::<Iocp>(config, Model::Iocp, accept_port)
}

/// A completion port.
pub(crate) type Iocp = Winsock<Queue<CompletionPort>>;

impl OverlappedNotifier for CompletionPort {
    const HOLDS: usize = usize::MAX;
    const ACCEPTS: usize = ACCEPTS_POSTED;
    const MOST_ACCEPTS: usize = usize::MAX;
    const RECEIVES_AHEAD: bool = true;

    fn open(events: usize) -> io::Result<Self> {
        Self::new(events)
    }
}
