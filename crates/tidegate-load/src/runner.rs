//! Runs a load: opens connections in blocks, measures, drains.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::{Client, Endpoint, Model, Policy, RunningClient, Service, Stats, system};
use tidegate_os::process::exact_sleeps;
use tidegate_tls::{TlsClient, TlsCounters, TlsLimits};

use crate::assessment::assess;
use crate::echo::EchoLoad;
use crate::http::HttpLoad;
use crate::measurement::{Measurement, WindowEnd};
use crate::pacer::Pacer;
use crate::plan::{Amount, BLOCK, LoadError, Plan, Protocol, TlsPlan};
use crate::procs::Share;
use crate::recorder::Recorder;
use crate::report::{Report, RunEvent, RunStatus, TlsReport};
use crate::run_state::{RunState, Stage, not_connected};
use crate::target::is_remote;
use crate::thread_stats::ThreadStats;
use crate::verdict::Evidence;

/// Attempts in flight while connections are opened: below every system's backlog.
const OPENING: u64 = 128;

/// Polling interval of the run. No measurement depends on it.
const LOOK: Duration = Duration::from_micros(500);

/// Descriptors needed besides the connections.
const RESERVE: usize = 64;

/// Runs a plan. `observer` is called with its progress, on the calling thread.
///
/// # Errors
/// [`LoadError`] if the run cannot start. Later errors are in the report.
pub fn run(plan: &Plan, observer: impl FnMut(RunEvent<'_>)) -> Result<Report, LoadError> {
    run_until(&Arc::default(), plan, observer)
}

/// Like [`run`], but ends early once `interrupted` is true; the report then covers what was measured so far.
/// Outstanding responses are awaited for at most a second.
///
/// The calling thread and those it starts get exact timers ([`exact_sleeps`]).
///
/// # Errors
/// [`LoadError`] if the run cannot start. Later errors are in the report.
pub fn run_until(
    interrupted: &Arc<AtomicBool>,
    plan: &Plan,
    observer: impl FnMut(RunEvent<'_>),
) -> Result<Report, LoadError> {
    plan.check()?;
    let model = plan.model.unwrap_or_else(|| Model::best().model);
    check_descriptors(plan, model)?;
    if let Some(pid) = plan.server_pid.filter(|&pid| !tidegate_os::process::is_there(pid)) {
        let why = format!(
            "--server-pid {pid}: no such process; leave it out if the server runs on another machine"
        );
        return Err(LoadError::Plan(why));
    }
    let threads = plan.threads.unwrap_or_else(|| system::allowed_cpus().len().max(1)).min(plan.connections);
    // Where that is forbidden requests begin up to 50 µs later, which the report shows.
    let _ = exact_sleeps();
    let run_state = Arc::new(RunState::new(plan.clone(), threads, Arc::clone(interrupted)));
    let policy = policy(plan, threads);
    match &plan.protocol {
        Protocol::Echo { size, window } => {
            let load = EchoLoad::new(run_state.clone(), *size, *window);
            let (client, tls) = start(&plan.target, plan.tls.as_ref(), load, policy, model)?;
            let dial = |tag| run_state.dial(tag, None);
            Ok(LoadRun::new(&run_state, &client, tls, observer, &|| {}).conduct(dial))
        }
        Protocol::Http(shape) => {
            let load = HttpLoad::new(run_state.clone(), shape.clone());
            let (client, tls) = start(&plan.target, plan.tls.as_ref(), load.clone(), policy, model)?;
            let dial = |tag| load.open_place(tag);
            Ok(LoadRun::new(&run_state, &client, tls, observer, &|| load.pace()).conduct(dial))
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
    let limits = TlsLimits::default().handshake_timeout(Some(tls.handshake_timeout));
    let service = TlsClient::new(load, target.clone(), &tls.name, tls.trust.clone())?.limits(limits);
    let counters = service.counters();
    Ok((Client::new(service).policy(policy).model(model).start()?, Some(counters)))
}

fn policy(plan: &Plan, threads: usize) -> Policy {
    Policy::default()
        // A connection that closes while its successor is dialled counts twice for a moment.
        .max_connections(plan.connections * if plan.connection_per_request() { 2 } else { 1 } + threads)
        .threads(NonZeroUsize::new(threads))
        .first_byte_timeout(None)
        .send_timeout(None)
        .buffer_bytes(64 * 1024)
        .buffers(64)
        .drain_timeout(Duration::from_millis(200))
        .mail_queue((plan.connections * 2).max(100_000))
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

struct LoadRun<'a, F> {
    run_state: &'a RunState,
    client: &'a RunningClient,
    tls: Option<Arc<TlsCounters>>,
    observer: F,
    /// Begins what is due on connections that are not established yet.
    pace: &'a dyn Fn(),
    /// First attempts.
    dialled: u64,
    /// How connections are opened once some have hung.
    after_hang: Option<AfterHang>,
    /// When the observer was last notified.
    last_report: Instant,
    /// The target is on another machine.
    is_remote: bool,
    /// The client's counters when the window began.
    before: Stats,
    presence: Presence,
    /// How long the window was when nobody took connections any more.
    server_gone_after: Option<Duration>,
    /// How long the load warmed up, if less than it was to.
    warmed_up: Option<Duration>,
}

/// Whether there is still somebody to send to.
struct Presence {
    /// Connections that had been made, and attempts that had failed, when somebody was last there.
    accepted: u64,
    failed: u64,
    /// Since when nobody is there.
    gone_since: Option<Instant>,
    /// Connections of the plan are still to be dialled.
    is_opening: bool,
    /// Nobody is there for so long that the run is given up.
    is_over: bool,
}

impl Presence {
    /// When nothing has been dialled yet.
    fn new() -> Self {
        Self { accepted: 0, failed: 0, gone_since: None, is_opening: true, is_over: false }
    }

    /// Whether nothing will come any more: for a while no connection was open, and none was being made, or all that
    /// were tried failed. Stays so.
    fn is_over(&mut self, stats: &Stats, run_state: &RunState) -> bool {
        let ended = stats.accepted + stats.dial_failed + stats.refused;
        let is_settled = stats.attempted == run_state.dials() && stats.attempted == ended;
        let plan = &run_state.plan;
        // On a schedule with a connection for each request there is none between two of them. One that has sent all
        // its messages may be closed before the next one is dialled. When all requests are begun, none is needed.
        let is_between = run_state.pacer.is_some() && plan.connection_per_request()
            || self.is_opening && plan.messages_each.is_some()
            || run_state.is_spent();
        let is_refused = stats.dial_failed > self.failed;
        let is_gone = stats.attempted > 0 && stats.open() == 0 && (is_refused || (is_settled && !is_between));
        if !is_gone || stats.accepted != self.accepted {
            (self.accepted, self.failed, self.gone_since) = (stats.accepted, stats.dial_failed, None);
        }
        if is_gone {
            self.is_over |= self.gone_since.get_or_insert_with(Instant::now).elapsed() > DESERTED;
        }
        self.is_over
    }
}

/// Where a server drops SYNs, each block after the first one that hung would take another whole timeout. So the rest is
/// dialled at the pace at which it is answered, and if it is not, within this part of a timeout; then all of it is
/// waited for once.
const REST_DIALLED_WITHIN: f64 = 0.25;

/// How connections are opened once some have hung.
struct AfterHang {
    /// How long a block is waited for without progress.
    limit: Duration,
    /// Attempts that are not waited for any more before the next ones are dialled.
    passed_over: u64,
}

impl AfterHang {
    /// With so many connections that are to be dialled.
    fn new(timeout: Duration, left: u64) -> Self {
        let waits = left.div_ceil(OPENING) + left.div_ceil(BLOCK as u64) + 1;
        Self { limit: timeout.mul_f64(REST_DIALLED_WITHIN / waits as f64), passed_over: 0 }
    }
}

/// How often the observer is notified of progress.
const TELL: Duration = Duration::from_millis(100);

/// For how long there must have been no connection before a run is given up: none open or being made, or all refused.
const DESERTED: Duration = Duration::from_millis(500);

/// How long the last answers of an interrupted run are waited for.
const HURRY: Duration = Duration::from_secs(1);

/// Connections that are made when their request is due are made so often at most; each time costs the runner a
/// wake-up.
const PACE: Duration = Duration::from_micros(100);

/// How long requests that were due in the window may still be begun after it: as long as a timer may be late.
const GRACE: Duration = Duration::from_millis(20);

impl<'a, F: FnMut(RunEvent<'_>)> LoadRun<'a, F> {
    fn new(
        run_state: &'a RunState,
        client: &'a RunningClient,
        tls: Option<Arc<TlsCounters>>,
        observer: F,
        pace: &'a dyn Fn(),
    ) -> Self {
        Self {
            run_state,
            client,
            tls,
            observer,
            pace,
            dialled: 0,
            after_hang: None,
            last_report: Instant::now(),
            is_remote: is_remote(&run_state.plan.target),
            before: Stats::default(),
            presence: Presence::new(),
            server_gone_after: None,
            warmed_up: None,
        }
    }

    /// Whether nobody is there any more.
    fn is_deserted(&mut self) -> bool {
        self.presence.is_over(&self.client.stats(), self.run_state)
    }

    /// From the first dial to the last answer. `dial` makes connection number so-and-so, or says that none is needed
    /// any more.
    fn conduct(mut self, dial: impl FnMut(u64) -> bool) -> Report {
        let run_state = self.run_state;
        run_state.set_dialler(self.client.dialler());
        let begun = Instant::now();
        let at_once = run_state.plan.begins_at_once();
        let window = at_once.then(|| self.open_window());
        self.open_all(dial);
        self.presence.is_opening = false;
        let connect_s = begun.elapsed().as_secs_f64();
        let connected = run_state.first_attempts_connected.load(Relaxed);
        let attempted = run_state.dials().min(run_state.plan.connections as u64);
        (self.observer)(RunEvent::Connected { attempted, connected });
        let mut window = window.unwrap_or_else(|| {
            self.warm_up();
            self.open_window()
        });
        let mut recorder = Recorder::new(window.begun);
        self.before = self.client.stats();
        self.measure(&mut window, &mut recorder);
        self.begin_the_rest();
        let interrupted = run_state.is_interrupted();
        let is_early = interrupted || self.server_gone_after.is_some();
        window.close(run_state, if is_early { WindowEnd::Early } else { WindowEnd::Planned });
        let evidence = self.evidence((window.generator, window.server), &recorder);
        self.wait_for_answers();
        if run_state.pacer.is_some() {
            window.include_late_answers();
        }
        if let Some(second) = recorder.collect(run_state, Instant::now()) {
            let second = second.clone();
            let status = self.status(&mut window, &recorder);
            (self.observer)(RunEvent::Second { second: &second, latency_us: recorder.last(), status });
        }
        let mut report = self.figures(window.length);
        report.server_gone_after_s = self.server_gone_after.map(|after| after.as_secs_f64());
        (report.cpu_user_s, report.cpu_system_s) = window.cpu_s;
        report.server_cpu_s = window.server_cpu_s;
        recorder.enter(run_state, &mut report);
        report.interrupted = interrupted;
        report.connect_s = connect_s;
        report.verdict = Some(assess(&report, evidence));
        (self.observer)(RunEvent::Done { report: &report });
        run_state.set_stage(Stage::Over);
        self.client.stop();
        report
    }

    /// From now on requests count.
    fn open_window(&mut self) -> Measurement {
        let window = Measurement::open(self.run_state.plan.server_pid);
        self.run_state.set_stage(Stage::Measuring);
        (self.observer)(RunEvent::Measuring);
        window
    }

    /// What the window so far is judged by, besides the figures.
    fn evidence(&self, (generator, server): (Option<Share>, Option<Share>), recorder: &Recorder) -> Evidence {
        let now = self.client.stats();
        let (mean_in_flight, samples) = recorder.concurrency();
        let wake_ups = (now.wake_ups - self.before.wake_ups).max(1);
        let events_per_wake_up = (now.events - self.before.events) as f64 / wake_ups as f64;
        let is_remote = self.is_remote;
        let backlog_growth = recorder.backlog_growth();
        Evidence { generator, server, mean_in_flight, samples, backlog_growth, events_per_wake_up, is_remote }
    }

    /// What can be said in the middle of the window.
    fn status(&self, window: &mut Measurement, recorder: &Recorder) -> RunStatus {
        let (second, whole) = window.look(self.run_state.plan.server_pid);
        let mut report = self.figures(window.begun.elapsed());
        recorder.enter_figures(self.run_state, &mut report);
        if let (Some(open), Some(pacer)) = (&mut report.open_loop, &self.run_state.pacer) {
            (open.scheduled, open.not_started) = pacer.outcome_by(Instant::now());
        }
        let limited_by = assess(&report, self.evidence(whole, recorder)).limited_by;
        RunStatus {
            open: self.client.stats().open(),
            connect_failed: report.connect_failed,
            generator: second.0,
            server: second.1,
            limited_by: Some(limited_by),
        }
    }

    /// Whether it is time to tell the observer that it goes on.
    fn is_time_to_tell(&mut self) -> bool {
        let now = Instant::now();
        let due = now.saturating_duration_since(self.last_report) > TELL;
        if due {
            self.last_report = now;
        }
        due
    }

    fn report_opening(&mut self) {
        if self.is_time_to_tell() {
            let connected = self.run_state.first_attempts_connected.load(Relaxed);
            (self.observer)(RunEvent::Opening { connected });
        }
    }

    /// Starts the schedule, if there is one, and lets the load run for a time that does not count, or until nobody is
    /// there any more.
    fn warm_up(&mut self) {
        let (now, length) = (Instant::now(), self.run_state.plan.warm_up);
        // A part that joins later has less of it, or nothing.
        let begun = self.run_state.plan.its_part().joins().unwrap_or(now);
        let counted = (begun + length).max(now);
        if let Some(pacer) = &self.run_state.pacer {
            pacer.begin(begun, counted, now);
        }
        if counted > now {
            while !self.run_state.is_interrupted() && Instant::now() < counted && !self.is_deserted() {
                self.rest_until((Instant::now() + TELL / 2).min(counted));
                self.report_opening();
            }
            self.warmed_up = (Instant::now() < counted).then(|| now.elapsed());
            if self.presence.is_over {
                return; // why is not to be forgotten
            }
            (0..self.run_state.threads())
                .for_each(|thread| self.run_state.thread_stats(thread).forget_failures());
        }
    }

    /// Sleeps, but begins what is due meanwhile on connections that are not established yet.
    fn rest_until(&self, until: Instant) {
        loop {
            (self.pace)();
            let now = Instant::now();
            if now >= until {
                return;
            }
            let next = match &self.run_state.pacer {
                // What is overdue waits for a connection, which sees to it itself.
                Some(pacer) if self.run_state.plan.connection_per_request() => {
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
        while self.run_state.pacer.as_ref().is_some_and(|pacer| !pacer.is_spent()) && begun.elapsed() < GRACE
        {
            self.rest_until(Instant::now() + LOOK);
        }
    }

    /// Opens the connections block by block; a block begins when every attempt of the one before has ended, or has hung
    /// for the whole timeout; after that see [`AfterHang`]. If all of the first block failed, or nobody is there for a
    /// while, the others are not tried. With a connection for each request only the first block is waited for.
    fn open_all(&mut self, mut dial: impl FnMut(u64) -> bool) {
        let total = self.run_state.plan.connections as u64;
        if self.run_state.pacer.is_some() && self.run_state.plan.connection_per_request() {
            // Each is made when its request is due.
            (0..total).for_each(|place| _ = dial(place));
            return;
        }
        let begun = Instant::now();
        let part = self.run_state.plan.its_part();
        let interval = self.run_state.plan.ramp_connections.div_f64(part.connections().max(1) as f64);
        let (mut dialled, mut waits_for_nobody) = (0, false);
        while dialled < total {
            let end = (dialled + BLOCK as u64).min(total);
            while dialled < end {
                let due = begun + interval.mul_f64(part.number(dialled) as f64);
                while Instant::now() < due && !self.run_state.is_interrupted() {
                    if self.is_deserted() {
                        return;
                    }
                    std::thread::sleep(due.saturating_duration_since(Instant::now()).min(TELL / 2));
                    self.report_opening();
                }
                let may_dial =
                    waits_for_nobody || self.wait_until(|ended| dialled.saturating_sub(ended) < OPENING);
                if !may_dial || !dial(dialled) {
                    return;
                }
                dialled += 1;
                self.dialled = dialled;
            }
            if waits_for_nobody {
                continue;
            }
            if !self.wait_until(|ended| ended >= dialled) || self.client.stats().accepted == 0 {
                return;
            }
            // Those that are served connect again at once, and may keep the rest out of a full backlog for a minute.
            waits_for_nobody = self.run_state.plan.connection_per_request();
        }
    }

    /// Waits until so many attempts have ended; `false` if nobody is there. Where none ends for the whole timeout,
    /// those that are left count as ended. After that only the last ones are waited for so long.
    fn wait_until(&mut self, enough: impl Fn(u64) -> bool) -> bool {
        let (timeout, total) = (self.run_state.plan.timeout, self.run_state.plan.connections as u64);
        let mut seen = (self.run_state.first_attempts().ended, Instant::now());
        loop {
            let attempts = self.run_state.first_attempts();
            let is_last = self.dialled >= total;
            let left = self.dialled.saturating_sub(attempts.settled());
            let after_hang = self.after_hang.as_mut().filter(|_| !is_last);
            let passed_over = after_hang.map_or(0, |after_hang| {
                after_hang.passed_over = after_hang.passed_over.min(left);
                after_hang.passed_over
            });
            if enough(attempts.settled() + passed_over) {
                return !self.run_state.is_interrupted();
            }
            self.report_opening();
            if self.run_state.is_interrupted() || self.is_deserted() {
                return false;
            }
            if attempts.ended != seen.0 {
                seen = (attempts.ended, Instant::now());
            }
            match self.after_hang.as_mut().filter(|_| !is_last) {
                Some(after_hang) if seen.1.elapsed() > after_hang.limit => after_hang.passed_over = left,
                None if seen.1.elapsed() > timeout => {
                    self.run_state.give_up_first_attempts(self.dialled);
                    let error = || not_connected(&self.run_state.plan.target, &ErrorKind::TimedOut.into());
                    self.run_state.thread_stats(0).not_connected(error);
                    if self.client.stats().accepted == 0 {
                        return false;
                    }
                    self.after_hang = Some(AfterHang::new(timeout, total.saturating_sub(self.dialled)));
                }
                _ => {}
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Lets the load run until there was enough of it.
    fn measure(&mut self, window: &mut Measurement, recorder: &mut Recorder) {
        let mut progress = (0, Instant::now());
        loop {
            let part = match self.run_state.plan.amount {
                Amount::Time(time) => {
                    let time = self.run_state.plan.window_time(time, window.begun);
                    let end = window.begun + time;
                    let look = Instant::now() + Duration::from_millis(50);
                    self.rest_until(look.min(end).min(recorder.next()));
                    window.begun.elapsed().as_secs_f64() / time.as_secs_f64().max(1e-9)
                }
                Amount::Requests(n) => {
                    self.rest_until(Instant::now() + LOOK);
                    let ended = match self.run_state.plan.messages_each {
                        Some(_) => self.run_state.sum(|t| t.requests + t.failed), // what is missing ends, too
                        None => self.run_state.sum(ThreadStats::ended),
                    };
                    // On a schedule, nothing may be due for a long time.
                    let next = self.run_state.pacer.as_ref().and_then(Pacer::next_due);
                    if ended != progress.0 || next.is_some_and(|due| due > Instant::now()) {
                        progress = (ended, Instant::now());
                    } else if progress.1.elapsed() > self.run_state.plan.timeout {
                        return; // the report says what is missing
                    }
                    let n = match (self.run_state.plan.messages_each, &self.run_state.pacer) {
                        // Connections that are not established have nothing to send.
                        (Some(each), _) => each
                            .saturating_mul(self.run_state.first_attempts_connected.load(Relaxed))
                            .clamp(1, n),
                        // All, but for a part that joins later.
                        (None, Some(pacer)) => pacer.outcome().0,
                        (None, None) => n,
                    };
                    if n == 0 {
                        return;
                    }
                    ended as f64 / n as f64
                }
            };
            let (now, in_flight) = (Instant::now(), self.run_state.sum(|t| t.in_flight));
            recorder.look(in_flight);
            if let Some(pacer) = &self.run_state.pacer {
                recorder.look_at_backlog(pacer, now, in_flight);
            }
            if now >= recorder.next()
                && let Some(second) = recorder.collect(self.run_state, now)
            {
                let second = second.clone();
                let status = self.status(window, recorder);
                (self.observer)(RunEvent::Second { second: &second, latency_us: recorder.last(), status });
            }
            if part >= 1.0 || self.run_state.is_interrupted() {
                return;
            }
            if self.is_deserted() {
                // What it was sent, or its refusals, are in the report.
                self.server_gone_after = Some(window.begun.elapsed());
                return;
            }
            if self.is_time_to_tell() {
                let requests = self.run_state.sum(|t| t.requests);
                (self.observer)(RunEvent::Progress { requests, part });
            }
        }
    }

    fn wait_for_answers(&self) {
        let begun = Instant::now();
        let limit = || match self.run_state.is_interrupted() {
            true => self.run_state.plan.timeout.min(HURRY),
            false => self.run_state.plan.timeout,
        };
        while self.run_state.sum(|t| t.in_flight) > 0 && begun.elapsed() < limit() {
            std::thread::sleep(LOOK);
        }
    }

    /// What was asked for, and the connections so far; the rest is the recorder's.
    fn figures(&self, length: Duration) -> Report {
        let plan = &self.run_state.plan;
        let stats = self.client.stats();
        // To the client such a connection stood.
        // With a connection for each request it is its request that was not answered in time.
        let attempts = self.run_state.first_attempts();
        let hang = match attempts.hung > 0 && !plan.connection_per_request() {
            true => {
                let pending =
                    stats.attempted.saturating_sub(stats.accepted + stats.dial_failed + stats.refused);
                let first = self.dialled.saturating_sub(attempts.ended);
                pending.min(first) // the others connect again, in the middle of the load
            }
            false => 0,
        };
        let no_tls = self.tls.as_ref().map_or(0, |tls| tls.failed());
        Report {
            format: 1,
            target: plan.target.to_string(),
            model: self.client.model().to_string(),
            threads: self.run_state.threads(),
            connections: plan.connections,
            rate_bytes_per_s_per_block: plan.rate_bytes_per_s_per_block,
            warm_up_s: self.warmed_up.unwrap_or(plan.warm_up).as_secs_f64(),
            attempted: stats.attempted,
            connected: stats.accepted - no_tls.min(stats.accepted),
            connect_failed: stats.dial_failed + no_tls + hang,
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
