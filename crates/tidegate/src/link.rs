//! Links two connections: bytes received on one are sent on the other, in both directions.
//!
//! A [`Link`] is one half, and the session of its connection. Bytes, back-pressure, half-close and reset are passed on:
//! a connection stops receiving while the other cannot send what has arrived, the end of one stream ends the other, and
//! a reset of one resets the other. The two may run on different threads.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::link::{self, Link};
//! use tidegate::{Endpoint, Peer, Refusal, Service, ServiceOptions};
//!
//! struct Forward(Endpoint);
//!
//! impl Service for Forward {
//!     type Session = Link;
//!     fn open(&self, _: &Peer) -> Result<Link, Refusal> {
//!         Ok(link::dialling(&self.0, Duration::from_secs(5), 64 << 10)?)
//!     }
//!     fn options(&self) -> ServiceOptions {
//!         ServiceOptions::default().speaks_first(true).dials(1)
//!     }
//! }
//! ```
//!
//! A session that does more (several upstreams, a header) has a [`pair`], dials itself, and calls the methods of its
//! link by the same names: all but [`on_input_limit`](Session::on_input_limit), [`on_drain`](Session::on_drain) and
//! [`on_leave`](Session::on_leave), which a link does not need, and with [`Mail::Wake`] at least of its mail. One that
//! looks at the bytes leaves [`on_spliced`](Session::on_spliced) out, too, and receives all of them.
//!
//! # Costs
//! One copy of the bytes into memory that the outbox of the other connection shares, and one piece of mail for each
//! batch that arrived. An idle link holds no buffer. Each direction holds at most the bound given to [`pair`], in
//! addition to the outbox and one receive buffer.
//!
//! On Linux, on `epoll`, `poll` and `select`, and with plain sockets on both sides (no TLS, not the fast path), bytes
//! in bulk are not copied into user space: when a receive has filled the buffer, the next one goes into a pipe
//! (`splice(2)`), and the other connection sends from that, until less than 16 KiB come at once. One splice, of at most
//! 64 KiB, may exceed the bound. A thread has at most 64 pipes, each with bytes of one connection, and fewer where
//! descriptors are few; it keeps eight empty ones. With none left, bytes are copied.
//!
//! # Shutdown
//! A TCP proxy does not know where messages end. A link assumes that the [accepted](pair) side sends requests and the
//! other one replies: while the last bytes came from the accepted side, or only one of the streams has ended, the two
//! connections are in the middle of a message and a stop waits for them; otherwise both are closed as idle connections
//! are.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use crate::policy::LONGEST;
use crate::service::{
    Activity, CloseReason, Consumed, Dial, DialError, Dialled, Flow, Mail, Outbox, Session, Spliced,
};

/// Small pieces are joined up to this size, so that a link's memory is proportional to its bytes.
const JOIN_BYTES: usize = 16 * 1024;

/// How long data before a reset may take to be sent, and how often that is checked.
const LAST_BYTES: u32 = 50;
const LAST_BYTES_STEP: Duration = Duration::from_millis(20);

/// How long a link that dials itself waits before it tries again, if there was no place.
const PLACE_PAUSE: Duration = Duration::from_millis(20);

/// The side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The one that was accepted.
    Near,
    /// The one that was dialled.
    Far,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Near => Self::Far,
            Self::Far => Self::Near,
        }
    }
}

/// How a direction ends after its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PipeEnd {
    #[default]
    Open,
    /// The stream has ended; the other direction may go on.
    Finished,
    /// The connection is gone, in order.
    Closed,
    Reset,
}

/// Bytes of one direction.
#[derive(Debug)]
enum LinkPiece {
    Memory(Bytes),
    Spliced(Spliced),
}

impl LinkPiece {
    fn len(&self) -> usize {
        match self {
            Self::Memory(bytes) => bytes.len(),
            Self::Spliced(spliced) => spliced.len(),
        }
    }
}

/// One direction: bytes received on one connection and not yet in the outbox of the other.
#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<LinkPiece>,
    tail: BytesMut,
    bytes: usize,
    end: PipeEnd,
    /// There was no room for everything received.
    writer_waits: bool,
    /// The receiving connection is gone.
    is_read_by_nobody: bool,
}

