//! HTTP sessions: requests out, each answer read to its last byte.

mod answer;
mod dialling;
mod search;
mod service;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Session};

pub(crate) use answer::KnownHead;
pub(crate) use service::HttpLoad;

use answer::{Answer, Step};
use dialling::Places;
use search::Search;

use crate::crew::{Crew, Stage};
use crate::pacer::WakeUp;
use crate::plan::HttpShape;
use crate::tally::{Cause, Flight, Tally};

/// What all HTTP sessions of a run share.
struct Common {
    crew: Arc<Crew>,
    shape: HttpShape,
    /// The bytes of the requests, one for each path.
    requests: Vec<Bytes>,
    places: Places,
}

/// One HTTP connection.
pub(crate) struct HttpSession {
    common: Arc<Common>,
    tag: u64,
    thread: usize,
    answer: Answer,
    /// The request whose answer comes next, and those behind it: without pipelining there are none.
    flight: Option<Flight>,
    behind: VecDeque<Flight>,
    wake_up: WakeUp,
    /// Which path comes next.
    path: usize,
    search: Option<Box<Search>>,
    verified: bool,
}

impl HttpSession {
    fn new(common: Arc<Common>, tag: u64, thread: usize) -> Self {
        let search = common.shape.body_contains.as_ref().map(|text| Box::new(Search::new(text.clone())));
        Self {
            tag,
            thread,
            answer: Answer::default(),
            flight: None,
            behind: VecDeque::new(),
            wake_up: None,
            path: (common.crew.plan.its_part().number(tag) % common.requests.len() as u64) as usize,
            search,
            verified: false,
            common,
        }
    }

    fn in_flight(&self) -> usize {
        usize::from(self.flight.is_some()) + self.behind.len()
    }

    /// Begins as many requests as the connection has room and leave for.
    fn fill(&mut self, out: &mut Outbox<'_>, cause: Cause) {
        let common = self.common.clone();
        let now = Instant::now();
        while self.in_flight() < common.shape.pipeline {
            let Some(flight) = common.crew.begin(now, &mut self.wake_up, out) else { return };
            self.send(out, flight, cause, &mut common.crew.tally(self.thread));
        }
    }

    fn send(&mut self, out: &mut Outbox<'_>, flight: Flight, cause: Cause, tally: &mut Tally) {
        let request = &self.common.requests[self.path];
        self.path = (self.path + 1) % self.common.requests.len();
        tally.begun(&self.common.crew, flight, cause, request.len());
        out.share(request.clone());
        match &self.flight {
            None => self.flight = Some(flight),
            Some(_) => self.behind.push_back(flight),
        }
    }

    /// The whole answer is there. Returns whether it leaves the connection open.
    fn complete(&mut self, status: u16, open: bool, tally: &mut Tally) -> bool {
        let found = self.search.as_mut().is_none_or(|search| search.finish());
        let Some(flight) = self.flight.take() else {
            tally.wrong += 1;
            tally.first_error.get_or_insert_with(|| "an answer that was not asked for".into());
            return false;
        };
        self.flight = self.behind.pop_front();
        if !self.common.shape.is_right(status) {
            if let Some(class) = tally.failed_by_status.get_mut((status / 100).saturating_sub(1) as usize) {
                *class += 1;
            }
            tally.failed(1, || format!("the answer had status {status}"));
        } else if !found {
            tally.wrong += 1;
            tally.failed(1, || "an answer did not contain what --check-body-contains asks for".into());
        } else {
            if !std::mem::replace(&mut self.verified, true) {
                tally.verified_connections += 1;
            }
            tally.answered(&self.common.crew, flight);
        }
        open
    }

    /// Reads answers from the front of `input`: how many bytes, and how the connection goes on.
    fn read(&mut self, input: &[u8], tally: &mut Tally) -> (usize, Flow) {
        let shape = &self.common.shape;
        let (bodiless, keep_alive) = (shape.answers_without_body(), shape.keep_alive);
        let mut used = 0;
        while let Some(rest) = input.get(used..).filter(|rest| !rest.is_empty()) {
            match self.answer.step(rest, &mut tally.last_head, bodiless) {
                Step::NeedsMore => break,
                Step::Used(n) => used += n,
                Step::Body { used: n, body } => {
                    self.look(&rest[..body]);
                    used += n;
                }
                Step::Complete { used: n, body, status, open } => {
                    self.look(&rest[..body]);
                    used += n;
                    if !self.complete(status, open && keep_alive, tally) {
                        return (used, Flow::Close);
                    }
                }
                Step::Wrong(why) => {
                    tally.wrong += 1;
                    if self.flight.take().is_some() {
                        tally.failed(1, || format!("an answer could not be understood: {why}"));
                    }
                    return (used, Flow::Abort);
                }
            }
        }
        (used, Flow::Continue)
    }

    fn look(&mut self, body: &[u8]) {
        if let Some(search) = &mut self.search {
            search.feed(body);
        }
    }
}

impl Session for HttpSession {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.common.shape.keep_alive {
            self.fill(out, Cause::Room);
        } else if let Some(flight) = self.common.places.flight(self.tag) {
            // It was noted as begun when it was dialled.
            self.path = self.common.places.path(self.tag, self.common.requests.len());
            let request = &self.common.requests[self.path];
            if self.common.crew.counts(flight) {
                self.common.crew.tally(self.thread).bytes_sent += request.len() as u64;
            }
            out.share(request.clone());
            self.flight = Some(flight);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let common = self.common.clone();
        let mut tally = common.crew.tally(self.thread);
        let (used, flow) = self.read(input, &mut tally);
        if common.crew.is_measuring() {
            tally.bytes_received += used as u64;
        }
        drop(tally);
        if flow == Flow::Continue && common.shape.keep_alive {
            self.fill(out, Cause::Room);
        }
        Consumed::bytes(used).then(flow)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        self.fill(out, Cause::WakeUp);
        Flow::Continue
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        if let Some(status) = self.answer.ends_with_the_connection() {
            let common = self.common.clone();
            self.complete(status, false, &mut common.crew.tally(self.thread));
        }
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        let crew = &self.common.crew;
        if crew.is(Stage::Over) {
            return;
        }
        let (tag, lost) = (self.tag, self.in_flight() as u64);
        if lost > 0 {
            let why = || format!("connection {tag}: closed before its answer was whole ({why})");
            crew.tally(self.thread).failed(lost, why);
        }
        if let Some(pacer) = &crew.pacer {
            pacer.orphan(self.wake_up);
        }
        if !self.common.shape.keep_alive {
            self.common.next(tag, self.thread);
        } else if !crew.is(Stage::Draining) && !crew.is_spent() {
            crew.tally(self.thread).reconnects += 1;
            crew.dial(tag, Some(self.thread));
        }
    }
}
