//! Addresses of sessions, used by other sessions and threads.

use std::any::{Any, type_name};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::task::Wake;

use super::dial::DialRequest;
use super::table::Token;
use crate::proto::outbox::Outbox;
use crate::proto::session::Mail;

/// Takes mail for the connections of one thread. Implemented by the engines.
pub trait MailSink: Send + Sync {
    /// Queues mail for a connection and wakes its thread if it sleeps.
    fn post(&self, to: Token, mail: Mail) -> Result<(), SendError<Mail>>;

    /// Queues a dial for this thread, or one of the same kind. A request that is not queued is refused, so that no mail
    /// follows.
    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        request.refused();
        Err(MailboxError::Stopped)
    }

    /// Whether this many more pieces of mail fit. A sink without a queue always has room.
    fn has_room(&self, pieces: usize) -> bool {
        let _ = pieces;
        true
    }

    /// Queues the same mail for several connections; callers check [room](Self::has_room) before. A sink of many
    /// connections queues it once.
    fn post_all(&self, to: &Arc<Vec<Token>>, message: &Arc<dyn Any + Send + Sync>) {
        for &token in &**to {
            // Mail is refused only by a thread that has stopped, and its connections are gone.
            let _ = self.post(token, Mail::Group(message.clone()));
        }
    }
}

/// A job that a session offloads.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs away from the I/O threads. Implemented by the engines.
pub trait Workers: Send + Sync {
    /// Queues a job.
    fn run(&self, job: Job) -> Result<(), OffloadError>;
}

/// Why a job was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffloadError {
    /// The queue is full ([`Offload::queue`](crate::policy::Offload::queue)): reply that the server is busy, or retry
    /// later.
    Full,
    /// No worker thread could be started.
    NoThread,
}

impl fmt::Display for OffloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => {
                "the queue of offloaded jobs is full; reply busy, or raise offload.queue or offload.threads"
            }
            Self::NoThread => {
                "no worker thread could be started; lower the number of threads or raise the system's limit"
            }
        })
    }
}

impl std::error::Error for OffloadError {}

/// Where the mail of one session goes.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) mail_sink: Arc<dyn MailSink>,
    pub(crate) token: Token,
}

impl Address {
    /// Queues mail for the session, and wakes its thread if it sleeps.
    pub(crate) fn post(&self, mail: Mail) -> Result<(), SendError<Mail>> {
        self.mail_sink.post(self.token, mail)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.token).finish()
    }
}

/// The address of one session; sends it messages of one type, from any thread. Get it from [`Recipient::mailbox`].
pub struct Mailbox<M> {
    address: Address,
    takes: PhantomData<fn(M)>,
}

impl<M: Send + 'static> Mailbox<M> {
    /// Sends a message; the session gets it as [`Mail::Message`] on its own thread. Mail to a session
    /// that is gone, or goes before it is read, is dropped.
    ///
    /// # Errors
    /// [`SendError`], with the message, when the thread has stopped or its mail queue is full.
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        let Err(SendError { error, message }) = self.address.post(Mail::Message(Message::new(message)))
        else {
            return Ok(());
        };
        let Mail::Message(Message(message)) = message else {
            unreachable!("a sink gives back what it was given")
        };
        let message = message.downcast().expect("a sink gives back what it was given");
        Err(SendError { error, message: *message })
    }
}

impl<M> Mailbox<M> {
    pub(crate) fn of(address: Address) -> Self {
        Self { address, takes: PhantomData }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self::of(self.address.clone())
    }
}

impl<M> fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mailbox").field(&self.address.token).finish()
    }
}

