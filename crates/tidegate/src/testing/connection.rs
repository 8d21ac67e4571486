//! One connection without a socket, in virtual time controlled by the test.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TestDial;
use super::surroundings::Surroundings;
use crate::policy::Policy;
use crate::proto::mail::{Address, MailSink, Mailbox};
use crate::proto::table::{Table, Token};
use crate::proto::{Action, Connection, Context, Event, NextStep, Receive};
use crate::server::check;
use crate::service::{CloseReason, Mail, Peer, Recipient, Refusal, SendError, Service, Session};
use crate::stats::{Counters, Stats, Writers, sum};

/// The peer's address, used if the service [asks for it](crate::ServiceOptions::peer_addr).
const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 50_000);

/// The address of this end, where the service [asks for it](crate::ServiceOptions::local_addr).
const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), 80);

/// Things that may follow from one step of a test. More are taken for a session that never comes to rest.
const EVENTS: usize = 1_000_000;

/// Maximum bytes that the peer accepts in one step. More indicate a session that never stops producing.
const BYTES: usize = 256 << 20;

/// Whether a connection is open, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TestState {
    /// Open. The session may have finished sending, or may linger.
    Open,
    /// It was closed: the peer has seen the end of the stream.
    Closed,
    /// It was reset: the peer has seen an error.
    Reset,
}

/// A connection to a service, without a socket: the test plays the peer, the kernel, the clock and all other threads.
///
/// Each step does immediately everything an engine would do over time: it receives what has arrived (in pieces of
/// [`Policy::buffer_bytes`], unless the connection is held back), sends what the peer accepts, delivers mail, runs
/// [offloaded](crate::Outbox::offload) jobs and fires the timers that are due, until nothing is left to do.
///
/// # Panics
/// Each step panics if the session panics, so that an assertion in it fails the test (but see
/// [`allow_panics`](Self::allow_panics)), or if it never becomes idle: a million events, or 256 MiB, in one step.
pub struct TestConnection {
    connection: Connection,
    policy: Policy,
    counters: Arc<Counters>,
    surroundings: Arc<Surroundings>,
    sink: Arc<dyn MailSink>,
    token: Token,
    now: Instant,
    state: TestState,
    /// Arrived, and not received yet.
    arrived: VecDeque<u8>,
    end: PeerEnd,
    finished: bool,
    output: Vec<u8>,
    /// Bytes that the peer still accepts; `None` is unlimited.
    takes: Option<usize>,
    holds_jobs: bool,
    allows_panics: bool,
}

/// The peer's sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerEnd {
    Open,
    /// It has finished sending; earlier data is received first.
    Arriving,
    Received,
}

impl TestConnection {
    /// Opens an accepted connection under the default policy.
    ///
    /// # Errors
    /// The service refuses it.
    ///
    /// # Panics
    /// As [`open_with`](Self::open_with).
    #[track_caller]
    pub fn open<S: Service>(service: &S) -> Result<Self, Refusal> {
        let addr = service.options().peer_addr.then_some(PEER);
        let local = service.options().local_addr.then_some(LOCAL);
        let peer = Peer::accepted().with_addr(addr).with_local_addr(local);
        Self::open_with(service, &peer, Policy::default())
    }

    /// Opens a connection from or to this peer, under this policy.
    ///
    /// # Errors
    /// The service refuses it.
    ///
    /// # Panics
    /// The policy is invalid, or contradicts the [limits of the service](Service::check_limits):
    /// [`Server::bind`](crate::Server::bind) refuses it.
    #[track_caller]
    pub fn open_with<S: Service>(service: &S, peer: &Peer, policy: Policy) -> Result<Self, Refusal> {
        if let Err(why) = check(&policy, service.options().dials, |policy| service.check_limits(policy)) {
            panic!("a server does not start under this policy: {why}");
        }
        Ok(Self::of(Box::new(service.open(peer)?), peer, policy, Instant::now()).opened())
    }

    /// Opens an accepted connection of one session, under this policy. The limits are not checked: there is no service.
    #[must_use]
    pub fn of_session(session: impl Session, policy: Policy) -> Self {
        let peer = Peer::accepted().with_addr(Some(PEER));
        Self::of(Box::new(session), &peer, policy, Instant::now()).opened()
    }

