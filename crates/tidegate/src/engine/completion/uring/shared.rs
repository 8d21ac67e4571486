//! Connections through shared memory: what is asked for on them completes as if a kernel did it.
//!
//! Nothing of theirs is in the ring but two polls, of the answer to an offer and of the TCP connection, which wakes a
//! thread that sleeps and says that the other process is gone. A send takes what fits at once and completes with the
//! next look at completions; a receive completes when the thread has looked at the memory.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate_os::descriptor::OwnedFd;
use tidegate_os::pages::Pages;
use tidegate_os::poll::Readiness;
use tidegate_os::ring::{self, Completion as Raw, Handle, Payload, Tells};
use tidegate_os::socket::{Blocking, Stream, local_addr};

use super::files::piece;
use super::{Close, Completion, HandOn, Kind, Setup, Uring, key};
use crate::engine::capacity;
use crate::engine::worker::rings::{AwakeLinks, Look, WaitMode};
use crate::engine::worker::transport::Settled;
use crate::fastpath::{self, Begun, Handshake, HandshakeOutcome, MemoryLink, Rendezvous, Transports};
use crate::proto::Token;
use crate::service::Dial;

/// A connection of a ring, or the attempt to make one.
pub(in crate::engine) enum RingSocket {
    /// The kernel's.
    Kernel(Handle),
    /// The same, not connected yet: over TCP after an offer was not taken, or could not be made.
    Connecting(Arc<OwnedFd>),
    /// Being made, with an offer that has not been decided.
    Handshaking(Box<Handshaking>),
    /// Through shared memory.
    Shared(Rc<SharedSocket>),
    /// Between two of the others, within one call, or after it has failed.
    Nothing,
}

// Every connection has one.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<RingSocket>() <= 16);

/// An offer that has not been decided, and how long that may take.
pub(in crate::engine) struct Handshaking {
    handshake: Handshake,
    timeout: Duration,
}

/// A socket on its way to another thread's ring.
pub(in crate::engine) enum Loose {
    Kernel(OwnedFd),
    Shared(Box<MemoryLink>),
}

/// Received bytes.
pub(in crate::engine) enum RingBuffer {
    Kernel(ring::Buffer),
    /// So many, in the thread's buffer: until the next completion is asked for.
    Shared(usize),
}

/// A receive that waits for something in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    No,
    /// Completes again and again.
    Stays,
    Once,
    /// Takes nothing.
    Polls,
}

/// A connection through shared memory, and what was asked for on it.
pub(in crate::engine) struct SharedSocket {
    link: MemoryLink,
    token: Cell<Token>,
    /// The ring polls its TCP connection.
    is_polled: Cell<bool>,
    /// It is in the list of those that are awake.
    is_awake: Cell<bool>,
    receives: Cell<Armed>,
    /// A send that waits for room.
    sends: RefCell<Option<Payload>>,
}

impl SharedSocket {
    fn new(link: MemoryLink) -> Self {
        Self {
            link,
            token: Cell::new(super::NOBODY),
            is_polled: Cell::new(false),
            is_awake: Cell::new(false),
            receives: Cell::new(Armed::No),
            sends: RefCell::new(None),
        }
    }

    #[inline]
    fn wants(&self) -> Readiness {
        Readiness { readable: self.receives.get() != Armed::No, writable: self.sends.borrow().is_some() }
    }

    /// Looks at the memory.
    #[inline]
    fn look(&self, how: Look) -> Readiness {
        let (wants, sleeps) = (self.wants(), how == Look::BeforeSleep);
        let sees = if sleeps { self.link.prepare_sleep(wants) } else { self.link.look(wants) };
        self.is_awake.set(how.keeps_awake(sees));
        sees
    }

