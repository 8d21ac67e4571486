//! Open loop: when each request is due, and which connection starts it.
//!
//! All threads share one schedule: request `k` of the run is due at its start plus [`Schedule::due`]`(k)`, computed
//! from `k` alone, so errors do not accumulate. A request is taken by the first connection that is free when it is due,
//! on whatever thread. An idle connection takes a *wake-up* for a request that no other connection wakes up for, and
//! sleeps until then; one whose response has just arrived takes requests that are due. So wake-up latency (a timer tick
//! of 1/64 ms, and what the system needs) delays only requests that become due while no response arrives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tidegate::Mailbox;

use crate::part::Part;
use crate::plan::{Plan, Rate};

/// A start later than this after its time counts as late: the coarsest timers of the library (model `poll`) may be 1 ms
/// late.
pub(crate) const LATE: Duration = Duration::from_millis(2);

/// When each request is due, as a function of its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Requests per second at the beginning and, from `ramp_s` on, permanently.
    from: f64,
    to: f64,
    ramp_s: f64,
    /// Whose requests are numbered here.
    part: Part,
}

impl Schedule {
    pub(crate) fn new(rate: Rate, part: Part) -> Self {
        let to = rate.requests_per_s;
        match rate.ramp {
            Some((from, time)) => Self { from, to, ramp_s: time.as_secs_f64(), part },
            None => Self { from: to, to, ramp_s: 0.0, part },
        }
    }

    /// Requests of the ramp; a fraction.
    fn ramp_requests(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.ramp_s
    }

    /// Seconds from the start to request `k` of the whole load. While the rate grows,
    /// `k = from·t + (to − from)·t²/(2·ramp)`.
    fn due_s(&self, k: u64) -> f64 {
        let (k, ramp) = (k as f64, self.ramp_requests());
        if k >= ramp {
            return self.ramp_s + (k - ramp) / self.to;
        }
        let slope = (self.to - self.from) / self.ramp_s;
        let root = (self.from * self.from + 2.0 * slope * k).max(0.0).sqrt();
        if k == 0.0 {
            return 0.0; // and not 0/0
        }
        // This form of the solution loses no digits, whatever the sign of the slope.
        2.0 * k / (self.from + root)
    }

    fn due_of_all(&self, k: u64) -> Duration {
        Duration::try_from_secs_f64(self.due_s(k)).unwrap_or(Duration::MAX)
    }

    /// Time from the start to request `k`.
    pub(crate) fn due(&self, k: u64) -> Duration {
        self.due_of_all(self.part.number(k))
    }

    /// Requests that are due before `time`.
    pub(crate) fn before(&self, time: Duration) -> u64 {
        let t = time.as_secs_f64();
        let k = if t >= self.ramp_s {
            self.ramp_requests() + (t - self.ramp_s) * self.to
        } else {
            let slope = (self.to - self.from) / self.ramp_s;
            self.from * t + slope * t * t / 2.0
        };
        // The float may be a request off on either side; `due` decides.
        let mut k = k as u64;
        while k > 0 && self.due_of_all(k - 1) >= time {
            k -= 1;
        }
        while self.due_of_all(k) < time {
            k += 1;
        }
        self.part.share(k)
    }
}

/// What an idle connection must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRequest {
    /// Start the request that was due then.
    Begin(Instant),
    /// Sleep until then.
    Sleep(Instant),
    /// Nothing is due before the run has begun: wait for mail.
    Wait,
    /// All requests have been started.
    Over,
}

/// A wake-up held by a connection: the number of its request.
pub(crate) type WakeUp = Option<u64>;

/// The schedule of a run, shared by all connections.
pub(crate) struct Pacer {
    schedule: Schedule,
    start: OnceLock<Instant>,
    measured: OnceLock<Instant>,
    /// The end of the request numbers.
    end: AtomicU64,
    /// The first request not started.
    next: AtomicU64,
    /// The first request without a wake-up.
    unwatched: AtomicU64,
    /// Wake-ups whose connection is gone, and whether there are any.
    orphans: Mutex<Vec<u64>>,
    has_orphans: AtomicBool,
    /// Connections that stood before the run began.
    waiting: Mutex<Vec<Mailbox<()>>>,
}

