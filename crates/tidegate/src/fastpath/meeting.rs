//! The listener's side of the meeting: whether an accepted connection has left an offer, and whether the offer is its
//! own.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_os::descriptor::borrowed;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::poll::{Readiness, wait_pair};
use tidegate_os::socket::{Listener, Stream};
use tidegate_os::waker::Waker;
use tidegate_os::{diag, meeting};

use super::layout::{End, Rings, State};
use super::link::Link;
use super::pending::{Context, Pending, PendingOffer};
use super::protocol::{HELLO_BYTES, name, same};
use super::{Plain, Ways};
use crate::policy::FastPath;
use crate::stats::{Counters, Writers};

/// How often the accept thread looks while anybody waits, or a name is not to be had.
const TICK: Duration = Duration::from_millis(50);

/// Where diallers leave their offers. Shared by all I/O threads.
#[derive(Debug)]
pub(crate) struct Meeting(Arc<Inner>);

/// What the I/O threads share with the accept thread, which hangs up on who has gone or waits for too long.
#[derive(Debug)]
struct Inner {
    context: Context,
    pending: Mutex<Pending>,
    counters: Arc<Counters>,
    waker: Waker,
}

/// An offer is no good.
#[derive(Debug, thiserror::Error)]
enum OfferError {
    #[error("it is for a connection to {0}")]
    Elsewhere(SocketAddr),
    #[error("it came without its memory and its socket")]
    Parts,
    #[error("its socket is not the other end of this connection")]
    Foreign,
    #[error("{0}")]
    System(#[from] io::Error),
}

impl Meeting {
    /// For a listener, if it is to have one; says so if it cannot.
    pub(crate) fn of(listener: &Listener, ways: &Ways) -> Option<Self> {
        let limits = ways.fast_path?;
        let no = |error| ways.say(&Plain::System { what: "nobody can leave an offer", error });
        let addr = match listener.local_addr() {
            Ok(Endpoint::Tcp(addr)) => addr,
            Ok(_) => {
                no(io::Error::new(io::ErrorKind::Unsupported, "it is for TCP addresses only"));
                return None;
            }
            Err(e) => {
                no(e);
                return None;
            }
        };
        // Asked here once, for the kernel may have to load what answers.
        if let Err(error) = diag::find(addr, addr, None) {
            ways.say(&Plain::System { what: "the kernel does not say whose a socket is (inet_diag)", error });
            return None;
        }
        let listener = meeting::listen(&name(same(addr))).map_err(no).ok();
        Self::open(addr, limits, listener).map_err(no).ok()
    }

    fn open(addr: SocketAddr, limits: FastPath, listener: Option<UnixListener>) -> io::Result<Self> {
        let inner = Arc::new(Inner {
            context: Context::new(addr, limits)?,
            pending: Mutex::new(Pending::new(listener)),
            counters: Arc::new(Counters::new(Writers::Many)),
            waker: Waker::new()?,
        });
        let thread = inner.clone();
        std::thread::Builder::new().name("tidegate-offers".into()).spawn(move || thread.accept_offers())?;
        Ok(Self(inner))
    }

    /// What is counted here and by no I/O thread.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.0.counters.clone()
    }

    /// Whether an accepted connection has left an offer. If so the connection is handed over to shared memory; else, or
    /// if the offer is no good, it is given back as it is.
    ///
    /// A dialler leaves its offer before it connects, so the offer is there when its connection is.
    pub(crate) fn claim(&self, tcp: Stream, peer: SocketAddr) -> Result<Link, Stream> {
        let inner = &*self.0;
        for offer in inner.take(peer) {
            match inner.check(offer, &tcp, peer) {
                // Hanging up, which has followed, has the dialler look at what was decided.
                Ok(Some(rings)) => return Ok(Link::new(tcp, &rings, End::Listener)),
                Ok(None) => {} // withdrawn meanwhile
                Err(e) => {
                    inner.counters.fast_paths_refused.add(1);
                    tracing::debug!(event = "fast-path", %peer, error = %e, "an offer is no good");
                }
            }
        }
        Err(tcp)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.0.pending().close(&self.0.context);
        self.0.waker.wake();
    }
}

impl Inner {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what was left for the connection from this address.
    fn take(&self, peer: SocketAddr) -> Vec<PendingOffer> {
        let mut pending = self.pending();
        let was_empty = pending.is_empty();
        pending.collect(&self.context, &self.counters, Instant::now());
        let offers = pending.take(peer);
        if was_empty && !pending.is_empty() {
            self.waker.wake(); // there is somebody to watch now
        }
        offers
    }

    /// Takes an offer if it is that of whoever has connected.
    ///
    /// That is the one who has the socket at the other end: two sockets of a namespace never have the same pair of
    /// addresses, and the kernel says which has this one. The socket is asked for nothing but its number: its owner may
    /// hold its lock, or have closed it, or have sent something else.
    fn check(
        &self,
        mut offer: PendingOffer,
        tcp: &Stream,
        peer: SocketAddr,
    ) -> Result<Option<Rings>, OfferError> {
        let local = tcp.local_addr()?;
        if same(local) != offer.to {
            return Err(OfferError::Elsewhere(offer.to)); // two connections may come from one address to two of ours
        }
        let [memory, socket] = offer.socket.open_descriptors(&mut [0; HELLO_BYTES])? else {
            return Err(OfferError::Parts);
        };
        let cookie = diag::cookie(socket)?;
        if !diag::find(peer, local, Some(cookie))?.is_some_and(|found| found.is_established) {
            return Err(OfferError::Foreign);
        }
        let rings = Rings::open(memory, self.context.limits.ring_bytes)?;
        Ok(rings.decide(State::Taken).then_some(rings))
    }

    /// What the accept thread does. It waits for nothing but calls and time.
    fn accept_offers(&self) {
        let calls = Readiness { readable: true, writable: false };
        while let Some(listener) = self.next_wait() {
            let timeout = if listener.is_some() { None } else { Some(TICK) };
            let wake = Some(borrowed(&self.waker));
            let waited = wait_pair(listener.as_deref().map(borrowed), calls, wake, timeout);
            drop(listener); // whoever hangs up meanwhile leaves the last handle, and with it the name, to this thread
            if waited.is_err() {
                std::thread::sleep(TICK); // no memory for it
            }
            self.waker.clear();
            self.pending().sweep(&self.context, &self.counters, Instant::now());
        }
    }

    /// The listener if there is only that to wait for; outer `None` if all is over.
    fn next_wait(&self) -> Option<Option<Arc<UnixListener>>> {
        let pending = self.pending();
        (!pending.is_closed()).then(|| pending.wakes())
    }
}
