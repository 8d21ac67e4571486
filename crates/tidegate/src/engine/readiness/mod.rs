//! The readiness family: non-blocking sockets, and a call that says which of them are ready.
//!
//! One loop ([`event_loop`]) for each I/O thread; a leaf brings only its way of waiting, as a [`Poller`]. Those of
//! Windows are declared in [`platform`](super::platform).
//!
//! # Contract of a leaf
//!
//! A leaf may report level-triggered (as long as a socket is ready) or edge-triggered (when it becomes ready). The
//! loop is written for both: it tries at once what it wants to do, tells the leaf what it then waits for
//! ([`Poller::change`]), and after each of its own pauses tries again by itself. Spurious reports do no
//! harm.

mod entry;
mod event_loop;

#[cfg(target_os = "linux")]
pub(super) mod epoll;
pub(super) mod poll;
pub(super) mod select;

pub(super) use entry::{Progress, ReadinessEntry, ReceiveBuffers};
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
pub(super) use event_loop::ReadinessLoop;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::poll::Readiness;
use tidegate_os::socket::Blocking;
use tidegate_os::waker::Waker;

use super::worker::transport::{Acceptor, Incoming, Transport};
use super::{EngineConfig, EngineHandle, Model};
use crate::policy::Policy;
use crate::proto::Token;

/// Who is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Waker,
    Listener,
    Connection(Token),
}

/// One report of a [`Poller`].
#[derive(Clone, Copy, Debug)]
pub(super) struct PollEvent {
    pub(super) source: Source,
    pub(super) ready: Readiness,
    /// The peer is known to have finished or broken off, so that a short read is not the last one.
    pub(super) ended: bool,
}

/// What a poller is given to watch a connection by: it is open as long as this is there.
pub(super) type Borrowed<'a, P> = <<<P as Poller>::Listener as Incoming>::Stream as Transport>::Borrowed<'a>;

/// A way of waiting for many sockets.
pub(super) trait Poller: Sized + 'static {
    /// The source of connections.
    type Listener: Incoming;
    /// Connections that one thread can wait for.
    const HOLDS: usize = usize::MAX;

    /// Takes at most so many reports from the kernel at once as the policy says, and waits as it says, where it can be
    /// told.
    fn new(policy: &Policy) -> io::Result<Self>;
    /// Watches the waker for ever.
    fn watch_waker(&mut self, waker: &Waker) -> io::Result<()>;
    /// Watches the listener, level-triggered.
    fn watch_listener(&mut self, listener: &Self::Listener) -> io::Result<()>;
    /// Stops watching the listener.
    fn unwatch_listener(&mut self, listener: &Self::Listener);
    /// Watches a new connection.
    fn watch(&mut self, token: Token, fd: Borrowed<'_, Self>, wanted: Readiness) -> io::Result<()>;
    /// Changes what a connection waits for.
    fn change(&mut self, token: Token, fd: Borrowed<'_, Self>, wanted: Readiness);
    /// Forgets a connection whose descriptor is about to be closed, or given to another.
    fn unwatch(&mut self, token: Token, fd: Borrowed<'_, Self>);
    /// Lets time pass without looking.
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
    /// Waits and appends reports.
    fn wait(&mut self, timeout: Option<Duration>, into: &mut Vec<PollEvent>) -> io::Result<()>;
    /// The time. A simulation has its own.
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
}

/// Starts one loop for each I/O thread.
pub(super) fn start<P: Poller<Listener = Acceptor>>(
    config: EngineConfig,
    model: Model,
) -> io::Result<EngineHandle> {
    let acceptor = config
        .listener
        .clone()
        .map(|listener| Arc::new(Acceptor { listener, rendezvous: config.rendezvous.clone() }));
    if let Some(acceptor) = &acceptor {
        acceptor.listener.set_blocking(Blocking::Never)?;
    }
    config.start_loops(model, &acceptor, event_loop::run::<P>)
}
