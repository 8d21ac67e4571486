//! Addresses of sessions, for other sessions and threads.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Release};
use std::task::Wake;

use super::dial::DialRequest;
use super::table::Token;
use crate::service::Mail;

/// Takes mail for the connections of one thread. Implemented by the engines.
pub trait MailSink: Send + Sync {
    /// Queues mail for a connection and wakes its thread if it sleeps.
    fn post(&self, to: Token, mail: Mail) -> Result<(), MailboxError>;

    /// Has a connection made on the thread of its connections, or by a thread like that.
    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        let _ = request;
        Err(MailboxError::Stopped)
    }

    /// Whether it takes so many more pieces of mail. One that holds none takes any number.
    fn has_room(&self, pieces: usize) -> bool {
        let _ = pieces;
        true
    }

    /// Queues the same for several connections; who asks whether there is [room](Self::has_room) does so before. An
    /// office of many connections queues it once.
    fn post_all(&self, to: &Arc<Vec<Token>>, message: &Arc<dyn Any + Send + Sync>) {
        for &token in &**to {
            // Only a thread that has stopped does not take it, and its connections are gone.
            let _ = self.post(token, Mail::Group(message.clone()));
        }
    }
}

/// Work that a session gives away.
pub type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs away from the I/O threads. Implemented by the engines.
pub trait Workers: Send + Sync {
    /// Queues a job.
    fn run(&self, job: Job) -> Result<(), OffloadError>;
}

/// A job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffloadError {
    /// The queue is at its bound ([`Offload::queue`](crate::policy::Offload::queue)): answer that the server is busy,
    /// or try later.
    #[error("the queue of offloaded jobs is full; answer busy, or raise offload.queue or offload.threads")]
    Full,
    /// Not one worker thread could be started.
    #[error("no worker thread could be started; lower the number of threads or raise the system's limit")]
    NoThread,
}

/// The address of one session; sends it values from any thread. Get it from
/// [`Outbox::mailbox`](crate::Outbox::mailbox).
#[derive(Clone)]
pub struct Mailbox {
    pub(crate) office: Arc<dyn MailSink>,
    pub(crate) token: Token,
}

impl Mailbox {
    /// Sends a value; the session gets it as [`Mail::Message`] on its own thread. Mail to a session
    /// that is gone, or goes before it is read, is dropped.
    ///
    /// # Errors
    /// [`MailboxError`] when the thread has stopped or its mail queue is full; the value is lost.
    pub fn send(&self, message: impl Any + Send) -> Result<(), MailboxError> {
        self.office.post(self.token, Mail::Message(Box::new(message)))
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mailbox").field(&self.token).finish()
    }
}

/// Wakes one session from any thread; see [`Outbox::waker`](crate::Outbox::waker).
#[derive(Debug)]
pub(super) struct SessionWaker {
    mailbox: Mailbox,
    /// Mail is on its way.
    pending: AtomicBool,
}

impl SessionWaker {
    pub(super) fn new(mailbox: Mailbox) -> Self {
        Self { mailbox, pending: AtomicBool::new(false) }
    }

    /// The mail has arrived: from now on another one may follow.
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
            let _ = self.mailbox.office.post(self.mailbox.token, Mail::Wake);
        }
    }
}

/// Mail was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailboxError {
    /// The thread's queue is at its bound ([`Policy::mail_queue`](crate::Policy::mail_queue)); try again later.
    #[error("the mail queue of the I/O thread is full; send less or raise mail_queue")]
    Full,
    /// The thread has stopped.
    #[error("the I/O thread has stopped")]
    Stopped,
}
