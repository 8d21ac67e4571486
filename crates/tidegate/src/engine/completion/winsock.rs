//! What the overlapped models of Windows do alike: a queue of operations ([`Queue`]), told of their ends in one way or another.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_sys::overlapped::{Buffer, Done, Notify, Outcome, Overlapped, Payload, Queue, QueueSetup};
use tidegate_sys::socket::More;
use tidegate_sys::waker::Waker;

use crate::core::Token;
use crate::core::outbox::Pieces;
use crate::engine::completion::{Chained, Close, Completion, Port, Setup};
use crate::engine::room;
use crate::policy::ReceiveStyle;
use crate::service::Dial;

/// A way of being told that an operation has ended, as a leaf brings it.
pub(crate) trait Waits: Notify + 'static {
    /// Connections that one thread can have.
    const HOLDS: usize;
    /// Accepts that a thread keeps posted, if it is to accept without end.
    const ACCEPTS: usize;

    /// For the calling thread; takes `events` at once, where it can be told.
    fn open(events: usize) -> io::Result<Self>;
    /// Has the waker ring here.
    fn hear(&self, waker: &Waker);
    /// Whether connections wait to be accepted.
    fn has_waiting(door: &Self::Door) -> bool;
}

/// What a completion is about; the high bits of its key.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Kind {
    AcceptOne,
    AcceptAll,
    Connection,
}

const KIND_SHIFT: u32 = 56;

const NOBODY: Token = Token { index: 0, generation: 0 };

fn key(kind: Kind, token: Token) -> u64 {
    (kind as u64) << KIND_SHIFT | token.to_u64()
}

/// How often at most silent connections are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// A thread's operations.
pub(crate) struct Winsock<W: Waits> {
    queue: Queue<W>,
    /// The sending sides that were shut down.
    finished: VecDeque<(Token, io::Result<()>)>,
    /// Accepts that are posted to go on without end.
    endless: usize,
    /// Where they are posted, until they are to end.
    door: Option<Arc<W::Door>>,
    first_data: bool,
    /// Whether the next accept waits for first data: every second does. Were it all of them, connections that say nothing could
    /// keep everybody out.
    waits_for_data: bool,
    peer_addr: bool,
    /// How long a connection may stand in an accept without a byte, and when that is looked at again.
    silence: Option<Duration>,
    next_look: Instant,
}

