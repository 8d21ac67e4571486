//! Opening in blocks, measuring, draining.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::{Client, Endpoint, Model, Policy, RunningClient, Service, Stats, system};
use tidegate_tls::{TlsClient, TlsCounters, TlsLimits};

use crate::certificate::{Evidence, certify};
use crate::crew::{Crew, Stage};
use crate::echo::EchoLoad;
use crate::http::HttpLoad;
use crate::ledger::Ledger;
use crate::pacer::Pacer;
use crate::plan::{Amount, BLOCK, LoadError, Plan, Protocol, TlsPlan};
use crate::procs::Share;
use crate::report::{Phase, Report, Status, TlsReport};
use crate::window::Window;

/// Attempts in flight while connections are opened: below every system's backlog.
const OPENING: u64 = 128;

/// How often the run is looked at. Nothing that is measured waits for it.
const LOOK: Duration = Duration::from_micros(500);

/// Descriptors that are needed besides the connections.
const RESERVE: usize = 64;

/// Carries a plan out. `observer` is told how it goes, on the calling thread.
///
/// # Errors
/// [`LoadError`] if the plan cannot be carried out at all. What goes wrong on the way is in the report.
pub fn run(plan: &Plan, observer: impl FnMut(Phase<'_>)) -> Result<Report, LoadError> {
    run_until(&Arc::default(), plan, observer)
}

/// Like [`run`], but ends early once `interrupted` is true; the report is then about what was measured until there.
/// Answers on their way are waited for, but not longer than a second.
///
/// The calling thread and those it starts get exact timers ([`exact_sleeps`](system::exact_sleeps)).
///
/// # Errors
/// [`LoadError`] if the plan cannot be carried out at all. What goes wrong on the way is in the report.
pub fn run_until(
    interrupted: &Arc<AtomicBool>,
    plan: &Plan,
    observer: impl FnMut(Phase<'_>),
) -> Result<Report, LoadError> {
    plan.check()?;
    let model = plan.model.unwrap_or_else(|| Model::best().model);
    check_descriptors(plan, model)?;
    if let Some(pid) = plan.server_pid.filter(|&pid| !system::is_there(pid)) {
        let why = format!(
            "--server-pid {pid}: there is no such process here; leave it out if the server is elsewhere"
        );
        return Err(LoadError::Plan(why));
    }
    let threads = plan.threads.unwrap_or_else(|| system::allowed_cpus().len().max(1)).min(plan.connections);
    // Where that is forbidden requests begin up to 50 µs later, which the report shows.
    let _ = system::exact_sleeps();
    let crew = Arc::new(Crew::new(plan.clone(), threads, Arc::clone(interrupted)));
    let policy = policy(plan, threads);
    match &plan.protocol {
        Protocol::Echo { size, window } => {
            let load = EchoLoad::new(crew.clone(), *size, *window);
            let (client, tls) = start(&plan.target, plan.tls.as_ref(), load, policy, model)?;
            let dial = |tag| crew.dial(tag, None);
            Ok(Run::new(&crew, &client, tls, observer, &|| {}).conduct(dial))
        }
        Protocol::Http(shape) => {
            let load = HttpLoad::new(crew.clone(), shape.clone());
            let (client, tls) = start(&plan.target, plan.tls.as_ref(), load.clone(), policy, model)?;
            let dial = |tag| load.open_place(tag);
            Ok(Run::new(&crew, &client, tls, observer, &|| load.pace()).conduct(dial))
        }
    }
}

/// Starts a client for these sessions, and says where it counts handshakes if they are encrypted.
pub(crate) fn start<S: Service>(
    target: &Endpoint,
    tls: Option<&TlsPlan>,
    load: S,
    policy: Policy,
    model: Model,
) -> Result<(RunningClient, Option<Arc<TlsCounters>>), LoadError> {
    let Some(tls) = tls else {
        return Ok((Client::new(load).policy(policy).model(model).start()?, None));
    };
    let limits = TlsLimits { handshake_timeout: Some(tls.handshake_timeout) };
    let service = TlsClient::new(load, target.clone(), &tls.name, tls.trust.clone(), limits)?;
    let counters = service.counters();
    Ok((Client::new(service).policy(policy).model(model).start()?, Some(counters)))
}

fn policy(plan: &Plan, threads: usize) -> Policy {
    Policy {
        // A connection that closes while its successor is dialled counts twice for a moment.
        max_connections: plan.connections * if plan.connection_per_request() { 2 } else { 1 } + threads,
        threads: NonZeroUsize::new(threads),
        first_byte_timeout: None,
        send_timeout: None,
        buffer_bytes: 64 * 1024,
        buffers: 64,
        drain_timeout: Duration::from_millis(200),
        mail_queue: (plan.connections * 2).max(100_000),
        ..Policy::default()
    }
}

fn check_descriptors(plan: &Plan, model: Model) -> Result<(), LoadError> {
    // A failure leaves the limit as it is, which is looked at next.
    let _ = system::raise_descriptor_limit();
    let (limit, _) = system::descriptor_limit();
    let own = if model == Model::Uring { 0 } else { plan.connections }; // slots of a ring's table cost none
    if (own + RESERVE) as u64 > limit {
        return Err(LoadError::Descriptors { connections: plan.connections, reserve: RESERVE, limit });
    }
    Ok(())
}

struct Run<'a, F> {
    crew: &'a Crew,
    client: &'a RunningClient,
    tls: Option<Arc<TlsCounters>>,
    observer: F,
    /// Begins what is due on connections that do not stand yet.
    pace: &'a dyn Fn(),
    /// When the observer was last told something.
    told: Instant,
    /// The client's counters when the window began.
    before: Stats,
}

/// How often the observer is told that it goes on.
const TELL: Duration = Duration::from_millis(100);

/// For how long nothing must have ended before a run without connections is given up.
const DESERTED: Duration = Duration::from_millis(500);

/// How long the last answers of an interrupted run are waited for.
const HURRY: Duration = Duration::from_secs(1);

/// Connections that are made when their request is due are made so often at most; each time costs the conductor a
/// wake-up.
const PACE: Duration = Duration::from_micros(100);

/// How long requests that were due in the window may still be begun after it: as long as a timer may be late.
const GRACE: Duration = Duration::from_millis(20);

impl<'a, F: FnMut(Phase<'_>)> Run<'a, F> {
    fn new(
        crew: &'a Crew,
        client: &'a RunningClient,
        tls: Option<Arc<TlsCounters>>,
        observer: F,
        pace: &'a dyn Fn(),
    ) -> Self {
        Self { crew, client, tls, observer, pace, told: Instant::now(), before: Stats::default() }
    }

    /// From the first dial to the last answer. `dial` makes connection number so-and-so, or says that none is needed
    /// any more.
    fn conduct(mut self, dial: impl FnMut(u64) -> bool) -> Report {
        let crew = self.crew;
        crew.set_dialler(self.client.dialler());
        let begun = Instant::now();
        let at_once = crew.plan.begins_at_once();
        let mut window = Window::open(crew.plan.server_pid);
        if at_once {
            crew.set_stage(Stage::Measuring);
            (self.observer)(Phase::Measuring);
        }
        self.open_all(dial);
        let connect_s = begun.elapsed().as_secs_f64();
        let connected = crew.first_attempts_stand.load(Relaxed);
        (self.observer)(Phase::Connected { attempted: crew.plan.connections as u64, connected });
        if !at_once {
            self.warm_up();
            window = Window::open(crew.plan.server_pid);
            crew.set_stage(Stage::Measuring);
            (self.observer)(Phase::Measuring);
        }
        let mut ledger = Ledger::new(window.begun);
        self.before = self.client.stats();
        self.measure(&mut window, &mut ledger);
        self.begin_the_rest();
        window.close(crew);
        let interrupted = crew.is_interrupted();
        let evidence = self.evidence((window.generator, window.server), &ledger);
        crew.set_stage(Stage::Draining);
        self.wait_for_answers();
        if let Some(second) = ledger.collect(crew, Instant::now()) {
            let second = second.clone();
            let status = self.status(&mut window, &ledger);
            (self.observer)(Phase::Second { second: &second, latency_us: ledger.last(), status });
        }
        let mut report = self.figures(window.length);
        (report.cpu_user_s, report.cpu_system_s) = window.cpu_s;
        ledger.enter(crew, &mut report);
        report.interrupted = interrupted;
        report.connect_s = connect_s;
        report.certificate = Some(certify(&report, evidence));
        (self.observer)(Phase::Done { report: &report });
        crew.set_stage(Stage::Over);
        self.client.stop();
        report
    }

    /// What the window so far is judged by, besides the figures.
    fn evidence(&self, (generator, server): (Option<Share>, Option<Share>), ledger: &Ledger) -> Evidence {
        let now = self.client.stats();
        let (mean_in_flight, samples) = ledger.concurrency();
        let wake_ups = (now.wake_ups - self.before.wake_ups).max(1);
        let events_per_wake_up = (now.events - self.before.events) as f64 / wake_ups as f64;
        Evidence { generator, server, mean_in_flight, samples, events_per_wake_up }
    }

    /// What can be said in the middle of the window.
    fn status(&self, window: &mut Window, ledger: &Ledger) -> Status {
        let (second, whole) = window.look(self.crew.plan.server_pid);
        let mut report = self.figures(window.begun.elapsed());
        ledger.enter_figures(self.crew, &mut report);
        if let (Some(open), Some(pacer)) = (&mut report.open_loop, &self.crew.pacer) {
            (open.scheduled, open.not_started) = pacer.outcome_by(Instant::now());
        }
        let verdict = certify(&report, self.evidence(whole, ledger)).verdict;
        Status {
            open: self.client.stats().open(),
            connect_failed: report.connect_failed,
            generator: second.0,
            server: second.1,
            verdict: Some(verdict),
        }
    }

    /// Whether it is time to tell the observer that it goes on.
    fn is_time_to_tell(&mut self) -> bool {
        let now = Instant::now();
        let due = now.saturating_duration_since(self.told) > TELL;
        if due {
            self.told = now;
        }
        due
    }

    fn tell_opening(&mut self) {
        if self.is_time_to_tell() {
            let connected = self.crew.first_attempts_stand.load(Relaxed);
            (self.observer)(Phase::Opening { connected });
        }
    }

    /// Starts the schedule, if there is one, and lets the load run for a time that does not count.
    fn warm_up(&mut self) {
        let (now, length) = (Instant::now(), self.crew.plan.warm_up);
        // A part that joins later has less of it, or nothing.
        let begun = self.crew.plan.its_part().joins().unwrap_or(now);
        let counted = (begun + length).max(now);
        if let Some(pacer) = &self.crew.pacer {
            pacer.begin(begun, counted, now);
        }
        if counted > now {
            while !self.crew.is_interrupted() && Instant::now() < counted {
                self.rest_until((Instant::now() + TELL / 2).min(counted));
                self.tell_opening();
            }
            (0..self.crew.threads()).for_each(|thread| self.crew.tally(thread).forget_failures());
        }
    }

    /// Sleeps, but begins what is due meanwhile on connections that do not stand yet.
    fn rest_until(&self, until: Instant) {
        loop {
            (self.pace)();
            let now = Instant::now();
            if now >= until {
                return;
            }
            let next = match &self.crew.pacer {
                // What is overdue waits for a connection, which sees to it itself.
                Some(pacer) if self.crew.plan.connection_per_request() => {
                    let next = pacer.next_due();
                    let soonest = if next.is_some_and(|due| due > now) { PACE } else { LOOK };
                    next.map_or(until, |due| due.max(now + soonest).min(until))
                }
                _ => until,
            };
            std::thread::sleep(next - now);
        }
    }

    /// Has requests begun that were due just before the end of the window.
    fn begin_the_rest(&self) {
        let begun = Instant::now();
        while self.crew.pacer.as_ref().is_some_and(|pacer| !pacer.is_spent()) && begun.elapsed() < GRACE {
            self.rest_until(Instant::now() + LOOK);
        }
    }

    /// Opens the connections block by block; a block begins when every attempt of the one before has ended.
    fn open_all(&mut self, mut dial: impl FnMut(u64) -> bool) {
        let total = self.crew.plan.connections as u64;
        if self.crew.pacer.is_some() && self.crew.plan.connection_per_request() {
            // Each is made when its request is due.
            (0..total).for_each(|place| _ = dial(place));
            return;
        }
        let begun = Instant::now();
        let part = self.crew.plan.its_part();
        let interval = self.crew.plan.ramp_connections.div_f64(part.connections().max(1) as f64);
        let mut dialled = 0;
        while dialled < total {
            let end = (dialled + BLOCK as u64).min(total);
            while dialled < end {
                let due = begun + interval.mul_f64(part.number(dialled) as f64);
                while Instant::now() < due && !self.crew.is_interrupted() {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()).min(TELL / 2));
                    self.tell_opening();
                }
                if !self.wait_until(|ended| dialled - ended < OPENING) || !dial(dialled) {
                    return;
                }
                dialled += 1;
            }
            if !self.wait_until(|ended| ended >= dialled) {
                return;
            }
        }
    }

    /// Waits until so many attempts have ended; `false` if none ends for the whole timeout.
    fn wait_until(&mut self, enough: impl Fn(u64) -> bool) -> bool {
        let mut seen = (self.crew.first_attempts_ended.load(Relaxed), Instant::now());
        loop {
            let ended = self.crew.first_attempts_ended.load(Relaxed);
            if enough(ended) {
                return !self.crew.is_interrupted();
            }
            self.tell_opening();
            if self.crew.is_interrupted() {
                return false;
            }
            if ended != seen.0 {
                seen = (ended, Instant::now());
            } else if seen.1.elapsed() > self.crew.plan.timeout {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets the load run until there was enough of it.
    fn measure(&mut self, window: &mut Window, ledger: &mut Ledger) {
        let mut progress = (0, Instant::now());
        loop {
            let part = match self.crew.plan.amount {
                Amount::Time(time) => {
                    let time = self.crew.plan.window_time(time, window.begun);
                    let end = window.begun + time;
                    let look = Instant::now() + Duration::from_millis(50);
                    self.rest_until(look.min(end).min(ledger.next()));
                    window.begun.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9)
                }
                Amount::Requests(n) => {
                    self.rest_until(Instant::now() + LOOK);
                    let ended = self.crew.sum(|t| t.requests + t.failed);
                    // On a schedule, nothing may be due for a long time.
                    let next = self.crew.pacer.as_ref().and_then(Pacer::next_due);
                    if ended != progress.0 || next.is_some_and(|due| due > Instant::now()) {
                        progress = (ended, Instant::now());
                    } else if progress.1.elapsed() > self.crew.plan.timeout {
                        return; // the report says what is missing
                    }
                    let n = match (self.crew.plan.messages_each, &self.crew.pacer) {
                        // Connections that do not stand have nothing to send.
                        (Some(each), _) => {
                            each.saturating_mul(self.crew.first_attempts_stand.load(Relaxed)).clamp(1, n)
                        }
                        // All, but for a part that joins later.
                        (None, Some(pacer)) => pacer.outcome().0,
                        (None, None) => n,
                    };
                    if n == 0 {
                        return;
                    }
                    if ended < n && progress.1.elapsed() > DESERTED && self.is_deserted() {
                        return;
                    }
                    ended as f64 / n as f64
                }
            };
            ledger.look(self.crew.sum(|t| t.in_flight));
            let now = Instant::now();
            if now >= ledger.next()
                && let Some(second) = ledger.collect(self.crew, now)
            {
                let second = second.clone();
                let status = self.status(window, ledger);
                (self.observer)(Phase::Second { second: &second, latency_us: ledger.last(), status });
            }
            if part >= 1.0 || self.crew.is_interrupted() {
                return;
            }
            if self.is_time_to_tell() {
                let requests = self.crew.sum(|t| t.requests);
                (self.observer)(Phase::Progress { requests, part });
            }
        }
    }

    /// Whether no connection is open or being made, so that nothing will ever come any more. It looks like that for a
    /// moment, too, between a connection that was closed and the next one in its place.
    fn is_deserted(&self) -> bool {
        let stats = self.client.stats();
        let between = self.crew.pacer.is_some() && self.crew.plan.connection_per_request();
        !between
            && stats.attempted > 0
            && stats.open() == 0
            && stats.attempted == self.crew.dials()
            && stats.attempted == stats.accepted + stats.dial_failed + stats.refused
    }

    fn wait_for_answers(&self) {
        let begun = Instant::now();
        let limit = || match self.crew.is_interrupted() {
            true => self.crew.plan.timeout.min(HURRY),
            false => self.crew.plan.timeout,
        };
        while self.crew.sum(|t| t.in_flight) > 0 && begun.elapsed() < limit() {
            std::thread::sleep(LOOK);
        }
    }

    /// What was asked for, and the connections so far; the rest is the ledger's.
    fn figures(&self, length: Duration) -> Report {
        let plan = &self.crew.plan;
        let stats = self.client.stats();
        // To the client such a connection stood.
        let no_tls = self.tls.as_ref().map_or(0, |tls| tls.failed());
        Report {
            format: 1,
            target: plan.target.to_string(),
            model: self.client.model().to_string(),
            threads: self.crew.threads(),
            connections: plan.connections,
            rate_bytes_per_s_per_block: plan.rate_bytes_per_s_per_block,
            warm_up_s: plan.warm_up.as_secs_f64(),
            attempted: stats.attempted,
            connected: stats.accepted - no_tls.min(stats.accepted),
            connect_failed: stats.dial_failed + no_tls,
            open_at_end: stats.open(),
            elapsed_s: length.as_secs_f64(),
            tls: self
                .tls
                .as_ref()
                .map(|tls| TlsReport { handshakes: tls.handshakes(), resumed: tls.resumed() }),
            ..Report::default()
        }
    }
}
