//! State shared by all sessions of a run: the request budget or schedule, the stage of the run, and counters.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tidegate::{Dial, Dialler, Endpoint, Outbox, Recipient};

use crate::pacer::{LATE, NextRequest, Pacer, WakeUp};
use crate::plan::{Amount, Plan};
use crate::thread_stats::{Cause, Flight, ThreadStats};

/// The stage of the run.
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

/// Why a connect failed, and the remedy.
pub(crate) fn not_connected(to: &Endpoint, error: &io::Error) -> String {
    format!("cannot connect to {to}: {error}{}", remedy(error))
}

/// What to do about a target that cannot be reached; empty, or the rest of a line that tells the error.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "; nothing listens there: start the server, or give its address",
        io::ErrorKind::NotFound => "; no such socket: start the server, or give its path",
        io::ErrorKind::TimedOut => "; no response: check the address and firewalls",
        io::ErrorKind::HostUnreachable => {
            "; no such host in its network, or a firewall: check the address, and whether the host is up"
        }
        io::ErrorKind::NetworkUnreachable => {
            "; no route leads there: check the address and this machine's network (ip route)"
        }
        io::ErrorKind::PermissionDenied => {
            "; not allowed: check firewalls, or for a Unix socket the permissions of its file"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; the ports of this address are used up: give more with --sources"
        }
        _ => "",
    }
}

/// State shared by all sessions of a run.
pub(crate) struct RunState {
    pub(crate) plan: Plan,
    pub(crate) begun: Instant,
    /// The schedule of an open loop.
    pub(crate) pacer: Option<Pacer>,
    stage: AtomicU8,
    /// The run was interrupted.
    interrupted: Arc<AtomicBool>,
    /// Requests that may still be started; only with [`Amount::Requests`].
    budget: AtomicU64,
    thread_stats: Vec<Mutex<ThreadStats>>,
    dialler: OnceLock<Dialler>,
    sources: Vec<SocketAddr>,
    next_source: AtomicUsize,
    /// Connections requested.
    dials: AtomicU64,
    first_attempts: Mutex<FirstAttempts>,
    pub(crate) first_attempts_connected: AtomicU64,
}

/// First attempts, one for each connection of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstAttempts {
    /// Those that have ended.
    pub(crate) ended: u64,
    /// Those that hung for the whole timeout and have not ended since.
    pub(crate) hung: u64,
    /// So many of the first connections have ended or hung.
    given_up_below: u64,
}

impl FirstAttempts {
    /// Notes that the one of this connection has ended.
    fn end(&mut self, tag: u64) {
        self.ended += 1;
        if tag < self.given_up_below {
            self.hung = self.hung.saturating_sub(1);
        }
    }

    /// Notes that those of the first `dialled` connections that are left hang.
    fn give_up(&mut self, dialled: u64) {
        self.given_up_below = dialled;
        self.hung = dialled.saturating_sub(self.ended);
    }

    /// Those that need not be waited for.
    pub(crate) fn settled(&self) -> u64 {
        self.ended + self.hung
    }
}

impl Recipient for RunState {
    /// The run begins.
    type Message = ();
}

impl RunState {
    pub(crate) fn new(plan: Plan, threads: usize, interrupted: Arc<AtomicBool>) -> Self {
        let budget = match plan.amount {
            Amount::Requests(n) => n,
            Amount::Time(_) => u64::MAX,
        };
        let pacer = Pacer::of(&plan);
        Self {
            sources: plan.source_addresses(),
            thread_stats: (0..threads).map(|_| Mutex::new(ThreadStats::new(pacer.is_some()))).collect(),
            pacer,
            plan,
            begun: Instant::now(),
            stage: AtomicU8::new(Stage::Opening as u8),
            interrupted,
            budget: AtomicU64::new(budget),
            dialler: OnceLock::new(),
            next_source: AtomicUsize::new(0),
            dials: AtomicU64::new(0),
            first_attempts: Mutex::default(),
            first_attempts_connected: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_dialler(&self, dialler: Dialler) {
        // Set once, by the runner, before the first dial.
        let _ = self.dialler.set(dialler);
    }

    /// Dials connection number `tag`; `false` if the client takes no more.
    pub(crate) fn dial(&self, tag: u64, thread: Option<usize>) -> bool {
        let mut dial = Dial::to(&self.plan.target).tag(tag);
        dial.thread = thread;
        if !self.sources.is_empty() {
            dial.source = Some(self.sources[self.next_source.fetch_add(1, Relaxed) % self.sources.len()]);
        }
        let taken = self.dialler.get().is_some_and(|dialler| dialler.dial(dial).is_ok());
        self.dials.fetch_add(u64::from(taken), Relaxed);
        taken
    }

    /// Connections that the client was asked for and has taken on, so far.
    pub(crate) fn dials(&self) -> u64 {
        self.dials.load(Relaxed)
    }

    /// First attempts so far.
    pub(crate) fn first_attempts(&self) -> FirstAttempts {
        *self.lock_first_attempts()
    }

    /// Notes that the first attempt of a connection has ended.
    pub(crate) fn first_attempt_ended(&self, tag: u64) {
        self.lock_first_attempts().end(tag);
    }

    /// Notes that the first attempts of so many connections hang, except those that have ended.
    pub(crate) fn give_up_first_attempts(&self, dialled: u64) {
        self.lock_first_attempts().give_up(dialled);
    }

    fn lock_first_attempts(&self) -> MutexGuard<'_, FirstAttempts> {
        self.first_attempts.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether a request now counts. In a closed loop: inside the window, or while the last ones of a fixed number
    /// complete. In an open loop a request counts by when it was due, however late its response is: omitting those that
    /// are missing at the end would omit the slowest.
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

    /// Whether no request may start any more.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.stage.load(Relaxed) > Stage::Measuring as u8
    }

    /// Reserves one more request for a connection at `now`. If none is due yet, the connection is woken when there is;
    /// `wake_up` is its state for that.
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
        if turn == NextRequest::Wait && !pacer.enlist(Self::mailbox(out)) {
            turn = pacer.turn(now, wake_up); // it has just begun
        }
        match turn {
            NextRequest::Begin(due) => return Some(Flight { due, left: now }),
            NextRequest::Sleep(until) => out.wake_at(until),
            NextRequest::Wait | NextRequest::Over => {}
        }
        None
    }

