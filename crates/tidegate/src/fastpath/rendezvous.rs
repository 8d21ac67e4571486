//! The listener's side of the rendezvous: finds and verifies the offer that belongs to an accepted connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_os::descriptor::borrowed;
use tidegate_os::endpoint::Endpoint;
use tidegate_os::poll::{Readiness, wait_pair};
use tidegate_os::socket::{Listener, Stream};
use tidegate_os::waker::Waker;
use tidegate_os::{abstract_socket, diag};

use super::layout::{LinkEnd, OfferState, Rings};
use super::link::MemoryLink;
use super::pending::{Pending, PendingHandshake, RendezvousContext};
use super::protocol::{HELLO_BYTES, name, same};
use super::{Plain, Transports};
use crate::policy::FastPath;
use crate::stats::{Counters, Writers};

/// The accept thread's poll interval while callers are pending, or while a name is not available.
const TICK: Duration = Duration::from_millis(50);

/// Receives offers from diallers. Shared by all I/O threads.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    inner: Arc<RendezvousState>,
    /// The accept thread; `Some` until dropped.
    thread: Option<JoinHandle<()>>,
}

/// State shared with the accept thread, which disconnects callers that are gone or timed out.
#[derive(Debug)]
struct RendezvousState {
    context: RendezvousContext,
    pending: Mutex<Pending>,
    counters: Arc<Counters>,
    waker: Waker,
}

/// Why an offer is invalid.
#[derive(Debug)]
enum HandshakeError {
    Elsewhere(SocketAddr),
    Parts,
    Foreign,
    System(io::Error),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elsewhere(addr) => write!(f, "it is for a connection to {addr}"),
            Self::Parts => f.write_str("it came without its memory and its socket"),
            Self::Foreign => f.write_str("its socket is not the other end of this connection"),
            Self::System(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for HandshakeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            Self::Elsewhere(_) | Self::Parts | Self::Foreign => None,
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Rendezvous {
    /// Creates it for a listener if the fast path is on; logs it if that fails.
    pub(crate) fn of(listener: &Listener, transports: &Transports) -> Option<Self> {
        let limits = transports.fast_path?;
        let no = |error| transports.say(&Plain::System { what: "offers cannot be received", error });
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
        // Tested once at the start, because the kernel may have to load the module that answers.
        if let Err(error) = diag::find(addr, addr, None) {
            transports.say(&Plain::System {
                what: "the kernel does not report the owner of a socket (inet_diag)",
                error,
            });
            return None;
        }
        let listener = abstract_socket::listen(&name(same(addr))).map_err(no).ok();
        Self::open(addr, limits, listener).map_err(no).ok()
    }

    fn open(addr: SocketAddr, limits: FastPath, listener: Option<UnixListener>) -> io::Result<Self> {
        let inner = Arc::new(RendezvousState {
            context: RendezvousContext::new(addr, limits)?,
            pending: Mutex::new(Pending::new(listener)),
            counters: Arc::new(Counters::new(Writers::Many)),
            waker: Waker::new()?,
        });
        let thread = inner.clone();
        let accepts = std::thread::Builder::new().name("tidegate-offers".into());
        let thread = accepts.spawn(move || thread.accept_offers())?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Counters of this thread, which is not an I/O thread.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.inner.counters.clone()
    }

    /// Looks for an offer of an accepted connection. If there is a valid one the connection switches to shared memory;
    /// otherwise it is returned unchanged.
    ///
    /// A dialler sends its offer before it connects, so the offer is present when its connection is accepted.
    pub(crate) fn claim(&self, tcp: Stream, peer: SocketAddr) -> Result<MemoryLink, Stream> {
        let inner = &*self.inner;
        for offer in inner.take(peer) {
            match inner.check(offer, &tcp, peer) {
                // Closing the socket, which happens next, makes the dialler read the decision.
                Ok(Some(rings)) => return Ok(MemoryLink::new(tcp, &rings, LinkEnd::Listener)),
                Ok(None) => {} // withdrawn meanwhile
                Err(e) => {
                    inner.counters.fast_paths_refused.add(1);
                    tracing::debug!(event = "fast-path", %peer, error = %e, "an offer is no good");
                }
            }
        }
        Err(tcp)
    }

    /// Lets go of the offers of an accepted connection, which stays with TCP.
    #[cfg(feature = "tokio")]
    pub(crate) fn refuse(&self, peer: SocketAddr) {
        self.inner.counters.fast_paths_refused.add(self.inner.take(peer).len() as u64);
    }
}

impl Drop for Rendezvous {
    /// Afterwards the name is free: the accept thread, which may hold it, has ended. Nothing it does waits for anybody.
    fn drop(&mut self) {
        self.inner.pending().close(&self.inner.context);
        self.inner.waker.wake();
        // If it has panicked, the name is free, too.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl RendezvousState {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the offers for the connection from this address.
    fn take(&self, peer: SocketAddr) -> Vec<PendingHandshake> {
        let mut pending = self.pending();
        let was_empty = pending.is_empty();
        pending.collect(&self.context, &self.counters, Instant::now());
        let offers = pending.take(peer);
        if was_empty && !pending.is_empty() {
            self.waker.wake(); // there is somebody to watch now
        }
        offers
    }

    /// Accepts an offer if it came from the process at the other end of the connection.
    ///
    /// That is the process that holds the socket at the other end: two sockets of a namespace never have the same pair
    /// of addresses, and the kernel reports which socket has this pair. Only the socket's cookie is read: its owner may
    /// hold its lock, may have closed it, or may have sent another descriptor.
    fn check(
        &self,
        mut offer: PendingHandshake,
        tcp: &Stream,
        peer: SocketAddr,
    ) -> Result<Option<Rings>, HandshakeError> {
        let local = tcp.local_addr()?;
        if same(local) != offer.to {
            return Err(HandshakeError::Elsewhere(offer.to)); // two connections may come from one address to two of ours
        }
        let [memory, socket] = offer.socket.open_descriptors(&mut [0; HELLO_BYTES])? else {
            return Err(HandshakeError::Parts);
        };
        let cookie = diag::cookie(socket)?;
        if !diag::find(peer, local, Some(cookie))?.is_some_and(|found| found.is_established) {
            return Err(HandshakeError::Foreign);
        }
        let rings = Rings::open(memory, self.context.limits.ring_bytes)?;
        Ok(rings.decide(OfferState::Taken).then_some(rings))
    }

    /// The accept thread's loop. It waits only for callers and timeouts.
    fn accept_offers(&self) {
        while let Some(listener) = self.next_wait() {
            let timeout = if listener.is_some() { None } else { Some(TICK) };
            let wake = Some(borrowed(&self.waker));
            let waited = wait_pair(listener.as_deref().map(borrowed), Readiness::READ, wake, timeout);
            // A peer that hangs up meanwhile leaves the last handle, and with it the name, to this thread.
            drop(listener);
            if waited.is_err() {
                std::thread::sleep(TICK); // no memory for it
            }
            self.waker.clear();
            self.pending().sweep(&self.context, &self.counters, Instant::now());
        }
    }

    /// The listener if that is the only thing to wait for; outer `None` if the thread is to end.
    fn next_wait(&self) -> Option<Option<Arc<UnixListener>>> {
        let pending = self.pending();
        (!pending.is_closed()).then(|| pending.wakes())
    }
}
