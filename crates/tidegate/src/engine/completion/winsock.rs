//! What the completion models of Windows do alike, whatever their [`Operations`] are: accepts that stay posted, first
//! data, silent connections.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::overlapped::{
    AcceptAt, Buffer, Closing, Done, Notify, Outcome, Overlapped, Parts, Payload, Queue, QueueSetup,
    SocketKind,
};
use tidegate_os::socket::More;
use tidegate_os::waker::Waker;

use crate::engine::completion::{Chained, Close, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::worker::capacity;
use crate::fastpath::Ways;
use crate::policy::ReceiveStyle;
use crate::policy::sends::FILE_QUANTUM;
use crate::proto::Token;
use crate::proto::queue::{Files, Pieces};
use crate::service::Dial;

/// A way of being told that an overlapped operation has ended, as a leaf brings it.
pub(crate) trait Waits: Notify + 'static {
    /// Connections that one thread can have.
    const HOLDS: usize;
    /// Accepts that a thread keeps posted, if it is to accept without end; more while it is behind.
    const ACCEPTS: usize;
    /// The most accepts that a thread can have posted.
    const MOST_ACCEPTS: usize;

    /// For the calling thread; takes `events` at once, where it can be told.
    fn open(events: usize) -> io::Result<Self>;
    /// Has the waker ring here.
    fn hear(&self, waker: &Waker);
    /// Whether connections wait to be accepted.
    fn has_waiting(door: &Self::Acceptor) -> bool;
}

/// A thread's operations, each under a key: with those the kernel is asked to do something, and [`next`](Self::next)
/// says what became of it.
pub(crate) trait Operations: Sized + 'static {
    type Socket;
    type Buffer;
    type Acceptor: Send + Sync + 'static;
    /// Accepts that a thread keeps posted, if it is to accept without end; more while it is behind.
    const ACCEPTS: usize;
    /// The most accepts that a thread can have posted.
    const MOST_ACCEPTS: usize;

    /// For the calling thread, and how many connections it can have.
    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)>;
    fn hear(&self, waker: &Waker);
    fn files(&self) -> Files;
    fn has_waiting(door: &Self::Acceptor) -> bool;
    fn accept(&mut self, door: &Arc<Self::Acceptor>, key: u64, at: AcceptAt);
    fn stop_accepting(&self);
    /// Connections that came in on used sockets since this was asked last, and why there will be no more; told once.
    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        (0, None)
    }
    fn drop_silent(&self, limit: Duration);
    fn connect(&mut self, dial: &Dial, ways: &Ways, key: u64) -> io::Result<Self::Socket>;
    fn peer_addr(socket: &Self::Socket) -> Option<SocketAddr>;
    fn receive(&mut self, socket: &Self::Socket, key: u64);
    fn stop_receiving(&self, socket: &Self::Socket);
    fn stop_all(&self, socket: &Self::Socket);
    fn send(&mut self, socket: &Self::Socket, payload: Payload, key: u64);
    fn finish_sending(&self, socket: &Self::Socket) -> io::Result<()>;
    fn close(&mut self, socket: Self::Socket, how: Closing);
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;
    fn next(&mut self) -> Option<Done<Self::Socket, Self::Buffer>>;
    fn bytes<'a>(&'a self, buffer: &'a Self::Buffer) -> &'a [u8];
    fn recycle(&mut self, buffer: Self::Buffer);
}

