//! One connection for each request: the places they take turns on.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Common;
use crate::run_state::RunState;
use crate::thread_stats::{Cause, Flight};

/// When the request of each place was due and begun, in nanoseconds since the run began; empty if connections are kept.
pub(super) struct Places {
    began: Instant,
    due_ns: Vec<AtomicU64>,
    left_ns: Vec<AtomicU64>,
    /// Requests that each place has begun.
    turns: Vec<AtomicU64>,
    /// Open loop: places with nothing to do.
    free: Mutex<Vec<u64>>,
}

impl Places {
    pub(super) fn new(run_state: &RunState) -> Self {
        let places = if run_state.plan.connection_per_request() { run_state.plan.connections } else { 0 };
        let zeros = || (0..places).map(|_| AtomicU64::new(0)).collect();
        Self {
            began: run_state.begun,
            due_ns: zeros(),
            left_ns: zeros(),
            turns: zeros(),
            free: Mutex::default(),
        }
    }

    /// The request that the connection of this place carries.
    pub(super) fn flight(&self, tag: u64) -> Option<Flight> {
        let at = |ns: &AtomicU64| self.began + Duration::from_nanos(ns.load(Relaxed));
        let place = tag as usize;
        Some(Flight { due: at(self.due_ns.get(place)?), left: at(self.left_ns.get(place)?) })
    }

    /// Which of so many paths is next on this place: they take turns, beginning at different ones.
    pub(super) fn path(&self, tag: u64, paths: usize) -> usize {
        let turn = self.turns.get(tag as usize).map_or(0, |turns| turns.fetch_add(1, Relaxed));
        (tag.wrapping_add(turn) % paths as u64) as usize
    }

    fn note(&self, tag: u64, flight: Flight) {
        let ns = |at: Instant| at.saturating_duration_since(self.began).as_nanos() as u64;
        if let (Some(due), Some(left)) = (self.due_ns.get(tag as usize), self.left_ns.get(tag as usize)) {
            due.store(ns(flight.due), Relaxed);
            left.store(ns(flight.left), Relaxed);
        }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Common {
    /// The next request of this place, on its own connection. `false` if there is none now: in an open loop the
    /// place then waits until one is due.
    pub(super) fn next(&self, tag: u64, thread: usize) -> bool {
        match self.run_state.begin_anew() {
            Some(flight) => self.dial(tag, thread, flight, Cause::Room),
            None => {
                if self.run_state.pacer.is_some() {
                    self.places.free().push(tag);
                }
                return false;
            }
        }
        true
    }

    /// Open loop: begins what is due on the places that are free.
    pub(super) fn pace(&self) {
        loop {
            // Not held while dialling: sessions wait for it.
            let Some(tag) = self.places.free().pop() else { return };
            let Some(flight) = self.run_state.begin_anew() else {
                self.places.free().push(tag);
                return;
            };
            self.dial(tag, tag as usize % self.run_state.threads(), flight, Cause::WakeUp);
        }
    }

    fn dial(&self, tag: u64, thread: usize, flight: Flight, cause: Cause) {
        self.places.note(tag, flight);
        self.run_state.begun(&mut self.run_state.thread_stats(thread), flight, cause, 0);
        if !self.run_state.dial(tag, Some(thread)) {
            self.run_state.thread_stats(thread).failed(1, || "the client takes no more connections".into());
        }
    }
}
