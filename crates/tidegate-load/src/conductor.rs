//! Opening in blocks, measuring, draining.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tidegate::{Client, Model, Policy, RunningClient, Service, system};

use crate::crew::{Crew, Stage};
use crate::echo::EchoLoad;
use crate::http::HttpLoad;
use crate::plan::{Amount, BLOCK, LoadError, Plan, Protocol};
use crate::report::{Latency, Phase, Report};

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
    let threads = plan.threads.unwrap_or_else(|| system::allowed_cpus().len().max(1)).min(plan.connections);
    let crew = Arc::new(Crew::new(plan.clone(), threads));
    let policy = policy(plan, threads);
    match &plan.protocol {
        Protocol::Echo { size, window } => {
            let load = EchoLoad::new(crew.clone(), *size, *window);
            let client = Client::new(load).policy(policy).model(model).start()?;
            let dial = |tag| crew.dial(tag, None);
            Ok(Run { crew: &crew, client: &client, observer }.conduct(dial))
        }
        Protocol::Http { path, host, keep_alive } => {
            let load = Arc::new(HttpLoad::new(crew.clone(), host, path, *keep_alive));
            let client = Client::new(Shared(load.clone())).policy(policy).model(model).start()?;
            let dial = |tag: u64| {
                // A connection that carries one request only exists for it.
                if *keep_alive || crew.may_begin() {
                    let thread = tag as usize % crew.threads();
                    crew.tally(thread).in_flight += u64::from(!*keep_alive);
                    load.dial(tag, Some(thread));
                    return true;
                }
                false
            };
            Ok(Run { crew: &crew, client: &client, observer }.conduct(dial))
        }
    }
}

/// A service that the conductor uses too.
struct Shared(Arc<HttpLoad>);

impl Service for Shared {
    type Session = crate::http::HttpSession;

    fn open(&self, peer: &tidegate::Peer) -> Result<Self::Session, tidegate::Refusal> {
        self.0.open(peer)
    }

    fn dial_failed(&self, dial: &tidegate::Dial, error: &std::io::Error) {
        self.0.dial_failed(dial, error);
    }
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
    observer: F,
}