impl<W: Waits> Operations for Queue<W>
where
    W::Acceptor: Send + Sync + 'static,
{
    type Socket = Overlapped;
    type Buffer = Buffer;
    type Acceptor = W::Acceptor;
    const ACCEPTS: usize = W::ACCEPTS;
    const MOST_ACCEPTS: usize = W::MOST_ACCEPTS;

    fn open(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        let queue = Self::new(
            W::open(policy.events_per_wait)?,
            &QueueSetup {
                sockets: SocketKind::Plain,
                buffers: policy.buffers.min(W::HOLDS.saturating_add(1)),
                buffer_bytes: policy.buffer_bytes,
                residence: capacity::residence(policy),
                posted: policy.receive == ReceiveStyle::Posted,
                file_bytes: FILE_QUANTUM,
                reuse: policy.accept.reuse.map_or(0, |most| most.get() as usize),
            },
        )?;
        Ok((queue, setup.share.min(W::HOLDS)))
    }

    fn hear(&self, waker: &Waker) {
        self.notify().hear(waker);
    }

    fn files(&self) -> Files {
        if self.sends_files() { Files::Among } else { Files::Read }
    }

    fn has_waiting(door: &W::Acceptor) -> bool {
        W::has_waiting(door)
    }

    fn accept(&mut self, door: &Arc<W::Acceptor>, key: u64, at: AcceptAt) {
        self.accept(door, key, at);
    }

    fn stop_accepting(&self) {
        self.stop_accepting();
    }

    fn take_reuse(&mut self) -> (u64, Option<io::Error>) {
        self.take_reuse()
    }

    fn drop_silent(&self, limit: Duration) {
        self.drop_silent(limit);
    }

    fn connect(&mut self, dial: &Dial, ways: &Ways, key: u64) -> io::Result<Overlapped> {
        self.connect(&dial.to, dial.from, key, |socket| {
            ways.hasten(socket);
            Ok(())
        })
    }

    fn peer_addr(socket: &Overlapped) -> Option<SocketAddr> {
        socket.peer_addr()
    }

    fn receive(&mut self, socket: &Overlapped, key: u64) {
        self.receive(socket, key);
    }

    fn stop_receiving(&self, socket: &Overlapped) {
        self.stop_receiving(socket);
    }

    fn stop_all(&self, socket: &Overlapped) {
        self.stop_all(socket);
    }

    fn send(&mut self, socket: &Overlapped, payload: Payload, key: u64) {
        self.send(socket, payload, key);
    }

    fn finish_sending(&self, socket: &Overlapped) -> io::Result<()> {
        self.finish_sending(socket)
    }

    fn close(&mut self, socket: Overlapped, how: Closing) {
        self.close(socket, how);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait(timeout)
    }

    fn next(&mut self) -> Option<Done> {
        self.next()
    }

    fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        self.bytes(buffer)
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.recycle(buffer);
    }
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

/// How often they are looked for if they may be silent for so long: nobody is overdue by more than half of that.
fn between_looks(silence: Duration) -> Duration {
    (silence / 2).max(LOOK)
}

/// A thread's operations.
pub(crate) struct Winsock<O: Operations> {
    queue: O,
    /// The sending sides that were shut down.
    finished: VecDeque<(Token, io::Result<()>)>,
    /// Accepts that are posted to go on without end, and how many of them there are to be: more while the server is
    /// behind, at most as many as the backlog holds.
    endless: usize,
    wanted: usize,
    backlog: usize,
    /// Where they are posted, until they are to end.
    door: Option<Arc<O::Acceptor>>,
    first_data: bool,
    /// When the last accept completes: every second one waits for first data. Were it all of them, connections that say
    /// nothing could keep everybody out.
    accept_at: AcceptAt,
    peer_addr: bool,
    ways: Arc<Ways>,
    /// How long a connection may stand in an accept without a byte, and when that is looked at again.
    silence: Option<Duration>,
    next_look: Instant,
}

impl<O: Operations> CompletionDriver for Winsock<O> {
    /// A call names its socket at once.
    const JOINS: bool = false;

    type Socket = O::Socket;
    type Buffer = O::Buffer;
    type Unsent = Payload;
    type Listener = Arc<O::Acceptor>;
    type Address = Infallible;
    type Loose = Infallible;
    const HANDS_ON: bool = false; // a socket reports to the port it was first bound to, for as long as it is

