//! Admission, once for all engines: what a failed accept or transfer means, whether a dial may begin, and which session
//! a connection gets.
//!
//! | an accept fails with | that is about | counted as | accepting |
//! |---|---|---|---|
//! | `ECONNABORTED`, `EPROTO`, `EINTR`, `ENETDOWN`, … | one connection, which is gone | `attempted` | takes the next one at once |
//! | `EMFILE`, `ENFILE` | descriptors | `attempted`, `no_descriptors` | pauses for [`EXHAUSTION_PAUSE`], or until a connection closes |
//! | `ENOBUFS`, `ENOMEM` | memory | `attempted`, `no_buffers` | the same |
//! | anything else, such as `EBADF` | the listener | `attempted`, and logged | the same |
//!
//! On a connection that is established, `ENOBUFS` and `ENOMEM` of a send or receive make that pause, count as
//! `no_memory` ([`failure`]), and make accepting pause, too.
//!
//! After the order to stop the backlog is swept: at most `accept.backlog` accepts, by the same table, until there is
//! nothing to accept, no room, or a pause.

#[cfg(all(test, unix, not(tidegate_loom)))]
pub(in crate::engine) mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use tidegate_os::socket::{is_lost_connection, is_out_of_descriptors, is_out_of_memory};

use super::{Command, CommandQueue};
use crate::policy::Policy;
use crate::policy::accept::EXHAUSTION_PAUSE;
use crate::policy::pressure::{Pressure, Relief};
use crate::proto::dial::DialRequest;
use crate::proto::erased::ErasedService;
use crate::proto::panics::contain;
use crate::proto::{Direction, Event};
use crate::service::{Dial, Peer, Session};
use crate::stats::Counters;

/// A pause of accepting while the process has run out of something: accepts fail, or sends and receives do.
#[derive(Debug, Default)]
pub(in crate::engine) struct AcceptPause {
    until: Option<Instant>,
    pressure: Pressure,
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
        self.begin(now);
    }

    /// What to do about lack of memory ([`Pressure::look`]). While sends and receives fail, accepting pauses.
    pub(in crate::engine) fn relieve(
        &mut self,
        sum: impl Fn(fn(&Counters) -> u64) -> u64,
        policy: &Policy,
        now: Instant,
    ) -> Relief {
        let (failed, recovered) = (sum(|c| c.no_memory.get()), sum(|c| c.recovered.get()));
        let relief = self.pressure.look(failed, recovered, now, policy.shed_after);
        if matches!(relief, Relief::Shrink | Relief::Shed) {
            self.begin(now);
        }
        relief
    }

    fn begin(&mut self, now: Instant) {
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
    } else if is_out_of_memory(e) {
        counters.no_buffers.add(1);
    } else {
        return false;
    }
    true
}

/// What a failed operation on an established connection means for it: the end, or a pause in that direction
/// ([`pressure`](crate::policy::pressure)).
pub(in crate::engine) fn failure(e: &io::Error, direction: Direction) -> Event<'static> {
    if is_out_of_memory(e) { Event::OutOfMemory(direction) } else { Event::Failed(e.kind()) }
}

/// Counts a connection that was accepted only to be closed.
pub(in crate::engine) fn count_refusal(counters: &Counters) {
    counters.attempted.add(1);
    counters.refused.add(1);
}

/// Which number of connections one counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Quota {
    /// Those that are accepted, or dialled for a client.
    Share,
    /// Those that sessions dial.
    Dials,
}

impl Quota {
    pub(in crate::engine) fn of(request: &DialRequest) -> Self {
        if request.is_by_session() { Self::Dials } else { Self::Share }
    }
}

/// How full a loop or registry that is to dial is.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct DialRoom {
    /// It was asked to stop.
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
        match Quota::of(request) {
            Quota::Dials if self.stopped => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the server has stopped"))
            }
            Quota::Dials if self.dials == 0 => {
                let why = "the service has not declared that its sessions dial; set ServiceOptions::dials";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
            Quota::Dials if self.dialled >= self.dials => {
                let why = "all places for connections that sessions dial are taken; raise max_connections, or \
                           ServiceOptions::dials";
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
            }
            Quota::Share if self.stopping || !self.has_place => {
                Err(io::Error::other("max_connections are open, or the client is stopping"))
            }
            _ => Ok(()),
        }
    }
}

/// Counts a failed dial and answers its request.
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
    command_queue: &CommandQueue,
    commands: &mut VecDeque<Command>,
    service: &dyn ErasedService,
    counters: &Counters,
) {
    command_queue.close(commands);
    for command in commands.drain(..) {
        if let Command::Dial(request) = command {
            counters.attempted.add(1);
            dial_failed(service, counters, request, io::Error::other("the client has stopped"));
        }
    }
}

/// Asks the service for the session of an accepted connection, or counts the refusal. The service is shown the
/// addresses only if it asks for them, whether the model knows them or not: what works on one has to work on all.
pub(in crate::engine) fn open_accepted(
    service: &dyn ErasedService,
    counters: &Counters,
    addr: Option<SocketAddr>,
    local: impl FnOnce() -> Option<SocketAddr>,
    thread: usize,
) -> Option<Box<dyn Session>> {
    open(service, counters, || {
        let addr = addr.filter(|_| service.options().peer_addr);
        Peer::accepted().with_addr(addr).with_local_addr(asked_for(service, local)).with_thread(thread)
    })
}

fn asked_for(service: &dyn ErasedService, local: impl FnOnce() -> Option<SocketAddr>) -> Option<SocketAddr> {
    if service.options().local_addr { local() } else { None }
}

/// The session of a dialled connection: the one that was given with the dial, or one of the service.
pub(in crate::engine) fn open_dialled(
    service: &dyn ErasedService,
    counters: &Counters,
    request: &mut DialRequest,
    local: impl FnOnce() -> Option<SocketAddr>,
    thread: usize,
) -> Option<Box<dyn Session>> {
    request.take_session().or_else(|| {
        let Dial { to, tag, .. } = request.dial();
        open(service, counters, || {
            let peer = Peer::dialled(*tag).with_addr(to.addr());
            peer.with_local_addr(asked_for(service, local)).with_thread(thread)
        })
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
