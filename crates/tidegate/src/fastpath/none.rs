//! Replaces shared memory on systems without it: uninhabited types, and the socket option of Windows.

use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_os::descriptor::BorrowedFd;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::poll::Readiness;
use tidegate_os::socket::{Listener, Stream};

use super::{Begun, Transports};
use crate::stats::Counters;

#[derive(Debug)]
pub(crate) struct Rendezvous(Infallible);

impl Rendezvous {
    pub(crate) fn of(listener: &Listener, transports: &Transports) -> Option<Self> {
        transports.fast_path?;
        let refused = listener.slow_loopback();
        transports.listener(refused.as_ref().map(|why| why as &dyn std::fmt::Display));
        None
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        match self.0 {}
    }

    pub(crate) fn claim(&self, _: Stream, _: SocketAddr) -> Result<MemoryLink, Stream> {
        match self.0 {}
    }
}

/// Starts connecting.
pub(crate) fn begin(to: &Endpoint, from: Option<SocketAddr>, transports: &Transports) -> io::Result<Begun> {
    transports.dial(to, from).map(Begun::Plain)
}

#[derive(Debug)]
pub(crate) struct Handshake(Infallible);

#[allow(dead_code, reason = "of an offer that nobody can make")]
pub(crate) enum HandshakeOutcome {
    Link(MemoryLink),
    Plain(Stream),
}

impl Handshake {
    pub(crate) fn settle(self, _: &Transports) -> HandshakeOutcome {
        match self.0 {}
    }
}

impl Handshake {
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(crate) struct MemoryLink(Infallible);

impl MemoryLink {
    pub(crate) fn receive(&self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn send_vectored(&self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn shutdown_send(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn reset_on_close(&self) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn look(&self, _: Readiness) -> Readiness {
        match self.0 {}
    }

    pub(crate) fn prepare_sleep(&self, _: Readiness) -> Readiness {
        match self.0 {}
    }

    pub(crate) fn heed(&self, _: Readiness) -> Readiness {
        match self.0 {}
    }
}

impl MemoryLink {
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        match self.0 {}
    }
}
