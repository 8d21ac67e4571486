//! What engines are given to work with: a listener and connections, over TCP or over shared memory; and what of them a
//! simulation puts in their place.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_os::descriptor::{BorrowedFd, borrowed};

use tidegate_os::endpoint::Endpoint;
use tidegate_os::file::FileRange;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::{Blocking, Listener, More, SENDS_FILES, Stream, local_addr};
use tidegate_os::splice::{SPLICES, SplicePipe};

use crate::fastpath::{self, Begun, Handshake, HandshakeOutcome, MemoryLink, Rendezvous, Transports};

/// A listening socket that never waits: the system's, or a simulated one.
pub(in crate::engine) trait Incoming {
    /// What it accepts.
    type Stream: Transport + Send + 'static;
    /// Takes one connection.
    fn accept(&self) -> io::Result<(Self::Stream, Option<SocketAddr>)>;
}

/// A connected socket that never waits: the system's, or a simulated one. Closed when dropped.
pub(in crate::engine) trait Transport: Sized {
    /// What it is watched by.
    type Borrowed<'a>: Copy
    where
        Self: 'a;

    /// What it is watched by now; none after it has failed.
    fn borrowed(&self) -> Option<Self::Borrowed<'_>>;
    /// Begins to connect, with an offer if that may be of use; ready when there is something to [settle](Self::settle).
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
    /// Whether it can receive into pipes and send from them.
    #[inline]
    fn splices(&self) -> bool {
        false
    }
    /// Receives into a pipe; 0 means that the peer finished sending.
    fn receive_spliced(&self, into: &mut SplicePipe, most: usize) -> io::Result<usize> {
        let _ = (into, most);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sends from a pipe; may take less than all.
    fn send_spliced(&self, from: &mut SplicePipe, more: More) -> io::Result<usize> {
        let _ = (from, more);
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
pub(in crate::engine) enum Settled {
    /// It is established.
    Established,
    /// Not settled yet: wait again.
    Pending,
}

/// A listening socket, and where offers for the fast path are left, if it has that.
#[derive(Debug)]
pub(in crate::engine) struct Acceptor {
    pub(in crate::engine) listener: Arc<Listener>,
    pub(in crate::engine) rendezvous: Option<Arc<Rendezvous>>,
}

impl Incoming for Acceptor {
    type Stream = SocketTransport;

    #[inline]
    fn accept(&self) -> io::Result<(SocketTransport, Option<SocketAddr>)> {
        let (stream, peer) = self.listener.accept(Blocking::Never)?;
        Ok((SocketTransport::accepted(stream, peer, self.rendezvous.as_deref()), peer))
    }
}

/// A connection, or one that is being made.
#[derive(Debug)]
pub(in crate::engine) enum SocketTransport {
    /// Over TCP.
    Plain(Stream),
    /// Being made, with an offer that has not been decided.
    Handshaking(Box<(Handshake, Arc<Transports>)>),
    /// Over shared memory.
    Link(Box<MemoryLink>),
    /// Between two of the others, within one call.
    Nothing,
}

// Every connection has one.
#[cfg(all(unix, target_pointer_width = "64"))]
const _: () = assert!(size_of::<SocketTransport>() <= 16);

impl SocketTransport {
    /// An accepted connection: over shared memory if it has left an offer.
    #[inline]
    pub(in crate::engine) fn accepted(
        stream: Stream,
        peer: Option<SocketAddr>,
        rendezvous: Option<&Rendezvous>,
    ) -> Self {
        match (rendezvous, peer) {
            (Some(rendezvous), Some(peer)) => match rendezvous.claim(stream, peer) {
                Ok(link) => Self::Link(Box::new(link)),
                Err(stream) => Self::Plain(stream),
            },
            _ => Self::Plain(stream),
        }
    }

    fn unconnected<T>() -> io::Result<T> {
        Err(io::ErrorKind::NotConnected.into())
    }
}

impl Transport for SocketTransport {
    type Borrowed<'a> = BorrowedFd<'a>;

    #[inline]
    fn borrowed(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Plain(stream) => Some(borrowed(stream)),
            Self::Link(link) => Some(link.borrowed()),
            Self::Handshaking(offer) => Some(offer.0.borrowed()),
            Self::Nothing => None,
        }
    }

    fn dial(to: &Endpoint, from: Option<SocketAddr>, transports: &Arc<Transports>) -> io::Result<Self> {
        Ok(match fastpath::begin(to, from, transports)? {
            Begun::Handshaking(handshake) => Self::Handshaking(Box::new((handshake, transports.clone()))),
            Begun::Plain(stream) => Self::Plain(stream),
        })
    }

    fn settles_elsewhere(&self) -> bool {
        matches!(self, Self::Handshaking(..))
    }

    fn settle(&mut self) -> io::Result<Settled> {
        match std::mem::replace(self, Self::Nothing) {
            Self::Handshaking(offer) => {
                let (handshake, transports) = *offer;
                match handshake.settle(&transports) {
                    HandshakeOutcome::Link(link) => {
                        *self = Self::Link(Box::new(link));
                        Ok(Settled::Established)
                    }
                    HandshakeOutcome::Plain(stream) => {
                        *self = Self::Plain(stream);
                        Ok(Settled::Pending) // it may still be connecting: writable when it is not
                    }
                }
            }
            Self::Plain(stream) => {
                let error = stream.take_error();
                *self = Self::Plain(stream);
                error.and_then(|error| error.map_or(Ok(Settled::Established), Err))
            }
            other => {
                *self = other;
                Ok(Settled::Established)
            }
        }
    }

    fn handshake_timeout(&self) -> Option<Duration> {
        match self {
            Self::Handshaking(offer) => offer.1.fast_path.map(|fast| fast.handshake_timeout),
            _ => None,
        }
    }

    #[inline]
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.receive(into),
            Self::Link(link) => link.receive(into),
            Self::Handshaking(..) | Self::Nothing => Self::unconnected(),
        }
    }

