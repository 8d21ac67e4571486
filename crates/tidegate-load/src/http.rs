//! HTTP sessions: one request after the other, each answer read to its last byte.

mod answer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Dial, Flow, Origin, Outbox, Peer, Refusal, Service, Session};

pub(crate) use answer::KnownHead;
use answer::{Answer, Step};

use crate::crew::{Crew, Stage};

/// Makes HTTP sessions.
pub(crate) struct HttpLoad {
    pub(crate) crew: Arc<Crew>,
    request: Bytes,
    keep_alive: bool,
    /// When each connection was dialled, in nanoseconds since the run began; for connections that carry one request.
    dialled_ns: Arc<[AtomicU64]>,
    /// Which connections of the plan have had their first attempt.
    first: Arc<[AtomicU64]>,
}

impl HttpLoad {
    pub(crate) fn new(crew: Arc<Crew>, host: &str, path: &str, keep_alive: bool) -> Self {
        let close = if keep_alive { "" } else { "Connection: close\r\n" };
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tidegate-load\r\n{close}\r\n");
        let zeros = || (0..crew.plan.connections).map(|_| AtomicU64::new(0)).collect();
        Self { request: request.into(), keep_alive, dialled_ns: zeros(), first: zeros(), crew }
    }

    /// Dials connection `tag` and notes when; the request it is to carry was taken from the budget before.
    pub(crate) fn dial(&self, tag: u64, thread: Option<usize>) {
        Again { crew: &self.crew, dialled_ns: &self.dialled_ns }.dial(tag, thread);
    }

    fn first_attempt_ended(&self, tag: u64, stands: bool) {
        let Some(first) = self.first.get(tag as usize) else { return };
        if first.swap(1, Relaxed) == 0 {
            self.crew.first_attempts_ended.fetch_add(1, Relaxed);
            self.crew.first_attempts_stand.fetch_add(u64::from(stands), Relaxed);
        }
    }
}

/// Dialling a connection of the plan once more.
struct Again<'a> {
    crew: &'a Crew,
    dialled_ns: &'a [AtomicU64],
}

impl Again<'_> {
    fn dial(&self, tag: u64, thread: Option<usize>) {
        if let Some(at) = self.dialled_ns.get(tag as usize) {
            at.store(self.crew.begun.elapsed().as_nanos() as u64, Relaxed);
        }
        self.crew.dial(tag, thread);
    }

    /// The next request of this place, on a connection of its own.
    fn next(&self, tag: u64, thread: usize) {
        if self.crew.may_begin() {
            self.crew.tally(thread).in_flight += 1;
            self.dial(tag, Some(thread));
        }
    }
}

/// One HTTP connection.
pub(crate) struct HttpSession {
    crew: Arc<Crew>,
    request: Bytes,
    dialled_ns: Arc<[AtomicU64]>,
    tag: u64,
    thread: usize,
    keep_alive: bool,
    answer: Answer,
    /// When the request in flight was begun.
    since: Option<Instant>,
    verified: bool,
}

impl Service for HttpLoad {
    type Session = HttpSession;

    fn open(&self, peer: &Peer) -> Result<HttpSession, Refusal> {
        let Origin::Dialled { tag } = peer.origin else { return Err(Refusal) };
        self.first_attempt_ended(tag, true);
        Ok(HttpSession {
            crew: self.crew.clone(),
            request: self.request.clone(),
            dialled_ns: self.dialled_ns.clone(),
            tag,
            thread: peer.thread,
            keep_alive: self.keep_alive,
            answer: Answer::default(),
            since: None,
            verified: false,
        })
    }

    fn dial_failed(&self, dial: &Dial, error: &std::io::Error) {
        let thread = dial.thread.unwrap_or(0);
        self.first_attempt_ended(dial.tag, false);
        if self.keep_alive {
            let mut tally = self.crew.tally(thread);
            tally.first_error.get_or_insert_with(|| format!("connecting failed: {error}"));
        } else {
            // The request this connection was to carry.
            self.crew.tally(thread).failed(1, || format!("connecting failed: {error}"));
            Again { crew: &self.crew, dialled_ns: &self.dialled_ns }.next(dial.tag, thread);
        }
    }
}

