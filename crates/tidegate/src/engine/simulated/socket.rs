//! One connection: what the kernel holds of it, and what has to come out of it.
//!
//! Bytes are not stored: byte `n` of each direction follows from `n`, so that positions are enough. What the loop hands
//! to the kernel, and what sessions are shown, is compared with that byte by byte.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::exchange::GivenBytes;
use super::observed::TICK;
use super::script::{Acts, ConnectionScript};
use super::world::{Happening, World};
use crate::proto::{Direction, InOrder, Sequence, Token};
use crate::service::{CloseReason, Flow};

/// The address of this end.
pub(super) const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// The address of a peer, which says which one it is.
pub(super) fn address(id: usize) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, id as u16 + 1).into()
}

/// The peer with this address.
pub(super) fn id_of(address: SocketAddr) -> usize {
    usize::from(address.port() - 1)
}

/// Byte `at` of the stream with this number.
#[inline]
fn byte(stream: u64, at: u64) -> u8 {
    ((at ^ (stream << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as u8
}

/// The state of this end's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SocketState {
    /// Not accepted, or not dialled.
    #[default]
    Away,
    /// The loop has it.
    Open,
    /// The loop has closed it; the peer does not know yet, because something is still in flight.
    Closing {
        reset: bool,
    },
    Closed,
}

/// What one direction of a socket is, or has become, ready for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Edge {
    pub(super) readable: bool,
    pub(super) writable: bool,
}

/// Operations the loop has in flight, as it sees it: until their last completion was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flying {
    pub(super) receives: usize,
    pub(super) stopping: bool,
    /// The receive waits outside of the permits, and takes nothing.
    pub(super) polls: bool,
    pub(super) sends: usize,
    /// A send was not taken whole, and the loop does not know yet.
    pub(super) fell_short: bool,
    /// The last one to complete was ended by a failure that it does not report, or on request.
    pub(super) cut: bool,
    pub(super) finish: bool,
    pub(super) dial: bool,
}

/// What a completion says of a receive or a send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) direction: Direction,
    pub(super) bytes: u64,
    /// There was no memory.
    pub(super) short: bool,
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct SimulatedSocket {
    pub(super) part: ConnectionScript,
    streams: (u64, u64),
    pub(super) server: SocketState,
    /// From the peer: arrived, and received by the loop.
    pub(super) arrived: u64,
    pub(super) received: u64,
    /// Received, and the loop knows it.
    pub(super) delivered: u64,
    pub(super) peer_ended: bool,
    /// The loop has seen the end.
    pub(super) end_seen: bool,
    /// To the peer: taken by the kernel, and heard by the peer.
    pub(super) taken: u64,
    pub(super) heard: u64,
    /// Taken, and the loop knows it.
    pub(super) confirmed: u64,
    /// The loop has shut the sending side down.
    pub(super) finished: bool,
    /// The stream is broken; the loop is notified once.
    pub(super) broken: Option<Errno>,
    break_reported: bool,
    /// When a receive that stays armed has missed that.
    pub(super) missed: Option<Instant>,
    /// The peer has closed, or broken off.
    pub(super) gone: bool,
    pub(super) hearing: bool,
    pub(super) saying: bool,
    /// A send took less than all: the kernel reports when there is room again.
    pub(super) no_space: bool,
    /// It will say so soon, so many times.
    pub(super) awaits_writable: u32,
    pub(super) edge: Edge,
    pub(super) watched: Option<(Token, bool, bool)>,
    pub(super) flying: Flying,
    /// Receives and sends in the order in which they were posted.
    pub(super) order: [InOrder<Taken>; 2],
    /// Receives of the present turn.
    pub(super) receives: usize,
    /// When the loop last learned that there is no memory to receive with, and to send; it has not tried again.
    pub(super) short: [Option<Instant>; 2],
    /// The last time that was so.
    pub(super) starved: Option<Instant>,
    /// How often that was so since it was known to be over, and how long the connection may pause for it.
    pub(super) failures: u32,
    pub(super) pauses_until: [Option<Instant>; 2],
    /// Closed by the kernel itself, after the last send.
    pub(super) chained: bool,
    /// Its connection is gone, and something is in flight; its close is to be a reset.
    pub(super) leaving: bool,
    pub(super) resets: bool,
    pub(super) log: SessionLog,
    /// What somebody's own test has the peer say.
    pub(super) given: Option<GivenBytes>,
    /// The connection whose session has dialled this one.
    pub(super) asker: Option<usize>,
    /// Why the dial fails, if it does.
    pub(super) refusal: Option<Errno>,
}

