//! `uring`: Linux io_uring, one ring for each I/O thread.
//!
//! # How it waits
//! One system call hands over everything that was asked for since the last one (sends, re-arms, closes, of all
//! connections) and waits for completions. Accepts and receives are multishot: armed once, they complete again and
//! again. Accepts are single where several threads take turns, and after more came at once than `accept.batch`. With
//! `DEFER_TASKRUN` the kernel does the completion work on this thread, in that call, and interrupts nobody.
//!
//! # What it bounds
//! Received bytes lie in a pool of provided buffers shared by all connections of the thread, so an idle connection pins
//! none. A receive ends after `drain_budget` buffers of bytes (Linux 6.17) and is armed again. An empty pool ends a
//! receive with ENOBUFS; it is armed again once buffers have come back. Connections are slots of the ring's own table
//! (direct descriptors) and cost no descriptor of the process. A table holds at most RLIMIT_NOFILE; when it is full,
//! further connections take ordinary descriptors, so that a process can hold its limit once for each thread and once
//! more. A multishot accept into a full table would lose a connection, so near its end connections are accepted one by
//! one.
//!
//! # What it costs
//! The pool (`buffers` x `buffer_bytes` for each thread) and a submission and a completion for each operation. There is
//! one more after the first data of a receive that stays armed: a look for a reset, unless it is answered at once, and
//! over a Unix socket in any case, also for the end. A connection that another thread is to serve is sent to that
//! one's ring (`IORING_OP_MSG_RING`), which interrupts its thread.
//!
//! # Where it differs
//! io_uring has no `sendfile`, and hands every `splice` to a worker thread (`io_splice` in the kernel's
//! `io_uring/splice.c`). So a part of a file is sent by `sendfile(2)` from the loop's own thread when the ring reports
//! that the socket can take more; the first one gives the connection an ordinary descriptor besides its slot (Linux
//! 6.8; before that files are read in pieces and sent by the ring). Neither end's address is known for a direct
//! descriptor: a service that needs one gets ordinary descriptors. The shutdown of one direction runs on a kernel
//! worker thread. What goes through shared memory is in `shared`.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidegate_os::descriptor::OwnedFd;
use tidegate_os::ring::{Handle, Payload, Purpose, Ring, RingAddress, RingSetup, Slots, Tells, can_hand_on};
use tidegate_os::socket::{Blocking, Listener, More, Stream, is_out_of_buffers, raw_address};
use tidegate_os::waker::Waker;

