//! `event-select`: network events of Windows (`WSAEventSelect`), threads of 64 of them.
//!
//! # How it waits
//! Each socket has an event, which Winsock sets when there is news of it: `WaitForMultipleObjects` waits for all events
//! of the thread, and `WSAEnumNetworkEvents` says what the news is. An event is reported once, and again after a call
//! that found no more: edge-triggered. All threads share the event of the listener, which lets one of them through each
//! time it is set.
//!
//! # What it bounds
//! A thread waits for 64 events at most: one wakes it, one is the listener's, so it has 62 connections. A server begins
//! with a thread for each processor and starts the next one when those it has are full, up to `max_connections` as it
//! was at the start. If `threads` is set, so many are started at once, and they are the bound. A client starts 64.
//!
//! # What it costs
//! A thread with its stack and one receive buffer for each 62 connections, and an event for each connection. A wait
//! finds one event; each other that is set at the same time costs a wait without waiting, and each a call to learn what
//! it means.
//!
//! # Where it differs
//! Room to send is reported only after a send was refused, so one that took less than all is followed by another.
//! Timeouts have a resolution of one millisecond, rounded up.
//! A thread that is woken for the listener again and again, while nobody finds a connection, asks for that event with
//! ever longer pauses, up to a second: Wine sets it for connections that are gone.

use std::io;
use std::time::Duration;
use tidegate_os::descriptor::BorrowedFd;

use tidegate_os::event_set::{EventSet, News};
use tidegate_os::poll::Readiness;
use tidegate_os::waker::Waker;

use crate::engine::readiness::{PollEvent, Poller, Source};
use crate::engine::worker::transport::Acceptor;
use crate::engine::{Availability, EngineConfig, EngineHandle, Model};
use crate::policy::Policy;
use crate::proto::Token;

/// Whether it works here: makes a thread's events.
pub(in crate::engine) fn probe() -> Availability {
    match EventSet::new() {
        Ok(_) => Availability::Available(format!("{} connections for each thread", EventSet::SOCKETS)),
        Err(e) => Availability::Unavailable(format!("{e}; use select")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    crate::engine::readiness::start::<EventSelect>(config, Model::EventSelect)
}

/// A thread's events, who each is, and where each connection is.
pub(crate) struct EventSelect {
    set: EventSet,
    /// Behind the wake event, which is the first.
    sources: Vec<Source>,
    /// Position in the set by index of the token.
    positions: Vec<usize>,
    news: Vec<(usize, News)>,
}

impl EventSelect {
    fn remove(&mut self, at: usize) {
        self.set.swap_remove(at);
        self.sources.swap_remove(at);
        if let Some(Source::Connection(moved)) = self.sources.get(at) {
            self.positions[moved.index as usize] = at;
        }
    }
}

impl Poller for EventSelect {
    type Listener = Acceptor;
    const HOLDS: usize = EventSet::SOCKETS;

    fn new(_: &Policy) -> io::Result<Self> {
        let set = EventSet::new()?;
        Ok(Self { set, sources: vec![Source::Waker], positions: Vec::new(), news: Vec::new() })
    }

    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()> {
        waker.wake_with(self.set.wake_event());
        Ok(())
    }

    fn watch_listener(&mut self, acceptor: &Acceptor) -> io::Result<()> {
        self.set.push_listener(&acceptor.listener)?;
        self.sources.push(Source::Listener);
        Ok(())
    }

    fn unwatch_listener(&mut self, _: &Acceptor) {
        if let Some(at) = self.sources.iter().position(|&s| s == Source::Listener) {
            self.remove(at);
        }
    }

    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, wanted: Readiness) -> io::Result<()> {
        let at = self.set.push(fd, wanted)?;
        self.sources.push(Source::Connection(token));
        let index = token.index as usize;
        if self.positions.len() <= index {
            self.positions.resize(index + 1, usize::MAX);
        }
        self.positions[index] = at;
        Ok(())
    }

    fn change(&mut self, _: Token, _: BorrowedFd<'_>, _: Readiness) {
        // All events are reported from the start.
    }

    fn unwatch(&mut self, token: Token, _: BorrowedFd<'_>) {
        self.remove(self.positions[token.index as usize]);
    }

    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()> {
        let waited = self.set.wait(timeout, &mut self.news);
        let sources = &self.sources;
        into.extend(self.news.drain(..).map(|(at, News { ready, ended })| PollEvent {
            source: sources[at],
            ready,
            ended,
        }));
        waited
    }
}
