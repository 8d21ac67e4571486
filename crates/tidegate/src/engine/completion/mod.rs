//! The completion family: operations are handed to the kernel, and their outcomes come back.
//!
//! One loop ([`event_loop`]) for each I/O thread; a leaf brings its kernel queue, as a [`CompletionDriver`]. Those of
//! Windows are declared in [`platform`](super::platform).
//!
//! # Contract of a leaf
//!
//! A leaf owns every buffer that the kernel may touch until the completion came back. It never retries and never
//! decides: a receive that ended is armed again by the loop. At most one receive and one send are in flight for each
//! connection, unless the leaf says that it can have more ([`CompletionDriver::most_sends`],
//! [`CompletionDriver::may_receive_ahead`]): then each has a number, and completions may come in any order. Close is
//! called once. A leaf whose kernel looks sockets up late ([`CompletionDriver::JOINS`]) is asked
//! to close when everything that was in flight has come back; with the others it still completes afterwards, with a
//! token that finds nothing.

mod entry;
mod event_loop;
mod leaving;

#[cfg(target_os = "linux")]
pub(super) mod uring;

#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
pub(super) use event_loop::CompletionLoop;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_os::socket::{Listener, More};
use tidegate_os::waker::Waker;

use super::worker::loop_driver::Pinning;
use super::worker::transport::Settled;
use super::{EngineConfig, EngineHandle, Model};
use crate::fastpath::Transports;
use crate::policy::Policy;
use crate::proto::queue::{FileSending, Pieces};
use crate::proto::{Sequence, Token};
use crate::service::Dial;

/// What came back from the kernel.
#[allow(dead_code, reason = "each system's leaves report what they have")]
pub(super) enum Completion<P: CompletionDriver> {
    /// The waker was woken.
    Woken,
    /// A connection was accepted, or could not be.
    Accepted { outcome: io::Result<(P::Socket, Option<SocketAddr>)>, ended: bool },
    /// A dial ended.
    Dialled { token: Token, outcome: io::Result<()> },
    /// Bytes arrived (none: the peer finished; of a [poll](CompletionDriver::poll_readable): there is something), or
    /// the receive failed. `ended`: it is no longer armed.
    Received { token: Token, sequence: Option<Sequence>, outcome: io::Result<Option<P::Buffer>>, ended: bool },
    /// A reset that [the receive which stays armed has missed](CompletionDriver::look_for_reset).
    Reset { token: Token, error: io::Error },
    /// The end of the stream, which [it may have missed](CompletionDriver::look_for_end): it may report that as well.
    Ended { token: Token },
    /// The kernel took bytes; what it did not take comes back.
    Sent { token: Token, sequence: Option<Sequence>, outcome: io::Result<usize>, unsent: Option<P::Unsent> },
    /// A send may be gone on with ([`CompletionDriver::go_on`]), or cannot be.
    MayGoOn { token: Token, outcome: io::Result<()>, unsent: P::Unsent },
    /// The sending side was shut down.
    SendFinished { token: Token, outcome: io::Result<()> },
    /// A connection that another thread has accepted has arrived.
    Handed { socket: P::Socket },
    /// A connection was handed on to a thread, or comes back because it could not be.
    HandedOn { to: usize, outcome: Result<(), P::Socket> },
    /// A request of [`CompletionDriver::stop`] was carried out, and has found so much in flight; that completes, too.
    Stopped { token: Token, found: u32 },
    /// A request of [`CompletionDriver::stop_sending`] was carried out, and has found the send or not.
    StoppedSending { token: Token, found: bool },
    /// A connection has found none of the single accepts.
    Behind,
    /// Nothing to be done about it.
    Ignored,
}

impl<P: CompletionDriver> Completion<P> {
    /// Whether somebody else has caused it, and not an operation of this end.
    fn is_from_outside(&self) -> bool {
        matches!(
            self,
            Self::Woken
                | Self::Accepted { .. }
                | Self::Dialled { .. }
                | Self::Received { .. }
                | Self::Reset { .. }
                | Self::Ended { .. }
                | Self::Handed { .. }
        )
    }
}