    fn new(setup: &Setup<'_>) -> io::Result<(Self, usize)> {
        let policy = setup.policy;
        let (queue, holds) = O::open(setup)?;
        let silence = policy.first_byte_timeout.filter(|_| setup.first_data);
        let new = Self {
            queue,
            finished: VecDeque::new(),
            endless: 0,
            wanted: O::ACCEPTS,
            backlog: policy.accept.backlog as usize,
            door: None,
            first_data: setup.first_data,
            accept_at: AcceptAt::Connection,
            peer_addr: setup.peer_addr,
            ways: setup.ways.clone(),
            silence,
            next_look: Instant::now() + between_looks(silence.unwrap_or_default()),
        };
        Ok((new, holds))
    }

    fn files(&self) -> Files {
        self.queue.files()
    }

    fn watch_waker(&mut self, waker: &Arc<Waker>) {
        self.queue.hear(waker);
    }

    fn accept_room(&self) -> usize {
        O::MOST_ACCEPTS
    }

    fn accept_all(&mut self, door: &Arc<O::Acceptor>) {
        self.door = Some(door.clone());
        self.wanted = O::ACCEPTS;
        self.post_endless(door);
    }

    fn accept_one(&mut self, door: &Arc<O::Acceptor>) {
        self.accept(door, Kind::AcceptOne);
    }

    fn address(&self) -> io::Result<Option<Infallible>> {
        Ok(None)
    }

    fn hand_on(&mut self, socket: O::Socket, _: usize, _: Option<Infallible>) -> HandOn<Self> {
        HandOn::Kept(socket)
    }

    fn take_in(&mut self, loose: Infallible) -> O::Socket {
        match loose {}
    }

    fn has_waiting(door: &Arc<O::Acceptor>) -> bool {
        O::has_waiting(door)
    }

    fn reused(&mut self) -> u64 {
        let (reused, refusal) = self.queue.take_reuse();
        if let Some(why) = refusal {
            tracing::warn!(
                event = "reuse",
                "sockets are closed rather than used again: {why}; each thread says this once"
            );
        }
        reused
    }

    fn stop_accepting(&mut self) {
        self.door = None;
        self.queue.stop_accepting();
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<O::Socket> {
        self.queue.connect(dial, &self.ways, key(Kind::Connection, token))
    }

    fn receive(&mut self, token: Token, socket: &O::Socket) {
        self.queue.receive(socket, key(Kind::Connection, token));
    }

    fn receive_once(&mut self, token: Token, socket: &O::Socket) {
        self.receive(token, socket); // each completes once
    }

    fn stop_receiving(&mut self, _: Token, socket: &O::Socket) {
        self.queue.stop_receiving(socket);
    }

    fn stop_sending(&mut self, _: Token, _: &O::Socket) {
        // For chains, and nothing is chained here.
    }

    fn send(&mut self, token: Token, socket: &O::Socket, pieces: Pieces, _more: More) {
        self.queue.send(socket, payload(pieces), key(Kind::Connection, token));
    }

    fn send_last(&mut self, token: Token, socket: &O::Socket, pieces: Pieces) -> Chained {
        self.send(token, socket, pieces, More::No);
        Chained::No
    }

    fn closed(&mut self, socket: O::Socket) {
        drop(socket); // nothing is chained here
    }

    fn send_rest(&mut self, token: Token, socket: &O::Socket, unsent: Payload) {
        self.queue.send(socket, unsent, key(Kind::Connection, token));
    }

    fn finish_sending(&mut self, token: Token, socket: &O::Socket) {
        self.finished.push_back((token, self.queue.finish_sending(socket)));
    }

    fn close(&mut self, _: Token, socket: O::Socket, how: Close) {
        if how.busy {
            self.queue.stop_all(&socket); // Wine leaves a send that is in flight alone when its socket is closed
        }
        self.queue.close(socket, if how.reset { Closing::Reset } else { Closing::Orderly });
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
            Outcome::Behind => self.behind(),
        })
    }

    #[inline]
    fn bytes<'a>(&'a self, buffer: &'a O::Buffer) -> &'a [u8] {
        self.queue.bytes(buffer)
    }

    #[inline]
    fn recycle(&mut self, buffer: O::Buffer) {
        self.queue.recycle(buffer);
    }

    fn is_out_of_buffers(e: &io::Error) -> bool {
        e.kind() == io::ErrorKind::ResourceBusy
    }
}