impl Pacer {
    /// The pacer of a plan, if it has a rate.
    pub(crate) fn of(plan: &Plan) -> Option<Self> {
        let schedule = Schedule::new(plan.rate?, plan.its_part());
        let end = plan.schedule_end(&schedule);
        Some(Self {
            schedule,
            start: OnceLock::new(),
            measured: OnceLock::new(),
            end: AtomicU64::new(end),
            next: AtomicU64::new(0),
            unwatched: AtomicU64::new(0),
            orphans: Mutex::default(),
            has_orphans: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    /// The run begins at `start`, and requests due from `measured` on count. Requests due before `now` belong to
    /// others, if this is a part that joins later.
    pub(crate) fn begin(&self, start: Instant, measured: Instant, now: Instant) {
        let first = self.schedule.before(now.saturating_duration_since(start)).min(self.end());
        self.next.store(first, Relaxed);
        self.unwatched.store(first, Relaxed);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Set once, by the runner; the order matters: who sees the start also sees the rest.
        let _ = self.measured.set(measured);
        let _ = self.start.set(start);
        for mailbox in waiting.drain(..) {
            // Gone meanwhile: it needs no mail.
            let _ = mailbox.send(());
        }
    }

    fn end(&self) -> u64 {
        self.end.load(Relaxed)
    }

    /// Ends the schedule at `now`.
    pub(crate) fn cut(&self, now: Instant) {
        let passed = self.start.get().map(|&start| now.saturating_duration_since(start));
        self.end.fetch_min(self.schedule.before(passed.unwrap_or_default()), Relaxed);
    }

    /// Registers a connection that was asked to [`Wait`](NextRequest::Wait) for the start of the run; `false` if it has
    /// begun.
    /// begun.
    pub(crate) fn enlist(&self, mailbox: Mailbox<()>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.start.get().is_none();
        if before {
            waiting.push(mailbox);
        }
        before
    }

    /// Takes the first request that is due, if any.
    pub(crate) fn take(&self, now: Instant) -> Option<Instant> {
        let start = *self.start.get()?;
        let due = |k: u64| start.checked_add(self.schedule.due(k));
        let mut k = self.next.load(Relaxed);
        loop {
            let when = due(k).filter(|&when| k < self.end() && when <= now)?;
            match self.next.compare_exchange_weak(k, k + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(when),
                Err(other) => k = other,
            }
        }
    }

    /// What a connection with room for a request must do. `wake_up` is the one it holds.
    pub(crate) fn turn(&self, now: Instant, wake_up: &mut WakeUp) -> NextRequest {
        let Some(start) = self.start.get() else { return NextRequest::Wait };
        if let Some(due) = self.take(now) {
            return NextRequest::Begin(due);
        }
        let when = |k: u64| start.checked_add(self.schedule.due(k));
        // A wake-up that has been used, or whose request somebody else has begun, is given back.
        if let Some(k) = *wake_up
            && k >= self.next.load(Relaxed)
            && let Some(when) = when(k).filter(|&when| when > now)
        {
            return NextRequest::Sleep(when);
        }
        let k = self.adopt().unwrap_or_else(|| {
            let next = self.next.load(Relaxed);
            // Always `Some`, so never an error.
            self.unwatched.fetch_update(Relaxed, Relaxed, |k| Some(k.max(next) + 1)).unwrap_or(next).max(next)
        });
        *wake_up = Some(k);
        match when(k) {
            Some(when) if k < self.end() => NextRequest::Sleep(when),
            _ => NextRequest::Over,
        }
    }

    fn adopt(&self) -> Option<u64> {
        if !self.has_orphans.load(Relaxed) {
            return None;
        }
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.load(Relaxed);
        orphans.retain(|&k| k >= next);
        let first = orphans.iter().enumerate().min_by_key(|(_, k)| **k).map(|(at, _)| at);
        let adopted = first.map(|at| orphans.swap_remove(at));
        self.has_orphans.store(!orphans.is_empty(), Relaxed);
        adopted
    }

    /// A connection is gone, so its wake-up is free.
    pub(crate) fn orphan(&self, wake_up: WakeUp) {
        let Some(k) = wake_up.filter(|&k| k < self.end() && k >= self.next.load(Relaxed)) else { return };
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(k);
        self.has_orphans.store(true, Relaxed);
    }

    /// When the next request that nobody has begun is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let k = self.next.load(Relaxed);
        (k < self.end()).then(|| self.start.get()?.checked_add(self.schedule.due(k))).flatten()
    }

    /// Whether a request that was due then counts.
    #[inline]
    pub(crate) fn is_measured(&self, due: Instant) -> bool {
        self.measured.get().is_some_and(|&from| due >= from)
    }

    /// Whether all requests have been begun.
    pub(crate) fn is_spent(&self) -> bool {
        self.next.load(Relaxed) >= self.end()
    }

    /// Whether the schedule has begun and its rate does not change any more.
    pub(crate) fn is_at_final_rate(&self, now: Instant) -> bool {
        let since = self.start.get().map(|&start| now.saturating_duration_since(start));
        since.is_some_and(|since| since.as_secs_f64() >= self.schedule.ramp_s)
    }

    /// Measured requests of the schedule, and those of them that have not been begun.
    pub(crate) fn outcome(&self) -> (u64, u64) {
        self.outcome_of(self.end())
    }

    /// The same of what was due until now.
    pub(crate) fn outcome_by(&self, now: Instant) -> (u64, u64) {
        let passed = self.start.get().map(|&start| now.saturating_duration_since(start));
        self.outcome_of(self.schedule.before(passed.unwrap_or_default()).min(self.end()))
    }

    fn outcome_of(&self, end: u64) -> (u64, u64) {
        let lead = self.start.get().zip(self.measured.get()).map(|(s, m)| m.saturating_duration_since(*s));
        let first = self.schedule.before(lead.unwrap_or_default()).min(end);
        let next = self.next.load(Relaxed).clamp(first, end);
        (end - first, end - next)
    }

    /// How long the schedule of a fixed number of requests takes, or what is left of it from where counting begins.
    pub(crate) fn length(&self) -> Duration {
        let lead = self.start.get().zip(self.measured.get()).map(|(s, m)| m.saturating_duration_since(*s));
        self.schedule.due(self.end()).saturating_sub(lead.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Amount;
    use crate::plan::tests::plan;

    fn pacer(requests_per_s: f64, ramp: Option<(f64, Duration)>, n: u64) -> Pacer {
        let rate = Some(Rate { requests_per_s, ramp });
        Pacer::of(&Plan { rate, amount: Amount::Requests(n), ..plan() }).unwrap()
    }

    #[test]
    fn a_schedule_does_not_drift() {
        let schedule = Schedule::new(Rate { requests_per_s: 3.0, ramp: None }, Part::whole(1));
        assert_eq!(schedule.due(0), Duration::ZERO);
        assert_eq!(schedule.due(3_000_000_000), Duration::from_secs(1_000_000_000));
        assert_eq!(schedule.before(Duration::from_secs(10)), 30);
        assert_eq!(schedule.before(Duration::from_millis(334)), 2);
    }

    #[test]
    fn a_ramp_grows_evenly_and_then_holds() {
        for (from, to, before) in [(0.0, 100.0, 500), (100.0, 0.1, 500), (50.0, 150.0, 1000)] {
            let rate = Rate { requests_per_s: to, ramp: Some((from, Duration::from_secs(10))) };
            let schedule = Schedule::new(rate, Part::whole(1));
            assert!(schedule.before(Duration::from_secs(10)).abs_diff(before) <= 1, "{from} to {to}");
            let beyond = schedule.before(Duration::from_secs(20)) - schedule.before(Duration::from_secs(10));
            assert!(beyond.abs_diff((to * 10.0) as u64) <= 1, "{from} to {to}: {beyond}");
            assert!((1..900).all(|k| schedule.due(k) >= schedule.due(k - 1)), "{from} to {to}");
        }
    }

    #[test]
    fn each_request_is_begun_once_and_never_before_its_time() {
        let pacer = pacer(1000.0, None, 10);
        let start = Instant::now();
        pacer.begin(start, start, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(pacer.take(at(0)), Some(at(0)));
        assert_eq!(pacer.take(at(0)), None);
        // After a stall everything that was due is there, each with its own time.
        assert_eq!(
            std::iter::from_fn(|| pacer.take(at(5))).collect::<Vec<_>>(),
            (1..=5).map(at).collect::<Vec<_>>()
        );
        assert_eq!(std::iter::from_fn(|| pacer.take(at(50))).count(), 4, "nothing beyond the end");
        assert!(pacer.is_spent());
        assert_eq!(pacer.outcome(), (10, 0));
    }

    #[test]
    fn every_request_has_a_connection_that_wakes_for_it() {
        let pacer = pacer(1000.0, None, 100);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut wake_ups = [None; 4];
        assert_eq!(pacer.turn(start, &mut wake_ups[0]), NextRequest::Wait);
        pacer.begin(start, start, start);
        assert_eq!(pacer.turn(start, &mut wake_ups[0]), NextRequest::Begin(start));
        for (i, wake_up) in wake_ups.iter_mut().enumerate() {
            assert_eq!(pacer.turn(start, wake_up), NextRequest::Sleep(at(i as u64 + 1)));
        }
        // The second connection goes; the next one with nothing to do wakes in its place.
        pacer.orphan(wake_ups[1]);
        assert_eq!(pacer.turn(at(1), &mut wake_ups[0]), NextRequest::Begin(at(1)));
        assert_eq!(pacer.turn(at(1), &mut wake_ups[0]), NextRequest::Sleep(at(2)));
        assert_eq!(pacer.turn(at(1), &mut None), NextRequest::Sleep(at(5)));
        // Woken for nothing: it keeps its place.
        assert_eq!(pacer.turn(at(1), &mut wake_ups[2]), NextRequest::Sleep(at(3)));
    }

    #[test]
    fn a_schedule_that_is_cut_asks_for_no_more_than_was_due() {
        let pacer = pacer(1000.0, None, 100);
        let start = Instant::now();
        pacer.begin(start, start, start);
        while pacer.take(start + Duration::from_millis(4)).is_some() {}
        pacer.cut(start + Duration::from_micros(9_500));
        assert_eq!(pacer.outcome(), (10, 5));
        while pacer.take(start + Duration::from_secs(1)).is_some() {}
        assert!(pacer.is_spent());
        assert_eq!((pacer.outcome(), pacer.next_due()), ((10, 0), None));
    }

    #[test]
    fn what_was_not_begun_is_known() {
        let pacer = pacer(1000.0, None, 100);
        let start = Instant::now();
        pacer.begin(start, start + Duration::from_millis(10), start);
        while pacer.take(start + Duration::from_millis(29)).is_some() {}
        assert_eq!(pacer.outcome(), (90, 70));
    }
}
