//! What all sessions of a run share: the budget of requests or their schedule, the stage of the run, and tallies.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tidegate::{Dial, Dialler, Outbox};

use crate::pacer::{Pacer, Turn, WakeUp};
use crate::plan::{Amount, Plan};
use crate::tally::{Flight, Tally};

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

/// What all sessions of a run share.
pub(crate) struct Crew {
    pub(crate) plan: Plan,
    pub(crate) begun: Instant,
    /// The schedule of an open loop.
    pub(crate) pacer: Option<Pacer>,
    stage: AtomicU8,
    /// The run has been ended from outside.
    interrupted: Arc<AtomicBool>,
    /// Requests that may still be begun; only with [`Amount::Requests`].
    budget: AtomicU64,
    tallies: Vec<Mutex<Tally>>,
    dialler: OnceLock<Dialler>,
    sources: Vec<SocketAddr>,
    next_source: AtomicUsize,
    /// Connections that were asked for.
    dials: AtomicU64,
    /// First attempts, one for each connection of the plan, that have ended one way or the other.
    pub(crate) first_attempts_ended: AtomicU64,
    pub(crate) first_attempts_stand: AtomicU64,
}

impl Crew {
    pub(crate) fn new(plan: Plan, threads: usize, interrupted: Arc<AtomicBool>) -> Self {
        let budget = match plan.amount {
            Amount::Requests(n) => n,
            Amount::Time(_) => u64::MAX,
        };
        let pacer = Pacer::of(&plan);
        Self {
            sources: plan.source_addresses(),
            tallies: (0..threads).map(|_| Mutex::new(Tally::new(pacer.is_some()))).collect(),
            pacer,
            plan,
            begun: Instant::now(),
            stage: AtomicU8::new(Stage::Opening as u8),
            interrupted,
            budget: AtomicU64::new(budget),
            dialler: OnceLock::new(),
            next_source: AtomicUsize::new(0),
            dials: AtomicU64::new(0),
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
        let mut dial = Dial { thread, ..Dial::to(&self.plan.target).tag(tag) };
        if !self.sources.is_empty() {
            dial.from = Some(self.sources[self.next_source.fetch_add(1, Relaxed) % self.sources.len()]);
        }
        let taken = self.dialler.get().is_some_and(|dialler| dialler.dial(dial).is_ok());
        self.dials.fetch_add(u64::from(taken), Relaxed);
        taken
    }

    /// Connections that the client was asked for and has taken on, so far.
    pub(crate) fn dials(&self) -> u64 {
        self.dials.load(Relaxed)
    }

    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
    }

    /// Whether the run has been ended from outside.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Relaxed)
    }

    pub(crate) fn is(&self, stage: Stage) -> bool {
        self.stage.load(Relaxed) == stage as u8
    }

    /// Whether what happens to a request now counts. In a closed loop: inside the window, or while the last ones of a
    /// fixed number come in. In an open loop a request counts by when it was due, however late its answer is: to leave
    /// out what is still missing at the end would leave out the slowest.
    #[inline]
    pub(crate) fn counts(&self, flight: Flight) -> bool {
        match &self.pacer {
            None => self.is_measuring(),
            Some(pacer) => pacer.is_measured(flight.due),
        }
    }

    #[inline]
    pub(crate) fn is_measuring(&self) -> bool {
        self.is(Stage::Measuring)
    }

    /// Whether no request begins any more.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.stage.load(Relaxed) > Stage::Measuring as u8
    }

    /// Takes leave for a connection to begin one more request at `now`. If there is none yet, the connection is woken
    /// when there is; `wake_up` is what it keeps for that.
    #[inline]
    pub(crate) fn begin(&self, now: Instant, wake_up: &mut WakeUp, out: &mut Outbox<'_>) -> Option<Flight> {
        match &self.pacer {
            None => self.may_begin().then_some(Flight { due: now, left: now }),
            Some(pacer) => self.begin_paced(pacer, now, wake_up, out),
        }
    }

    fn begin_paced(
        &self,
        pacer: &Pacer,
        now: Instant,
        wake_up: &mut WakeUp,
        out: &mut Outbox<'_>,
    ) -> Option<Flight> {
        if self.is_ending() {
            return None;
        }
        let mut turn = pacer.turn(now, wake_up);
        if turn == Turn::Wait && !pacer.enlist(out.mailbox()) {
            turn = pacer.turn(now, wake_up); // it has just begun
        }
        match turn {
            Turn::Begin(due) => return Some(Flight { due, left: now }),
            Turn::Sleep(until) => out.wake_at(until),
            Turn::Wait | Turn::Over => {}
        }
        None
    }

    /// Takes leave to begin one more request on a connection of its own.
    pub(crate) fn begin_anew(&self) -> Option<Flight> {
        let now = Instant::now();
        match &self.pacer {
            None => self.may_begin().then_some(Flight { due: now, left: now }),
            Some(_) if self.is_ending() => None,
            Some(pacer) => pacer.take(now).map(|due| Flight { due, left: now }),
        }
    }

    /// Takes leave to begin one more request.
    #[inline]
    fn may_begin(&self) -> bool {
        if self.is_ending() {
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
        self.budget.load(Relaxed) == 0 || self.pacer.as_ref().is_some_and(Pacer::is_spent)
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
