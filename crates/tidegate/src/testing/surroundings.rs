//! The environment of a connection in a test: receives its mail, its jobs and its dials.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::TestConnection;
use crate::policy::Policy;
use crate::proto::dial::DialRequest;
use crate::proto::mail::{Job, MailSink, MailboxError, OffloadError, SendError, Workers};
use crate::proto::table::Token;
use crate::service::{Dial, Mail, Peer};

/// Mail, jobs and dials, until they are handled; bounded by the policy.
pub(super) struct Surroundings {
    waiting: Mutex<PendingWork>,
    most_mail: usize,
    most_jobs: usize,
}

#[derive(Default)]
struct PendingWork {
    mail: VecDeque<Mail>,
    /// Mail that counts towards the bound.
    bounded: usize,
    jobs: VecDeque<Job>,
    dials: VecDeque<DialRequest>,
}

impl Surroundings {
    pub(super) fn new(policy: &Policy) -> Arc<Self> {
        let (most_mail, most_jobs) = (policy.mail_queue, policy.offload.queue);
        Arc::new(Self { waiting: Mutex::default(), most_mail, most_jobs })
    }

    fn lock(&self) -> MutexGuard<'_, PendingWork> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn next_mail(&self) -> Option<Mail> {
        let mut waiting = self.lock();
        let mail = waiting.mail.pop_front()?;
        waiting.bounded -= usize::from(mail.is_bounded());
        Some(mail)
    }

    pub(super) fn next_job(&self) -> Option<Job> {
        self.lock().jobs.pop_front()
    }

    pub(super) fn jobs(&self) -> usize {
        self.lock().jobs.len()
    }

    /// Drops what is queued, which breaks the reference cycle through the session's addresses.
    pub(super) fn clear(&self) {
        while self.next_dial().is_some() {}
        while self.next_job().is_some() {}
        while self.next_mail().is_some() {}
    }

    pub(super) fn next_dial(&self) -> Option<DialRequest> {
        self.lock().dials.pop_front()
    }
}

impl MailSink for Surroundings {
    fn post(&self, _: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        let mut waiting = self.lock();
        if mail.is_bounded() {
            if waiting.bounded >= self.most_mail {
                return Err(SendError { error: MailboxError::Full, message: mail });
            }
            waiting.bounded += 1;
        }
        waiting.mail.push_back(mail);
        Ok(())
    }

    fn dial(&self, request: DialRequest) -> Result<(), MailboxError> {
        let mut waiting = self.lock();
        if waiting.dials.len() >= self.most_mail {
            drop(waiting); // its session is the application's, and is dropped without the lock
            request.refused();
            return Err(MailboxError::Full);
        }
        waiting.dials.push_back(request);
        Ok(())
    }

    fn has_room(&self, pieces: usize) -> bool {
        let waiting = self.lock().mail.len();
        waiting == 0 || waiting + pieces <= self.most_mail
    }
}

impl Workers for Surroundings {
    fn run(&self, job: Job) -> Result<(), OffloadError> {
        let mut waiting = self.lock();
        if waiting.jobs.len() >= self.most_jobs {
            return Err(OffloadError::Full);
        }
        waiting.jobs.push_back(job);
        Ok(())
    }
}

/// A dial of a session ([`Outbox::dial`](crate::Outbox::dial)): the test decides its outcome. It fails when dropped.
///
/// The session that asked is notified with the next step of its [`TestConnection`].
#[derive(Debug)]
#[must_use = "a dial that is dropped fails"]
pub struct TestDial {
    pub(super) request: DialRequest,
    pub(super) policy: Policy,
    pub(super) now: Instant,
}

impl TestDial {
    /// The parameters of the dial.
    #[must_use]
    pub fn dial(&self) -> &Dial {
        self.request.dial()
    }

    /// Establishes the connection: the test plays its other end.
    ///
    /// # Panics
    /// Never: a session that dials provides the session of the new connection.
    #[must_use]
    pub fn connect(mut self) -> TestConnection {
        let dial = self.request.dial();
        let peer = Peer::dialled(dial.tag).with_addr(dial.to.addr());
        let session = self.request.take_session().expect("a session dials with a session");
        let connection = TestConnection::of(session, &peer, self.policy, self.now);
        self.request.connected();
        connection.opened()
    }

    /// Makes the dial fail.
    pub fn fail(self, error: io::Error) {
        self.request.answer_failure(error);
    }
}
