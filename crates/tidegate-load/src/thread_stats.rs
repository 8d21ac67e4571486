//! What one I/O thread has counted. Its thread writes it at every answer, so it holds nothing that costs more than an
//! addition; the runner fetches the histograms once a second.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::http_answer::KnownHead;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// When it was to begin; latency counts from here. In a closed loop that is when it began.
    pub(crate) due: Instant,
    /// When it began.
    pub(crate) left: Instant,
}

/// Why a request begins now and not earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A connection that had nothing to do woke up for it.
    WakeUp,
    /// An answer came, or a connection, and made room.
    Room,
}

pub(crate) use crate::histogram::empty as histogram;

/// Counters of one I/O thread.
pub(crate) struct ThreadStats {
    /// Latencies since the runner last looked, from when a request was due.
    pub(crate) latency_us: Histogram<u64>,
    /// The same from when a request began; only in an open loop.
    pub(crate) service_us: Option<Histogram<u64>>,
    pub(crate) requests: u64,
    /// Of those, answered after the window.
    pub(crate) answered_late: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) failed_by_status: [u64; 5],
    /// Few, and the first one is nearly always the one.
    pub(crate) answers_by_status: Vec<(u16, u64)>,
    pub(crate) late_sends: u64,
    /// How long after its time each request began; only in an open loop.
    pub(crate) delay_us: Option<Histogram<u64>>,
    /// Requests begun on a schedule, those of them that were late, and those that were late although a connection was
    /// free; the last also of paced sends.
    pub(crate) started: u64,
    pub(crate) late_starts: u64,
    pub(crate) late_wake_ups: u64,
    pub(crate) worst_late_us: u64,
    pub(crate) in_flight: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) verified_connections: u64,
    pub(crate) verified_in_window: u64,
    pub(crate) reconnects: u64,
    pub(crate) last_answer: Option<Instant>,
    pub(crate) first_error: Option<String>,
    /// Connections that ended early and are missing from then on.
    disconnected: u64,
    /// Failures that no request was used up for.
    failed_without_request: u64,
    /// Why the first attempt to connect failed that did, or the first connection that is missing.
    connect_error: Option<String>,
    /// The head of the last answer and what it said: most answers begin alike.
    pub(crate) last_head: KnownHead,
}

impl ThreadStats {
    pub(crate) fn new(open_loop: bool) -> Self {
        Self {
            latency_us: histogram(),
            service_us: open_loop.then(histogram),
            delay_us: open_loop.then(histogram),
            requests: 0,
            answered_late: 0,
            failed: 0,
            wrong: 0,
            failed_by_status: [0; 5],
            answers_by_status: Vec::new(),
            late_sends: 0,
            started: 0,
            late_starts: 0,
            late_wake_ups: 0,
            worst_late_us: 0,
            in_flight: 0,
            bytes_sent: 0,
            bytes_received: 0,
            verified_connections: 0,
            verified_in_window: 0,
            reconnects: 0,
            last_answer: None,
            first_error: None,
            disconnected: 0,
            failed_without_request: 0,
            connect_error: None,
            last_head: KnownHead::default(),
        }
    }

    /// Notes the status of an answer.
    #[inline]
    pub(crate) fn came_with(&mut self, status: u16) {
        add_answers(&mut self.answers_by_status, status, 1);
    }

    /// Notes `n` requests that came to nothing.
    pub(crate) fn failed(&mut self, n: u64, why: impl FnOnce() -> String) {
        self.in_flight -= n;
        self.failed += n;
        self.first_error.get_or_insert_with(why);
        self.last_answer = Some(Instant::now());
    }

    /// Requests that have ended, one way or another.
    pub(crate) fn ended(&self) -> u64 {
        self.requests + self.failed.saturating_sub(self.failed_without_request)
    }

    /// Notes a connection that was to send more, as so many failures besides its requests: the rest of the run is
    /// without it.
    pub(crate) fn disconnected(&mut self, failures: u64, why: impl Fn() -> String) {
        self.disconnected += 1;
        self.not_connected(why);
        self.failed += failures;
        self.failed_without_request += failures;
        self.last_answer = Some(Instant::now());
    }

    /// Notes bytes that nothing was asked for: they fail the run, though no request.
    pub(crate) fn unasked(&mut self, why: impl FnOnce() -> String) {
        self.wrong += 1;
        self.failed(0, why);
        self.failed += 1;
        self.failed_without_request += 1;
    }

    /// Notes a connection that could not be made.
    pub(crate) fn not_connected(&mut self, why: impl Fn() -> String) {
        self.connect_error.get_or_insert_with(&why);
        self.first_error.get_or_insert_with(why);
    }

    /// Forgets what went wrong while warming up, but not why connections are missing: they are in the window, too.
    pub(crate) fn forget_failures(&mut self) {
        self.failed = self.disconnected;
        self.failed_without_request = self.disconnected;
        self.wrong = 0;
        self.late_sends = 0;
        if self.service_us.is_none() {
            self.late_wake_ups = 0; // an open loop counts those of the window only
        }
        self.reconnects = 0;
        self.failed_by_status = [0; 5];
        self.answers_by_status.clear();
        self.first_error.clone_from(&self.connect_error);
    }
}

/// Adds answers with a status to those counted so far.
pub(crate) fn add_answers(all: &mut Vec<(u16, u64)>, status: u16, count: u64) {
    match all.iter_mut().find(|(known, _)| *known == status) {
        Some((_, sum)) => *sum += count,
        None => all.push((status, count)),
    }
}
