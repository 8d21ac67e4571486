//! Opening in blocks, measuring, draining.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate::{Client, Model, Policy, RunningClient, Service, system};
use tidegate_tls::{TlsClient, TlsCounters, TlsLimits};

use crate::certificate::{Evidence, certify};
use crate::crew::{Crew, Stage};
use crate::echo::EchoLoad;
use crate::http::HttpLoad;
use crate::ledger::Ledger;
use crate::pacer::Pacer;
use crate::plan::{Amount, BLOCK, LoadError, Plan, Protocol};
use crate::report::{Phase, Report, TlsReport};
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
/// [`LoadError`] if the plan can not be carried out at all. What goes wrong on the way is in the report.
pub fn run(plan: &Plan, observer: impl FnMut(Phase<'_>)) -> Result<Report, LoadError> {
    plan.check()?;
    let model = plan.model.unwrap_or_else(|| Model::best().model);
    check_descriptors(plan, model)?;
    if let Some(pid) =
        plan.server_pid.filter(|pid| !std::path::Path::new(&format!("/proc/{pid}/task")).exists())
    {
        let why = format!(
            "--server-pid {pid}: there is no such process here; leave it out if the server is elsewhere"
        );
        return Err(LoadError::Plan(why));
    }
    let threads = plan.threads.unwrap_or_else(|| system::allowed_cpus().len().max(1)).min(plan.connections);
    let crew = Arc::new(Crew::new(plan.clone(), threads));
    let policy = policy(plan, threads);
    match &plan.protocol {
        Protocol::Echo { size, window } => {
            let load = EchoLoad::new(crew.clone(), *size, *window);
            let (client, tls) = start(plan, load, policy, model)?;
            let dial = |tag| crew.dial(tag, None);
            Ok(Run { crew: &crew, client: &client, tls, observer, pace: &|| {} }.conduct(dial))
        }
        Protocol::Http(shape) => {
            let load = HttpLoad::new(crew.clone(), shape.clone());
            let (client, tls) = start(plan, load.clone(), policy, model)?;
            let dial = |tag| load.open_place(tag);
            Ok(Run { crew: &crew, client: &client, tls, observer, pace: &|| load.pace() }.conduct(dial))
        }
    }
}

/// Starts a client for these sessions, and says where it counts handshakes if they are encrypted.
fn start<S: Service>(
    plan: &Plan,
    load: S,
    policy: Policy,
    model: Model,
) -> Result<(RunningClient, Option<Arc<TlsCounters>>), LoadError> {
    let Some(tls) = &plan.tls else {
        return Ok((Client::new(load).policy(policy).model(model).start()?, None));
    };
    let limits = TlsLimits { handshake_timeout: Some(tls.handshake_timeout) };
    let service = TlsClient::new(load, plan.target.clone(), &tls.name, tls.trust.clone(), limits)?;
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
}

/// How long requests that were due in the window may still be begun after it: as long as a timer may be late.
const GRACE: Duration = Duration::from_millis(20);

impl<F: FnMut(Phase<'_>)> Run<'_, F> {
    /// From the first dial to the last answer. `dial` makes connection number so-and-so, or says that none is needed any more.
    fn conduct(mut self, dial: impl FnMut(u64) -> bool) -> Report {
        let crew = self.crew;
        crew.set_dialler(self.client.dialler());
        let begun = Instant::now();
        // Without a schedule, a fixed number of requests begins with the first connection.
        let at_once = crew.pacer.is_none() && matches!(crew.plan.amount, Amount::Requests(_));
        let mut window = Window::open(&crew.plan);
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
            window = Window::open(&crew.plan);
            crew.set_stage(Stage::Measuring);
            (self.observer)(Phase::Measuring);
        }
        let mut ledger = Ledger::new(window.begun);
        let before = self.client.stats();
        self.measure(&window, &mut ledger);
        self.begin_the_rest();
        window.close(crew);
        let after = self.client.stats();
        crew.set_stage(Stage::Draining);
        self.wait_for_answers();
        if let Some(second) = ledger.collect(crew, Instant::now()) {
            (self.observer)(Phase::Second { second });
        }
        let mut report = self.report(&window, &mut ledger);
        report.connect_s = connect_s;
        let (mean_in_flight, samples) = ledger.concurrency();
        let evidence = Evidence {
            generator: window.generator,
            server: window.server,
            mean_in_flight,
            samples,
            events_per_wake_up: (after.events - before.events) as f64
                / (after.wake_ups - before.wake_ups).max(1) as f64,
        };
        report.certificate = Some(certify(&report, evidence));
        (self.observer)(Phase::Done { report: &report });
        crew.set_stage(Stage::Over);
        self.client.stop();
        report
    }

    /// Starts the schedule, if there is one, and lets the load run for a time that does not count.
    fn warm_up(&self) {
        let (now, length) = (Instant::now(), self.crew.plan.warm_up);
        if let Some(pacer) = &self.crew.pacer {
            pacer.begin(now, now + length);
        }
        if !length.is_zero() {
            self.rest_until(now + length);
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
                    pacer.next_due().map_or(until, |due| due.max(now + LOOK).min(until))
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
    fn open_all(&self, mut dial: impl FnMut(u64) -> bool) {
        let total = self.crew.plan.connections as u64;
        if self.crew.pacer.is_some() && self.crew.plan.connection_per_request() {
            // Each is made when its request is due.
            (0..total).for_each(|place| _ = dial(place));
            return;
        }
        let begun = Instant::now();
        let interval = self.crew.plan.ramp_connections.div_f64(total.max(1) as f64);
        let mut dialled = 0;
        while dialled < total {
            let end = (dialled + BLOCK as u64).min(total);
            while dialled < end {
                std::thread::sleep(interval.mul_f64(dialled as f64).saturating_sub(begun.elapsed()));
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
    fn wait_until(&self, enough: impl Fn(u64) -> bool) -> bool {
        let mut seen = (self.crew.first_attempts_ended.load(Relaxed), Instant::now());
        loop {
            let ended = self.crew.first_attempts_ended.load(Relaxed);
            if enough(ended) {
                return true;
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
    fn measure(&mut self, window: &Window, ledger: &mut Ledger) {
        let mut told = Instant::now();
        let mut progress = (0, Instant::now());
        loop {
            let part = match self.crew.plan.amount {
                Amount::Time(time) => {
                    let end = window.begun + time;
                    let look = Instant::now() + Duration::from_millis(50);
                    self.rest_until(look.min(end).min(ledger.next()));
                    window.begun.elapsed().as_secs_f64() / time.as_secs_f64()
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
                    // Connections that do not stand have nothing to send.
                    let n = match self.crew.plan.messages_each {
                        Some(each) => {
                            each.saturating_mul(self.crew.first_attempts_stand.load(Relaxed)).clamp(1, n)
                        }
                        None => n,
                    };
                    if ended < n && self.is_deserted() {
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
                (self.observer)(Phase::Second { second });
            }
            if part >= 1.0 {
                return;
            }
            if told.elapsed() > Duration::from_millis(100) {
                told = now;
                let requests = self.crew.sum(|t| t.requests);
                (self.observer)(Phase::Progress { requests, part });
            }
        }
    }

    /// Whether no connection is open or being made, so that nothing will ever come any more.
    fn is_deserted(&self) -> bool {
        let stats = self.client.stats();
        let between = self.crew.pacer.is_some() && self.crew.plan.connection_per_request();
        !between
            && stats.attempted > 0
            && stats.open() == 0
            && stats.attempted == stats.accepted + stats.dial_failed + stats.refused
    }

    fn wait_for_answers(&self) {
        let begun = Instant::now();
        while self.crew.sum(|t| t.in_flight) > 0 && begun.elapsed() < self.crew.plan.timeout {
            std::thread::sleep(LOOK);
        }
    }

    fn report(&self, window: &Window, ledger: &mut Ledger) -> Report {
        let plan = &self.crew.plan;
        let stats = self.client.stats();
        // To the client such a connection stood.
        let no_tls = self.tls.as_ref().map_or(0, |tls| tls.failed());
        let mut report = Report {
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
            elapsed_s: window.length.as_secs_f64(),
            cpu_user_s: window.cpu_s.0,
            cpu_system_s: window.cpu_s.1,
            tls: self
                .tls
                .as_ref()
                .map(|tls| TlsReport { handshakes: tls.handshakes(), resumed: tls.resumed() }),
            ..Report::default()
        };
        ledger.enter(self.crew, &mut report);
        report
    }
}
