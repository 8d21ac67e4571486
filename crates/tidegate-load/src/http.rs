//! HTTP sessions: send requests, and read each response to its last byte.

mod dialling;
mod search;
mod service;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tidegate::{CloseReason, Consumed, Flow, Mail, Outbox, Session};

use crate::http_answer::{Answer, ParseStep, Persistence};
pub(crate) use service::HttpLoad;

use dialling::Places;
use search::Search;

use crate::pacer::WakeUp;
use crate::plan::{AfterResponse, HttpShape};
use crate::run_state::{RunState, Stage};
use crate::thread_stats::{Cause, Flight, ThreadStats};

/// State shared by all HTTP sessions of a run.
struct Common {
    run_state: Arc<RunState>,
    shape: HttpShape,
    /// The bytes of the requests, one for each path.
    requests: Vec<Bytes>,
    places: Places,
}

/// One HTTP connection.
pub(crate) struct HttpClient {
    common: Arc<Common>,
    tag: u64,
    thread: usize,
    answer: Answer,
    /// The request whose response is next, and those after it: none without pipelining.
    flight: Option<Flight>,
    behind: VecDeque<Flight>,
    wake_up: WakeUp,
    /// The index of the next path.
    path: usize,
    search: Option<Box<Search>>,
    verified: bool,
    verified_in_window: bool,
    /// Requests that this connection may still send.
    quota: u64,
}

impl HttpClient {
    fn new(common: Arc<Common>, tag: u64, thread: usize) -> Self {
        let search = common.shape.body_contains.as_ref().map(|text| Box::new(Search::new(text.clone())));
        Self {
            tag,
            thread,
            answer: Answer::default(),
            flight: None,
            behind: VecDeque::new(),
            wake_up: None,
            path: (common.run_state.plan.its_part().number(tag) % common.requests.len() as u64) as usize,
            search,
            verified: false,
            verified_in_window: false,
            quota: common.run_state.plan.messages_each.unwrap_or(u64::MAX),
            common,
        }
    }

    fn in_flight(&self) -> usize {
        usize::from(self.flight.is_some()) + self.behind.len()
    }

    /// Starts as many requests as the connection has room for and the schedule allows.
    fn fill(&mut self, out: &mut Outbox<'_>, cause: Cause) {
        let common = self.common.clone();
        let now = Instant::now();
        while self.quota > 0 && self.in_flight() < common.shape.pipeline {
            let Some(flight) = common.run_state.begin(now, &mut self.wake_up, out) else { return };
            self.quota -= 1;
            self.send(out, flight, cause, &mut common.run_state.thread_stats(self.thread));
        }
    }

    fn send(&mut self, out: &mut Outbox<'_>, flight: Flight, cause: Cause, thread_stats: &mut ThreadStats) {
        let request = &self.common.requests[self.path];
        self.path = (self.path + 1) % self.common.requests.len();
        self.common.run_state.begun(thread_stats, flight, cause, request.len());
        out.share(request.clone());
        match &self.flight {
            None => self.flight = Some(flight),
            Some(_) => self.behind.push_back(flight),
        }
    }

    /// Handles a complete response. Returns what becomes of the connection.
    fn complete(
        &mut self,
        status: u16,
        persistence: Persistence,
        thread_stats: &mut ThreadStats,
    ) -> Persistence {
        let found = self.search.as_mut().is_none_or(|search| search.finish());
        let Some(flight) = self.flight.take() else {
            thread_stats.unasked(|| "an unexpected response".into());
            return Persistence::Close;
        };
        self.flight = self.behind.pop_front();
        if self.common.run_state.counts(flight) {
            thread_stats.came_with(status);
        }
        if !self.common.shape.is_right(status) {
            if let Some(class) =
                thread_stats.failed_by_status.get_mut((status / 100).saturating_sub(1) as usize)
            {
                *class += 1;
            }
            thread_stats.failed(1, || format!("the response had status {status}"));
        } else if !found {
            thread_stats.wrong += 1;
            thread_stats.failed(1, || "a response did not contain the text of --check-body-contains".into());
        } else {
            if !std::mem::replace(&mut self.verified, true) {
                thread_stats.verified_connections += 1;
            }
            if !self.verified_in_window && self.common.run_state.counts(flight) {
                self.verified_in_window = true;
                thread_stats.verified_in_window += 1;
            }
            self.common.run_state.answered(thread_stats, flight);
        }
        persistence
    }