/// What the session has seen and done, against which the loop is held.
#[derive(Debug, Default)]
pub(super) struct SessionLog {
    pub(super) token: Option<Token>,
    pub(super) opened: Option<Instant>,
    pub(super) closed: Option<CloseReason>,
    pub(super) dropped: bool,
    pub(super) ended: bool,
    pub(super) consumed: u64,
    pub(super) shown: u64,
    pub(super) written: u64,
    /// How it asked to go on, if not just so.
    pub(super) flow: Flow,
    /// Closed with input left, which makes it linger.
    pub(super) lingers: bool,
    /// Its outbox was full, and has not drained since.
    pub(super) filled: bool,
    /// Its work has ended, or it asked for more at once, and there is input that it left: it has to be shown that now.
    pub(super) wants_look: bool,
    /// It was notified that the server stops; and that it leaves, after which nothing but the close may follow.
    pub(super) drained: bool,
    pub(super) left: bool,
    /// When something last moved; when the peer last took something, or there was first something to take.
    pub(super) moved: Option<Instant>,
    pub(super) took: Option<Instant>,
    /// Something was received.
    pub(super) has_received: bool,
    /// The poller would not take it.
    pub(super) unwatched: bool,
}

impl SimulatedSocket {
    pub(super) fn new(id: usize, part: &ConnectionScript) -> Self {
        let id = id as u64;
        let echoes = matches!(part.acts, Acts::Echo { .. });
        Self {
            part: part.clone(),
            streams: (2 * id, if echoes { 2 * id } else { 2 * id + 1 }),
            refusal: part.unreachable.then_some(Errno::CONNREFUSED),
            ..Self::default()
        }
    }

    /// The loop would get something, or see an end, if it received.
    pub(super) fn is_readable(&self) -> bool {
        self.has_unread() || self.peer_ended || self.broken.is_some()
    }

    /// Bytes have arrived that the loop has not received.
    pub(super) fn has_unread(&self) -> bool {
        self.arrived > self.received
    }

    /// The kernel would take something.
    pub(super) fn is_writable(&self) -> bool {
        self.broken.is_some() || self.room() > 0
    }

    pub(super) fn room(&self) -> u64 {
        self.part.outbound.saturating_sub(self.taken - self.heard)
    }

    /// The bytes from the peer that come next.
    pub(super) fn copy_arrived(&self, into: &mut [u8]) {
        if let Some(given) = &self.given {
            return into.copy_from_slice(&given.says()[self.received as usize..][..into.len()]);
        }
        for (at, to) in (self.received..).zip(into) {
            *to = byte(self.streams.0, at);
        }
    }

    /// Whether these are the peer's bytes from `at` on.
    pub(super) fn is_said(&self, at: u64, bytes: &[u8]) -> bool {
        if let Some(given) = &self.given {
            return given.says()[at as usize..].starts_with(bytes);
        }
        bytes.iter().zip(at..).all(|(&b, at)| b == byte(self.streams.0, at))
    }

    /// The bytes that the session sends from `at` on.
    pub(super) fn to_say(&self, at: u64, n: usize) -> Vec<u8> {
        (at..).take(n).map(|at| byte(self.streams.1, at)).collect()
    }

    /// Why the stream breaks off before its end, if it does.
    pub(super) fn broken_before_its_end(&self) -> Option<Errno> {
        self.broken.filter(|_| !self.peer_ended)
    }

    /// The error of a broken stream, once; after that it is just at its end.
    pub(super) fn break_error(&mut self) -> Option<io::Error> {
        let errno = self.broken?;
        self.missed = None;
        (!std::mem::replace(&mut self.break_reported, true)).then(|| errno.into())
    }

    /// The peer may see a stream that is cut short.
    fn is_excused(&self) -> bool {
        self.broken.is_some() || self.gone
    }
}

