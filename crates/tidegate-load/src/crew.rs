//! What all sessions of a run share: the budget of requests, the stage of the run, and tallies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use hdrhistogram::Histogram;
use tidegate::{Dial, Dialler};

use crate::plan::{Amount, Plan};

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Connections are being opened; requests run but do not count.
    Opening,
    /// Requests count.
    Measuring,
    /// No new requests.
    Draining,
    /// Connections are being closed.
    Over,
}

/// Tallies of one I/O thread.
pub(crate) struct Tally {
    pub(crate) latency_us: Histogram<u64>,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) failed_by_status: [u64; 5],
    pub(crate) late_sends: u64,
    pub(crate) in_flight: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) verified_connections: u64,
    pub(crate) reconnects: u64,
    pub(crate) last_answer: Option<Instant>,
    pub(crate) first_error: Option<String>,
    /// The head of the last answer and what it said: most answers begin alike.
    pub(crate) last_head: crate::http::KnownHead,
}

impl Tally {
    fn new() -> Self {
        // 1 µs to 1 h with three digits is within what the histogram can do.
        let latency_us = Histogram::new_with_bounds(1, 3_600_000_000, 3).expect("valid bounds");
        Self {
            latency_us,
            requests: 0,
            failed: 0,
            wrong: 0,
            failed_by_status: [0; 5],
            late_sends: 0,
            in_flight: 0,
            bytes_sent: 0,
            bytes_received: 0,
            verified_connections: 0,
            reconnects: 0,
            last_answer: None,
            first_error: None,
            last_head: Default::default(),
        }
    }

    /// Notes a right answer; it counts if it belongs to the window.
    #[inline]
    pub(crate) fn answered(&mut self, crew: &Crew, since: Instant) {
        self.in_flight -= 1;
        if crew.counts() {
            let now = Instant::now();
            self.requests += 1;
            let micros = now.saturating_duration_since(since).as_micros() as u64;
            self.latency_us.saturating_record(micros.max(1));
            self.last_answer = Some(now);
        }
    }

    /// Notes `n` requests that came to nothing.
    pub(crate) fn failed(&mut self, n: u64, why: impl FnOnce() -> String) {
        self.in_flight -= n;
        self.failed += n;
        self.first_error.get_or_insert_with(why);
        self.last_answer = Some(Instant::now());
    }
}

/// What all sessions of a run share.
pub(crate) struct Crew {
    pub(crate) plan: Plan,
    pub(crate) begun: Instant,
    stage: AtomicU8,
    /// Requests that may still be begun; only with [`Amount::Requests`].
    budget: AtomicU64,
    tallies: Vec<Mutex<Tally>>,
    dialler: OnceLock<Dialler>,
    sources: Vec<SocketAddr>,
    next_source: AtomicUsize,
    /// First attempts, one for each connection of the plan, that have ended one way or the other.
    pub(crate) first_attempts_ended: AtomicU64,
    pub(crate) first_attempts_stand: AtomicU64,
}

impl Crew {
    pub(crate) fn new(plan: Plan, threads: usize) -> Self {
        let budget = match plan.amount {
            Amount::Requests(n) => n,
            Amount::Time(_) => u64::MAX,
        };
        Self {
            sources: plan.source_addresses(),
            plan,
            begun: Instant::now(),
            stage: AtomicU8::new(Stage::Opening as u8),
            budget: AtomicU64::new(budget),
            tallies: (0..threads).map(|_| Mutex::new(Tally::new())).collect(),
            dialler: OnceLock::new(),
            next_source: AtomicUsize::new(0),
            first_attempts_ended: AtomicU64::new(0),
            first_attempts_stand: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_dialler(&self, dialler: Dialler) {
        // Set once, by the conductor, before the first dial.
        let _ = self.dialler.set(dialler);
    }

    /// Dials connection number `tag`; `false` if the client takes no more.
    pub(crate) fn dial(&self, tag: u64, thread: Option<usize>) -> bool {
        let mut dial = Dial { thread, ..Dial::to(self.plan.target).tag(tag) };
        if !self.sources.is_empty() {
            dial.from = Some(self.sources[self.next_source.fetch_add(1, Relaxed) % self.sources.len()]);
        }
        self.dialler.get().is_some_and(|dialler| dialler.dial(dial).is_ok())
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
    }

    pub(crate) fn is(&self, stage: Stage) -> bool {
        self.stage.load(Relaxed) == stage as u8
    }

    /// Whether an answer that comes now counts: inside the window, or while the last ones of a fixed number come in.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.is(Stage::Measuring)
    }

    /// Takes leave to begin one more request.
    #[inline]
    pub(crate) fn may_begin(&self) -> bool {
        if self.stage.load(Relaxed) > Stage::Measuring as u8 {
            return false;
        }
        match self.plan.amount {
            Amount::Time(_) => true,
            Amount::Requests(_) => {
                self.budget.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
            }
        }
    }

    /// Whether every request of a fixed number has been begun.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget.load(Relaxed) == 0
    }

    /// The tally of an I/O thread; locked by nobody else but the conductor, now and then.
    #[inline]
    pub(crate) fn tally(&self, thread: usize) -> MutexGuard<'_, Tally> {
        self.tallies[thread % self.tallies.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something summed over all threads.
    pub(crate) fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        (0..self.tallies.len()).map(|thread| of(&self.tally(thread))).sum()
    }

    pub(crate) fn threads(&self) -> usize {
        self.tallies.len()
    }
}
