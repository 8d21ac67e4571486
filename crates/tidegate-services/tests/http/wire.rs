//! A connection without a network: what a test sends goes in, what the service answers comes out.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::proto::mail::{Job, MailSink, OffloadError, Workers};
use tidegate::proto::{Connection, Context, Event, NextStep, Receive, Table, Token};
use tidegate::stats::{Counters, Writers};
use tidegate::{CloseReason, Mail, MailboxError, Origin, Peer, Policy, SendError, Service};
use tidegate_services::{Http, HttpLimits, Page};

/// Takes no jobs.
struct NoWorkers;

impl Workers for NoWorkers {
    fn run(&self, _: Job) -> Result<(), OffloadError> {
        Err(OffloadError::NoThread)
    }
}

/// Nobody sends mail here.
struct NoMail;

impl MailSink for NoMail {
    fn post(&self, _: Token, mail: Mail) -> Result<(), SendError<Mail>> {
        Err(SendError::new(MailboxError::Stopped, mail))
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireState {
    Open,
    /// The last byte was sent and the sending side is finished; what comes is discarded.
    Lingers,
    Closed,
}

pub struct TestConnection {
    connection: Connection,
    policy: Policy,
    counters: Counters,
    mail_sink: Arc<dyn MailSink>,
    token: Token,
    pub now: Instant,
    pub state: WireState,
    /// Everything answered so far.
    pub output: Vec<u8>,
    /// Pieces in each send.
    pub pieces: Vec<usize>,
    /// Whether the peer reads what it is sent.
    pub reads: bool,
}

/// A page that is easy to tell from everything else.
pub const PAGE: &str = "<page>\n";

impl TestConnection {
    pub fn new() -> Self {
        Self::with(HttpLimits::default())
    }

    pub fn with(limits: HttpLimits) -> Self {
        Self::of(&Http::new(Page::new(PAGE, "text/html; charset=utf-8"), limits))
    }

    /// Under this policy, with the default limits of the service.
    pub fn under(policy: Policy) -> Self {
        Self { policy, ..Self::new() }
    }

    pub fn of(service: &Http) -> Self {
        let peer = Peer::accepted();
        let session = service.open(&peer).expect("the service takes everybody");
        let now = Instant::now();
        let mut wire = Self {
            connection: Connection::new(Box::new(session), Origin::Accepted, now),
            policy: Policy::default(),
            counters: Counters::new(Writers::One),
            mail_sink: Arc::new(NoMail),
            token: Table::default().insert(()),
            now,
            state: WireState::Open,
            output: Vec::new(),
            pieces: Vec::new(),
            reads: true,
        };
        wire.happens(Event::Opened);
        wire
    }

    fn happens(&mut self, event: Event<'_>) {
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
            let next = match action.then {
                NextStep::FinishSending => {
                    self.state = WireState::Lingers;
                    Event::SendFinished
                }
                NextStep::Close | NextStep::Reset => {
                    self.state = WireState::Closed;
                    return;
                }
                NextStep::Nothing | NextStep::CloseAfterSend if action.send && self.reads => {
                    let mut slices = [IoSlice::new(&[]); 1024];
                    let count = self.connection.queue().slices(&mut slices);
                    self.pieces.push(count);
                    let sent: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).collect();
                    self.output.extend_from_slice(&sent);
                    Event::Sent(sent.len())
                }
                NextStep::Nothing | NextStep::CloseAfterSend => return,
            };
            action = self.connection.handle(next, &context);
        }
    }

    /// The client sends these bytes, in one piece.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        if self.state != WireState::Closed {
            self.happens(Event::Received(bytes.as_ref()));
        }
    }

    /// The client finishes sending.
    pub fn end(&mut self) {
        self.happens(Event::PeerEnded);
    }

    /// The server is asked to stop.
    pub fn drain(&mut self) {
        self.happens(Event::Drain);
    }

    /// Why it was closed.
    pub fn closed_by(&self, why: CloseReason) -> bool {
        self.counters.closed[why as usize].get() == 1
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

    /// Bytes that wait for the client to read them.
    pub fn queued(&self) -> usize {
        self.connection.queue().len()
    }

    pub fn wants_input(&self) -> bool {
        self.connection.action().receive == Receive::Post
    }

    /// Everything answered, as text, with all Date fields made equal.
    pub fn text(&self) -> String {
        without_dates(&self.output)
    }

    /// The status codes answered, each of them with its body read past.
    pub fn statuses(&self) -> Vec<u16> {
        answers(&self.output).into_iter().map(|answer| answer.status).collect()
    }
}

pub fn without_dates(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut result = String::new();
    for line in text.split_inclusive("\r\n") {
        result.push_str(if line.starts_with("Date: ") { "Date: now\r\n" } else { line });
    }
    result
}

/// One answer, taken apart.
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        let is_it = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().find(is_it).map(|(_, value)| value.as_str())
    }
}

/// Takes a stream of answers apart; panics if it is not one. An answer to `HEAD` shows itself by what follows its head.
pub fn answers(mut stream: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !stream.is_empty() {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let head = response.parse(stream).expect("a valid head").unwrap();
        stream = &stream[head..];
        let status = response.code.unwrap();
        let fields: Vec<_> = response
            .headers
            .iter()
            .map(|h| (h.name.to_owned(), String::from_utf8_lossy(h.value).into_owned()))
            .collect();
        let mut answer = Answer { status, fields, body: String::new() };
        if status != 100 {
            let length: usize = answer.field("content-length").expect("a length").parse().unwrap();
            if !stream.is_empty() && !stream.starts_with(b"HTTP/1.1 ") {
                answer.body = String::from_utf8_lossy(&stream[..length]).into_owned();
                stream = &stream[length..];
            }
        }
        answers.push(answer);
    }
    answers
}