    /// Parses responses at the front of `input`: returns the bytes consumed, and the flow.
    fn read(&mut self, input: &[u8], thread_stats: &mut ThreadStats) -> (usize, Flow) {
        let shape = &self.common.shape;
        let (rule, after_response) = (shape.body_rule(), shape.after_response);
        let mut used = 0;
        while let Some(rest) = input.get(used..).filter(|rest| !rest.is_empty()) {
            match self.answer.step(rest, &mut thread_stats.last_head, rule) {
                ParseStep::NeedsMore => break,
                ParseStep::Used(n) => used += n,
                ParseStep::Body { used: n, body } => {
                    self.look(&rest[..body]);
                    used += n;
                }
                ParseStep::Complete { used: n, body, status, persistence } => {
                    self.look(&rest[..body]);
                    used += n;
                    let (persistence, end) = match after_response {
                        AfterResponse::KeepAlive => (persistence, Flow::Close),
                        AfterResponse::Close => (Persistence::Close, Flow::Close),
                        AfterResponse::Reset => (Persistence::Close, Flow::Abort),
                    };
                    if self.complete(status, persistence, thread_stats) == Persistence::Close {
                        return (used, end);
                    }
                }
                ParseStep::Wrong(why) => {
                    let why = || format!("an invalid response: {why}");
                    if self.flight.take().is_some() {
                        thread_stats.wrong += 1;
                        thread_stats.failed(1, why);
                    } else {
                        thread_stats.unasked(why);
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

impl Session for HttpClient {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        if self.common.shape.keep_alive() {
            self.fill(out, Cause::Room);
        } else if let Some(flight) = self.common.places.flight(self.tag) {
            // It was noted as begun when it was dialled.
            self.path = self.common.places.path(self.tag, self.common.requests.len());
            let request = &self.common.requests[self.path];
            if self.common.run_state.counts(flight) {
                self.common.run_state.thread_stats(self.thread).bytes_sent += request.len() as u64;
            }
            out.share(request.clone());
            self.flight = Some(flight);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        let common = self.common.clone();
        let mut thread_stats = common.run_state.thread_stats(self.thread);
        let (used, flow) = self.read(input, &mut thread_stats);
        if common.run_state.is_measuring() {
            thread_stats.bytes_received += used as u64;
        }
        drop(thread_stats);
        if flow == Flow::Continue && common.shape.keep_alive() {
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
            self.complete(status, Persistence::Close, &mut common.run_state.thread_stats(self.thread));
        }
        Flow::Close
    }

    /// The load is over: there is nothing to wait for.
    fn on_drain(&mut self, _: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }

    fn on_close(&mut self, why: CloseReason) {
        let run_state = &self.common.run_state;
        if run_state.is(Stage::Over) {
            return;
        }
        let (tag, lost) = (self.tag, self.in_flight() as u64);
        if lost > 0 {
            let why = || format!("connection {tag}: closed before its response was complete ({why})");
            run_state.thread_stats(self.thread).failed(lost, why);
        }
        if let Some(pacer) = &run_state.pacer {
            pacer.orphan(self.wake_up);
        }
        if !self.common.shape.keep_alive() {
            self.common.next(tag, self.thread);
        } else if !run_state.is(Stage::Draining) && !run_state.is_spent() {
            run_state.thread_stats(self.thread).reconnects += 1;
            run_state.dial(tag, Some(self.thread));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tidegate::testing::TestConnection;
    use tidegate::{Peer, Policy};

    use super::*;

    #[test]
    fn a_connection_ends_with_the_load_and_not_a_while_later() {
        let run_state =
            Arc::new(RunState::new(crate::plan::tests::plan(), 1, Arc::new(AtomicBool::new(false))));
        let service = HttpLoad::new(run_state, HttpShape::get("a", "/"));
        let peer = Peer::dialled(0);
        let mut conn = TestConnection::open_with(&service, &peer, Policy::default()).expect("a connection");
        assert!(!conn.has_finished_sending());
        conn.drain();
        conn.settle();
        assert!(conn.has_finished_sending(), "{conn:?}");
    }
}
