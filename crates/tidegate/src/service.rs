//! What an application implements: [`Service`] and [`Session`], and the [`Outbox`] it answers through.
//!
//! A session is a state machine without I/O: it is shown bytes, and it puts bytes into an outbox.
//! Who receives and who sends, on how many threads and with which system calls, is the engine's
//! business, so the same session runs on every [`Model`](crate::Model), as server and as client.

mod datagram;
mod erased;

use std::any::Any;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_os::endpoint::Endpoint;

pub use crate::proto::group::Group;
pub use crate::proto::mail::{Mailbox, MailboxError, OffloadError};
pub use crate::proto::outbox::{LayerBuffer, Outbox};
pub use datagram::{DatagramService, Joined, Replies};
pub(crate) use erased::ErasedService;

/// Makes one [`Session`] for each connection. Shared by all I/O threads.
pub trait Service: Send + Sync + 'static {
    /// The state machine of one connection.
    type Session: Session;

    /// Called when a connection is established; returns its session or refuses it. A refused connection is closed at
    /// once.
    ///
    /// Runs on an I/O thread; keep it short.
    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal>;

    /// Whether sessions send before they have received anything (SMTP does, HTTP does not).
    ///
    /// A service that speaks first must return `true`: the kernel may otherwise hold a new
    /// connection back until its first data arrived (`TCP_DEFER_ACCEPT`).
    fn speaks_first(&self) -> bool {
        false
    }

    /// Whether [`Peer::addr`] is to be filled for accepted connections; unless a service asks for it, it is not, on
    /// any model. On `uring` that costs a descriptor and a system call for each connection; elsewhere it is free.
    fn needs_peer_addr(&self) -> bool {
        false
    }

    /// How many connections each session may have [dialled](Outbox::dial) at once. So many places for each accepted
    /// connection are set aside within [`Policy::max_connections`](crate::Policy::max_connections): with 1, half of
    /// them are accepted, and half are dialled.
    fn dials(&self) -> usize {
        0
    }

    /// A connection asked for through a [`Dialler`](crate::Dialler) could not be made; there is no session.
    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        let _ = (dial, error);
    }
}

/// A service that several servers share, each with an address of its own.
impl<S: Service> Service for Arc<S> {
    type Session = S::Session;

    fn open(&self, peer: &Peer) -> Result<S::Session, Refusal> {
        S::open(self, peer)
    }

    fn speaks_first(&self) -> bool {
        S::speaks_first(self)
    }

    fn needs_peer_addr(&self) -> bool {
        S::needs_peer_addr(self)
    }

    fn dials(&self) -> usize {
        S::dials(self)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        S::dial_failed(self, dial, error);
    }
}

/// The state machine of one connection.
///
/// All methods run on an I/O thread, never two at once for one session. They must not block: what takes long is
/// [offloaded](Outbox::offload), and its result comes back as mail. A session that panics loses its connection, and
/// no other; so does one whose destructor panics. Its peer sees a reset; but Unix sockets have none: there the peer
/// sees an error only if it had sent something that was not received yet, and else an end of the stream like any
/// other.
///
/// # Input
/// [`on_bytes`](Self::on_bytes) is shown what has arrived, and what it has not [`Consumed`] is kept and shown again,
/// in front of what comes next: **with new input, not before**. So a session uses all complete messages of its input
/// in one call, or uses one and returns [`Consumed::again`] to be called again for the rest at once. What it leaves
/// because the outbox [is full](Outbox::is_full) is shown when that has drained, and what it leaves for the sake of
/// its own work ([`Activity::Work`]) when that has ended. It may leave at most
/// [`Policy::input_bytes`](crate::Policy::input_bytes): a message that is longer meets
/// [`on_input_limit`](Self::on_input_limit).
///
/// # The end of a server
/// When the server begins to stop, every session is called once with [`on_drain`](Self::on_drain), and from then on
/// [`Outbox::is_draining`] is true. It may end the connection itself, at once or later. One that does not is closed
/// between two messages (when it [awaits](Outbox::set_activity) nothing and everything is sent; after a second in which
/// its peer may say a last word, whatever the session goes on sending by itself): then [`on_leave`](Self::on_leave) is
/// called, what it says is sent, and [`on_close`](Self::on_close) follows. Whoever is still there after
/// [`Policy::drain_timeout`](crate::Policy::drain_timeout) is reset.
pub trait Session: Send + 'static {
    /// The connection stands. Called once, before everything else.
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// Bytes have arrived. What is not [`Consumed`] is kept and shown again, in front of what
    /// comes next; so a parser can simply wait for the rest of its message.
    ///
    /// What is left is shown again only with new input, unless the session asks to be called
    /// [again](Consumed::again), or stops early because [`Outbox::is_full`]: then it is shown the rest once the
    /// outbox has drained.
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed;

    /// The outbox had been full and has fallen to its low watermark: produce more.
    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// More than [`Policy::input_bytes`](crate::Policy::input_bytes) was left unconsumed: a message is too long. What
    /// was left is not shown again. What the session writes here is sent if it answers [`Flow::Linger`], so that the
    /// peer gets to read it ([`Flow::Close`] does the same here, where input is unread); anything else resets the
    /// connection. Either way the reason is [`CloseReason::InputLimit`].
    ///
    /// The default resets it.
    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Abort
    }

    /// The peer finished sending (half-close). What was not consumed until now never will be.
    ///
    /// The default sends what is in the outbox, then closes.
    fn on_end(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Close
    }

    /// Mail from another session or thread, or a timer set with [`Outbox::wake_at`] or [`Outbox::set_timer`].
    fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
        let _ = (mail, out);
        Flow::Continue
    }

    /// The server begins to stop. Called once, for every session that is open, and right after `on_open` for one that
    /// opens later. A protocol that announces its end does so here, and a session that sends without being asked may
    /// end.
    ///
    /// The default goes on: the connection is closed between two messages, after [`on_leave`](Self::on_leave).
    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// The server stops, and the connection is closed because it is between two messages. What is said here is still
    /// sent, as far as the outbox has room for it: a protocol whose ends say that they end does so. Nothing but
    /// `on_close` is called after it.
    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        let _ = out;
    }

    /// The connection is gone. Called once, after everything else, if `on_open` was called.
    fn on_close(&mut self, why: CloseReason) {
        let _ = why;
    }
}

