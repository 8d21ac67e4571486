//! A request for an outgoing connection, and how its result is reported.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tidegate_os::endpoint::ParseEndpointError;

use super::mail::{Address, MailboxError};
use super::panics::{Contained, contain};
#[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
use super::table::Token;
use crate::proto::erased::ErasedService;
use crate::proto::session::{Dialled, Mail, Session};
use crate::stats::Counters;
use crate::types::Dial;

/// Why nothing was dialled: neither mail nor [`Service::dial_failed`](crate::Service::dial_failed) follows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DialError {
    /// The text is not an address.
    Address(ParseEndpointError),
    /// The I/O thread takes no dial now, or none any more.
    Queue(MailboxError),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(e) => e.fmt(f),
            Self::Queue(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for DialError {}

impl From<ParseEndpointError> for DialError {
    fn from(e: ParseEndpointError) -> Self {
        Self::Address(e)
    }
}

impl From<MailboxError> for DialError {
    fn from(e: MailboxError) -> Self {
        Self::Queue(e)
    }
}

/// An address that is one already: `dial` takes it as it takes text.
impl From<Infallible> for DialError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A request for an outgoing connection, from a [`Dialler`](crate::Dialler) or from a session
/// ([`Outbox::dial`](crate::Outbox::dial)).
#[derive(Debug)]
pub struct DialRequest {
    dial: Dial,
    asker: Option<Box<Asker>>,
}

/// The session that asked, and the session for the new connection. Reports failure when dropped unanswered.
struct Asker {
    address: Address,
    tag: u64,
    /// Never locked: the mutex only makes a `Send` value `Sync`.
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
    pub(super) fn of(address: Address, dial: Dial, until: Instant, session: Box<dyn Session>) -> Self {
        let session = Mutex::new(Some(session.into()));
        let asker = Asker { address, tag: dial.tag, session, until, answered: false };
        Self { dial, asker: Some(Box::new(asker)) }
    }

    /// The dial's parameters.
    pub(crate) fn dial(&self) -> &Dial {
        &self.dial
    }

    /// Whether a session asked for it.
    pub(crate) fn is_by_session(&self) -> bool {
        self.asker.is_some()
    }

    /// The deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asker.as_ref().map(|asker| asker.until)
    }

    /// The timeout error, if the deadline has passed.
    pub(crate) fn is_late(&self, now: Instant) -> Option<io::Error> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "connect timed out");
        self.deadline().filter(|&at| at <= now).map(|_| late())
    }

    /// The session for the new connection, if the service is not to create it.
    pub(crate) fn take_session(&mut self) -> Option<Box<dyn Session>> {
        let session = self.asker.as_mut()?.session.get_mut();
        session.unwrap_or_else(PoisonError::into_inner).take().map(Contained::into_inner)
    }

    /// Wraps the session, which the simulation observes. `wrap` gets the token of the session that asked.
    #[cfg(all(any(test, feature = "testing"), target_os = "linux", not(tidegate_loom)))]
    pub(crate) fn wrap_session(
        mut self,
        wrap: impl FnOnce(Token, &Dial, Box<dyn Session>) -> Box<dyn Session>,
    ) -> Self {
        if let Some(session) = self.take_session()
            && let Some(asker) = &mut self.asker
        {
            let wrapped = wrap(asker.address.token, &self.dial, session);
            asker.session = Mutex::new(Some(wrapped.into()));
        }
        self
    }

    /// Reports success.
    pub(crate) fn connected(mut self) {
        if let Some(asker) = &mut self.asker {
            asker.answer(Ok(()));
        }
    }

    /// The request was not queued. The caller knows from the returned error: no mail follows.
    pub(crate) fn refused(mut self) {
        if let Some(asker) = &mut self.asker {
            asker.answered = true;
        }
    }

    /// Reports failure to the session that asked, if one did.
    pub(crate) fn answer_failure(mut self, error: io::Error) {
        if let Some(asker) = &mut self.asker {
            asker.answer(Err(error));
        }
    }

    /// Counts a failure and reports it.
    pub(crate) fn failed(mut self, service: &dyn ErasedService, counters: &Counters, error: io::Error) {
        counters.dial_failed.add(1);
        match &mut self.asker {
            Some(asker) => asker.answer(Err(error)),
            None => _ = contain(|| service.dial_failed(&self.dial, &error)),
        }
    }
}

impl Asker {
    fn answer(&mut self, result: io::Result<()>) {
        self.answered = true;
        // Only a thread that has stopped does not take it, and its sessions are gone.
        let _ = self.address.post(Mail::Dialled(Dialled { tag: self.tag, result }));
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(io::Error::new(io::ErrorKind::NotConnected, "the server has stopped")));
        }
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Asker").field(&self.address).finish()
    }
}
