//! What the completion models of Windows do alike, whatever their [`Operations`] are: accepts that stay posted, first
//! data, silent connections.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_os::events::EventAcceptor;
use tidegate_os::overlapped::{AcceptAt, Closing, Done, Outcome, Parts, Payload};
use tidegate_os::port::AcceptPort;
use tidegate_os::socket::{Listener, More};
use tidegate_os::waker::Waker;

use super::operations::Operations;
use crate::engine::completion::{Chained, Close, Completion, CompletionDriver, HandOn, Setup};
use crate::engine::worker::loop_driver::Pinning;
use crate::fastpath::Transports;
use crate::policy::sends::file_step;
use crate::policy::{Policy, ReceiveStyle};
use crate::proto::queue::{FileSending, Pieces};
use crate::proto::{Sequence, Token};
use crate::service::Dial;

/// What a completion is about; the high bits of its key.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Kind {
    AcceptOne,
    AcceptAll,
    Connection,
}

const SEQUENCE_SHIFT: u32 = 56;
const KIND_SHIFT: u32 = SEQUENCE_SHIFT + Sequence::BITS;

/// An accept has no connection yet; in place of its token it says when it completes.
const AT_CONNECTION: Token = Token { index: 0, generation: 0 };
const AT_FIRST_DATA: Token = Token { index: 1, generation: 0 };

fn token(key: u64) -> Token {
    Token::from_u64(key & ((1 << SEQUENCE_SHIFT) - 1))
}

fn key(kind: Kind, token: Token) -> u64 {
    (kind as u64) << KIND_SHIFT | token.to_u64()
}