/// How a connection goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Nothing special.
    #[default]
    Continue,
    /// Send what is in the outbox, then finish sending (half-close); receiving goes on.
    Shutdown,
    /// Send what is in the outbox, then close. Further input is not looked at.
    Close,
    /// Like [`Close`](Self::Close), but finish sending first and discard input until the peer closes
    /// too, or for [`Policy::linger_timeout`](crate::Policy::linger_timeout). For a last answer
    /// to a peer that may still be sending: closing right away would make the kernel send a reset, and
    /// the peer might never read the answer (RFC 9112, section 9.6).
    Linger,
    /// Drop the outbox and reset the connection.
    Abort,
}

/// How much of the input [`Session::on_bytes`] used, and how the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// Bytes used, from the front of the input.
    pub bytes: usize,
    /// How the connection goes on.
    pub flow: Flow,
    /// The session wants to be shown the rest, if it has used some: see [`again`](Self::again).
    pub again: bool,
}

impl Consumed {
    /// All of the input.
    #[must_use]
    pub fn all(input: &[u8]) -> Self {
        Self::bytes(input.len())
    }

    /// The first `bytes` bytes of the input.
    #[must_use]
    pub fn bytes(bytes: usize) -> Self {
        Self { bytes, flow: Flow::Continue, again: false }
    }

    /// The same, and the connection goes on with `flow`.
    #[must_use]
    pub fn then(self, flow: Flow) -> Self {
        Self { flow, ..self }
    }

    /// The same, and if the session has used some of the input and not all, it is called again at once with the rest:
    /// for one that takes one message with each call. It keeps its turn for 64 calls; then the others have theirs,
    /// and it goes on, before anything more is received.
    ///
    /// ```
    /// # use tidegate::Consumed;
    /// fn one_line(input: &[u8]) -> Consumed {
    ///     match input.iter().position(|&byte| byte == b'\n') {
    ///         Some(end) => Consumed::bytes(end + 1).again(),
    ///         None => Consumed::bytes(0), // it is not complete
    ///     }
    /// }
    /// assert!(one_line(b"one\ntwo\n").again);
    /// ```
    #[must_use]
    pub fn again(self) -> Self {
        Self { again: true, ..self }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address. Always there for connections dialled to one; for accepted ones where the service
    /// [asks for it](Service::needs_peer_addr). Unix sockets have none.
    pub addr: Option<SocketAddr>,
    /// Who made the connection.
    pub origin: Origin,
    /// Index of the I/O thread that owns the connection, from 0.
    pub thread: usize,
}

/// Who made a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The peer did; this end accepted it.
    Accepted,
    /// This end did, with the [`Dial::tag`] given.
    Dialled {
        /// The number given with the dial.
        tag: u64,
    },
}

/// A connection to be made; see [`Dialler`](crate::client::Dialler) and [`Outbox::dial`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dial {
    /// Where to.
    pub to: Endpoint,
    /// Source address; `None` lets the system pick. Port 0 lets it pick the port. Not for Unix sockets.
    pub from: Option<SocketAddr>,
    /// A number of the application's own, given back in [`Origin::Dialled`].
    pub tag: u64,
    /// The I/O thread that is to own the connection, modulo their number; `None` takes them in turn.
    pub thread: Option<usize>,
}

