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
mod transport;

#[cfg(target_os = "linux")]
pub(super) mod epoll;
pub(super) mod poll;
pub(super) mod select;

pub(super) use entry::{Progress, ReadinessEntry};
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
pub(super) use event_loop::ReadinessLoop;
pub(super) use transport::{Acceptor, SocketTransport};

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::endpoint::Endpoint;
use tidegate_os::file::FileRange;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::{Blocking, More};
use tidegate_os::waker::Waker;

use super::{EngineConfig, EngineHandle, Model};
use crate::fastpath::Transports;
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

/// A listening socket that never waits: the system's, or a simulated one.
pub(super) trait Incoming {
    /// What it accepts.
    type Stream: Transport + Send + 'static;
    /// Takes one connection.
    fn accept(&self) -> io::Result<(Self::Stream, Option<SocketAddr>)>;
}

/// A connected socket that never waits: the system's, or a simulated one. Closed when dropped.
pub(super) trait Transport: Sized {
    /// What it is watched by.
    type Borrowed<'a>: Copy
    where
        Self: 'a;

    /// What it is watched by now; none after it has failed.
    fn borrowed(&self) -> Option<Self::Borrowed<'_>>;
    /// Begins to connect; ready when there is something to [settle](Self::settle).
    fn dial(to: &Endpoint, from: Option<SocketAddr>, transports: &Arc<Transports>) -> io::Result<Self>;
    /// Whether it is watched by another descriptor once it is [settled](Self::settle), which closes this one.
    fn settles_elsewhere(&self) -> bool {
        false
    }
    /// What has become of the attempt to connect.
    fn settle(&mut self) -> io::Result<Settled>;
    /// How long to wait before settling all the same.
    fn handshake_timeout(&self) -> Option<Duration> {
        None
    }
    /// Receives; 0 means that the peer finished sending.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends; may take less than all.
    fn send_vectored(&self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize>;
    /// Whether it can send from a file; else the file is read first.
    fn sends_files(&self) -> bool {
        false
    }
    /// Sends from a file; may take less than all.
    fn send_file(&self, range: &FileRange, more: More) -> io::Result<usize> {
        let _ = (range, more);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Ends the sending side.
    fn shutdown_send(&self) -> io::Result<()>;
    /// Makes the coming close a reset.
    fn reset_on_close(&self) -> io::Result<()>;
    /// The address of this end; Unix sockets have none.
    fn local_addr(&self) -> Option<SocketAddr>;

    /// Whether it goes through shared memory, which only this process can look at: the rest is about such ones.
    #[inline]
    fn is_shared(&self) -> bool {
        false
    }
    /// What the poller has to wait for, so that `wanted` is reported.
    #[inline]
    fn interest(&self, wanted: Readiness) -> Readiness {
        wanted
    }
    /// What of `wanted` can be done, now that the poller has reported the descriptor.
    #[inline]
    fn heed(&self, reported: Readiness, wanted: Readiness) -> Readiness {
        let _ = wanted;
        reported
    }
    /// What of `wanted` can be done without waiting.
    #[inline]
    fn look(&self, wanted: Readiness) -> Readiness {
        let _ = wanted;
        Readiness::default()
    }
    /// Has the poller report `wanted`, from now on and once. What can be done already.
    fn prepare_sleep(&self, wanted: Readiness) -> Readiness {
        let _ = wanted;
        Readiness::default()
    }
}

/// What has become of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It is established.
    Established,
    /// Not settled yet: wait again.
    Waits,
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
