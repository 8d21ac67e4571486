//! One connection, and what the kernel would hold of it.

use std::io::IoSlice;

use tidegate::proto::queue::{FileSending, Pieces, TakeLimits};
use tidegate::proto::{Action, Connection, Context, Event, NextStep, Receive};
use tidegate::{CloseReason, Origin};

use super::session::Probe;
use super::{byte_at, bytes_at};

pub(super) struct Entry {
    pub(super) connection: Connection,
    pub(super) probe: Probe,
    pub(super) action: Action,
    /// Bytes that arrived.
    received: usize,
    /// A receive was under way when the connection paused, and may still bring bytes.
    late: bool,
    pub(super) peer_ended: bool,
    /// Bytes the kernel took.
    pub(super) took: usize,
    /// Bytes of sends in flight.
    pub(super) flying: usize,
    send_finished: bool,
    /// It was asked to leave; and something has arrived since: its peer's last word, after which the session is not
    /// called any more.
    leaving: bool,
    pub(super) spoke: bool,
}

impl Entry {
    pub(super) fn open(stream: u8, plan: &[u8], dialled: bool, context: &Context<'_>) -> Self {
        let probe = Probe::default();
        {
            let mut mind = probe.mind();
            mind.stream = stream;
            mind.low = context.policy.outbox.low;
            mind.plan.extend(plan);
        }
        let origin = if dialled { Origin::Dialled { tag: 0 } } else { Origin::Accepted };
        let connection = Connection::new(Box::new(probe.clone()), origin, context.now);
        let mut entry = Self {
            action: connection.action(),
            connection,
            probe,
            received: 0,
            late: false,
            peer_ended: false,
            took: 0,
            flying: 0,
            send_finished: false,
            leaving: false,
            spoke: false,
        };
        entry.happens(Event::Opened, context);
        entry
    }

    pub(super) fn plans(&mut self, plan: &[u8]) {
        let mut mind = self.probe.mind();
        mind.plan.clear();
        mind.plan.extend(plan);
    }

    pub(super) fn is_closing(&self) -> bool {
        matches!(self.action.then, NextStep::Close | NextStep::Reset)
    }

    /// An event, and what has to hold after it.
    pub(super) fn happens(&mut self, event: Event<'_>, context: &Context<'_>) {
        let (before, was_closing) = (self.action, self.is_closing());
        self.leaving |= matches!(event, Event::Drain);
        self.spoke |= self.leaving && matches!(event, Event::Received(_));
        self.action = self.connection.handle(event, context);
        assert_eq!(self.action, self.connection.action(), "an action is a level");
        if was_closing {
            assert_eq!(self.action, before, "closing is for ever");
        }
        if before.receive == Receive::Post {
            self.late = true;
        }
        self.check(context);
    }

    fn check(&self, context: &Context<'_>) {
        let mind = self.probe.mind();
        let queue = self.connection.queue();
        let Action { receive, send, then } = self.action;
        assert_eq!(self.is_closing(), mind.closed.is_some(), "on_close and the action go together");
        if let Some(why) = mind.closed {
            assert_ne!(why, CloseReason::Panicked, "an assertion of the session did not hold");
            assert_eq!((receive, send), (Receive::Pause, false), "nothing moves on a closed connection");
            assert_eq!(queue.len(), self.flying, "a closed connection keeps what is in flight only");
            if why == CloseReason::Finished {
                assert_eq!(self.took, mind.wrote, "finished with bytes left");
                assert_eq!(then, NextStep::Close);
            }
            return;
        }
        assert_eq!(queue.len() + self.took, mind.wrote, "bytes on their way out");
        assert_eq!(send, queue.len() > self.flying, "send exactly if something was not handed out");
        assert!(receive == Receive::Pause || !self.peer_ended, "no receive after the end");
        match then {
            NextStep::FinishSending => assert!(queue.is_empty(), "the sending side ends after its bytes"),
            NextStep::CloseAfterSend => assert!(!queue.is_empty(), "nothing to wait for"),
            _ => {}
        }
        if !mind.left {
            assert!(!mind.filled || receive == Receive::Pause, "a full outbox holds the peer back");
            assert!(queue.len() < context.policy.outbox.high || mind.filled);
            assert!(!mind.ended || self.peer_ended, "an end that the peer did not send");
            if self.spoke {
                return;
            }
            if receive == Receive::Post {
                assert_eq!(mind.used + mind.unused, self.received, "every byte was shown");
                assert!(mind.unused <= context.policy.input_bytes, "input is bounded");
            }
            assert!(!self.peer_ended || mind.ended || mind.filled, "the session was not notified of the end");
        }
    }