impl Dial {
    /// To this address, everything else left to the system.
    #[must_use]
    pub fn to(to: impl Into<Endpoint>) -> Self {
        Self { to: to.into(), from: None, tag: 0, thread: None }
    }

    /// From this source address.
    #[must_use]
    pub fn from(self, from: SocketAddr) -> Self {
        Self { from: Some(from), ..self }
    }

    /// With this number.
    #[must_use]
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// On this I/O thread.
    #[must_use]
    pub fn thread(self, thread: usize) -> Self {
        Self { thread: Some(thread), ..self }
    }
}

/// What comes to a session other than bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mail {
    /// The time set with [`Outbox::wake_at`] has come.
    Timer,
    /// The time set with [`Outbox::set_timer`] under this key has come.
    KeyedTimer(u64),
    /// A value sent through the session's [`Mailbox`].
    Message(Box<dyn Any + Send>),
    /// A value sent to a [`Group`] the session is in; shared by all of them.
    Group(Arc<dyn Any + Send + Sync>),
    /// What an [offloaded](Outbox::offload) job returned.
    Done(Box<dyn Any + Send>),
    /// An offloaded job panicked.
    JobPanicked,
    /// What became of a connection that the session has [dialled](Outbox::dial): the address of its session, or why
    /// there is none.
    Dialled(io::Result<Mailbox>),
    /// The [waker](Outbox::waker) of the session was called, once or several times.
    Wake,
}

impl Mail {
    /// Whether [`Policy::mail_queue`](crate::Policy::mail_queue) bounds it. The results of jobs are bounded by the
    /// queue of jobs, those of dials by the number of connections, and of wakes there is at most one for each
    /// connection.
    pub(crate) fn is_bounded(&self) -> bool {
        !matches!(self, Self::Done(_) | Self::JobPanicked | Self::Dialled(_) | Self::Wake)
    }
}

/// What a session is in the middle of; see [`Outbox::set_activity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Nothing: between two messages.
    #[default]
    Nothing,
    /// The rest of a message that has begun: a stop waits for it, and
    /// [`Policy::min_rate`](crate::Policy::min_rate) applies.
    Input,
    /// An answer from elsewhere, such as an upstream server: a stop waits for it. Input is taken as before, and
    /// [`Policy::min_rate`](crate::Policy::min_rate) does not apply to it.
    Answer,
    /// Something of this end's own, such as mail with the answer: a stop waits for it. While there is input that the
    /// session left, no more is received; it is shown again when mail, a timer or [`on_drained`](Session::on_drained)
    /// has ended the work, and only then is the session told that its peer has finished.
    Work,
}

/// The service does not want this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal;

/// Why a connection ended. Every one is counted in [`Stats`](crate::Stats).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both ends finished, or this end closed after its last byte.
    Finished,
    /// The session aborted it.
    Aborted,
    /// The peer reset it, or vanished in mid-stream.
    Reset,
    /// No first byte within [`Policy::first_byte_timeout`](crate::Policy::first_byte_timeout).
    FirstByteTimeout,
    /// Nothing moved for [`Policy::idle_timeout`](crate::Policy::idle_timeout).
    IdleTimeout,
    /// The peer took nothing for [`Policy::send_timeout`](crate::Policy::send_timeout).
    SendTimeout,
    /// The peer sent, or took, less than [`Policy::min_rate`](crate::Policy::min_rate) in mid-message.
    MinRate,
    /// The session left more input unconsumed than [`Policy::input_bytes`](crate::Policy::input_bytes).
    InputLimit,
    /// The server stopped.
    Stopped,
    /// The session panicked.
    Panicked,
    /// The kernel reported another error.
    Error,
}

impl CloseReason {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; 11] = [
        Self::Finished,
        Self::Aborted,
        Self::Reset,
        Self::FirstByteTimeout,
        Self::IdleTimeout,
        Self::SendTimeout,
        Self::MinRate,
        Self::InputLimit,
        Self::Stopped,
        Self::Panicked,
        Self::Error,
    ];

    /// A short name, as used in counters and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Aborted => "aborted",
            Self::Reset => "reset",
            Self::FirstByteTimeout => "first-byte-timeout",
            Self::IdleTimeout => "idle-timeout",
            Self::SendTimeout => "send-timeout",
            Self::MinRate => "min-rate",
            Self::InputLimit => "input-limit",
            Self::Stopped => "stopped",
            Self::Panicked => "panicked",
            Self::Error => "error",
        }
    }

    /// The reason an I/O error stands for.
    #[must_use]
    pub fn of(kind: io::ErrorKind) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
        match kind {
            ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected | TimedOut => Self::Reset,
            _ => Self::Error,
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