use super::entry::{CompletionEntry, SendResult};
use super::{Chained, Close, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::worker::rings::WaitMode;
use crate::engine::worker::transport::{Acceptor, Settled};
use crate::engine::{Availability, EngineConfig, EngineHandle, Model, capacity};
use crate::fastpath::Rendezvous;
use crate::policy::Policy;
use crate::proto::queue::{FileSending, Pieces};
use crate::proto::{Sequence, Token};
use crate::service::Dial;
use completions::{Kind, NOBODY, key};
use files::whole;
use shared::{Armed, Loose, RingBuffer, RingSocket, Sharing};

mod completions;
mod files;
mod probe;
mod shared;
#[cfg(all(test, not(tidegate_loom)))]
mod tests;

/// Whether it works here: makes a small ring, on a separate thread. The kernel signals the thread that made a
/// ring some time after the ring was closed (`io_ring_exit_work` in its `io_uring/io_uring.c`), and the caller
/// may just be reading from a socket with a time limit, which then fails with EINTR (`signal(7)`).
pub(in crate::engine) fn probe() -> Availability {
    let thread = std::thread::Builder::new().name("tidegate-probe".into()).spawn(probe::make_one);
    match thread.map(JoinHandle::join) {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(e) => Availability::Unavailable(format!("no thread could be started to look: {e}; use epoll")),
    }
}

/// Starts its threads.
pub(in crate::engine) fn start(config: EngineConfig) -> io::Result<EngineHandle> {
    let rendezvous = config.rendezvous.clone();
    crate::engine::completion::start::<Uring>(config, Model::Uring, |listener| open(listener, rendezvous))
}

/// The listener as the ring accepts from it: the kernel waits, the program never does.
fn open(listener: Arc<Listener>, rendezvous: Option<Arc<Rendezvous>>) -> io::Result<Acceptor> {
    listener.set_blocking(Blocking::Waits)?;
    Ok(Acceptor { listener, rendezvous })
}

/// One ring.
pub(crate) struct Uring {
    ring: Ring,
    waker: Option<Arc<Waker>>,
    /// Connections that the table may hold.
    slots: usize,
    /// Connections in the table.
    direct: usize,
    /// Connections with ordinary descriptors, and how many there may be.
    plain: usize,
    descriptors: usize,
    /// The descriptors of slots that files were sent to.
    doubles: HashMap<u32, Arc<OwnedFd>>,
    /// One that was just made, for the completion that was just reported only.
    fresh: Option<Handle>,
    /// Whether slots can have descriptors besides.
    installs: bool,
    /// Whether what is in a slot can be handed to another ring.
    hands_on: bool,
    /// Whether accepts are for ordinary descriptors while there are some: those can always be handed on.
    plain_first: bool,
    /// Completions of the kernel in a batch at most, and those of this one so far.
    most: usize,
    taken: usize,
    /// Connections through shared memory.
    sharing: Sharing,
}

// See `Connection`.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<CompletionEntry<Uring>>() <= 136);

impl CompletionDriver for Uring {
    /// A shutdown waits for a thread of the kernel, which looks the slot or the descriptor up when it gets to it.
    const JOINS: bool = true;

    type Socket = RingSocket;
    type Buffer = RingBuffer;
    type Unsent = Payload;
    type Listener = Acceptor;
    type Address = RingAddress;
    type Loose = Loose;
    const HANDS_ON: bool = true;
    const TAKES_BACKLOG: bool = true;
    const MOST_SEND_BYTES: usize = usize::MAX; // the ring sees to that

    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        // An offer is found by the peer's address.
        let addresses = setup.addresses || (policy.fast_path.is_some() && !setup.dials);
        let (table, slots) = if addresses { (0, 0) } else { capacity::table(setup.share) };
        let ring = Ring::new(&RingSetup {
            purpose: Purpose::Streams,
            entries: (policy.events_per_wait as u32).next_power_of_two().clamp(64, 4096),
            completions: (policy.events_per_wait as u32 * 4).next_power_of_two().clamp(1024, 65_536),
            buffers: (policy.buffers as u16).next_power_of_two(),
            buffer_bytes: policy.buffer_bytes as u32,
            residence: capacity::residence(policy),
            table: table as u32,
            slots: if setup.dials { Slots::Registered } else { Slots::Accepted },
            busy_poll: policy.busy_poll,
        })?;
        let slots = if ring.features().direct { slots } else { 0 };
        let hands_on = setup.partners && slots > 0 && can_hand_on();
        let new = Self {
            ring,
            waker: None,
            slots,
            direct: 0,
            plain: 0,
            descriptors: setup.descriptors,
            doubles: HashMap::new(),
            fresh: None,
            installs: true,
            hands_on,
            plain_first: setup.partners && !hands_on,
            most: policy.events_per_wait,
            taken: 0,
            sharing: Sharing::new(setup)?,
        };
        Ok((new, capacity::of_ring(slots, setup.descriptors, setup.dials_each)))
    }

    #[inline]
    fn local_addr(socket: &RingSocket) -> Option<SocketAddr> {
        match socket {
            RingSocket::Kernel(Handle::Direct(_)) => None, // not asked for, see `Setup::addresses`
            RingSocket::Kernel(Handle::Plain(fd)) => tidegate_os::socket::local_addr(fd),
            other => other.local_addr(),
        }
    }

    fn files(&self) -> FileSending {
        FileSending::Alone
    }

    fn watch_waker(&mut self, waker: &Arc<Waker>) {
        self.ring.poll_multi(waker, key(Kind::Waker, NOBODY));
        self.waker = Some(waker.clone());
    }

    fn accept_room(&self) -> usize {
        match self.accept_kind() {
            (_, true) => self.slots - self.direct,
            (_, false) => self.descriptors.saturating_sub(self.plain),
        }
    }

    fn accept_all(&mut self, acceptor: &Acceptor) {
        let (kind, direct) = self.accept_kind();
        self.ring.accept_multi(&acceptor.listener, key(kind, NOBODY), direct);
    }

    fn accept_one(&mut self, acceptor: &Acceptor) {
        let (kind, direct) = self.accept_kind();
        self.ring.accept_one(&acceptor.listener, key(kind, NOBODY), direct);
    }

    fn address(&self) -> io::Result<Option<RingAddress>> {
        self.hands_on.then(|| self.ring.address()).transpose()
    }

    fn takes(&self) -> usize {
        if self.hands_on { self.slots } else { usize::MAX }
    }

    fn hand_on(&mut self, socket: RingSocket, to: usize, address: Option<RingAddress>) -> HandOn<Self> {
        let handle = match socket {
            RingSocket::Kernel(handle) => handle,
            other => {
                self.plain -= 1;
                return other.loosen();
            }
        };
        match (handle, address) {
            (Handle::Plain(fd), _) => match Arc::try_unwrap(fd) {
                Ok(fd) => {
                    self.plain -= 1;
                    HandOn::Loose(Loose::Kernel(fd))
                }
                Err(shared) => HandOn::Kept(Handle::Plain(shared).into()),
            },
            (Handle::Direct(slot), Some(address)) => {
                let index = slot.index();
                let leaves = key(Kind::HandedOn, Token { index, generation: to as u32 });
                let closed = key(Kind::Closed, Token { index, generation: 0 });
                self.ring.hand_on(slot, &address, leaves, closed, key(Kind::Handed, NOBODY));
                HandOn::UnderWay
            }
            (handle, None) => HandOn::Kept(handle.into()),
        }
    }

    fn take_in(&mut self, loose: Loose) -> RingSocket {
        self.plain += 1;
        loose.into()
    }

    fn is_unix(acceptor: &Acceptor) -> bool {
        acceptor.listener.local_addr().is_ok_and(|at| at.is_unix())
    }

    fn has_waiting(acceptor: &Acceptor) -> bool {
        acceptor.listener.has_waiting()
    }

    fn claim(&mut self, acceptor: &Acceptor, socket: RingSocket, peer: Option<SocketAddr>) -> RingSocket {
        match &acceptor.rendezvous {
            Some(rendezvous) => socket.claim(rendezvous, peer),
            None => socket,
        }
    }

    #[inline]
    fn is_shared(socket: &RingSocket) -> bool {
        matches!(socket, RingSocket::Shared(_))
    }

    fn stop_accepting(&mut self) {
        for (kind, direct) in [(Kind::AcceptDirect, true), (Kind::AcceptPlain, false)] {
            self.ring.cancel_accepts(key(kind, NOBODY), direct, key(Kind::Ignored, NOBODY), Tells::Failure);
        }
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<RingSocket> {
        if self.sharing.is_on() {
            return self.dial_with_offer(token, dial);
        }
        let to = raw_address(&dial.to)?;
        let socket = OwnedFd::from(Stream::unconnected(&dial.to, dial.source)?);
        let socket = self.ring.register(socket);
        self.count(&socket);
        self.ring.connect(&socket, to, key(Kind::Dial, token));
        Ok(socket.into())
    }

    fn settle(&mut self, token: Token, socket: &mut RingSocket) -> io::Result<Settled> {
        self.settle_offer(token, socket)
    }

    fn handshake_timeout(socket: &RingSocket) -> Option<Duration> {
        socket.handshake_timeout()
    }

    fn settle_anyway(&mut self, token: Token, socket: &RingSocket) {
        if let RingSocket::Handshaking(_) = socket {
            self.ring.cancel(key(Kind::Answered, token), key(Kind::Ignored, token), Tells::Failure);
        }
    }

    fn receive(&mut self, token: Token, _: Sequence, socket: &RingSocket, policy: &Policy) {
        match socket {
            RingSocket::Kernel(handle) => {
                self.ring.receive_multi(handle, in_a_row(policy), key(Kind::Receive, token));
            }
            other => self.receive_shared(token, other, Armed::Stays),
        }
    }

    /// Linux (seen on 6.18.44) loses a reset that comes behind data between the look for data and the arming of a
    /// multishot receive: `io_poll_check_events` of `io_uring/poll.c` then receives what is there once, and nothing
    /// wakes it again. Commit a68ed2df7213 of Linux mended what was lost behind data that came later (liburing issue
    /// 1549).
    fn look_for_reset(&mut self, token: Token, socket: &RingSocket) {
        if let RingSocket::Kernel(handle) = socket {
            self.ring.look_for_error(handle, key(Kind::LookedForReset, token));
        }
    }

    /// The end of a Unix socket is lost in the same way (seen on Linux 6.18); that of TCP is not.
    fn look_for_end(&mut self, token: Token, socket: &RingSocket) {
        if let RingSocket::Kernel(handle) = socket {
            self.ring.look_for_end(handle, key(Kind::LookedForEnd, token));
        }
    }

    fn receive_once(&mut self, token: Token, _: Sequence, socket: &RingSocket) {
        match socket {
            RingSocket::Kernel(handle) => self.ring.receive_once(handle, key(Kind::Receive, token)),
            other => self.receive_shared(token, other, Armed::Once),
        }
    }

    fn poll_readable(&mut self, token: Token, _: Sequence, socket: &RingSocket) {
        match socket {
            RingSocket::Kernel(handle) => self.ring.poll_readable(handle, key(Kind::Receive, token)),
            other => self.receive_shared(token, other, Armed::Polls),
        }
    }

    fn stop_receiving(&mut self, token: Token, socket: &RingSocket) {
        match socket {
            RingSocket::Shared(shared) => _ = self.sharing.stop_receiving(token, shared),
            _ => self.ring.cancel(key(Kind::Receive, token), key(Kind::Ignored, token), Tells::Failure),
        }
    }

    fn stop_sending(&mut self, token: Token, _: &RingSocket) {
        self.ring.cancel_owner(key(Kind::Send, token), key(Kind::StoppedSending, token), Tells::Always);
    }

    fn stop(&mut self, token: Token, socket: &RingSocket, how: Close) -> u32 {
        let (stopped, plain) = (key(Kind::Stopped, token), &mut None);
        let socket = match socket {
            RingSocket::Kernel(handle) => handle,
            RingSocket::Connecting(fd) => plain.insert(Handle::Plain(fd.clone())),
            RingSocket::Handshaking(_) => {
                self.ring.cancel(key(Kind::Answered, token), stopped, Tells::Always);
                return 1;
            }
            RingSocket::Nothing => return 0,
            RingSocket::Shared(shared) => return self.sharing.stop(token, shared, how),
        };
        let resets = how.reset && self.ring.reset_on_close(socket, stopped, Tells::Always);
        if how.busy {
            self.ring.cancel_all(socket, stopped, Tells::Always);
        } else if how.receiving {
            // Found by its key; `cancel_all` has to look at everything in the ring.
            self.ring.cancel(key(Kind::Receive, token), stopped, Tells::Always);
        }
        u32::from(resets) + u32::from(how.busy || how.receiving)
    }

    fn send(&mut self, token: Token, _: Sequence, socket: &RingSocket, pieces: Pieces, more: More) {
        match (socket, pieces) {
            (RingSocket::Kernel(handle), Pieces::File { range, .. }) => {
                self.begin_file(token, handle, whole(range));
            }
            (RingSocket::Kernel(handle), pieces) => {
                self.ring.send(handle, payload(pieces), more, key(Kind::Send, token));
            }
            (other, pieces) => self.send_shared(token, other, payload(pieces)),
        }
    }

    /// A send with `MSG_WAITALL` that has taken something, waits and then fails returns what it has taken (`io_send` of
    /// `io_uring/net.c`). The kernel has reported the error of the socket then.
    fn is_cut(&self, socket: &RingSocket, taken: usize, unsent: &Payload) -> bool {
        matches!(socket, RingSocket::Kernel(_)) && Ring::is_cut(taken, unsent)
    }

    fn go_on(
        &mut self,
        socket: &RingSocket,
        unsent: Payload,
        more: More,
    ) -> (io::Result<usize>, Option<Payload>) {
        match socket {
            RingSocket::Kernel(handle) => self.go_on_with_file(handle, unsent, more),
            _ => (Ok(0), Some(unsent)), // it never waits for that
        }
    }

    fn send_last(
        &mut self,
        token: Token,
        sequence: Sequence,
        socket: &RingSocket,
        pieces: Pieces,
    ) -> Chained {
        let sends = key(Kind::Send, token);
        match (socket, &pieces) {
            (RingSocket::Kernel(handle @ Handle::Direct(slot)), Pieces::One(_) | Pieces::Many(_))
                if !self.doubles.contains_key(&slot.index()) =>
            {
                let closed = key(Kind::Closed, Token { index: slot.index(), generation: 0 });
                match self.ring.send_and_close(handle, payload(pieces), sends, closed) {
                    Ok(()) => return Chained::Yes,
                    Err(too_much) => self.ring.send(handle, too_much, More::No, sends),
                }
            }
            _ => self.send(token, sequence, socket, pieces, More::No),
        }
        Chained::No
    }

    fn closed(&mut self, _socket: RingSocket) {
        // Its slot is free when the close itself has come back. The kernel tells of the send first, and closes when it
        // gets to it (it does only some of what is due in each call): an accept into a table that is still full would
        // lose its connection, and a socket put into the slot meanwhile would be closed in the place of the old one.
    }

    fn send_rest(&mut self, token: Token, _: Sequence, socket: &RingSocket, unsent: Payload) {
        match (socket, unsent) {
            (RingSocket::Kernel(handle), Payload::File { read, rest }) if read.is_empty() => {
                self.begin_file(token, handle, whole(rest));
            }
            (RingSocket::Kernel(handle), unsent) => {
                self.ring.send(handle, unsent, More::No, key(Kind::Send, token));
            }
            (other, unsent) => self.send_shared(token, other, unsent),
        }
    }

    fn finish_sending(&mut self, token: Token, socket: &RingSocket) {
        match socket {
            RingSocket::Kernel(handle) => {
                self.ring.shutdown(handle, std::net::Shutdown::Write, key(Kind::Finish, token));
            }
            other => self.sharing.finish_sending(token, other),
        }
    }

    fn close(&mut self, token: Token, socket: RingSocket, how: Close) {
        debug_assert!(!how.receiving && !how.busy && !how.finishing, "everything has come back");
        let socket = match socket {
            RingSocket::Kernel(handle) => handle,
            RingSocket::Connecting(fd) => Handle::Plain(fd),
            RingSocket::Handshaking(_) | RingSocket::Nothing => {
                self.plain -= 1;
                return;
            }
            RingSocket::Shared(shared) => {
                self.plain -= 1;
                return self.close_shared(token, &shared);
            }
        };
        match &socket {
            Handle::Direct(slot) => {
                self.doubles.remove(&slot.index()); // the slot keeps the socket open until it is closed below
                self.direct -= 1; // its number is given out when it is closed, and not before
            }
            Handle::Plain(_) => self.plain -= 1,
        }
        self.ring.close(socket, key(Kind::Ignored, NOBODY), Tells::Failure);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.sharing.before(timeout) {
            WaitMode::Skip if !self.ring.has_requests() => Ok(()),
            WaitMode::Skip => self.ring.enter(Some(Duration::ZERO)),
            WaitMode::Wait(limit) => self.ring.enter(limit),
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.submit()
    }

    fn wait_later(&mut self, pause: Duration, timeout: Option<Duration>) -> io::Result<()> {
        if self.sharing.before(timeout) != WaitMode::Wait(timeout) {
            return self.ring.enter(Some(Duration::ZERO));
        }
        if self.ring.features().min_wait {
            return self.ring.enter_later(pause, timeout);
        }
        self.ring.submit()?;
        std::thread::sleep(pause);
        self.ring.enter(timeout.map(|timeout| timeout.saturating_sub(pause)))
    }

    #[inline]
    fn now(&self) -> Instant {
        let now = Instant::now();
        self.sharing.note_time(now);
        now
    }

    #[inline]
    fn next(&mut self) -> Option<Completion<Self>> {
        self.fresh = None; // nobody went on with it: its connection is gone
        loop {
            if let Some(completion) = self.sharing.next() {
                return Some(completion);
            }
            // Completions that are left in the queue end the next wait at once.
            if self.taken < self.most
                && let Some(raw) = self.ring.next_completion()
            {
                self.taken += 1;
                self.sharing.reported();
                return Some(self.completion(raw));
            }
            if self.ring.has_requests() || !self.sharing.look_after() {
                self.taken = 0;
                return None;
            }
        }
    }

    #[inline]
    fn bytes<'a>(&'a self, buffer: &'a RingBuffer) -> &'a [u8] {
        match buffer {
            RingBuffer::Kernel(buffer) => self.ring.received(buffer),
            RingBuffer::Shared(len) => self.sharing.received(*len),
        }
    }

    #[inline]
    fn recycle(&mut self, buffer: RingBuffer) {
        if let RingBuffer::Kernel(buffer) = buffer {
            self.ring.recycle(buffer);
        }
    }

    fn is_out_of_buffers(e: &io::Error) -> bool {
        is_out_of_buffers(e) // io_uring_prep_recv_multishot(3)
    }
}

impl Uring {
    /// Into the table while it has room, then ordinary descriptors; or the other way round.
    fn accept_kind(&self) -> (Kind, bool) {
        let plain = self.plain_first && self.plain < self.descriptors;
        if self.direct < self.slots && !plain {
            (Kind::AcceptDirect, true)
        } else {
            (Kind::AcceptPlain, false)
        }
    }

    fn count(&mut self, socket: &Handle) {
        match socket {
            Handle::Direct(_) => self.direct += 1,
            Handle::Plain(_) => self.plain += 1,
        }
    }
}

/// Bytes that a connection may receive in a row. The kernel would fill up to 32 buffers for one connection
/// (`MULTISHOT_MAX_RETRY` in its `io_uring/net.c`), and what it put into the first has left the processor's caches
/// before the loop sees it.
fn in_a_row(policy: &Policy) -> Option<NonZeroU32> {
    let bytes = policy.drain_budget.saturating_mul(policy.buffer_bytes);
    NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX))
}

fn payload(pieces: Pieces) -> Payload {
    match pieces {
        Pieces::One(piece) => Payload::One(piece),
        Pieces::Many(pieces) => Payload::Many(pieces),
        Pieces::File { range, .. } => whole(range),
    }
}