    /// Bytes arrive: while they are wanted, and once more after that.
    pub(super) fn receive(&mut self, count: usize, context: &Context<'_>) -> usize {
        let wanted = self.action.receive == Receive::Post;
        if count == 0 || self.peer_ended || !(wanted || std::mem::take(&mut self.late)) {
            return 0;
        }
        let stream = !self.probe.mind().stream;
        let bytes = bytes_at(stream, self.received, count);
        self.received += count;
        self.happens(Event::Received(&bytes), context);
        count
    }

    pub(super) fn peer_ends(&mut self, context: &Context<'_>) {
        if !self.peer_ended && !self.is_closing() {
            self.peer_ended = true;
            self.happens(Event::PeerEnded, context);
        }
    }

    /// A send from where the bytes lie; the kernel takes up to `most` bytes.
    pub(super) fn send(&mut self, most: usize, context: &Context<'_>) -> usize {
        if !self.action.send || self.flying > 0 {
            return 0;
        }
        let mut slices = [IoSlice::new(&[]); 8];
        let count = self.connection.queue().slices(&mut slices);
        assert!(count > 0, "something to send, and no piece of it");
        let bytes: Vec<u8> = slices.iter().take(count).flat_map(|slice| slice.iter().copied()).collect();
        self.check_sent(&bytes, self.took);
        let n = bytes.len().min(most);
        self.took += n;
        self.happens(Event::Sent(n), context);
        n
    }

    /// A send that owns its pieces until it completes.
    pub(super) fn take(&mut self, most: usize) {
        if !self.action.send {
            return;
        }
        let limits = TakeLimits { pieces: most, bytes: 1 + 100 * most };
        let pieces = match self.connection.take_pieces(limits, FileSending::Read) {
            Pieces::One(piece) => vec![piece],
            Pieces::Many(pieces) => pieces,
            Pieces::File { range, .. } => panic!("no session here sends a file: {range:?}"),
        };
        assert!(pieces.len() <= most.max(1), "more pieces than asked for");
        let bytes = pieces.concat();
        assert!((1..=limits.bytes).contains(&bytes.len()), "{} of up to {}", bytes.len(), limits.bytes);
        self.check_sent(&bytes, self.took + self.flying);
        self.flying += bytes.len();
        self.action = self.connection.action();
    }

    /// Part of what is in flight completes.
    pub(super) fn complete(&mut self, most: usize, context: &Context<'_>) -> usize {
        let n = self.flying.min(most);
        if n > 0 {
            self.flying -= n;
            self.took += n;
            self.happens(Event::Sent(n), context);
        }
        n
    }

    fn check_sent(&self, bytes: &[u8], from: usize) {
        let stream = self.probe.mind().stream;
        for (place, &byte) in bytes.iter().enumerate() {
            assert_eq!(byte, byte_at(stream, from + place), "lost, doubled or reordered on the way out");
        }
    }

    pub(super) fn finish_sending(&mut self, context: &Context<'_>) {
        if self.action.then == NextStep::FinishSending {
            assert!(!std::mem::replace(&mut self.send_finished, true), "the sending side is finished once");
            self.happens(Event::SendFinished, context);
        }
    }
}