impl<F: FnMut(Phase<'_>)> Run<'_, F> {
    /// From the first dial to the last answer. `dial` makes connection number so-and-so, or says that none is needed any more.
    fn conduct(mut self, dial: impl FnMut(u64) -> bool) -> Report {
        self.crew.set_dialler(self.client.dialler());
        let begun = Instant::now();
        let fixed = matches!(self.crew.plan.amount, Amount::Requests(_));
        let mut window = Window::open();
        if fixed {
            self.crew.set_stage(Stage::Measuring);
            (self.observer)(Phase::Measuring);
        }
        self.open_all(dial);
        let connect_s = begun.elapsed().as_secs_f64();
        let connected = self.crew.first_attempts_stand.load(Relaxed);
        (self.observer)(Phase::Connected { attempted: self.crew.plan.connections as u64, connected });
        if !fixed {
            window = Window::open();
            self.crew.set_stage(Stage::Measuring);
            (self.observer)(Phase::Measuring);
        }
        self.measure(&window);
        window.close(self.crew);
        self.crew.set_stage(Stage::Draining);
        self.wait_for_answers();
        let mut report = self.report(&window);
        report.connect_s = connect_s;
        (self.observer)(Phase::Done { report: &report });
        self.crew.set_stage(Stage::Over);
        self.client.stop();
        report
    }

    /// Opens the connections block by block; a block begins when every attempt of the one before has ended.
    fn open_all(&self, mut dial: impl FnMut(u64) -> bool) {
        let total = self.crew.plan.connections as u64;
        let mut dialled = 0;
        while dialled < total {
            let end = (dialled + BLOCK as u64).min(total);
            while dialled < end {
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
    fn measure(&mut self, window: &Window) {
        let mut told = Instant::now();
        let mut progress = (0, Instant::now());
        loop {
            let part = match self.crew.plan.amount {
                Amount::Time(time) => {
                    let left = time.saturating_sub(window.begun.elapsed());
                    std::thread::sleep(left.min(Duration::from_millis(50)));
                    window.begun.elapsed().as_secs_f64() / time.as_secs_f64()
                }
                Amount::Requests(n) => {
                    std::thread::sleep(LOOK);
                    let ended = self.crew.sum(|t| t.requests + t.failed);
                    if ended != progress.0 {
                        progress = (ended, Instant::now());
                    } else if progress.1.elapsed() > self.crew.plan.timeout || self.is_deserted() {
                        return; // the report says what is missing
                    }
                    // Connections that do not stand have nothing to send.
                    let n = match self.crew.plan.messages_each {
                        Some(each) => {
                            each.saturating_mul(self.crew.first_attempts_stand.load(Relaxed)).clamp(1, n)
                        }
                        None => n,
                    };
                    ended as f64 / n as f64
                }
            };
            if part >= 1.0 {
                return;
            }
            if told.elapsed() > Duration::from_millis(100) {
                told = Instant::now();
                let requests = self.crew.sum(|t| t.requests);
                (self.observer)(Phase::Progress { requests, part });
            }
        }
    }

    /// Whether no connection is open or being made, so that nothing will ever come any more.
    fn is_deserted(&self) -> bool {
        let stats = self.client.stats();
        stats.attempted > 0
            && stats.open() == 0
            && stats.attempted == stats.accepted + stats.dial_failed + stats.refused
    }

    fn wait_for_answers(&self) {
        let begun = Instant::now();
        while self.crew.sum(|t| t.in_flight) > 0 && begun.elapsed() < self.crew.plan.timeout {
            std::thread::sleep(LOOK);
        }
    }

    fn report(&self, window: &Window) -> Report {
        let plan = &self.crew.plan;
        let stats = self.client.stats();
        let mut report = Report {
            format: 1,
            target: plan.target.to_string(),
            model: self.client.model().to_string(),
            threads: self.crew.threads(),
            connections: plan.connections,
            rate_bytes_per_s_per_block: plan.rate_bytes_per_s_per_block,
            attempted: stats.attempted,
            connected: stats.accepted,
            connect_failed: stats.dial_failed,
            open_at_end: stats.open(),
            elapsed_s: window.length.as_secs_f64(),
            cpu_user_s: window.cpu_s.0,
            cpu_system_s: window.cpu_s.1,
            ..Report::default()
        };
        match &plan.protocol {
            Protocol::Echo { size, .. } => {
                report.protocol = "echo".into();
                report.message_bytes = *size;
                report.keep_alive = true;
            }
            Protocol::Http { keep_alive, .. } => {
                report.protocol = "http".into();
                report.keep_alive = *keep_alive;
            }
        }
        let mut latency: Option<hdrhistogram::Histogram<u64>> = None;
        for thread in 0..self.crew.threads() {
            let tally = self.crew.tally(thread);
            report.requests += tally.requests;
            report.failed += tally.failed;
            report.wrong += tally.wrong;
            report.timed_out += tally.in_flight;
            report.late_sends += tally.late_sends;
            report.bytes_sent += tally.bytes_sent;
            report.bytes_received += tally.bytes_received;
            report.verified_connections += tally.verified_connections;
            report.reconnects += tally.reconnects;
            for (sum, n) in report.failed_by_status.iter_mut().zip(tally.failed_by_status) {
                *sum += n;
            }
            report.first_error = report.first_error.take().or_else(|| tally.first_error.clone());
            match &mut latency {
                None => latency = Some(tally.latency_us.clone()),
                // The bounds are the same, so nothing can be out of range.
                Some(all) => _ = all.add(&tally.latency_us),
            }
        }
        report.latency_us = latency.as_ref().map(Latency::of).unwrap_or_default();
        if report.elapsed_s > 0.0 {
            report.requests_per_s = report.requests as f64 / report.elapsed_s;
            report.sent_bytes_per_s = report.bytes_sent as f64 / report.elapsed_s;
            report.received_bytes_per_s = report.bytes_received as f64 / report.elapsed_s;
        }
        report
    }
}

/// The time that counts.
struct Window {
    begun: Instant,
    length: Duration,
    /// Processor time, user and system, in seconds: at the beginning, then what was used.
    cpu_s: (f64, f64),
}

impl Window {
    fn open() -> Self {
        Self { begun: Instant::now(), length: Duration::ZERO, cpu_s: processor_time_s() }
    }

    /// Ends it now, or with the last answer if a fixed number was asked for.
    fn close(&mut self, crew: &Crew) {
        let now = Instant::now();
        let end = match crew.plan.amount {
            Amount::Time(_) => Some(now),
            Amount::Requests(_) => {
                (0..crew.threads()).filter_map(|thread| crew.tally(thread).last_answer).max()
            }
        };
        self.length = end.unwrap_or(now).saturating_duration_since(self.begun);
        let cpu_s = processor_time_s();
        self.cpu_s = (cpu_s.0 - self.cpu_s.0, cpu_s.1 - self.cpu_s.1);
    }
}

/// Processor time of this process in user mode and in the kernel, in seconds (`/proc/self/stat`, `proc(5)`);
/// zero where the system has no such file.
fn processor_time_s() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses that may hold anything.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let per_s = system::clock_ticks_per_s() as f64;
    (next() / per_s, next() / per_s)
}