/// What has become of a socket that is to be served by another thread.
#[allow(dead_code, reason = "each system's leaves say what they can do")]
pub(super) enum HandOn<P: CompletionDriver> {
    /// [`Completion::HandedOn`] will say.
    UnderWay,
    /// It has left the port, and can be sent to another one.
    Loose(P::Loose),
    /// It has to stay.
    Kept(P::Socket),
}

/// How the ports of all threads are reached; none where a port cannot be, or not any more.
pub(super) struct Addresses<P: CompletionDriver>(Box<[Mutex<Option<P::Address>>]>);

impl<P: CompletionDriver> Addresses<P> {
    fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self((0..threads).map(|_| Mutex::new(None)).collect()))
    }

    fn set(&self, thread: usize, address: Option<P::Address>) {
        *self.lock(thread) = address;
    }

    fn get(&self, thread: usize) -> Option<P::Address> {
        self.lock(thread).clone()
    }

    fn lock(&self, thread: usize) -> MutexGuard<'_, Option<P::Address>> {
        self.0[thread].lock().unwrap_or_else(PoisonError::into_inner) // nothing under the lock can panic
    }
}

/// How a port is to be set up.
#[allow(dead_code, reason = "each system's leaves read what they need")]
pub(super) struct Setup<'a> {
    pub(super) policy: &'a Policy,
    /// Connections that this thread accepts, or that its client dials.
    pub(super) share: usize,
    /// Connections that a session may have dialled.
    pub(super) dials_each: usize,
    /// Whether the address of an accepted peer is needed, or that of this end.
    pub(super) addresses: bool,
    /// Whether other threads accept from the same listener.
    pub(super) partners: bool,
    /// Whether connections are dialled rather than accepted.
    pub(super) dials: bool,
    /// Whether accepts are to complete with the first data, where they can.
    pub(super) first_data: bool,
    /// What connections may use besides TCP.
    pub(super) transports: &'a Arc<Transports>,
    /// Descriptors of the process that this thread may use.
    pub(super) descriptors: usize,
}