    pub(super) fn of(session: Box<dyn Session>, peer: &Peer, policy: Policy, now: Instant) -> Self {
        let surroundings = Surroundings::new(&policy);
        Self {
            connection: Connection::new(session, peer.origin, now),
            policy,
            counters: Arc::new(Counters::new(Writers::One)),
            sink: surroundings.clone(),
            surroundings,
            token: Table::default().insert(()),
            now,
            state: TestState::Open,
            arrived: VecDeque::new(),
            end: PeerEnd::Open,
            finished: false,
            output: Vec::new(),
            takes: None,
            holds_jobs: false,
            allows_panics: false,
        }
    }

    pub(super) fn opened(mut self) -> Self {
        self.step(Some(Event::Opened));
        self
    }

    /// The peer sends bytes. They are received immediately, or when the connection is no longer held back.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.arrived.extend(bytes);
        self.settle();
    }

    /// The peer finishes sending, after what has arrived.
    pub fn half_close(&mut self) {
        if self.end == PeerEnd::Open {
            self.end = PeerEnd::Arriving;
        }
        self.settle();
    }

    /// The connection breaks, with an error such as [`io::ErrorKind::ConnectionReset`].
    pub fn fail(&mut self, error: io::ErrorKind) {
        self.step(Some(Event::Failed(error)));
    }

    /// From now on the peer accepts nothing: output stays in the outbox.
    pub fn stall(&mut self) {
        self.takes = Some(0);
    }

    /// The peer accepts this many more bytes, and then nothing.
    pub fn take(&mut self, bytes: usize) {
        self.takes = Some(bytes);
        self.settle();
    }

    /// The peer accepts everything again.
    pub fn resume(&mut self) {
        self.takes = None;
        self.settle();
    }

    /// Advances the time. Every timer and time limit due in it fires, at its time and in order.
    pub fn advance(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(at) = self.deadline().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.settle();
        }
        self.now = until;
        self.settle();
    }

    /// Sends a message to the session's [`Mailbox`], of the type that the session [declares](Recipient).
    ///
    /// # Errors
    /// None but what [`Mailbox::send`] has.
    pub fn deliver<M: Send + 'static>(&mut self, message: M) -> Result<(), SendError<M>> {
        let sent = Mailbox::of(self.address()).send(message);
        self.settle();
        sent
    }

    /// The address of the session. Mail sent to it is delivered with the next step.
    #[must_use]
    pub fn mailbox<S: Recipient>(&self) -> Mailbox<S::Message> {
        Mailbox::of(self.address())
    }

    fn address(&self) -> Address {
        Address { mail_sink: self.sink.clone(), token: self.token }
    }

    /// Does pending work, such as delivering mail from elsewhere.
    pub fn settle(&mut self) {
        self.step(None);
    }

    /// From now on jobs wait until [`run_jobs`](Self::run_jobs).
    pub fn hold_jobs(&mut self) {
        self.holds_jobs = true;
    }

    /// Runs the waiting jobs on this thread and delivers their results; returns their number.
    pub fn run_jobs(&mut self) -> usize {
        let count = self.surroundings.jobs();
        (0..count).filter_map(|_| self.surroundings.next_job()).for_each(|job| job());
        self.settle();
        count
    }

    /// Takes the oldest dial of the session that was not taken yet.
    pub fn next_dial(&mut self) -> Option<TestDial> {
        let request = self.surroundings.next_dial()?;
        Some(TestDial { request, policy: self.policy.clone(), now: self.now })
    }

    /// The server begins to stop.
    pub fn drain(&mut self) {
        self.step(Some(Event::Drain));
    }

    /// The server's [`drain_timeout`](Policy::drain_timeout) is over.
    pub fn stop(&mut self) {
        self.step(Some(Event::Stop));
    }

    /// A panic of the session ends its connection, as it does in a server, and not the test.
    pub fn allow_panics(&mut self) {
        self.allows_panics = true;
    }

    /// Everything the peer has received, since the beginning or the last [`take_output`](Self::take_output).
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The same, and removes it.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether it is open, and how it has ended.
    #[must_use]
    pub fn state(&self) -> TestState {
        self.state
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        CloseReason::ALL.iter().copied().find(|&why| self.counters.closed[why as usize].get() > 0)
    }

    /// Whether the session has finished sending: the peer has seen the end of the stream.
    #[must_use]
    pub fn has_finished_sending(&self) -> bool {
        self.finished || self.state == TestState::Closed
    }

    /// Whether input is received, and not held back.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        self.state == TestState::Open && self.connection.action().receive == Receive::Post
    }

    /// Bytes that have arrived and were not received yet.
    #[must_use]
    pub fn unreceived(&self) -> usize {
        self.arrived.len()
    }

    /// Bytes in the outbox.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.connection.queue().len()
    }

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the next timer or time limit comes due, if ever.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.state == TestState::Open { self.connection.deadline(&self.policy) } else { None }
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        sum(std::slice::from_ref(&self.counters))
    }

    /// Passes an event to the connection, and does everything that follows.
    fn step(&mut self, mut event: Option<Event<'_>>) {
        let mut bytes = BYTES;
        for _ in 0..EVENTS {
            if self.state != TestState::Open {
                return;
            }
            let action = match event.take() {
                Some(event) => self.handle(event),
                None => self.connection.action(),
            };
            let mut received = Vec::new();
            event = match action.then {
                NextStep::Close | NextStep::Reset => {
                    let closed = action.then == NextStep::Close;
                    self.state = if closed { TestState::Closed } else { TestState::Reset };
                    return;
                }
                NextStep::FinishSending => {
                    self.finished = true;
                    Some(Event::SendFinished)
                }
                _ if action.send && self.takes != Some(0) => Some(self.send(&mut bytes)),
                _ => self.next_event(action, &mut received),
            };
            if !received.is_empty() {
                self.handle(Event::Received(&received));
            } else if event.is_none() {
                return;
            }
        }
        panic!("the session never becomes idle: it mails or wakes itself, or produces output, without end");
    }

    /// The next thing to receive or deliver; input is put into `received`.
    fn next_event(&mut self, action: Action, received: &mut Vec<u8>) -> Option<Event<'static>> {
        if !self.holds_jobs
            && let Some(job) = self.surroundings.next_job()
        {
            job();
        }
        if let Some(mail) = self.surroundings.next_mail() {
            return Some(Event::Mail(Mail::into(mail)));
        }
        if self.deadline().is_some_and(|at| at <= self.now) {
            return Some(Event::Deadline);
        }
        if action.receive == Receive::Pause {
            return None;
        }
        if !self.arrived.is_empty() {
            let n = self.arrived.len().min(self.policy.buffer_bytes);
            received.extend(self.arrived.drain(..n));
            return None;
        }
        if self.end == PeerEnd::Arriving {
            self.end = PeerEnd::Received;
            return Some(Event::PeerEnded);
        }
        None
    }

    /// Sends once, as much as the peer accepts.
    fn send(&mut self, budget: &mut usize) -> Event<'static> {
        if let Err(e) = self.connection.load_file() {
            return Event::Failed(e.kind());
        }
        let mut slices = [IoSlice::new(&[]); 64];
        let count = self.connection.queue().slices(&mut slices);
        let mut room = self.takes.unwrap_or(usize::MAX);
        let before = self.output.len();
        for slice in &slices[..count] {
            let n = slice.len().min(room);
            self.output.extend_from_slice(&slice[..n]);
            room -= n;
        }
        let sent = self.output.len() - before;
        self.takes = self.takes.map(|takes| takes - sent);
        *budget = budget.checked_sub(sent).expect(
            "the session produced more than 256 MiB in one step; if that is intended, `take` its output piece by piece",
        );
        Event::Sent(sent)
    }

    fn handle(&mut self, event: Event<'_>) -> Action {
        let context = Context {
            now: self.now,
            timestamp: self.now.into(),
            policy: &self.policy,
            counters: &self.counters,
            mail_sink: &self.sink,
            workers: &*self.surroundings,
            token: self.token,
        };
        let action = self.connection.handle(event, &context);
        let panicked = self.counters.closed[CloseReason::Panicked as usize].get() > 0;
        assert!(!panicked || self.allows_panics, "the session panicked");
        action
    }
}

impl Drop for TestConnection {
    fn drop(&mut self) {
        self.surroundings.clear();
    }
}

impl std::fmt::Debug for TestConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestConnection")
            .field("state", &self.state)
            .field("close_reason", &self.close_reason())
            .field("output", &self.output.len())
            .field("queued", &self.queued())
            .field("unreceived", &self.arrived.len())
            .finish_non_exhaustive()
    }
}