impl<O: Operations> Winsock<O> {
    fn accept(&mut self, door: &Arc<O::Acceptor>, kind: Kind) {
        self.accept_at = match self.accept_at {
            AcceptAt::Connection if self.first_data => AcceptAt::FirstData,
            _ => AcceptAt::Connection,
        };
        self.queue.accept(door, key(kind, NOBODY), self.accept_at);
    }

    /// Looks for connections that stand in an accept and say nothing, and shortens the wait until the next look.
    fn until_look(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(silence) = self.silence else { return timeout };
        let now = Instant::now();
        if now >= self.next_look {
            self.queue.drop_silent(silence);
            self.next_look = now + between_looks(silence);
        }
        let look = self.next_look - now;
        Some(timeout.map_or(look, |timeout| timeout.min(look)))
    }
}

impl<O: Operations> Winsock<O> {
    /// Posts accepts until there are as many as there are to be.
    fn post_endless(&mut self, door: &Arc<O::Acceptor>) {
        while self.endless < self.wanted {
            self.endless += 1;
            self.accept(door, Kind::AcceptAll);
        }
    }

    /// A connection came and found no accept: twice as many from now on. Single ones are the loop's, which looks at
    /// them when it is woken, as it was by this.
    fn behind(&mut self) -> Completion<Self> {
        if let Some(door) = self.door.clone() {
            self.wanted = (2 * self.wanted).min(self.backlog).max(O::ACCEPTS).min(O::MOST_ACCEPTS);
            self.post_endless(&door);
        }
        Completion::Ignored
    }
}

fn payload(pieces: Pieces) -> Payload {
    match pieces {
        Pieces::One(piece) => Payload::One(piece),
        Pieces::Many(pieces) => Payload::Many(pieces),
        Pieces::File { head, range, tail } => Payload::Parts(Parts::new(head, range, tail)),
    }
}

impl<O: Operations> Winsock<O> {
    fn accepted(&mut self, key: u64, outcome: io::Result<O::Socket>) -> Completion<Self> {
        let outcome = outcome.map(|socket| {
            let peer = if self.peer_addr { O::peer_addr(&socket) } else { None };
            (socket, peer)
        });
        if key >> KIND_SHIFT == Kind::AcceptOne as u64 {
            return Completion::Accepted { outcome, ended: true };
        }
        self.endless -= 1;
        if let (Ok(_), Some(door)) = (&outcome, self.door.clone()) {
            // Half of them were left when this one came: it is behind no longer.
            if self.endless > self.wanted / 2 {
                self.wanted = (self.wanted - 1).max(O::ACCEPTS);
            }
            self.post_endless(&door);
        }
        let ended = self.endless == 0;
        match outcome {
            // Of those that were asked to end, the last one says so.
            Err(_) if self.door.is_none() && !ended => Completion::Ignored,
            outcome => Completion::Accepted { outcome, ended },
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_os::port::{AcceptPort, CompletionPort};
    use tidegate_os::socket::{ListenOptions, Listener};

    use super::*;
    use crate::policy::Policy;

    #[test]
    fn who_is_behind_posts_twice_as_many_up_to_the_backlog() {
        let mut policy = Policy::default();
        policy.accept.backlog = 200;
        let setup = Setup {
            policy: &policy,
            share: 1000,
            peer_addr: false,
            partners: false,
            dials: false,
            first_data: false,
            ways: &Arc::new(Ways::new(None)),
            descriptors: 1000,
        };
        let (mut port, _) = Winsock::<Queue<CompletionPort>>::new(&setup).unwrap();
        assert!(port.accept_room() > policy.accept.backlog as usize, "else it never accepts without end");
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(200)).unwrap();
        let door = Arc::new(AcceptPort::new(Arc::new(listener)).unwrap());
        port.accept_all(&door);
        let posted = [64, 128, 200, 200].map(|_| {
            let posted = port.endless;
            port.behind();
            posted
        });
        assert_eq!(posted, [64, 128, 200, 200]);
    }
}
