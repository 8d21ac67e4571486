//! Links two connections: bytes received on one are sent on the other, in both directions.
//!
//! A [`Link`] is one half; the session of each connection holds one and forwards its calls to it. Bytes, back-pressure,
//! half-close and reset are passed on: a connection stops receiving while the other cannot send what has arrived, the
//! end of one stream ends the other, and a reset of one resets the other. The two sessions may run on different
//! threads.
//!
//! # Costs
//! One copy of the bytes into memory that the outbox of the other connection shares, and one piece of mail for each
//! batch that arrived. An idle link holds no buffer. Each direction holds at most the bound given to [`pair`], in
//! addition to the outbox and one receive buffer.
//!
//! # Shutdown
//! A TCP proxy does not know where messages end. A link assumes that the [accepted](pair) side sends requests and the
//! other one replies: while the last bytes came from the accepted side, or only one of the streams has ended, the two
//! connections are in the middle of a message and a stop waits for them; otherwise both are closed as idle connections
//! are.
//!
//! ```
//! use tidegate::link::{self, Link};
//! use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Session};
//!
//! struct Half(Link);
//!
//! impl Session for Half {
//!     fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
//!         self.0.on_open(out)
//!     }
//!     fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
//!         self.0.on_bytes(input, out)
//!     }
//!     fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
//!         self.0.on_drained(out)
//!     }
//!     fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
//!         self.0.on_end(out)
//!     }
//!     fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
//!         self.0.on_mail(&mail, out)
//!     }
//!     fn on_close(&mut self, why: CloseReason) {
//!         self.0.on_close(why);
//!     }
//! }
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::service::{Activity, CloseReason, Consumed, Flow, Mail, Outbox};

/// The key of the timer that a link uses; the session must not use it.
pub const TIMER: u64 = u64::MAX;

/// Small pieces are joined up to this size, so that a link's memory is proportional to its bytes.
const JOIN_BYTES: usize = 16 * 1024;

/// How long data before a reset may take to be sent, and how often that is checked.
const LAST_BYTES: u32 = 50;
const LAST_BYTES_STEP: Duration = Duration::from_millis(20);

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

/// One direction: bytes received on one connection and not yet in the outbox of the other.
#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<Bytes>,
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
            self.pieces.push_back(std::mem::take(&mut self.tail).freeze());
        }
        self.tail.extend_from_slice(bytes);
        self.bytes += bytes.len();
    }

    fn pop(&mut self) -> Option<Bytes> {
        let piece = match self.pieces.pop_front() {
            Some(piece) => piece,
            None => std::mem::take(&mut self.tail).freeze(),
        };
        self.bytes -= piece.len();
        (!piece.is_empty()).then_some(piece)
    }
}

#[derive(Debug)]
struct LinkState {
    /// Indexed by the side that the bytes come from.
    pipes: [Mutex<Pipe>; 2],
    /// The waker of each side's session; set when it is opened.
    wakers: [OnceLock<Waker>; 2],
    /// Bytes that one direction may hold.
    most: usize,
}

/// One half of a link; see the [module](self). Each method returns what the session's method of the same name must
/// return.
#[derive(Debug)]
pub struct Link {
    shared: Arc<LinkState>,
    side: Side,
    /// The session left input, because there was no room for it.
    held: bool,
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
    let shared = LinkState { pipes: Default::default(), wakers: Default::default(), most: bytes.max(1) };
    let near = Link::of(Arc::new(shared), Side::Near);
    let far = near.other();
    (near, far)
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
            held: false,
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

    /// The connection is open: sends the bytes that arrived before.
    pub fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        // Otherwise two ends that both wait for the other to read would block each other.
        out.takes_input_while_full();
        let _ = self.shared.wakers[self.side as usize].set(out.waker()); // a session is opened once
        self.pull(out)
    }

    /// Forwards bytes, as many as there is room for.
    pub fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let mut pipe = self.pipe_of(self.side);
        let used = match pipe.is_read_by_nobody {
            true => input.len(),
            false => input.len().min(self.shared.most.saturating_sub(pipe.bytes)),
        };
        if !pipe.is_read_by_nobody {
            pipe.push(&input[..used]);
        }
        pipe.writer_waits = used < input.len();
        drop(pipe);
        self.held = used < input.len();
        self.resumed = false;
        self.last = Some(self.side);
        if used > 0 {
            self.wake_other();
        }
        self.say_what_it_awaits(out);
        Consumed::bytes(used)
    }

    /// The outbox has room again.
    pub fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.pull(out)
    }

    /// The stream has ended: ends the other one after its bytes.
    pub fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.finish(PipeEnd::Finished);
        self.ended = true;
        if self.side == Side::Far {
            self.last = Some(Side::Far); // there will be no answer any more
        }
        self.say_what_it_awaits(out);
        Flow::Continue
    }

    /// Handles mail; only [`Mail::Wake`] and the link's [timer](TIMER) are relevant.
    pub fn on_mail(&mut self, mail: &Mail, out: &mut Outbox<'_>) -> Flow {
        if !matches!(mail, Mail::Wake | Mail::KeyedTimer(TIMER)) {
            return Flow::Continue;
        }
        if self.held && !self.pipe_of(self.side).writer_waits {
            self.resumed = true;
            self.say_what_it_awaits(out); // in case that nothing moves
        }
        self.pull(out)
    }

    /// The connection is gone.
    pub fn on_close(&mut self, why: CloseReason) {
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
            out.share(piece);
            moved = true;
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
        out.set_timer(TIMER, out.now() + LAST_BYTES_STEP);
        Flow::Continue
    }

    /// Whether it is in the middle of a message: it left input, a reply is outstanding, or only one stream has ended.
    fn say_what_it_awaits(&self, out: &mut Outbox<'_>) {
        let half_closed = self.ended != self.other_ended;
        let in_the_middle = half_closed || self.last == Some(Side::Near);
        out.set_activity(match (self.held, in_the_middle) {
            (true, _) if self.resumed => Activity::Nothing, // what it has left is shown when its work has ended
            (true, _) => Activity::Work,
            (false, true) => Activity::Answer,
            (false, false) => Activity::Nothing,
        });
    }
}
