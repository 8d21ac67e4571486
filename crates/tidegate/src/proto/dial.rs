//! A connection to be made, and who is told what became of it.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::mail::Mailbox;
use super::panics::{Contained, contain};
use crate::service::{Dial, ErasedService, Mail, Session};
use crate::stats::Counters;

/// A connection to be made: asked for by a [`Dialler`](crate::Dialler), or by a session
/// ([`Outbox::dial`](crate::Outbox::dial)).
#[derive(Debug)]
pub struct DialRequest {
    dial: Dial,
    asker: Option<Box<Asker>>,
}

/// The session that asked, and the one that is to have the connection. Answers when dropped, if nobody has.
struct Asker {
    mailbox: Mailbox,
    /// Locked by nobody: it makes what may only be sent shareable.
    session: Mutex<Option<Contained<Box<dyn Session>>>>,
    until: Instant,
    answered: bool,
}

impl From<Dial> for DialRequest {
    fn from(dial: Dial) -> Self {
        Self { dial, asker: None }
    }
}

impl DialRequest {
    /// What a session asks for: `session` gets the connection, if there is one by `until`.
    pub(super) fn of(mailbox: Mailbox, dial: Dial, until: Instant, session: Box<dyn Session>) -> Self {
        let asker = Asker { mailbox, session: Mutex::new(Some(session.into())), until, answered: false };
        Self { dial, asker: Some(Box::new(asker)) }
    }

    /// What is to be dialled.
    pub(crate) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Whether a session has asked.
    pub(crate) fn is_by_session(&self) -> bool {
        self.asker.is_some()
    }

    /// When to give up.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asker.as_ref().map(|asker| asker.until)
    }

    /// The error of an attempt that is not over by now, if it should be.
    pub(crate) fn is_late(&self, now: Instant) -> Option<io::Error> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "not connected within the time given");
        self.deadline().filter(|&at| at <= now).map(|_| late())
    }

    /// The session that is to have the connection, if the service is not to make it.
    pub(crate) fn take_session(&mut self) -> Option<Box<dyn Session>> {
        let session = self.asker.as_mut()?.session.get_mut();
        session.unwrap_or_else(PoisonError::into_inner).take().map(Contained::into_inner)
    }

    /// There is a connection, under this address.
    pub(crate) fn connected(mut self, at: impl FnOnce() -> Mailbox) {
        if let Some(asker) = &mut self.asker {
            asker.answer(Ok(at()));
        }
    }

    /// There is none: counts that, and tells who asked.
    pub(crate) fn failed(mut self, service: &dyn ErasedService, counters: &Counters, error: io::Error) {
        counters.dial_failed.add(1);
        match &mut self.asker {
            Some(asker) => asker.answer(Err(error)),
            None => _ = contain(|| service.dial_failed(&self.dial, &error)),
        }
    }
}

impl Asker {
    fn answer(&mut self, outcome: io::Result<Mailbox>) {
        self.answered = true;
        // Only a thread that has stopped does not take it, and its sessions are gone.
        let _ = self.mailbox.office.post(self.mailbox.token, Mail::Dialled(outcome));
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(io::Error::other("the server has stopped")));
        }
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Asker").field(&self.mailbox).finish()
    }
}