    #[inline]
    fn send_vectored(&self, slices: &[IoSlice<'_>], more: More) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.send_vectored(slices, more),
            Self::Link(link) => link.send_vectored(slices),
            Self::Handshaking(..) | Self::Nothing => Self::unconnected(),
        }
    }

    #[inline]
    fn sends_files(&self) -> bool {
        SENDS_FILES && matches!(self, Self::Plain(_))
    }

    fn send_file(&self, range: &FileRange, more: More) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.send_file(range, more),
            _ => Self::unconnected(),
        }
    }

    #[inline]
    fn splices(&self) -> bool {
        SPLICES && matches!(self, Self::Plain(_))
    }

    fn receive_spliced(&self, into: &mut SplicePipe, most: usize) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => into.fill_from(stream, most),
            _ => Self::unconnected(),
        }
    }

    fn send_spliced(&self, from: &mut SplicePipe, more: More) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => from.drain_to(stream, more),
            _ => Self::unconnected(),
        }
    }

    fn shutdown_send(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.shutdown_send(),
            Self::Link(link) => link.shutdown_send(),
            Self::Handshaking(..) | Self::Nothing => Self::unconnected(),
        }
    }

    fn reset_on_close(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.reset_on_close(),
            Self::Link(link) => link.reset_on_close(),
            Self::Handshaking(..) | Self::Nothing => Ok(()),
        }
    }

    fn local_addr(&self) -> Option<SocketAddr> {
        local_addr(&self.borrowed()?)
    }

    #[inline]
    fn is_shared(&self) -> bool {
        matches!(self, Self::Link(_))
    }

    #[inline]
    fn interest(&self, wanted: Readiness) -> Readiness {
        match self {
            Self::Plain(_) => wanted,
            // A wake-up byte, or the end of the Unix socket, signals anything waited for: something to read.
            _ => Readiness { readable: wanted.readable || wanted.writable, writable: false },
        }
    }

    #[inline]
    fn heed(&self, reported: Readiness, wanted: Readiness) -> Readiness {
        match self {
            Self::Link(link) if reported.readable => link.heed(wanted),
            Self::Link(_) => Readiness::default(),
            Self::Handshaking(..) => Readiness { writable: false, ..reported },
            Self::Plain(_) | Self::Nothing => reported,
        }
    }

    #[inline]
    fn look(&self, wanted: Readiness) -> Readiness {
        match self {
            Self::Link(link) => link.look(wanted),
            _ => Readiness::default(),
        }
    }

    fn prepare_sleep(&self, wanted: Readiness) -> Readiness {
        match self {
            Self::Link(link) => link.prepare_sleep(wanted),
            _ => Readiness::default(),
        }
    }
}
