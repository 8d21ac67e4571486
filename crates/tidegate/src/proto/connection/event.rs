//! What an engine tells a connection, and what it is told.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::super::mail::{MailSink, Workers};
use super::super::panics::Contained;
use super::super::table::Token;
use crate::policy::Policy;
use crate::service::Mail;
use crate::stats::Counters;

/// What has happened to a connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// It stands: accepted, or the dial succeeded.
    Opened,
    /// Bytes arrived.
    Received(&'a [u8]),
    /// The peer finished sending.
    PeerEnded,
    /// The kernel took this many bytes from the outbox.
    Sent(usize),
    /// The sending side was shut down, as [`NextStep::FinishSending`] asked.
    SendFinished,
    /// The kernel reported an error; the connection is of no use any more.
    Failed(io::ErrorKind),
    /// Mail from elsewhere.
    Mail(Contained<Mail>),
    /// The time of [`Connection::deadline`](super::Connection::deadline) has come, or might have.
    Deadline,
    /// The server stops: finish what is in flight, then close.
    Drain,
    /// The server stops now.
    Stop,
}

/// Whether the connection wants input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// Keep a receive posted, or wait for readability.
    Post,
    /// Do not receive: back-pressure, or the end of the stream was seen.
    Pause,
}

/// What is to be done besides receiving and sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Nothing.
    Nothing,
    /// What there is to send is the last: close follows as soon as it is sent. An engine may hand over both at once.
    CloseAfterSend,
    /// Everything was sent: shut down the sending side, then say [`Event::SendFinished`].
    FinishSending,
    /// Everything was sent: close.
    Close,
    /// Close with a reset, whatever is left.
    Reset,
}

/// What a connection wants from its engine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Whether it wants input.
    pub receive: Receive,
    /// Whether there are bytes to send that were not yet handed out.
    pub send: bool,
    /// What else.
    pub then: NextStep,
}

/// What a connection needs to know of the world during one event.
pub struct Context<'a> {
    /// The time.
    pub now: Instant,
    /// The limits.
    pub policy: &'a Policy,
    /// Where it counts.
    pub counters: &'a Counters,
    /// Who takes mail for it.
    pub office: &'a Arc<dyn MailSink>,
    /// Who takes its jobs.
    pub workers: &'a dyn Workers,
    /// Its own token.
    pub token: Token,
}