/// Declares the type of the messages that a session gets.
///
/// The session's mailbox takes only that type, and only that type comes out of its [`Mail::Message`]: code that sends
/// or expects another one does not compile. A part of a session that asks for mail itself may implement it, too.
///
/// ```
/// use tidegate::{Consumed, Flow, Mail, Mailbox, Outbox, Recipient, Session};
///
/// /// Shows prices, which another thread sends to its mailbox.
/// struct Ticker {
///     subscribe: std::sync::mpsc::Sender<Mailbox<u32>>,
/// }
///
/// impl Recipient for Ticker {
///     type Message = u32;
/// }
///
/// impl Session for Ticker {
///     fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
///         match self.subscribe.send(Self::mailbox(out)) {
///             Ok(()) => Flow::Continue,
///             Err(_) => Flow::Close, // there are no prices any more
///         }
///     }
///
///     fn on_mail(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Flow {
///         if let Mail::Message(message) = mail {
///             let cents: u32 = Self::unpack(message);
///             out.write(format!("{}.{:02}\n", cents / 100, cents % 100).as_bytes());
///         }
///         Flow::Continue
///     }
///
///     fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
///         Consumed::all(input)
///     }
/// }
///
/// # use tidegate::{Policy, testing::TestConnection};
/// let (subscribe, subscribers) = std::sync::mpsc::channel();
/// let mut conn = TestConnection::of_session(Ticker { subscribe }, Policy::default());
/// let mailbox = subscribers.recv().unwrap();
/// mailbox.send(1999).unwrap();
/// conn.settle();
/// assert_eq!(conn.output(), b"19.99\n");
/// ```
///
/// Another type is refused by the compiler:
///
/// ```compile_fail,E0308
/// # struct Ticker;
/// # impl tidegate::Recipient for Ticker { type Message = u32; }
/// fn send(mailbox: &tidegate::Mailbox<u32>) {
///     let _ = mailbox.send("19.99");
/// }
/// ```
///
/// ```compile_fail,E0308
/// # struct Ticker;
/// # impl tidegate::Recipient for Ticker { type Message = u32; }
/// # use tidegate::{Message, Recipient};
/// fn receive(message: Message) -> String {
///     Ticker::unpack(message)
/// }
/// ```
pub trait Recipient {
    /// What its [`Mailbox`] takes. Several kinds are the variants of an enum.
    type Message: Send + 'static;

    /// The address under which other sessions and threads reach the session that is called with this outbox.
    #[must_use]
    fn mailbox(out: &Outbox<'_>) -> Mailbox<Self::Message> {
        Mailbox::of(out.address())
    }

    /// The message in a [`Mail::Message`].
    ///
    /// # Panics
    /// If the mailbox of this session was made by another recipient, of another type: within one session, all that
    /// make or read mail declare the same.
    #[must_use]
    fn unpack(message: Message) -> Self::Message {
        *message.0.downcast().unwrap_or_else(|_| {
            let expected = type_name::<Self::Message>();
            panic!("a session that reads messages of type {expected} has given out a mailbox of another type")
        })
    }
}

/// A message on its way, until its [recipient](Recipient::unpack) takes it.
#[derive(Debug)]
pub struct Message(Box<dyn Any + Send>);

impl Message {
    /// What [`Mailbox::send`] makes of a message; for tests that bring mail in another way.
    #[must_use]
    pub fn new<M: Send + 'static>(message: M) -> Self {
        Self(Box::new(message))
    }
}

/// Wakes one session from any thread; see [`Outbox::waker`](crate::Outbox::waker).
#[derive(Debug)]
pub(super) struct SessionWaker {
    address: Address,
    /// Mail is on its way.
    pending: AtomicBool,
}

impl SessionWaker {
    pub(super) fn new(address: Address) -> Self {
        Self { address, pending: AtomicBool::new(false) }
    }

    /// The wake-up was delivered: the next call queues another one.
    pub(super) fn arrived(&self) {
        self.pending.store(false, Release);
    }
}

impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.pending.swap(true, AcqRel) {
            // Only a thread that has stopped does not take it, and its sessions are gone.
            let _ = self.address.post(Mail::Wake);
        }
    }
}

/// Why mail was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MailboxError {
    /// The thread's queue is full ([`Policy::mail_queue`](crate::Policy::mail_queue)); retry later.
    Full,
    /// The thread has stopped.
    Stopped,
}

impl fmt::Display for MailboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the mail queue of the I/O thread is full; send less or raise mail_queue",
            Self::Stopped => "the I/O thread has stopped",
        })
    }
}

impl std::error::Error for MailboxError {}

/// A message that was not queued, and why.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendError<M> {
    /// Why.
    pub error: MailboxError,
    /// The message, for another try.
    pub message: M,
}

impl<M> SendError<M> {
    /// What becomes of a message that is refused for this reason.
    pub fn new(error: MailboxError, message: M) -> Self {
        Self { error, message }
    }
}

impl<M> From<SendError<M>> for MailboxError {
    fn from(refused: SendError<M>) -> Self {
        refused.error
    }
}

impl<M> fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for SendError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for SendError<M> {}