impl Pipe {
    fn push(&mut self, bytes: &[u8]) {
        if self.tail.len() + bytes.len() > JOIN_BYTES && !self.tail.is_empty() {
            self.close_tail();
        }
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    fn push_spliced(&mut self, spliced: Spliced) {
        if !self.tail.is_empty() {
            self.close_tail();
        }
        self.bytes += spliced.len();
        self.pieces.push_back(LinkPiece::Spliced(spliced));
    }

    /// What follows is another piece.
    fn close_tail(&mut self) {
        self.pieces.push_back(LinkPiece::Memory(std::mem::take(&mut self.tail).freeze()));
    }

    fn pop(&mut self) -> Option<LinkPiece> {
        let piece = match self.pieces.pop_front() {
            Some(piece) => piece,
            None => LinkPiece::Memory(std::mem::take(&mut self.tail).freeze()),
        };
        self.bytes -= piece.len();
        (piece.len() > 0).then_some(piece)
    }
}

#[derive(Debug)]
struct LinkState {
    /// Indexed by the side that the bytes come from.
    pipes: [Mutex<Pipe>; 2],
    /// The waker of each side's session; set when it is opened.
    wakers: [OnceLock<Waker>; 2],
    /// Whether each side sends from pipes.
    splices: [AtomicBool; 2],
    /// Bytes that one direction may hold.
    most: usize,
}

/// The dial of a link that dials itself.
#[derive(Debug)]
struct OwnDial {
    to: Dial,
    within: Duration,
    /// When that time ends, once it has begun.
    until: Option<Instant>,
    /// There was no place, and it will be tried again.
    pauses: bool,
}

/// One half of a link, and the session of its connection; see the [module](self).
#[derive(Debug)]
pub struct Link {
    shared: Arc<LinkState>,
    side: Side,
    /// Where the other half is to be dialled to, until it is established.
    dials: Option<Box<OwnDial>>,
    /// There is no room for more input.
    held: bool,
    /// The session left input for that reason.
    left: bool,
    /// There is room again for the input it left.
    resumed: bool,
    /// The side that the last bytes came from, as far as this half knows.
    last: Option<Side>,
    /// Whether this stream has ended, and whether the other one has.
    ended: bool,
    other_ended: bool,
    /// How often it has waited for the last bytes before a reset.
    waited: u32,
}

/// Creates the two halves of a link: the first for the accepted connection, which sends requests; the second for the
/// one that replies. Each direction holds at most `bytes`.
#[must_use]
pub fn pair(bytes: usize) -> (Link, Link) {
    let shared = LinkState {
        pipes: Default::default(),
        wakers: Default::default(),
        splices: Default::default(),
        most: bytes.max(1),
    };
    let near = Link::of(Arc::new(shared), Side::Near);
    let far = near.other();
    (near, far)
}

/// Creates the link of an accepted connection that [dials](Outbox::dial) the other one when it opens, `within` this
/// time; if it cannot, or [`mail_queue`](crate::Policy::mail_queue) dials are pending already, it resets its own. While
/// no place is free, because the other half of a connection that has ended still has it, it waits for one. Each
/// direction holds at most `bytes`. The service must declare the dial
/// ([`ServiceOptions::dials`](crate::ServiceOptions::dials)).
///
/// # Errors
/// The text is not an address; an address that is one already cannot fail. Text is better parsed into an
/// [`Endpoint`](crate::Endpoint) when the service is made, which finds a wrong one before there are connections.
pub fn dialling<D: TryInto<Dial>>(to: D, within: Duration, bytes: usize) -> Result<Link, D::Error> {
    let to = to.try_into()?;
    let (near, _) = pair(bytes);
    Ok(Link { dials: Some(Box::new(OwnDial { to, within, until: None, pauses: false })), ..near })
}

impl Link {
    /// Creates the other half again, for another attempt: its session was never opened.
    #[must_use]
    pub fn other(&self) -> Self {
        Self::of(self.shared.clone(), self.side.other())
    }

    fn of(shared: Arc<LinkState>, side: Side) -> Self {
        Self {
            shared,
            side,
            dials: None,
            held: false,
            left: false,
            resumed: false,
            last: None,
            ended: false,
            other_ended: false,
            waited: 0,
        }
    }