impl HttpSession {
    /// Begins a request on a connection that is kept.
    fn begin(&mut self, out: &mut Outbox<'_>) {
        let crew = self.crew.clone();
        if crew.may_begin() {
            let mut tally = crew.tally(self.thread);
            tally.in_flight += 1;
            self.send(out, Instant::now(), &mut tally);
        }
    }

    fn send(&mut self, out: &mut Outbox<'_>, since: Instant, tally: &mut crate::crew::Tally) {
        if self.crew.counts() {
            tally.bytes_sent += self.request.len() as u64;
        }
        self.since = Some(since);
        out.share(self.request.clone());
    }

    /// The whole answer is there. Returns whether it leaves the connection open.
    fn complete(&mut self, status: u16, open: bool, tally: &mut crate::crew::Tally) -> bool {
        let since = self.since.take();
        match (status, since) {
            (200..=299, Some(since)) => {
                if !std::mem::replace(&mut self.verified, true) {
                    tally.verified_connections += 1;
                }
                tally.answered(&self.crew, since);
            }
            (_, Some(_)) => {
                if let Some(class) = tally.failed_by_status.get_mut((status / 100).saturating_sub(1) as usize)
                {
                    *class += 1;
                }
                tally.failed(1, || format!("the answer had status {status}"));
            }
            (_, None) => {
                tally.wrong += 1;
                tally.first_error.get_or_insert_with(|| "an answer that was not asked for".into());
                return false;
            }
        }
        open
    }
}

impl Session for HttpSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.keep_alive {
            self.begin(out);
        } else {
            let ns = self.dialled_ns.get(self.tag as usize).map_or(0, |at| at.load(Relaxed));
            let crew = self.crew.clone();
            self.send(out, crew.begun + Duration::from_nanos(ns), &mut crew.tally(self.thread));
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let crew = self.crew.clone();
        let mut tally = crew.tally(self.thread);
        let mut used = 0;
        let mut begin = false;
        let mut flow = Flow::Continue;
        while used < input.len() {
            match self.answer.step(&input[used..], &mut tally.last_head) {
                Step::NeedsMore => break,
                Step::Used(n) => used += n,
                Step::Complete { used: n, status, open } => {
                    used += n;
                    if self.complete(status, open && self.keep_alive, &mut tally) {
                        begin = true;
                    } else {
                        flow = Flow::Close;
                        break;
                    }
                }
                Step::Wrong(why) => {
                    tally.wrong += 1;
                    if self.since.take().is_some() {
                        tally.failed(1, || format!("an answer could not be understood: {why}"));
                    }
                    flow = Flow::Abort;
                    break;
                }
            }
        }
        if crew.counts() {
            tally.bytes_received += used as u64;
        }
        drop(tally);
        if begin && flow == Flow::Continue {
            self.begin(out);
        }
        Consumed::bytes(used).then(flow)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        if let Some(status) = self.answer.ends_with_the_connection() {
            let crew = self.crew.clone();
            self.complete(status, false, &mut crew.tally(self.thread));
        }
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        if self.crew.is(Stage::Over) {
            return;
        }
        if self.since.take().is_some() {
            let tag = self.tag;
            self.crew
                .tally(self.thread)
                .failed(1, || format!("connection {tag}: closed before its answer was whole ({why})"));
        }
        let again = Again { crew: &self.crew, dialled_ns: &self.dialled_ns };
        if !self.keep_alive {
            again.next(self.tag, self.thread);
        } else if !self.crew.is(Stage::Draining) && !self.crew.is_spent() {
            self.crew.tally(self.thread).reconnects += 1;
            again.dial(self.tag, Some(self.thread));
        }
    }
}