/// What the loop does to a socket.
impl World {
    /// What a receive of at most `most` bytes gives; 0 is the end.
    pub(super) fn receive(&mut self, id: usize, most: u64) -> io::Result<u64> {
        let socket = &mut self.sockets[id];
        if socket.server != SocketState::Open && !matches!(socket.server, SocketState::Closing { .. }) {
            self.fail(|| format!("received on {id}, which is not open"));
            return Err(ErrorKind::NotConnected.into());
        }
        let there = socket.arrived - socket.received;
        if there > 0 {
            return Ok(there.min(most));
        }
        if let Some(e) = socket.break_error() {
            return Err(e);
        }
        if socket.peer_ended || socket.broken.is_some() {
            return Ok(0);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// The loop was given so many bytes, or the end.
    pub(super) fn was_received(&mut self, id: usize, n: u64) {
        self.note(|| format!("  {id} received {n}"));
        self.moved = true;
        let socket = &mut self.sockets[id];
        socket.received += n;
        socket.end_seen |= n == 0;
        let (blocked, pause) = (!socket.saying && !socket.gone, socket.part.pause_ms);
        if blocked && n > 0 {
            self.goes_on_saying(id, Duration::from_millis(pause));
        }
    }

    /// The loop takes a completion. What it has to take in order waits for its turn.
    pub(super) fn take(&mut self, id: usize, sequence: Option<Sequence>, taken: Taken) {
        let order = &mut self.sockets[id].order[taken.direction as usize];
        let mut next = order.complete(sequence, taken);
        while let Some(taken) = next {
            self.behind.push_back((id, taken));
            next = self.sockets[id].order[taken.direction as usize].take_due();
        }
        self.take_next();
    }

    /// The loop goes on to what it takes behind the completion it was just given. `None` if that was all.
    pub(super) fn take_next(&mut self) -> Option<()> {
        let (id, Taken { direction, bytes, short }) = self.behind.pop_front()?;
        match direction {
            _ if short && !self.sockets[id].leaving => self.is_short(id, direction),
            _ if short || bytes == 0 => {}
            Direction::Receive => self.was_delivered(id, bytes),
            Direction::Send => self.was_confirmed(id, bytes),
        }
        Some(())
    }

    /// The loop is done with the completion it was given.
    pub(super) fn take_rest(&mut self) {
        while self.take_next().is_some() {}
    }

    /// The loop gives a connection up: it counts what it has and did not take in its turn.
    pub(super) fn gives_up(&mut self, id: usize) {
        self.take_rest();
        if self.sockets[id].server != SocketState::Open {
            return; // it was given up before; what came back since is of no connection
        }
        let [received, sent] = &mut self.sockets[id].order;
        let left: Vec<_> = received.abandon().chain(sent.abandon()).filter(|taken| !taken.short).collect();
        for Taken { direction, bytes, .. } in left {
            match direction {
                Direction::Receive => self.expected.received += bytes,
                Direction::Send => self.expected.taken += bytes,
            }
        }
    }

    /// The loop knows of `n` bytes that came in.
    pub(super) fn was_delivered(&mut self, id: usize, n: u64) {
        let now = self.now;
        let socket = &mut self.sockets[id];
        socket.delivered += n;
        if socket.server == SocketState::Open {
            self.expected.received += n;
        }
        let log = &mut socket.log;
        log.has_received = true;
        if log.flow == Flow::Continue || log.flow == Flow::Shutdown {
            log.moved = Some(now);
        }
        self.recovers(id);
    }

    /// The loop knows of `n` bytes that were sent.
    pub(super) fn was_confirmed(&mut self, id: usize, n: u64) {
        let now = self.now;
        let socket = &mut self.sockets[id];
        socket.confirmed += n;
        (socket.log.moved, socket.log.took) = (Some(now), Some(now));
        if n > 0 {
            self.recovers(id);
        }
        let socket = &mut self.sockets[id];
        if socket.server == SocketState::Open {
            self.expected.taken += n;
        }
    }

    /// Gives the kernel bytes to send; how many it takes.
    pub(super) fn send(&mut self, id: usize, bytes: &[u8]) -> io::Result<u64> {
        let socket = &mut self.sockets[id];
        if socket.finished || socket.server == SocketState::Closed || socket.server == SocketState::Away {
            self.fail(|| format!("sent on {id}, whose sending side is closed"));
            return Err(Errno::PIPE.into());
        }
        if let Some(e) = socket.break_error() {
            return Err(e);
        }
        if socket.broken.is_some() {
            return Err(Errno::PIPE.into());
        }
        let n = socket.room().min(bytes.len() as u64);
        let wrong = match &mut socket.given {
            Some(given) => {
                given.taken.extend_from_slice(&bytes[..n as usize]);
                false
            }
            None => socket.to_say(socket.taken, n as usize) != bytes[..n as usize],
        };
        let (from, beyond) = (socket.taken, socket.taken + n > socket.log.written);
        socket.taken += n;
        if wrong || beyond {
            self.fail(|| format!("{id}: other bytes are sent than were written, in {from}..{}", from + n));
        }
        self.moved |= n > 0;
        self.note(|| format!("  {id} sent {n} of {}", bytes.len()));
        if self.sockets[id].gone && n > 0 {
            self.config(Duration::from_micros(200), Happening::BreaksOff(id));
        }
        self.goes_on_hearing(id);
        Ok(n)
    }

    /// The loop ends the sending side.
    pub(super) fn shut_down(&mut self, id: usize) -> io::Result<()> {
        let socket = &mut self.sockets[id];
        if socket.broken.is_some() {
            return Err(Errno::NOTCONN.into());
        }
        let twice = std::mem::replace(&mut socket.finished, true);
        if twice {
            self.fail(|| format!("{id}: finished sending twice"));
        }
        self.check_end(id);
        self.goes_on_hearing(id);
        Ok(())
    }

    /// The loop has closed a socket, and nothing is in flight on it any more: the peer gets to know.
    pub(super) fn close(&mut self, id: usize, reset: bool) {
        self.moved = true;
        let socket = &mut self.sockets[id];
        if !matches!(socket.server, SocketState::Open | SocketState::Closing { .. }) {
            return self.fail(|| format!("{id} closed twice"));
        }
        socket.server = SocketState::Closed;
        socket.watched = None;
        let unread = socket.has_unread();
        self.note(|| format!("  {id} closed{}", if reset { " with a reset" } else { "" }));
        self.check_close(id, reset);
        let socket = &mut self.sockets[id];
        if reset || unread {
            socket.gone = true; // `tcp(7)`: input that nobody has read makes the close a reset
            if let Some(given) = &mut socket.given {
                given.cut = Some(socket.heard as usize);
            }
        } else {
            socket.finished = true;
            self.goes_on_hearing(id);
        }
        if self.is_all_over() {
            // What sessions have asked for before they ended is looked at before time passes: it may be a dial.
            self.config(TICK, Happening::Over);
        }
    }

    /// An end that the peer takes for the whole: everything that was written must be there.
    fn check_end(&mut self, id: usize) {
        let socket = &self.sockets[id];
        let (taken, written) = (socket.taken, socket.log.written);
        if taken != written && !socket.is_excused() {
            self.fail(|| format!("{id}: the stream ends after {taken} of {written} bytes"));
        }
    }

    fn check_close(&mut self, id: usize, reset: bool) {
        use CloseReason::{Error, Finished, IdleTimeout, NoMemory, Reset};
        let socket = &self.sockets[id];
        let why = socket.log.closed;
        match why {
            _ if socket.log.opened.is_none() => {} // refused
            // A close that was chained to the last send comes before the loop knows, and whatever that does meanwhile.
            _ if socket.chained => self.check_end(id),
            None => self.fail(|| format!("{id} is closed, and its session does not know")),
            Some(Finished) if reset => self.fail(|| format!("{id} is finished, and reset")),
            Some(Finished) => self.check_end(id),
            Some(IdleTimeout | Reset | Error | NoMemory) => {}
            Some(why) if !reset => self.fail(|| format!("{id} is not reset, and was closed by {why}")),
            Some(_) => {}
        }
    }

    /// A connection that was accepted, or has been made.
    pub(super) fn established(&mut self, id: usize) {
        self.note(|| format!("  {id} is established"));
        self.moved = true;
        self.sockets[id].server = SocketState::Open;
    }
}