    fn pipe_of(&self, side: Side) -> MutexGuard<'_, Pipe> {
        self.shared.pipes[side as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_other(&self) {
        if let Some(waker) = self.shared.wakers[self.side.other() as usize].get() {
            waker.wake_by_ref();
        }
    }

    fn dial(&mut self, out: &mut Outbox<'_>) -> Result<(), DialError> {
        let other = self.other();
        let Some(dials) = &mut self.dials else { return Ok(()) };
        let now = out.now();
        let until =
            *dials.until.get_or_insert_with(|| now.checked_add(dials.within).unwrap_or(now + LONGEST));
        dials.pauses = false;
        out.dial(dials.to.clone(), until.saturating_duration_since(now), other)
    }

    /// A dial has failed: it is tried again if only a place was missing and there is time left.
    fn dial_failed(&mut self, e: &io::Error, out: &mut Outbox<'_>) -> Flow {
        let at = out.now() + PLACE_PAUSE;
        match &mut self.dials {
            Some(dials)
                if e.kind() == io::ErrorKind::QuotaExceeded
                    && dials.until.is_some_and(|until| at < until) =>
            {
                dials.pauses = true;
                out.set_wake_up(at);
                Flow::Continue
            }
            _ => Flow::Abort,
        }
    }

    fn finish(&self, end: PipeEnd) {
        self.pipe_of(self.side).end = end;
        self.wake_other();
    }

    /// Moves bytes from the other side into the outbox, and handles the end of its stream.
    fn pull(&mut self, out: &mut Outbox<'_>) -> Flow {
        let mut pipe = self.pipe_of(self.side.other());
        let mut moved = false;
        while !out.is_full()
            && let Some(piece) = pipe.pop()
        {
            moved = true;
            match piece {
                LinkPiece::Memory(bytes) => out.share(bytes),
                LinkPiece::Spliced(spliced) => {
                    if out.splice(spliced).is_err() {
                        return Flow::Abort;
                    }
                }
            }
        }
        let resumes = pipe.bytes <= self.shared.most / 2 && std::mem::take(&mut pipe.writer_waits);
        let end = if pipe.bytes == 0 { pipe.end } else { PipeEnd::Open };
        drop(pipe);
        if resumes {
            self.wake_other();
        }
        self.other_ended |= end != PipeEnd::Open;
        if moved || end != PipeEnd::Open {
            self.last = match self.side {
                Side::Far if !moved => self.last,
                side => Some(side.other()),
            };
            self.say_what_it_awaits(out);
        }
        match end {
            PipeEnd::Open => Flow::Continue,
            PipeEnd::Finished => Flow::Shutdown,
            PipeEnd::Closed => Flow::Close,
            PipeEnd::Reset => self.reset(out),
        }
    }

    /// Resets the connection, once the kernel has taken the data before the reset.
    fn reset(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.waited += 1;
        if out.queued() == 0 || self.waited > LAST_BYTES {
            return Flow::Abort;
        }
        out.set_wake_up(out.now() + LAST_BYTES_STEP);
        Flow::Continue
    }

    /// Both sides may receive into pipes what the other one sends from them.
    fn is_spliced(&self) -> bool {
        self.shared.splices.iter().all(|side| side.load(Relaxed))
    }

    /// Has input pushed, for which there is this room, and handles the bytes that `push` leaves of it.
    fn take(&mut self, out: &mut Outbox<'_>, push: impl FnOnce(&mut Pipe, usize) -> usize) {
        let (most, is_spliced) = (self.shared.most, self.is_spliced());
        let mut pipe = self.pipe_of(self.side);
        let before = pipe.bytes;
        let left = match pipe.is_read_by_nobody {
            true => 0,
            false => push(&mut pipe, most.saturating_sub(before)),
        };
        let (moved, is_over) = (pipe.bytes > before, pipe.bytes > most);
        let held = left > 0 || is_over;
        pipe.writer_waits = held;
        drop(pipe);
        if is_spliced {
            out.set_splice_room(if is_over { 0 } else { most });
        }
        (self.held, self.left, self.resumed) = (held, left > 0, false);
        self.last = Some(self.side);
        if moved {
            self.wake_other();
        }
        self.say_what_it_awaits(out);
    }

    /// There is room again.
    fn resume(&mut self, out: &mut Outbox<'_>) {
        if self.left {
            self.resumed = true; // what it has left is shown when its work has ended
        } else {
            self.held = false;
            out.set_splice_room(self.shared.most);
        }
        self.say_what_it_awaits(out); // in case that nothing moves
    }

    /// Whether it is in the middle of a message: it left input, a reply is outstanding, or only one stream has ended.
    fn say_what_it_awaits(&self, out: &mut Outbox<'_>) {
        let half_closed = self.ended != self.other_ended;
        let in_the_middle = half_closed || self.last == Some(Side::Near);
        out.set_activity(match (self.held, in_the_middle) {
            (true, _) if self.resumed => Activity::Nothing,
            (true, _) => Activity::Work,
            (false, true) => Activity::Answer,
            (false, false) => Activity::Nothing,
        });
    }
}

impl Session for Link {
    /// The connection is open: sends the bytes that arrived before.
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        // Otherwise two ends that both wait for the other to read would block each other.
        out.takes_input_while_full();
        let _ = self.shared.wakers[self.side as usize].set(out.waker()); // a session is opened once
        self.shared.splices[self.side as usize].store(out.sends_spliced(), Relaxed);
        match self.dial(out) {
            Ok(()) => self.pull(out),
            Err(_) => Flow::Abort, // the server stops, or too many dials are pending
        }
    }

    /// Forwards bytes, as many as there is room for.
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut used = input.len();
        self.take(out, |pipe, room| {
            used = used.min(room);
            pipe.push(&input[..used]);
            input.len() - used
        });
        Consumed::bytes(used)
    }