/// A queue between a thread and the kernel.
pub(super) trait CompletionDriver: Sized + 'static {
    /// Whether what is in flight may look its socket up late, by a number that another one can have by then. If so, a
    /// socket is closed only when everything has come back.
    const JOINS: bool;

    /// A socket as this port knows it.
    type Socket;
    /// A buffer with received bytes.
    type Buffer;
    /// What a send did not take.
    type Unsent;
    /// The source of connections.
    type Listener;
    /// How other threads' ports reach this one.
    type Address: Clone + Send + Sync + 'static;
    /// A socket on its way to another thread's port.
    type Loose: Send + 'static;
    /// Whether accepted sockets can be handed on at all. Threads then take turns, by accepts that are posted one by
    /// one: of several that accept without end the kernel would always wake the same one.
    const HANDS_ON: bool;
    /// Whether the accept that completes without end takes all connections that wait, however many.
    const TAKES_BACKLOG: bool;
    /// Bytes in memory that one send may have: what a slow peer has read may be known only when it ends, and the time
    /// limits of a connection look at that.
    const MOST_SEND_BYTES: usize;

    /// A queue for the calling thread, and how many connections it can hold.
    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)>;
    /// The address of this end of a connection; Unix sockets have none.
    fn local_addr(socket: &Self::Socket) -> Option<SocketAddr>;
    /// What it does with parts of files.
    fn files(&self) -> FileSending;
    /// Reports when the waker is woken, from now on.
    fn watch_waker(&mut self, waker: &Arc<Waker>);
    /// Connections that can be accepted in the way the next accept would take.
    fn accept_room(&self) -> usize;
    /// Watermarks of single accepts where the policy leaves them open, for ports that can have few.
    fn accept_marks(&self) -> Option<(usize, usize)> {
        None
    }
    /// Accepts without end.
    fn accept_all(&mut self, listener: &Self::Listener);
    /// Accepts that complete with first data only: silent connections may hold them.
    fn accepts_waiting(&self) -> usize {
        0
    }
    /// Operations by which it accepts without end, if it does.
    fn accepts_without_end(&self) -> usize {
        1
    }
    /// Accepts one connection.
    fn accept_one(&mut self, listener: &Self::Listener);
    /// How other threads' ports hand sockets to this one.
    fn address(&self) -> io::Result<Option<Self::Address>>;
    /// While it has fewer connections it can take more that are handed to it.
    fn takes(&self) -> usize {
        usize::MAX
    }
    /// Has an accepted socket served by thread `to`, whose port is there.
    fn hand_on(&mut self, socket: Self::Socket, to: usize, address: Option<Self::Address>) -> HandOn<Self>;
    /// Takes in what another thread's port has let [loose](HandOn::Loose).
    fn take_in(&mut self, loose: Self::Loose) -> Self::Socket;
    /// Whether connections are accepted from a Unix socket.
    fn is_unix(listener: &Self::Listener) -> bool {
        let _ = listener;
        false
    }
    /// Whether connections wait to be accepted.
    fn has_waiting(listener: &Self::Listener) -> bool;
    /// Connections since this was asked last that came in on a socket which had one before.
    #[inline]
    fn reused(&mut self) -> u64 {
        0
    }
    /// Ends [`accept_all`](Self::accept_all) and every `accept_one`; each still completes.
    fn stop_accepting(&mut self);
    /// An accepted connection as it goes on: perhaps not over what it was accepted from.
    fn claim(
        &mut self,
        listener: &Self::Listener,
        socket: Self::Socket,
        peer: Option<SocketAddr>,
    ) -> Self::Socket {
        let _ = (listener, peer);
        socket
    }
    /// Whether it goes through shared memory.
    fn is_shared(socket: &Self::Socket) -> bool {
        let _ = socket;
        false
    }
    /// What has become of an attempt to connect, after [`Completion::Dialled`]. If it waits, that comes once more.
    fn settle(&mut self, token: Token, socket: &mut Self::Socket) -> io::Result<Settled> {
        let _ = (token, socket);
        Ok(Settled::Established)
    }
    /// How long to wait before [`settle_anyway`](Self::settle_anyway).
    fn handshake_timeout(socket: &Self::Socket) -> Option<Duration> {
        let _ = socket;
        None
    }
    /// Has [`Completion::Dialled`] come now for an attempt that waits for more than the connection.
    fn settle_anyway(&mut self, token: Token, socket: &Self::Socket) {
        let _ = (token, socket);
    }
    /// Makes a connection.
    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<Self::Socket>;
    /// Sends of one connection that can be in flight at once. Their bytes are taken in the order in which they were
    /// posted; if one is not taken whole, those behind it, up to the time when that is reported, are not taken at all:
    /// they come back as sends of nothing.
    fn most_sends(&self) -> usize {
        1
    }
    /// Whether a receive can be posted behind those of this connection that are armed. They are filled in the order in
    /// which they were posted.
    fn may_receive_ahead(&self, socket: &Self::Socket) -> bool {
        let _ = socket;
        false
    }
    /// Receives until stopped, or until the completion says that it ended; at the latest when as much has come in as a
    /// connection may receive in a row, where the kernel can count that.
    fn receive(&mut self, token: Token, sequence: Sequence, socket: &Self::Socket, policy: &Policy);
    /// Reports a reset that the receive which stays armed has missed. For ports where it may miss one while it is being
    /// armed.
    fn look_for_reset(&mut self, token: Token, socket: &Self::Socket) {
        let _ = (token, socket);
    }
    /// The same over a Unix socket, where the receive may miss the end of the stream, too: reports either.
    fn look_for_end(&mut self, token: Token, socket: &Self::Socket) {
        let _ = (token, socket);
    }
    /// Whether a receive that has ended with this buffer may have left more, which [`receive_once`](Self::receive_once)
    /// would find without waiting. For ports whose receives wait without a buffer.
    fn may_have_left(&self, buffer: &Self::Buffer) -> bool {
        let _ = buffer;
        false
    }
    /// Receives once: the connection has data, and may not stay.
    fn receive_once(&mut self, token: Token, sequence: Sequence, socket: &Self::Socket);
    /// Waits until there is something to receive, or the end, and takes nothing. It completes as a receive without a
    /// buffer, and is stopped as one.
    fn poll_readable(&mut self, token: Token, sequence: Sequence, socket: &Self::Socket);
    /// Ends the receives that are armed; each still completes.
    fn stop_receiving(&mut self, token: Token, socket: &Self::Socket);
    /// Ends the send, which may have a close chained to it; it still completes, and so does the request.
    fn stop_sending(&mut self, token: Token, socket: &Self::Socket);
    /// The first step of closing, for ports that join: ends what is in flight, and prepares a reset. How many requests
    /// that were; each completes.
    fn stop(&mut self, token: Token, socket: &Self::Socket, how: Close) -> u32 {
        let _ = (token, socket, how);
        0
    }
    /// Sends all pieces in order.
    fn send(&mut self, token: Token, sequence: Sequence, socket: &Self::Socket, pieces: Pieces, more: More);
    /// Whether a send was to be taken whole, and something else than a lack of room has ended it. That may be an error
    /// which is reported once, and not here; a receive then says that the stream has ended.
    fn is_cut(&self, socket: &Self::Socket, taken: usize, unsent: &Self::Unsent) -> bool {
        let _ = (socket, taken, unsent);
        false
    }
    /// Goes on with a send that this port makes in steps, and that `more` follows: what was sent at once, and what was
    /// not. For ports that say [`Completion::MayGoOn`].
    fn go_on(
        &mut self,
        socket: &Self::Socket,
        unsent: Self::Unsent,
        more: More,
    ) -> (io::Result<usize>, Option<Self::Unsent>) {
        let _ = (socket, more);
        (Ok(0), Some(unsent))
    }
    /// Sends all pieces and then closes, if this port can chain the two; else just sends. If it chains and all is sent,
    /// the socket is closed, and [`closed`](Self::closed) is to be called.
    fn send_last(
        &mut self,
        token: Token,
        sequence: Sequence,
        socket: &Self::Socket,
        pieces: Pieces,
    ) -> Chained;
    /// A socket was closed by a chain.
    fn closed(&mut self, socket: Self::Socket);
    /// Sends what an earlier send did not take.
    fn send_rest(&mut self, token: Token, sequence: Sequence, socket: &Self::Socket, unsent: Self::Unsent);
    /// Shuts the sending side down.
    fn finish_sending(&mut self, token: Token, socket: &Self::Socket);
    /// Closes. Ports that join have nothing in flight then; with others it is stopped first.
    fn close(&mut self, token: Token, socket: Self::Socket, how: Close);
    /// Hands over what was asked for and waits until something has completed.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    /// Hands over what was asked for, and does not look for what completes later.
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// The same as [`wait`](Self::wait), but not before a pause is over, in which completions gather. The pause is not
    /// longer than the time.
    fn wait_later(&mut self, pause: Duration, timeout: Option<Duration>) -> io::Result<()> {
        self.submit()?;
        std::thread::sleep(pause);
        self.wait(timeout.map(|timeout| timeout.saturating_sub(pause)))
    }
    /// The time. A simulation has its own.
    #[inline]
    fn now(&self) -> Instant {
        Instant::now()
    }
    /// The next completion that is there.
    fn next(&mut self) -> Option<Completion<Self>>;
    /// The bytes in a buffer.
    fn bytes<'a>(&'a self, buffer: &'a Self::Buffer) -> &'a [u8];
    /// Takes a buffer back.
    fn recycle(&mut self, buffer: Self::Buffer);
    /// How much memory receives may pin. For ports whose receives pin something.
    fn set_pinning(&mut self, pinning: Pinning) {
        let _ = pinning;
    }
    /// Buffers the kernel owns to receive into are all in use: what this port calls that.
    fn is_out_of_buffers(e: &io::Error) -> bool;
}

/// Whether a send has its close chained to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chained {
    Yes,
    No,
}

/// How a connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Close {
    /// Send a reset rather than an end.
    pub(super) reset: bool,
    /// A receive is armed.
    pub(super) receiving: bool,
    /// A send or a dial is in flight.
    pub(super) busy: bool,
    /// The shutdown of the sending side is.
    pub(super) finishing: bool,
}

/// Starts one loop for each I/O thread. `open` makes of the listener what accepts are posted to.
pub(super) fn start<P: CompletionDriver>(
    config: EngineConfig,
    model: Model,
    open: impl FnOnce(Arc<Listener>) -> io::Result<P::Listener>,
) -> io::Result<EngineHandle>
where
    P::Listener: Send + Sync,
{
    let acceptor = config.listener.clone().map(open).transpose()?.map(Arc::new);
    let addresses = Addresses::<P>::new(config.threads(model));
    config.start_loops(model, &(acceptor, addresses), event_loop::run::<P>)
}