    /// Sends what there is room for. Nothing if it waits for that.
    fn send(&self, payload: Payload) -> Option<Completion<Uring>> {
        let token = self.token.get();
        let sent = |outcome, unsent| Some(Completion::Sent { token, sequence: None, outcome, unsent });
        let payload = match payload {
            Payload::File { read, rest } if read.is_empty() => match piece(rest) {
                Ok(read) => read,
                Err(e) => return sent(Err(e), None),
            },
            payload => payload,
        };
        let mut slices = [IoSlice::new(&[]); Payload::MAX_PIECES];
        let pieces = payload.pieces();
        let n = pieces.len().min(slices.len());
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        match self.link.send_vectored(&slices[..n]) {
            Ok(n) => sent(Ok(n), payload.advance(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.sends.replace(Some(payload));
                None
            }
            Err(e) => sent(Err(e), Some(payload)),
        }
    }

    /// Receives into the buffer, as was asked for. Nothing if it waits for that.
    #[inline]
    fn receive(&self, into: &mut [u8]) -> Option<Completion<Uring>> {
        let armed = self.receives.get();
        let outcome = match armed {
            Armed::No => return None,
            Armed::Polls => Ok(None),
            Armed::Stays | Armed::Once => match self.link.receive(into) {
                Ok(0) => Ok(None),
                Ok(n) => Ok(Some(RingBuffer::Shared(n))),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) => Err(e),
            },
        };
        let ended = armed != Armed::Stays || !matches!(outcome, Ok(Some(_)));
        if ended {
            self.receives.set(Armed::No);
        }
        Some(Completion::Received { token: self.token.get(), sequence: None, outcome, ended })
    }
}

/// The connections of a thread that go through shared memory.
pub(super) struct Sharing {
    transports: Arc<Transports>,
    rings: AwakeLinks<Rc<SharedSocket>>,
    by_token: HashMap<Token, Rc<SharedSocket>>,
    /// What has completed.
    done: VecDeque<Completion<Uring>>,
    /// What is received from memory, if there can be such connections.
    buffer: Option<Pages>,
    /// Completions since the last wait: of these connections, and of the kernel.
    turns: usize,
    reported: usize,
    /// The time of the batch.
    now: Cell<Instant>,
}

/// Completions of these connections in a row before the kernel is asked again.
const MOST_TURNS: usize = 256;

impl Sharing {
    pub(super) fn new(setup: &Setup<'_>) -> io::Result<Self> {
        let policy = setup.policy;
        let buffer = || Pages::new(policy.buffer_bytes, capacity::residence(policy));
        Ok(Self {
            transports: setup.transports.clone(),
            rings: AwakeLinks::default(),
            by_token: HashMap::new(),
            done: VecDeque::new(),
            buffer: policy.fast_path.map(|_| buffer()).transpose()?,
            turns: 0,
            reported: 0,
            now: Cell::new(Instant::now()),
        })
    }

    /// Whether connections may go through shared memory.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.buffer.is_some()
    }

    /// How to wait.
    #[inline]
    pub(super) fn before(&mut self, rest: Option<Duration>) -> WaitMode {
        if !self.is_on() {
            return WaitMode::Wait(rest);
        }
        let busy = !self.done.is_empty() || !self.rings.ready.is_empty();
        self.rings.asked(std::mem::take(&mut self.reported));
        self.turns = 0;
        let rest = if busy { Some(Duration::ZERO) } else { rest };
        let now = self.now.get();
        self.rings.before(rest, busy, now, |socket, how| Some(socket.look(how)))
    }

    /// The thread has read its clock.
    #[inline]
    pub(super) fn note_time(&self, now: Instant) {
        self.now.set(now);
    }

    /// The kernel had something to say.
    #[inline]
    pub(super) fn reported(&mut self) {
        self.reported += 1;
    }

    /// While the thread only spins, looks for the next turns. Whether [`next`](Self::next) has one.
    #[inline]
    pub(super) fn look_after(&mut self) -> bool {
        if self.turns == 0 || self.reported > 0 {
            return false;
        }
        self.rings.look_after(self.turns, |socket, how| Some(socket.look(how)))
    }

    /// What has completed next.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Completion<Uring>> {
        if !self.is_on() || self.turns >= MOST_TURNS {
            return None;
        }
        let next = self.done.pop_front().or_else(|| self.next_ready());
        self.turns += usize::from(next.is_some());
        next
    }

    fn next_ready(&mut self) -> Option<Completion<Uring>> {
        let buffer = self.buffer.as_mut()?;
        while let Some((socket, ready)) = self.rings.ready.pop() {
            if ready.writable
                && let Some(payload) = socket.sends.take()
            {
                self.done.extend(socket.send(payload));
            }
            let received = if ready.readable { socket.receive(buffer) } else { None };
            if let Some(next) = received.or_else(|| self.done.pop_front()) {
                return Some(next);
            }
        }
        None
    }

    #[inline]
    pub(super) fn received(&self, len: usize) -> &[u8] {
        self.buffer.as_ref().and_then(|buffer| buffer.get(..len)).unwrap_or_default()
    }

    /// Has it looked at from now on.
    #[inline]
    fn wake(&mut self, socket: &Rc<SharedSocket>) {
        if !socket.is_awake.replace(true) {
            self.rings.wake(socket.clone());
        }
    }

    pub(super) fn stop_receiving(&mut self, token: Token, socket: &SharedSocket) -> u32 {
        if socket.receives.replace(Armed::No) == Armed::No {
            return 0;
        }
        let outcome = Err(io::ErrorKind::Interrupted.into());
        self.done.push_back(Completion::Received { token, sequence: None, outcome, ended: true });
        1
    }

    /// Ends what waits for the memory.
    pub(super) fn stop(&mut self, token: Token, socket: &SharedSocket, how: Close) -> u32 {
        if how.reset {
            let _ = socket.link.reset_on_close(); // the close that follows ends the connection either way
        }
        let mut found = self.stop_receiving(token, socket);
        if let Some(unsent) = socket.sends.take() {
            let outcome = Err(io::ErrorKind::Interrupted.into());
            self.done.push_back(Completion::Sent { token, sequence: None, outcome, unsent: Some(unsent) });
            found += 1;
        }
        self.done.push_back(Completion::Stopped { token, found });
        1
    }

    pub(super) fn finish_sending(&mut self, token: Token, socket: &RingSocket) {
        let outcome = match socket {
            RingSocket::Shared(shared) => shared.link.shutdown_send(),
            _ => Err(io::ErrorKind::NotConnected.into()),
        };
        self.done.push_back(Completion::SendFinished { token, outcome });
    }
}