    /// Forwards bytes without looking at them; one splice may exceed the bound.
    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        self.take(out, |pipe, _| {
            pipe.push_spliced(bytes);
            0
        });
        Ok(Flow::Continue)
    }

    /// The outbox has room again.
    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.pull(out)
    }

    /// The stream has ended: ends the other one after its bytes.
    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.finish(PipeEnd::Finished);
        self.ended = true;
        if self.side == Side::Far {
            self.last = Some(Side::Far); // there will be no answer any more
        }
        self.say_what_it_awaits(out);
        Flow::Continue
    }

    /// Handles [`Mail::Wake`], and resets the connection if a dial has failed for good.
    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        match mail {
            Mail::Wake => {}
            Mail::Dialled(Dialled { result: Err(e), .. }) => return self.dial_failed(&e, out),
            Mail::Dialled(_) => {
                self.dials = None;
                return Flow::Continue;
            }
            _ => return Flow::Continue,
        }
        if self.dials.as_ref().is_some_and(|dials| dials.pauses) && self.dial(out).is_err() {
            return Flow::Abort;
        }
        if self.held && !self.pipe_of(self.side).writer_waits {
            self.resume(out);
        }
        self.pull(out)
    }

    /// The connection is gone.
    fn on_close(&mut self, why: CloseReason) {
        let mut incoming = self.pipe_of(self.side.other());
        *incoming = Pipe { end: incoming.end, is_read_by_nobody: true, ..Pipe::default() };
        drop(incoming);
        self.finish(match why {
            CloseReason::Finished | CloseReason::IdleTimeout | CloseReason::FirstByteTimeout => {
                PipeEnd::Closed
            }
            _ => PipeEnd::Reset,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::testing::{TestConnection, TestState};

    fn open(session: impl Session) -> TestConnection {
        TestConnection::of_session(session, Policy::default())
    }

    #[test]
    fn the_link_of_an_accepted_connection_dials_the_other() {
        let near = || open(dialling("127.0.0.1:9", LAST_BYTES_STEP, 100).expect("an address"));
        let mut client = near();
        client.receive(b"early");
        let mut upstream = client.next_dial().expect("it dials").connect();
        client.settle();
        assert_eq!(upstream.output(), b"early");
        upstream.receive(b"answer");
        client.settle();
        assert_eq!((client.output(), client.state()), (&b"answer"[..], TestState::Open));

        let mut refused = near();
        refused.next_dial().expect("it dials").fail(io::ErrorKind::ConnectionRefused.into());
        refused.settle();
        assert_eq!(refused.state(), TestState::Reset);
    }

    #[test]
    fn the_link_of_an_accepted_connection_waits_for_a_place_to_dial() {
        let open = || open(dialling("127.0.0.1:9", 3 * PLACE_PAUSE, 100).expect("an address"));
        let has_no_place = |client: &mut TestConnection| {
            client.next_dial().expect("it dials").fail(io::ErrorKind::QuotaExceeded.into());
            client.settle();
        };
        let mut client = open();
        client.receive(b"early");
        has_no_place(&mut client);
        client.receive(b", late");
        assert!(client.next_dial().is_none(), "not yet");
        client.advance(PLACE_PAUSE);
        let upstream = client.next_dial().expect("it dials again").connect();
        assert_eq!((upstream.output(), client.state()), (&b"early, late"[..], TestState::Open));

        let mut client = open();
        for _ in 0..2 {
            has_no_place(&mut client);
            assert_eq!(client.state(), TestState::Open);
            client.advance(PLACE_PAUSE);
        }
        has_no_place(&mut client);
        assert_eq!(client.state(), TestState::Reset, "the time is up");
    }

    /// Has a link, and no timers of its own.
    struct HasALink(Link);

    impl Session for HasALink {
        fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
            self.0.on_open(out)
        }

        fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
            self.0.on_bytes(input, out)
        }

        fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
            assert!(!matches!(mail, Mail::Timer | Mail::KeyedTimer(_)), "{mail:?}");
            self.0.on_mail(mail, out)
        }
    }

    #[test]
    fn the_timer_before_a_reset_is_none_of_the_sessions() {
        let (near, far) = pair(100);
        let (mut client, mut upstream) = (open(HasALink(near)), open(far));
        client.stall();
        upstream.receive(b"the last word");
        upstream.fail(io::ErrorKind::ConnectionReset);
        client.settle();
        client.advance(3 * LAST_BYTES_STEP);
        assert_eq!((client.queued(), client.state()), (13, TestState::Open), "its last bytes are waited for");
        client.resume();
        client.advance(LAST_BYTES_STEP);
        assert_eq!((client.output(), client.state()), (&b"the last word"[..], TestState::Reset));
    }
}