    /// Reserves one more request on a separate connection.
    pub(crate) fn begin_anew(&self) -> Option<Flight> {
        let now = Instant::now();
        match &self.pacer {
            None => self.may_begin().then_some(Flight { due: now, left: now }),
            Some(_) if self.is_ending() => None,
            Some(pacer) => pacer.take(now).map(|due| Flight { due, left: now }),
        }
    }

    /// Reserves one more request.
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

    /// Whether every request of a fixed number has been started.
    pub(crate) fn is_spent(&self) -> bool {
        self.budget.load(Relaxed) == 0 || self.pacer.as_ref().is_some_and(Pacer::is_spent)
    }

    /// Notes that a request begins.
    #[inline]
    pub(crate) fn begun(&self, stats: &mut ThreadStats, flight: Flight, cause: Cause, bytes: usize) {
        stats.in_flight += 1;
        if self.counts(flight) {
            stats.bytes_sent += bytes as u64;
        }
        if self.pacer.as_ref().is_some_and(|pacer| pacer.is_measured(flight.due)) {
            stats.started += 1;
            let late = flight.left.saturating_duration_since(flight.due);
            if late > LATE {
                stats.late_starts += 1;
                stats.late_wake_ups += u64::from(cause == Cause::WakeUp);
            }
            let late_us = late.as_micros() as u64;
            stats.worst_late_us = stats.worst_late_us.max(late_us);
            if let Some(delay_us) = &mut stats.delay_us {
                delay_us.saturating_record(late_us.max(1));
            }
        }
    }

    /// Notes a right answer; it counts if it belongs to the window.
    #[inline]
    pub(crate) fn answered(&self, stats: &mut ThreadStats, flight: Flight) {
        stats.in_flight -= 1;
        if self.counts(flight) {
            let now = Instant::now();
            let micros = |since: Instant| (now.saturating_duration_since(since).as_micros() as u64).max(1);
            stats.requests += 1;
            stats.answered_late += u64::from(self.is_ending());
            stats.latency_us.saturating_record(micros(flight.due));
            if let Some(service_us) = &mut stats.service_us {
                service_us.saturating_record(micros(flight.left));
            }
            stats.last_answer = Some(now);
        }
    }

    /// The counters of an I/O thread; otherwise locked only by the runner, rarely.
    #[inline]
    pub(crate) fn thread_stats(&self, thread: usize) -> MutexGuard<'_, ThreadStats> {
        self.thread_stats[thread % self.thread_stats.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something summed over all threads.
    pub(crate) fn sum(&self, of: impl Fn(&ThreadStats) -> u64) -> u64 {
        (0..self.thread_stats.len()).map(|thread| of(&self.thread_stats(thread))).sum()
    }

    pub(crate) fn threads(&self) -> usize {
        self.thread_stats.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_that_hung_and_is_established_after_all_is_counted_once() {
        let mut attempts = FirstAttempts::default();
        (0..2).for_each(|tag| attempts.end(tag));
        attempts.give_up(128);
        assert_eq!((attempts.ended, attempts.hung, attempts.settled()), (2, 126, 128));
        // Those that hung end, while the next ones are still being made.
        (2..128).for_each(|tag| attempts.end(tag));
        assert_eq!((attempts.ended, attempts.hung, attempts.settled()), (128, 0, 128));
        (128..130).for_each(|tag| attempts.end(tag));
        assert_eq!(attempts.settled(), 130);
    }

    #[test]
    fn a_failed_connect_is_an_error_with_what_to_do() {
        let target = SocketAddr::from(([192, 0, 2, 1], 80)).into();
        for (kind, part) in [
            (io::ErrorKind::ConnectionRefused, "start the server"),
            (io::ErrorKind::NotFound, "start the server"),
            (io::ErrorKind::TimedOut, "firewalls"),
            (io::ErrorKind::HostUnreachable, "whether the host is up"),
            (io::ErrorKind::NetworkUnreachable, "check the address"),
            (io::ErrorKind::PermissionDenied, "permissions"),
        ] {
            let why = not_connected(&target, &kind.into());
            assert!(why.contains("192.0.2.1:80") && why.contains(part), "{why}");
        }
    }
}