impl Uring {
    /// Begins to connect, with an offer if that may be of use.
    pub(super) fn dial_with_offer(&mut self, token: Token, dial: &Dial) -> io::Result<RingSocket> {
        let transports = self.sharing.transports.clone();
        let begun = fastpath::begin(&dial.to, dial.source, &transports)?;
        self.plain += 1;
        match begun {
            Begun::Handshaking(handshake) => {
                self.ring.poll_once(handshake.watched(), key(Kind::Answered, token));
                let timeout = transports.fast_path.map_or(Duration::ZERO, |fast| fast.handshake_timeout);
                Ok(RingSocket::Handshaking(Box::new(Handshaking { handshake, timeout })))
            }
            Begun::Plain(stream) => Ok(self.connecting(token, OwnedFd::from(stream).into())),
        }
    }

    /// Waits for a connection over TCP that was begun already.
    fn connecting(&mut self, token: Token, fd: Arc<OwnedFd>) -> RingSocket {
        self.ring.poll_writable(&Handle::Plain(fd.clone()), nothing(), key(Kind::Dial, token));
        RingSocket::Connecting(fd)
    }

    /// What has become of an attempt to connect.
    pub(super) fn settle_offer(&mut self, token: Token, socket: &mut RingSocket) -> io::Result<Settled> {
        match std::mem::replace(socket, RingSocket::Nothing) {
            RingSocket::Handshaking(offer) => match offer.handshake.settle(&self.sharing.transports) {
                HandshakeOutcome::Link(link) => *socket = link.into(),
                HandshakeOutcome::Plain(stream) => {
                    *socket = self.connecting(token, OwnedFd::from(stream).into()); // it may still be connecting
                    return Ok(Settled::Pending);
                }
            },
            RingSocket::Connecting(fd) => match Arc::try_unwrap(fd) {
                Ok(fd) => *socket = self.connected(fd.into())?,
                Err(shared) => {
                    // Named in something that was not handed over yet.
                    *socket = self.connecting(token, shared);
                    return Ok(Settled::Pending);
                }
            },
            other => *socket = other,
        }
        Ok(Settled::Established)
    }

    /// A socket that did not wait is the ring's, unless it could not be connected.
    fn connected(&mut self, stream: Stream) -> io::Result<RingSocket> {
        if let Some(e) = stream.take_error()? {
            return Err(e);
        }
        stream.set_blocking(Blocking::Waits)?;
        let handle = self.ring.register(stream.into());
        self.plain -= 1;
        self.count(&handle);
        Ok(handle.into())
    }

