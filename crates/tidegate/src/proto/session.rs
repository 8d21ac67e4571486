//! What an application implements, as the connection calls it: [`Service`] and [`Session`], beside the [`Outbox`] and
//! the [`Mail`] they are given.

use std::any::Any;
use std::io;
use std::sync::Arc;

use super::mail::Message;
use super::outbox::Outbox;
use super::spliced::Spliced;
use crate::policy::{Policy, PolicyError};
use crate::types::{CloseReason, Consumed, Dial, Flow, Peer, Refusal, ServiceOptions};

/// Creates one [`Session`] for each connection. Shared by all I/O threads.
pub trait Service: Send + Sync + 'static {
    /// The state machine of one connection.
    type Session: Session;

    /// Called when a connection is established; returns its session or refuses it. A refused connection is closed
    /// immediately.
    ///
    /// Runs on an I/O thread; keep it short.
    fn open(&self, peer: &Peer) -> Result<Self::Session, Refusal>;

    /// What the sessions need of the engine; the same on every call. A layer returns the options of the service inside,
    /// with those that it needs itself.
    fn options(&self) -> ServiceOptions {
        ServiceOptions::default()
    }

    /// Checks the limits of the service, also against the policy that it is to run under. Called before a server or
    /// client starts, and before [`Running::set_policy`](crate::Running::set_policy) changes anything. A layer checks
    /// its own limits, then those of the service inside.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy; the server or client does not start, or keeps its policy.
    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        let _ = policy;
        Ok(())
    }

    /// Called when a dial of a [`Dialler`](crate::Dialler) failed; there is no session. A layer passes it to the
    /// service inside.
    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        let _ = (dial, error);
    }
}

/// Wraps a service shared by several servers, each with its own address.
impl<S: Service> Service for Arc<S> {
    type Session = S::Session;

    fn open(&self, peer: &Peer) -> Result<S::Session, Refusal> {
        S::open(self, peer)
    }

    fn options(&self) -> ServiceOptions {
        S::options(self)
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        S::check_limits(self, policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        S::dial_failed(self, dial, error);
    }
}

/// The state machine of one connection.
///
/// All methods run on an I/O thread, never two at the same time for one session. They must not block: long work is
/// [offloaded](Outbox::offload), and its result arrives as mail. A panic in a session or its destructor closes only its
/// own connection. Its peer sees a reset; Unix sockets have none: there the peer sees an error only if it had sent
/// something that was not received yet, and otherwise an ordinary end of the stream.
///
/// # Input
/// [`on_bytes`](Self::on_bytes) receives what has arrived; what it has not [`Consumed`] is kept and passed again, in
/// front of the next input: **with new input, not before**. So a session consumes all complete messages of its input in
/// one call, or one message and returns [`Consumed::again`] to be called again for the rest. Input left because the
/// outbox [is full](Outbox::is_full) is passed again when that has drained, and input left during the session's own
/// work ([`Activity::Work`](crate::Activity::Work)) when that has ended. A session may leave at most
/// [`Policy::input_bytes`](crate::Policy::input_bytes): for a longer message [`on_input_limit`](Self::on_input_limit)
/// is called.
///
/// # Shutdown
/// When the server begins to stop, [`on_drain`](Self::on_drain) is called once on every session, and from then on
/// [`Outbox::is_draining`] is true. A session may end its connection then or later. Otherwise it is closed between two
/// messages: when it [awaits](Outbox::set_activity) nothing and everything is sent, after one second in which its peer
/// may send a last request (output that the session sends unasked does not extend it). Then
/// [`on_leave`](Self::on_leave) is called, its output is sent, and [`on_close`](Self::on_close) follows. Connections
/// still open after [`Policy::drain_timeout`](crate::Policy::drain_timeout) are reset.
pub trait Session: Send + 'static {
    /// The connection is established. Called once, before everything else.
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// Bytes have arrived. Input that is not [`Consumed`] is kept and passed again, in front of the next input; so a
    /// parser can simply wait for the rest of its message.
    ///
    /// The rest is passed again only with new input, unless the session asks to be called [again](Consumed::again), or
    /// stopped early because [`Outbox::is_full`]: then it is passed again once the outbox has drained.
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed;

