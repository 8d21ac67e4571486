//! Who comes in, once for all engines: what a failed accept means, whether a dial may begin, and whose session a
//! connection gets.
//!
//! | an accept fails with | that is about | counted as | accepting |
//! |---|---|---|---|
//! | `ECONNABORTED`, `EPROTO`, `EINTR`, `ENETDOWN`, … | one connection, which is gone | `attempted` | takes the next one at once |
//! | `EMFILE`, `ENFILE` | descriptors | `attempted`, `no_descriptors` | pauses for [`EXHAUSTION_PAUSE`], or until a connection closes |
//! | `ENOBUFS`, `ENOMEM` | memory | `attempted`, `no_buffers` | the same |
//! | anything else, such as `EBADF` | the listener | `attempted`, and logged | the same |
//!
//! After the order to stop the backlog is swept: at most `accept.backlog` accepts, by the same table, until there is
//! nothing to accept, no room, or a pause.

#[cfg(all(test, unix, not(tidegate_loom)))]
pub(in crate::engine) mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tidegate_os::socket::{is_exhaustion, is_lost_connection, is_out_of_descriptors};

use super::{Command, CommandQueue};
use crate::policy::accept::EXHAUSTION_PAUSE;
use crate::proto::dial::DialRequest;
use crate::proto::panics::contain;
use crate::service::{Dial, ErasedService, Origin, Peer, Session};
use crate::stats::Counters;

/// A pause of accepting while the process has run out of something.
#[derive(Debug, Default)]
pub(in crate::engine) struct AcceptPause {
    until: Option<Instant>,
}

impl AcceptPause {
    /// An accept has failed: counts it, and pauses if the next one would fail, too.
    pub(in crate::engine) fn accept_failed(&mut self, e: &io::Error, counters: &Counters, now: Instant) {
        counters.attempted.add(1);
        if is_lost_connection(e) {
            return;
        }
        if !count_exhaustion(e, counters) {
            tracing::warn!(error = %e, "accept failed; trying again shortly");
        }
        self.until = Some(now + EXHAUSTION_PAUSE);
    }

    /// A connection has closed: what accepting pauses for may be there again.
    pub(in crate::engine) fn end(&mut self) {
        self.until = None;
    }

    /// When the pause ends by itself, if there is one.
    pub(in crate::engine) fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|&at| at > now)
    }
}

/// Counts an error that says that the process has run out of something. Whether it does.
pub(in crate::engine) fn count_exhaustion(e: &io::Error, counters: &Counters) -> bool {
    if is_out_of_descriptors(e) {
        counters.no_descriptors.add(1);
    } else if is_exhaustion(e) {
        counters.no_buffers.add(1);
    } else {
        return false;
    }
    true
}

/// Counts a connection that was accepted only to be closed.
pub(in crate::engine) fn count_refusal(counters: &Counters) {
    counters.attempted.add(1);
    counters.refused.add(1);
}

/// How full whoever is to dial is.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct DialRoom {
    /// It was told to stop.
    pub(in crate::engine) stopping: bool,
    /// The time to let connections finish is over.
    pub(in crate::engine) stopped: bool,
    /// There is a place for a connection that a client dials.
    pub(in crate::engine) has_place: bool,
    /// Connections that sessions have dialled, and that they may have dialled.
    pub(in crate::engine) dialled: usize,
    pub(in crate::engine) dials: usize,
}

impl DialRoom {
    /// Whether a connection may be dialled.
    pub(in crate::engine) fn admit(self, request: &DialRequest) -> io::Result<()> {
        match request.is_by_session() {
            true if self.stopped => Err(io::Error::other("the server has stopped")),
            true if self.dialled >= self.dials => {
                let why = "all places for connections that sessions dial are taken; raise max_connections, or what \
                           Service::dials says";
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
            }
            false if self.stopping || !self.has_place => {
                Err(io::Error::other("max_connections are open, or the client is stopping"))
            }
            _ => Ok(()),
        }
    }
}

/// Counts a failed dial and tells who asked.
pub(in crate::engine) fn dial_failed(
    service: &dyn ErasedService,
    counters: &Counters,
    request: DialRequest,
    e: io::Error,
) {
    count_exhaustion(&e, counters);
    request.failed(service, counters, e);
}

/// Closes the way in of an engine that has stopped, and answers the dials that nobody will begin.
pub(in crate::engine) fn close(
    gate: &CommandQueue,
    commands: &mut VecDeque<Command>,
    service: &dyn ErasedService,
    counters: &Counters,
) {
    gate.close(commands);
    for command in commands.drain(..) {
        if let Command::Dial(request) = command {
            counters.attempted.add(1);
            dial_failed(service, counters, request, io::Error::other("the client has stopped"));
        }
    }
}

/// Asks the service for the session of an accepted connection, or counts the refusal. The service is shown the address
/// only if it asks for that, whether the model knows it or not: what works on one has to work on all.
pub(in crate::engine) fn open_accepted(
    service: &dyn ErasedService,
    counters: &Counters,
    addr: Option<SocketAddr>,
    thread: usize,
) -> Option<Box<dyn Session>> {
    open(service, counters, || {
        let addr = addr.filter(|_| service.needs_peer_addr());
        Peer { addr, origin: Origin::Accepted, thread }
    })
}

/// The session of a dialled connection: the one that was given with the dial, or one of the service.
pub(in crate::engine) fn open_dialled(
    service: &dyn ErasedService,
    counters: &Counters,
    request: &mut DialRequest,
    thread: usize,
) -> Option<Box<dyn Session>> {
    request.take_session().or_else(|| {
        let Dial { to, tag, .. } = request.dial();
        open(service, counters, || Peer { addr: to.addr(), origin: Origin::Dialled { tag: *tag }, thread })
    })
}

/// A service that panics refuses the connection, and does no more harm.
fn open(
    service: &dyn ErasedService,
    counters: &Counters,
    peer: impl FnOnce() -> Peer,
) -> Option<Box<dyn Session>> {
    let session = contain(|| service.open_erased(&peer())).and_then(Result::ok);
    if session.is_none() {
        counters.refused.add(1);
    }
    session
}
