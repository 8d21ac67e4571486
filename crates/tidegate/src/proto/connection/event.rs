//! The events an engine passes to a connection, and the actions it gets back.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::super::mail::{MailSink, Workers};
use super::super::panics::Contained;
use super::super::spliced::Spliced;
use super::super::table::Token;
use super::super::timestamp::Timestamp;
use crate::policy::Policy;
use crate::proto::session::Mail;
use crate::stats::Counters;

/// An event of a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// The connection is established: accepted, or the dial succeeded.
    Opened,
    /// Bytes arrived.
    Received(&'a [u8]),
    /// Bytes arrived in a pipe.
    Spliced(Spliced),
    /// The peer finished sending.
    PeerEnded,
    /// The kernel took this many bytes from the outbox.
    Sent(usize),
    /// The sending side was shut down, as [`NextStep::FinishSending`] asked.
    SendFinished,
    /// The kernel had no memory to send or receive; the operation will be retried.
    OutOfMemory(Direction),
    /// Memory has been short for long, and this connection is one of those closed for it.
    Shed,
    /// The kernel reported an error; the connection is unusable.
    Failed(io::ErrorKind),
    /// Mail from another session or thread.
    Mail(Contained<Mail>),
    /// The time of [`Connection::deadline`](super::Connection::deadline) may have passed.
    Deadline,
    /// The server is stopping: finish what is in flight, then close.
    Drain,
    /// The server stops immediately.
    Stop,
}

/// A direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer.
    Receive,
    /// To the peer.
    Send,
}

/// Whether the connection wants input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// Keep a receive posted, or wait for readability.
    Post,
    /// Do not receive: back-pressure, or the end of the stream was seen.
    Pause,
}

/// What to do besides receiving and sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing.
    Nothing,
    /// The outbox holds the last bytes: close follows once they are sent. An engine may submit both together.
    CloseAfterSend,
    /// Everything was sent: shut down the sending side, then pass [`Event::SendFinished`].
    FinishSending,
    /// Everything was sent: close.
    Close,
    /// Close with a reset; discard what is left.
    Reset,
}

/// What a connection wants from its engine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Whether it wants input.
    pub receive: Receive,
    /// Whether there are bytes to send that were not yet taken.
    pub send: bool,
    /// The next step.
    pub then: NextStep,
}

/// What a connection needs to know during one event.
pub struct Context<'a> {
    /// The current time.
    pub now: Instant,
    /// The same, as connections keep it: converted once for each batch of events.
    pub timestamp: Timestamp,
    /// The limits.
    pub policy: &'a Policy,
    /// The counters to update.
    pub counters: &'a Counters,
    /// Where its mail is sent.
    pub mail_sink: &'a Arc<dyn MailSink>,
    /// Where its jobs run.
    pub workers: &'a dyn Workers,
    /// Its token.
    pub token: Token,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("now", &self.now).finish_non_exhaustive()
    }
}
