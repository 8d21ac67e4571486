//! A connection without a network, for any service: what a test sends goes in, what the session answers comes out.
//!
//! The fuzz targets use it too (`fuzz/bodies`).
#![allow(dead_code, reason = "not every user uses all of it")]

use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tidegate::proto::mail::{Job, MailSink, OffloadError, Workers};
use tidegate::proto::{Connection, Context, Event, NextStep, Receive, Table, Token};
use tidegate::stats::{Counters, Writers};
use tidegate::{CloseReason, Mail, Origin, Peer, Policy, SendError, Service};

/// Mail that sessions sent, until it is [delivered](TestConnection::deliver); and how much of it there is room for.
struct Office(Mutex<Vec<Mail>>, usize);

impl MailSink for Office {
    fn post(&self, _: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        self.0.lock().expect("nobody panics under the lock").push(mail);
        Ok(())
    }

    fn has_room(&self, pieces: usize) -> bool {
        self.0.lock().is_ok_and(|letters| letters.is_empty() || letters.len() + pieces <= self.1)
    }
}

/// Nobody offloads anything here.
pub struct NoWorkers;

impl Workers for NoWorkers {
    fn run(&self, _: Job) -> Result<(), OffloadError> {
        Err(OffloadError::NoThread)
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    Open,
    Closed,
    Reset,
}

pub struct TestConnection {
    connection: Connection,
    policy: Policy,
    pub counters: Counters,
    letters: Arc<Office>,
    mail_sink: Arc<dyn MailSink>,
    token: Token,
    pub now: Instant,
    pub state: WireState,
    /// The sending side was finished.
    pub finished: bool,
    /// Everything answered so far.
    pub output: Vec<u8>,
    /// Whether the peer reads what it is sent.
    pub reads: bool,
}

/// The address of every socket here.
pub const SOCKET: &str = "198.51.100.1:1";

pub fn peer(origin: Origin) -> Peer {
    let peer = match origin {
        Origin::Accepted => Peer::accepted(),
        Origin::Dialled { tag } => Peer::dialled(tag),
        other => panic!("no peer here is {other:?}"),
    };
    peer.with_addr(SOCKET.parse().ok()).with_thread(3)
}

impl TestConnection {
    /// An accepted connection to the service.
    pub fn to(service: &impl Service, policy: Policy) -> Self {
        Self::of(service, policy, Origin::Accepted)
    }

    pub fn of(service: &impl Service, policy: Policy, origin: Origin) -> Self {
        let session = service.open(&peer(origin)).expect("the service takes everybody");
        let now = Instant::now();
        let letters = Arc::new(Office(Mutex::default(), policy.mail_queue));
        let mut wire = Self {
            connection: Connection::new(Box::new(session), origin, now),
            policy,
            counters: Counters::new(Writers::One),
            mail_sink: letters.clone(),
            letters,
            token: Table::default().insert(()),
            now,
            state: WireState::Open,
            finished: false,
            output: Vec::new(),
            reads: true,
        };
        wire.happens(Event::Opened);
        wire
    }

    pub fn happens(&mut self, event: Event<'_>) {
        let context = Context {
            now: self.now,
            timestamp: self.now.into(),
            policy: &self.policy,
            counters: &self.counters,
            mail_sink: &self.mail_sink,
            workers: &NoWorkers,
            token: self.token,
        };
        let mut action = self.connection.handle(event, &context);
        loop {
            // A panic ends its connection only; here it is an assertion that did not hold.
            let panicked = self.counters.closed[CloseReason::Panicked as usize].get();
            assert_eq!(panicked, 0, "the session panicked");
            let next = match action.then {
                NextStep::FinishSending => {
                    self.finished = true;
                    Event::SendFinished
                }
                NextStep::Close => return self.state = WireState::Closed,
                NextStep::Reset => return self.state = WireState::Reset,
                NextStep::Nothing | NextStep::CloseAfterSend if action.send && self.reads => {
                    let mut slices = [IoSlice::new(&[]); 64];
                    let count = self.connection.queue().slices(&mut slices);
                    let before = self.output.len();
                    slices.iter().take(count).for_each(|slice| self.output.extend_from_slice(slice));
                    Event::Sent(self.output.len() - before)
                }
                NextStep::Nothing | NextStep::CloseAfterSend => return,
            };
            action = self.connection.handle(next, &context);
        }
    }

    /// The peer sends these bytes, in one piece.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if self.state == WireState::Open {
            self.happens(Event::Received(bytes.as_ref()));
        }
    }

    /// The peer finishes sending.
    pub fn end(&mut self) {
        if self.state == WireState::Open {
            self.happens(Event::PeerEnded);
        }
    }

    /// The peer reads again what it is sent.
    pub fn read(&mut self) {
        self.reads = true;
        self.happens(Event::Sent(0));
    }

    /// Time passes, and what is due happens.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        if self.deadline().is_some_and(|at| at <= self.now) {
            self.happens(Event::Deadline);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.connection.deadline(&self.policy)
    }

    /// Mail that was sent arrives.
    pub fn deliver(&mut self) {
        let letters = std::mem::take(&mut *self.letters.0.lock().expect("nothing panics under the lock"));
        for letter in letters {
            self.happens(Event::Mail(letter.into()));
        }
    }

    /// Bytes that wait for the peer to read them.
    pub fn queued(&self) -> usize {
        self.connection.queue().len()
    }

    pub fn wants_input(&self) -> bool {
        self.connection.action().receive == Receive::Post
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }
}