/// The key of a receive or send.
fn in_sequence(token: Token, sequence: Sequence) -> u64 {
    key(Kind::Connection, token) | sequence.to_bits() << SEQUENCE_SHIFT
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
    acceptor: Option<Arc<O::Acceptor>>,
    first_data: bool,
    /// Accepts that are posted, and those of them that complete with the first data.
    posted: usize,
    waiting: usize,
    addresses: bool,
    /// Receives take a buffer when they are posted, if the kernel does not lack memory.
    posts: bool,
    transports: Arc<Transports>,
    /// How long an accept may hold a connection without a byte, and when that is looked at again.
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
    const TAKES_BACKLOG: bool = false; // it takes as many as are posted
    const MOST_SEND_BYTES: usize = 64 * 1024;

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
            acceptor: None,
            first_data: setup.first_data,
            posted: 0,
            waiting: 0,
            addresses: setup.addresses,
            posts: policy.receive == ReceiveStyle::Posted,
            transports: setup.transports.clone(),
            silence,
            next_look: Instant::now() + between_looks(silence.unwrap_or_default()),
        };
        Ok((new, holds))
    }

    fn local_addr(socket: &O::Socket) -> Option<SocketAddr> {
        O::overlapped(socket).local_addr()
    }

    fn files(&self) -> FileSending {
        self.queue.files()
    }

    fn watch_waker(&mut self, waker: &Arc<Waker>) {
        waker.wake_with(self.queue.wake_event());
    }

    fn accept_room(&self) -> usize {
        O::MOST_ACCEPTS
    }

    fn accept_marks(&self) -> Option<(usize, usize)> {
        (O::MOST_ACCEPTS < usize::MAX).then_some((O::ACCEPTS, O::ACCEPTS))
    }

    fn accepts_waiting(&self) -> usize {
        self.waiting
    }

    fn accepts_without_end(&self) -> usize {
        self.endless
    }

    fn accept_all(&mut self, acceptor: &Arc<O::Acceptor>) {
        self.acceptor = Some(acceptor.clone());
        self.wanted = O::ACCEPTS;
        self.post_endless(acceptor);
    }

    fn accept_one(&mut self, acceptor: &Arc<O::Acceptor>) {
        self.accept(acceptor, Kind::AcceptOne);
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

    fn has_waiting(acceptor: &Arc<O::Acceptor>) -> bool {
        O::listener(acceptor).has_waiting()
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
        self.acceptor = None;
        self.queue.stop_accepting();
    }

    fn dial(&mut self, token: Token, dial: &Dial) -> io::Result<O::Socket> {
        self.queue.connect(dial, &self.transports, key(Kind::Connection, token))
    }

    fn most_sends(&self) -> usize {
        O::MOST_SENDS
    }

    fn may_receive_ahead(&self, socket: &O::Socket) -> bool {
        self.queue.may_receive_ahead(socket)
    }

    fn receive(&mut self, token: Token, sequence: Sequence, socket: &O::Socket, _: &Policy) {
        self.queue.receive(socket, in_sequence(token, sequence));
    }

    fn may_have_left(&self, buffer: &O::Buffer) -> bool {
        self.queue.may_have_left(buffer)
    }

    fn receive_once(&mut self, token: Token, sequence: Sequence, socket: &O::Socket) {
        self.queue.receive_more(socket, in_sequence(token, sequence));
    }

    fn poll_readable(&mut self, token: Token, sequence: Sequence, socket: &O::Socket) {
        self.queue.poll_readable(socket, in_sequence(token, sequence));
    }

    fn stop_receiving(&mut self, _: Token, socket: &O::Socket) {
        self.queue.stop_receiving(socket);
    }

    fn stop_sending(&mut self, _: Token, _: &O::Socket) {
        // For chains, and nothing is chained here.
    }

    fn send(&mut self, token: Token, sequence: Sequence, socket: &O::Socket, pieces: Pieces, _more: More) {
        self.begin_send(token, sequence, socket, payload(pieces), file_step(None));
    }

    fn send_last(&mut self, token: Token, sequence: Sequence, socket: &O::Socket, pieces: Pieces) -> Chained {
        self.send(token, sequence, socket, pieces, More::No);
        Chained::No
    }

    fn closed(&mut self, socket: O::Socket) {
        drop(socket); // nothing is chained here
    }

    fn send_rest(&mut self, token: Token, sequence: Sequence, socket: &O::Socket, unsent: Payload) {
        let last = match &unsent {
            Payload::Parts(parts) => parts.last_step(),
            _ => None,
        };
        let last = last.map(|(bytes, begun)| (bytes, begun.elapsed()));
        self.begin_send(token, sequence, socket, unsent, file_step(last));
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
        let (token, sequence) = (token(key), Some(Sequence::from_bits(key >> SEQUENCE_SHIFT)));
        Some(match outcome {
            Outcome::Received(outcome) => Completion::Received { token, sequence, outcome, ended: true },
            Outcome::Sent(outcome, unsent) => Completion::Sent { token, sequence, outcome, unsent },
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

    fn set_pinning(&mut self, pinning: Pinning) {
        self.queue.set_posted(self.posts && pinning == Pinning::Usual);
    }
}

impl<O: Operations> Winsock<O> {
    /// Sends; so much of a file at most.
    fn begin_send(
        &mut self,
        token: Token,
        sequence: Sequence,
        to: &O::Socket,
        mut payload: Payload,
        most: usize,
    ) {
        if let Payload::Parts(parts) = &mut payload {
            parts.begin_step(most, Instant::now());
        }
        self.queue.send(to, payload, in_sequence(token, sequence));
    }

    /// At most half of the accepts wait for first data: connections that say nothing cannot keep everybody out.
    fn accept(&mut self, acceptor: &Arc<O::Acceptor>, kind: Kind) {
        let waits = self.first_data && 2 * (self.waiting + 1) <= self.posted + 1;
        self.posted += 1;
        self.waiting += usize::from(waits);
        let (at, whose) = match waits {
            true => (AcceptAt::FirstData, AT_FIRST_DATA),
            false => (AcceptAt::Connection, AT_CONNECTION),
        };
        self.queue.accept(acceptor, key(kind, whose), at);
    }

    /// Ends accepts that hold a connection which has sent nothing for too long.
    fn drop_silent(&mut self) {
        if let Some(silence) = self.silence {
            self.queue.drop_silent(silence);
        }
    }

    /// Looks for such connections when it is time, and shortens the wait until the next look.
    fn until_look(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(silence) = self.silence else { return timeout };
        let now = Instant::now();
        if now >= self.next_look {
            self.drop_silent();
            self.next_look = now + between_looks(silence);
        }
        let look = self.next_look - now;
        Some(timeout.map_or(look, |timeout| timeout.min(look)))
    }

    /// Posts accepts until there are as many as there are to be.
    fn post_endless(&mut self, acceptor: &Arc<O::Acceptor>) {
        while self.endless < self.wanted {
            self.endless += 1;
            self.accept(acceptor, Kind::AcceptAll);
        }
    }

    /// A connection came and found no accept: those that silent connections hold are freed, and there are twice as many
    /// from now on. Single ones are the loop's.
    fn behind(&mut self) -> Completion<Self> {
        self.drop_silent();
        let Some(acceptor) = self.acceptor.clone() else { return Completion::Behind };
        self.wanted = (2 * self.wanted).min(self.backlog).max(O::ACCEPTS).min(O::MOST_ACCEPTS);
        self.post_endless(&acceptor);
        Completion::Ignored
    }

    fn accepted(&mut self, key: u64, outcome: io::Result<O::Socket>) -> Completion<Self> {
        self.posted -= 1;
        self.waiting -= usize::from(token(key) == AT_FIRST_DATA);
        let outcome = outcome.map(|socket| {
            let peer = if self.addresses { O::overlapped(&socket).peer_addr() } else { None };
            (socket, peer)
        });
        if key >> KIND_SHIFT == Kind::AcceptOne as u64 {
            return Completion::Accepted { outcome, ended: true };
        }
        self.endless -= 1;
        if let (Ok(_), Some(acceptor)) = (&outcome, self.acceptor.clone()) {
            // Half of them were left when this one came: it is behind no longer.
            if self.endless > self.wanted / 2 {
                self.wanted = (self.wanted - 1).max(O::ACCEPTS);
            }
            self.post_endless(&acceptor);
        }
        let ended = self.endless == 0;
        match outcome {
            // Of those that were asked to end, the last one says so.
            Err(_) if self.acceptor.is_none() && !ended => Completion::Ignored,
            outcome => Completion::Accepted { outcome, ended },
        }
    }
}

/// The listener as accepts are posted to it, where they complete at a port.
pub(super) fn accept_port(listener: Arc<Listener>) -> io::Result<Arc<AcceptPort>> {
    AcceptPort::new(listener).map(Arc::new)
}

/// The listener as accepts are posted to it, where they complete by events.
pub(super) fn event_acceptor(listener: Arc<Listener>) -> io::Result<Arc<EventAcceptor>> {
    EventAcceptor::new(listener).map(Arc::new)
}

fn payload(pieces: Pieces) -> Payload {
    match pieces {
        Pieces::One(piece) => Payload::One(piece),
        Pieces::Many(pieces) => Payload::Many(pieces),
        Pieces::File { head, range, tail } => Payload::Parts(Box::new(Parts::new(head, range, tail))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use tidegate_os::endpoint::Endpoint;
    use tidegate_os::events::Events;
    use tidegate_os::overlapped::Queue;
    use tidegate_os::port::CompletionPort;
    use tidegate_os::socket::ListenOptions;

    use super::*;

    type Driver = Winsock<Queue<CompletionPort>>;

    /// A port that accepts without end, and where.
    fn accepting(first_data: bool) -> (Driver, Endpoint) {
        accepting_with(Policy::default(), first_data)
    }

    fn accepting_with(mut policy: Policy, first_data: bool) -> (Driver, Endpoint) {
        policy.accept.backlog = 200;
        let mut port: Driver = driver(&policy, first_data);
        assert!(port.accept_room() > policy.accept.backlog as usize, "else it never accepts without end");
        let listener = listener();
        let at = listener.local_addr().unwrap();
        port.accept_all(&accept_port(listener).unwrap());
        (port, at)
    }

    fn listener() -> Arc<Listener> {
        Arc::new(Listener::bind(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::new(200)).unwrap())
    }

    fn driver<O: Operations>(policy: &Policy, first_data: bool) -> Winsock<O> {
        let setup = Setup {
            policy,
            share: 1000,
            dials_each: 0,
            addresses: false,
            partners: false,
            dials: false,
            first_data,
            transports: &Arc::new(Transports::new(None)),
            descriptors: 1000,
        };
        Winsock::new(&setup).unwrap().0
    }

    fn caller(at: &Endpoint) -> TcpStream {
        let stream = TcpStream::connect(at.addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    }

    fn has_ended(caller: &mut TcpStream) -> bool {
        match caller.read(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Takes what completes, and closes what was accepted, until so many callers have noticed an end.
    fn turn_until(port: &mut Driver, callers: &mut [TcpStream], mut met: impl FnMut(&Driver, usize) -> bool) {
        let start = Instant::now();
        loop {
            let ended = callers.iter_mut().map(has_ended).filter(|ended| *ended).count();
            if met(port, ended) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(50), "{ended} have ended, {} wait", port.waiting);
            port.wait(Some(Duration::from_millis(10))).unwrap();
            while port.next().is_some() {}
        }
    }

    #[test]
    fn silent_connections_hold_half_of_the_accepts_at_most_until_another_finds_none() {
        const CALLERS: usize = 200;
        let (mut port, at) = accepting(true);
        assert_eq!((port.posted, port.waiting), (64, 32));
        let mut callers: Vec<_> = (0..CALLERS).map(|_| caller(&at)).collect();
        let mut since = Instant::now();
        port.next_look = since + Duration::from_secs(3600); // nobody looks for them by time
        let mut held = CALLERS;
        turn_until(&mut port, &mut callers, |port, ended| {
            if held != CALLERS - ended {
                (held, since) = (CALLERS - ended, Instant::now());
            }
            held <= port.waiting && since.elapsed() > Duration::from_secs(1)
        });
        assert!(held > 0, "none of {}", port.waiting);
        port.silence = Some(Duration::from_secs(1));
        port.behind();
        turn_until(&mut port, &mut callers, |_, ended| ended == CALLERS);
    }

    /// Single accepts, of which a silent connection holds one; who finds none has it freed, and the loop learns of it.
    fn who_finds_none_frees_what_the_silent_hold<O: Operations>(
        acceptor: fn(Arc<Listener>) -> io::Result<Arc<O::Acceptor>>,
    ) {
        let mut port: Winsock<O> = driver(&Policy::default(), true);
        port.silence = Some(Duration::from_secs(1));
        port.next_look = Instant::now() + Duration::from_secs(3600); // nobody looks for it by time
        let listener = listener();
        let at = listener.local_addr().unwrap();
        let acceptor = acceptor(listener).unwrap();
        (0..2).for_each(|_| port.accept_one(&acceptor));
        assert_eq!((port.posted, port.waiting), (2, 1));
        let (_first, mut silent) = (caller(&at), caller(&at));
        std::thread::sleep(Duration::from_millis(2100)); // SO_CONNECT_TIME counts whole seconds
        port.wait(Some(Duration::ZERO)).unwrap();
        while let Some(completion) = port.next() {
            assert!(matches!(completion, Completion::Accepted { outcome: Ok(_), .. }), "nobody is behind");
        }
        assert_eq!((port.posted, port.waiting), (1, 1));
        assert!(!has_ended(&mut silent));
        let (start, _finds_none) = (Instant::now(), caller(&at));
        let mut behind = 0;
        while !has_ended(&mut silent) {
            assert!(start.elapsed() < Duration::from_secs(50), "the silent connection is held for ever");
            port.wait(Some(Duration::from_millis(10))).unwrap();
            while let Some(completion) = port.next() {
                behind += usize::from(matches!(completion, Completion::Behind));
            }
        }
        assert_eq!(behind, 1);
    }

    #[test]
    fn who_finds_none_frees_what_the_silent_hold_on_a_port() {
        who_finds_none_frees_what_the_silent_hold::<Queue<CompletionPort>>(accept_port);
    }

    #[test]
    fn who_finds_none_frees_what_the_silent_hold_by_events() {
        who_finds_none_frees_what_the_silent_hold::<Queue<Events>>(event_acceptor);
    }

    #[test]
    fn receives_are_posted_ahead_unless_memory_is_short_or_none_is_to_be_pinned() {
        for (receive, pins) in [(ReceiveStyle::Posted, true), (ReceiveStyle::ZeroByte, false)] {
            let (mut port, at) = accepting_with(Policy { receive, ..Policy::default() }, false);
            let _caller = TcpStream::connect(at.addr().unwrap()).unwrap();
            let start = Instant::now();
            let socket = loop {
                assert!(start.elapsed() < Duration::from_secs(50), "no connection is accepted");
                port.wait(Some(Duration::from_millis(10))).unwrap();
                if let Some(Completion::Accepted { outcome, .. }) = port.next() {
                    break outcome.unwrap().0;
                }
            };
            let ahead = [Pinning::Usual, Pinning::Least, Pinning::Usual].map(|pinning| {
                port.set_pinning(pinning);
                port.may_receive_ahead(&socket)
            });
            assert_eq!(ahead, [pins, false, pins], "{receive:?}");
        }
    }

    #[test]
    fn who_is_behind_posts_twice_as_many_up_to_the_backlog() {
        let (mut port, _) = accepting(false);
        let posted = [64, 128, 200, 200].map(|_| {
            let posted = port.endless;
            port.behind();
            posted
        });
        assert_eq!(posted, [64, 128, 200, 200]);
    }
}
