//! `overlapped`: Windows overlapped I/O with events, threads of 64 of them.
//!
//! # How it waits
//! Each receive that is posted has an event; accepts, sends and dials of a thread share one, and one is to wake it.
//! `WaitForMultipleObjects` waits for all of them, and then each operation says for itself whether it has ended.
//!
//! # What it bounds
//! A thread waits for 64 events at most, so it has 62 connections. A server begins with a thread for each processor and
//! starts the next one when those it has are full, up to `max_connections` as it was at the start. If `threads` is set,
//! so many are started at once, and they are the bound. A client starts 64. Eight accepts are posted by each thread, or
//! what `accept.posted` says, and twice as many whenever all were used up or a connection has found
//! none (FD_ACCEPT); no more than it has room for.
//!
//! # What it costs
//! A thread with its stack and its buffers for each 62 connections, and a look at each of its operations after each
//! wait.
//!
//! # Where it differs
//! As in `iocp`, a connection that is held by an accept and sends nothing is dropped there. One thread of the server
//! waits for FD_ACCEPT, and tells those that have accepts posted. The events of a thread are made at its start.

use std::io;

use tidegate_os::events::Events;
use tidegate_os::overlapped::Queue;

use super::operations::OverlappedNotifier;
use super::winsock::{Winsock, event_acceptor};
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};

/// Whether it works here: asks for the functions, and makes a thread's events.
pub(in crate::engine) fn probe() -> Availability {
    match Events::new().and_then(|_| Queue::<Events>::probe()) {
        Ok(()) => Availability::Available(format!("{} connections for each thread", Events::RECEIVES)),
        Err(e) => Availability::Unavailable(format!("{e}; use select")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::completion::start::<Overlapped>(config, Model::Overlapped, event_acceptor)
}

/// A thread's events.
pub(crate) type Overlapped = Winsock<Queue<Events>>;

impl OverlappedNotifier for Events {
    const HOLDS: usize = Self::RECEIVES;
    const ACCEPTS: usize = 8;
    const RECEIVES_AHEAD: bool = false; // each has an event
    const MOST_ACCEPTS: usize = Self::RECEIVES; // they share an event, but what they bring needs one

    fn open(_events: usize) -> io::Result<Self> {
        Self::new()
    }
}