    /// Has its TCP connection polled, and it looked at from now on.
    #[inline]
    fn attach(&mut self, token: Token, socket: &Rc<SharedSocket>) {
        if !socket.is_polled.replace(true) {
            socket.token.set(token);
            self.sharing.by_token.insert(token, socket.clone());
            self.ring.poll_multi(socket.link.watched(), key(Kind::Notify, token));
        }
        self.sharing.wake(socket);
    }

    #[inline]
    pub(super) fn receive_shared(&mut self, token: Token, socket: &RingSocket, how: Armed) {
        if let RingSocket::Shared(shared) = socket {
            shared.receives.set(how);
            self.attach(token, shared);
        }
    }

    #[inline]
    pub(super) fn send_shared(&mut self, token: Token, socket: &RingSocket, payload: Payload) {
        if let RingSocket::Shared(shared) = socket {
            self.attach(token, shared);
            self.sharing.done.extend(shared.send(payload));
        }
    }

    /// The peer has woken this side, or is gone.
    #[cold]
    pub(super) fn notified(&mut self, token: Token, raw: &Raw) -> Completion<Self> {
        if let Some(socket) = self.sharing.by_token.get(&token).cloned() {
            let ready = socket.link.heed(socket.wants());
            if !raw.more && !socket.link.is_cut() {
                self.ring.poll_multi(socket.link.watched(), key(Kind::Notify, token));
            }
            self.sharing.wake(&socket);
            self.sharing.rings.ready.push((socket, ready));
        }
        Completion::Ignored
    }

    pub(super) fn close_shared(&mut self, token: Token, socket: &Rc<SharedSocket>) {
        if socket.is_polled.get() {
            self.sharing.by_token.remove(&token);
            self.sharing.rings.forget(|other| Rc::ptr_eq(other, socket));
            // The TCP connection ends when the poll has.
            self.ring.cancel(key(Kind::Notify, token), key(Kind::Ignored, token), Tells::Failure);
        }
    }
}

impl RingSocket {
    /// An accepted connection: through shared memory if it has left an offer.
    pub(super) fn claim(self, rendezvous: &Rendezvous, peer: Option<SocketAddr>) -> Self {
        let Some(peer) = peer else { return self };
        let stream = match self {
            Self::Kernel(Handle::Plain(fd)) => match Arc::try_unwrap(fd) {
                Ok(fd) => Stream::from(fd),
                Err(shared) => return Handle::Plain(shared).into(),
            },
            other => return other,
        };
        match rendezvous.claim(stream, peer) {
            Ok(link) => {
                // It is asked for wake-ups until there are none.
                let _ = link.watched().set_blocking(Blocking::Never);
                link.into()
            }
            Err(stream) => Handle::from(OwnedFd::from(stream)).into(),
        }
    }

    pub(super) fn loosen(self) -> HandOn<Uring> {
        match self {
            Self::Shared(shared) => match Rc::try_unwrap(shared) {
                Ok(shared) => HandOn::Loose(Loose::Shared(Box::new(shared.link))),
                Err(shared) => HandOn::Kept(Self::Shared(shared)),
            },
            other => HandOn::Kept(other),
        }
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Shared(shared) => local_addr(&shared.link.borrowed()),
            _ => None,
        }
    }

    pub(super) fn handshake_timeout(&self) -> Option<Duration> {
        match self {
            Self::Handshaking(offer) => Some(offer.timeout),
            _ => None,
        }
    }
}

impl From<Handle> for RingSocket {
    #[inline]
    fn from(handle: Handle) -> Self {
        Self::Kernel(handle)
    }
}

impl From<MemoryLink> for RingSocket {
    fn from(link: MemoryLink) -> Self {
        Self::Shared(Rc::new(SharedSocket::new(link)))
    }
}

impl From<Loose> for RingSocket {
    fn from(loose: Loose) -> Self {
        match loose {
            Loose::Kernel(fd) => Handle::from(fd).into(),
            Loose::Shared(link) => (*link).into(),
        }
    }
}

/// What goes with a poll that sends nothing.
fn nothing() -> Payload {
    Payload::One(Bytes::new())
}