impl<W: Waits> Port for Winsock<W>
where
    W::Door: Send + Sync,
{
    type Socket = Overlapped;
    type Buffer = Buffer;
    type Unsent = Payload;
    type Listener = Arc<W::Door>;
    const TAKES_FILES: bool = false;

    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        let queue = Queue::new(
            W::open(policy.events_per_wait)?,
            &QueueSetup {
                buffers: policy.buffers.min(W::HOLDS.saturating_add(1)),
                buffer_bytes: policy.buffer_bytes,
                residence: room::residence(policy),
                posted: policy.receive == ReceiveStyle::Posted,
            },
        )?;
        let new = Self {
            queue,
            finished: VecDeque::new(),
            endless: 0,
            door: None,
            first_data: setup.first_data,
            waits_for_data: false,
            peer_addr: setup.peer_addr,
            silence: policy.first_byte_timeout.filter(|_| setup.first_data),
            next_look: Instant::now() + LOOK,
        };
        Ok((new, setup.share.min(W::HOLDS)))
    }

    fn watch_waker(&mut self, waker: &Waker) {
        self.queue.notify().hear(waker);
    }

    fn accept_room(&self) -> usize {
        W::ACCEPTS
    }

    fn accept_all(&mut self, door: &Arc<W::Door>) {
        self.door = Some(door.clone());
        while self.endless < W::ACCEPTS {
            self.endless += 1;
            self.accept(door, Kind::AcceptAll);
        }
    }

    fn accept_one(&mut self, door: &Arc<W::Door>) {
        self.accept(door, Kind::AcceptOne);
    }

    fn has_waiting(door: &Arc<W::Door>) -> bool {
        W::has_waiting(door)
    }

    fn stop_accepting(&mut self) {
        self.door = None;
        self.queue.stop_accepting();
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<Overlapped> {
        self.queue.connect(&dial.to, dial.from, key(Kind::Connection, token))
    }

    fn receive(&mut self, token: Token, socket: &Overlapped) {
        self.queue.receive(socket, key(Kind::Connection, token));
    }

    fn receive_once(&mut self, token: Token, socket: &Overlapped) {
        self.receive(token, socket); // each completes once
    }

    fn stop_receiving(&mut self, _: Token, socket: &Overlapped) {
        self.queue.stop_receiving(socket);
    }

    fn stop_all(&mut self, socket: &Overlapped) {
        self.queue.stop_all(socket);
    }

    fn send(&mut self, token: Token, socket: &Overlapped, pieces: Pieces, _more: More) {
        self.queue.send(socket, payload(pieces), key(Kind::Connection, token));
    }

    fn send_last(&mut self, token: Token, socket: &Overlapped, pieces: Pieces) -> Chained {
        self.send(token, socket, pieces, More::No);
        Chained::No
    }

    fn closed(&mut self, socket: Overlapped) {
        drop(socket); // nothing is chained here
    }

    fn send_rest(&mut self, token: Token, socket: &Overlapped, unsent: Payload) {
        self.queue.send(socket, unsent, key(Kind::Connection, token));
    }

    fn finish_sending(&mut self, token: Token, socket: &Overlapped) {
        self.finished.push_back((token, self.queue.finish_sending(socket)));
    }

    fn close(&mut self, _: Token, socket: Overlapped, how: Close) {
        if how.busy {
            self.queue.stop_all(&socket); // Wine leaves a send that is in flight alone when its socket is closed
        }
        self.queue.close(socket, how.reset);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.finished.is_empty() { self.until_look(timeout) } else { Some(Duration::ZERO) };
        self.queue.wait(timeout)
    }

    fn next(&mut self) -> Option<Completion<Self>> {
        if let Some((token, outcome)) = self.finished.pop_front() {
            return Some(Completion::SendFinished { token, outcome });
        }
        let Done { key, outcome } = self.queue.next()?;
        let token = Token::from_u64(key & ((1 << KIND_SHIFT) - 1));
        Some(match outcome {
            Outcome::Received(outcome) => Completion::Received { token, outcome, ended: true },
            Outcome::Sent(outcome, unsent) => Completion::Sent { token, outcome, unsent },
            Outcome::Accepted(outcome) => self.accepted(key, outcome),
            Outcome::Connected(outcome) => Completion::Dialled { token, outcome },
            Outcome::Woken => Completion::Woken,
        })
    }

    #[inline]
    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.queue.bytes(buffer)
    }

    #[inline]
    fn recycle(&mut self, buffer: Buffer) {
        self.queue.recycle(buffer);
    }

    fn is_out_of_buffers(e: &io::Error) -> bool {
        e.kind() == io::ErrorKind::ResourceBusy
    }
}

impl<W: Waits> Winsock<W> {
    fn accept(&mut self, door: &W::Door, kind: Kind) {
        self.waits_for_data = self.first_data && !self.waits_for_data;
        self.queue.accept(door, key(kind, NOBODY), self.waits_for_data);
    }

    /// Looks for connections that stand in an accept and say nothing, and shortens the wait until the next look.
    fn until_look(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(silence) = self.silence else { return timeout };
        let now = Instant::now();
        if now >= self.next_look {
            self.queue.drop_silent(silence);
            self.next_look = now + (silence / 2).max(LOOK);
        }
        let look = self.next_look - now;
        Some(timeout.map_or(look, |timeout| timeout.min(look)))
    }
}

fn payload(pieces: Pieces) -> Payload {
    match pieces {
        Pieces::One(piece) => Payload::One(piece),
        Pieces::Many(pieces) => Payload::Many(pieces),
        Pieces::File(_) => unreachable!("files are read before they are handed out"),
    }
}

/// A connection with its peer's address.
type Guest = (Overlapped, Option<SocketAddr>);

impl<W: Waits> Winsock<W>
where
    W::Door: Send + Sync,
{
    fn accepted(&mut self, key: u64, outcome: io::Result<Overlapped>) -> Completion<Self> {
        let outcome: io::Result<Guest> = outcome.map(|socket| {
            let peer = if self.peer_addr { socket.peer_addr() } else { None };
            (socket, peer)
        });
        if key >> KIND_SHIFT == Kind::AcceptOne as u64 {
            return Completion::Accepted { outcome, ended: true };
        }
        self.endless -= 1;
        if let (Ok(_), Some(door)) = (&outcome, self.door.clone()) {
            self.endless += 1;
            self.accept(&door, Kind::AcceptAll);
        }
        let ended = self.endless == 0;
        match outcome {
            // Of those that were asked to end, the last one says so.
            Err(_) if self.door.is_none() && !ended => Completion::Ignored,
            outcome => Completion::Accepted { outcome, ended },
        }
    }
}