    /// Bytes have arrived that were not copied into user space, behind all that [`on_bytes`](Self::on_bytes) has
    /// received and consumed. Only for sessions with a [link](crate::link) that pass every call on to it, and do not
    /// look at the bytes: they pass this on, too. What is returned as an error is read, and passed to `on_bytes`; that
    /// is not tried again on this connection.
    ///
    /// The default does so: a session that looks at its input receives all of it by `on_bytes`.
    fn on_spliced(&mut self, bytes: Spliced, out: &mut Outbox<'_>) -> Result<Flow, Spliced> {
        let _ = out;
        Err(bytes)
    }

    /// The outbox was full and has fallen to its low watermark: produce more.
    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// More than [`Policy::input_bytes`](crate::Policy::input_bytes) was left unconsumed: a message is too long. The
    /// input is not passed again. Output written here is sent if the session returns [`Flow::Linger`], so that the peer
    /// can read it ([`Flow::Close`] does the same here, because input is unread); anything else resets the connection.
    /// In every case the reason is [`CloseReason::InputLimit`].
    ///
    /// The default resets it.
    fn on_input_limit(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Abort
    }

    /// The peer has finished sending (half-close). Input not consumed so far will not be passed again.
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

    /// The server begins to stop. Called once on every open session, and right after `on_open` on one that opens later.
    /// A protocol with a shutdown message sends it here, and a session that sends unasked may end.
    ///
    /// The default does nothing: the connection is closed between two messages, after [`on_leave`](Self::on_leave).
    fn on_drain(&mut self, out: &mut Outbox<'_>) -> Flow {
        let _ = out;
        Flow::Continue
    }

    /// The server is stopping, and the connection is closed because it is between two messages. Output written here is
    /// still sent, as far as the outbox has room: a protocol with a closing message sends it here. Only `on_close` is
    /// called after it.
    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        let _ = out;
    }

    /// The connection is gone. Called once, after everything else, if `on_open` was called.
    fn on_close(&mut self, why: CloseReason) {
        let _ = why;
    }
}
/// What a session receives besides bytes.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mail {
    /// The timer set with [`Outbox::wake_at`] fired.
    Timer,
    /// The timer set with [`Outbox::set_timer`] under this key fired.
    KeyedTimer(u64),
    /// What was sent to the session's [`Mailbox`](crate::Mailbox); [`Recipient::unpack`](crate::Recipient::unpack)
    /// takes it out.
    Message(Message),
    /// A value sent to a [`Group`](crate::Group) the session is in; shared by all of them.
    Group(Arc<dyn Any + Send + Sync>),
    /// The result of an [offloaded](Outbox::offload) job.
    Done(Box<dyn Any + Send>),
    /// An offloaded job panicked.
    JobPanicked,
    /// What became of a connection that the session has [dialled](Outbox::dial): there is one, or why there is none.
    Dialled(Dialled),
    /// The [waker](Outbox::waker) of the session was called, once or several times, or its [link](crate::link) has
    /// something to do.
    Wake,
}

/// What became of a connection that a session has [dialled](Outbox::dial).
#[derive(Debug)]
#[non_exhaustive]
pub struct Dialled {
    /// The [tag](Dial::tag) of the dial, which tells several apart.
    pub tag: u64,
    /// The connection is established and has its session, or why there is none.
    pub result: io::Result<()>,
}

impl Mail {
    /// Whether [`Policy::mail_queue`](crate::Policy::mail_queue) bounds it. Results of jobs are bounded by the job
    /// queue, those of dials by the number of connections, and wake-ups to one for each connection. A group has asked
    /// for room before: a message is for all members or for none.
    pub(crate) fn is_bounded(&self) -> bool {
        !matches!(self, Self::Done(_) | Self::JobPanicked | Self::Dialled(_) | Self::Wake | Self::Group(_))
    }
}
