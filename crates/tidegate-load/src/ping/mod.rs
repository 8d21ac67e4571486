//! Ping-pong: each connection has one message in flight, which carries the time it was sent.
//!
//! The round trip is what is measured, in nanoseconds: one thread, Nagle off, a histogram for each session and nothing
//! shared while messages fly.

#[cfg(target_os = "linux")]
mod baseline;
mod report;
mod session;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tidegate::policy::{FastPath, OutboxMarks, Wait};
use tidegate::{Client, Dial, Endpoint, Model, Policy, RunningClient};

#[cfg(target_os = "linux")]
pub use baseline::{baseline_echo, baseline_ping};
pub use report::{Jitter, PingReport, RoundTrip};
use session::{Count, PingLoad, PingShared, PingStage};

use crate::plan::{Amount, LoadError};
use crate::procs::sample;
use crate::silence::Silence;
use crate::verdict::Warning;

/// Bytes of the time in front of each message.
const STAMP: usize = 8;
/// How often it is looked whether something has come.
const LOOK: Duration = Duration::from_millis(50);
/// For how long a target may be silent at the beginning before that is reported.
const SILENT: Duration = Duration::from_secs(1);
/// How long the last answers of an interrupted run are waited for.
const HURRY: Duration = Duration::from_secs(1);
/// A window shorter than this says little.
const SHORT: Duration = Duration::from_millis(500);

/// The settings of a ping-pong.
#[derive(Clone, Debug)]
pub struct PingPlan {
    /// Target: a server that echoes everything.
    pub target: Endpoint,
    /// Bytes of a message, the 8 of its time included.
    pub size: usize,
    /// Connections, each with one message in flight.
    pub connections: usize,
    /// When to stop: round trips of all connections together, or a time.
    pub amount: Amount,
    /// Round trips before those that count.
    pub warm_up: Duration,
    /// How the one thread waits.
    pub wait: Wait,
    /// Shared memory instead of TCP, if the server supports it.
    pub fast_path: Option<FastPath>,
    /// The I/O model; `None` is the best one that supports this wait mode.
    pub model: Option<Model>,
    /// Connect timeout, and time limit for the last responses.
    pub timeout: Duration,
    /// The server's process, if it runs here: its CPU share is reported.
    pub server_pid: Option<u32>,
}

impl PingPlan {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`LoadError::Plan`] with what to change.
    pub fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Plan(why.into()));
        if !(STAMP..=16 << 20).contains(&self.size) {
            return wrong("--size must be from 8 bytes, which hold the time, to 16 MiB");
        }
        if self.connections == 0 || self.connections > 10_000 {
            return wrong("-c must be from 1 to 10000 connections");
        }
        match self.amount {
            Amount::Requests(n) if n < self.connections as u64 => {
                wrong("-n must be at least one round trip for each connection")
            }
            Amount::Time(time) if time.is_zero() => wrong("-d must be longer than 0"),
            _ => Ok(()),
        }
    }

    fn policy(&self) -> Policy {
        Policy::default()
            .max_connections(self.connections)
            .threads(NonZeroUsize::new(1))
            .first_byte_timeout(None)
            .send_timeout(None)
            .wait(self.wait)
            .fast_path(self.fast_path)
            .buffer_bytes(64 * 1024)
            .drain_timeout(Duration::from_millis(200))
            // Answers are taken while a message is still being sent: a server that is held back by its answers takes no
            // more of it.
            .outbox(OutboxMarks::default().high(OutboxMarks::default().high.max(2 * self.size)))
    }
}

/// Runs the ping-pong; ends early once `interrupted` is true. `on_silence` is called once, on the calling thread, if
/// the target accepts or answers nothing for a second.
///
/// # Errors
/// [`LoadError`] if it cannot start. Later errors are in the report.
pub fn ping(
    interrupted: &AtomicBool,
    plan: &PingPlan,
    on_silence: impl FnMut(Silence),
) -> Result<PingReport, LoadError> {
    plan.check()?;
    let shared = Arc::new(PingShared::new(plan));
    let mut client = Client::new(PingLoad(shared.clone())).policy(plan.policy());
    if let Some(model) = plan.model {
        client = client.model(model);
    }
    let client = client.start()?;
    let run = PingRun { interrupted, plan, shared: &shared, on_silence, is_settled: false };
    Ok(run.conduct(client))
}

struct PingRun<'a, F> {
    interrupted: &'a AtomicBool,
    plan: &'a PingPlan,
    shared: &'a PingShared,
    on_silence: F,
    /// The target was silent, and that was reported, or it no longer is.
    is_settled: bool,
}

impl<F: FnMut(Silence)> PingRun<'_, F> {
    fn conduct(mut self, client: RunningClient) -> PingReport {
        let plan = self.plan;
        let model = client.model();
        let begun = Instant::now();
        for tag in 0..plan.connections as u64 {
            // The queue of dials is longer than the most connections allowed.
            let _ = client.dialler().dial(Dial::to(plan.target.clone()).tag(tag));
        }
        let all = plan.connections;
        // Nobody is left who could send.
        let is_over = |count: Count| count.ended + count.failed >= all;
        let are_made = |count: Count| count.established + count.failed >= all;
        let all_stand = self.follow(&client, begun, plan.timeout, are_made) == PingWait::Met;
        let none_established = self.shared.state().count.established == 0;
        let mut report = PingReport::new(plan, model);
        if all_stand && matches!(plan.amount, Amount::Time(_)) {
            self.follow(&client, begun, plan.warm_up, is_over);
        }
        let before = (sample(None), plan.server_pid.map(|pid| sample(Some(pid))));
        let window = Instant::now();
        self.shared.set(PingStage::Measuring);
        let limit = match plan.amount {
            _ if none_established => Duration::ZERO,
            Amount::Time(time) => time,
            Amount::Requests(_) => Duration::MAX,
        };
        let outcome = self.follow(&client, begun, limit, is_over);
        let passed = window.elapsed();
        self.shared.set(PingStage::Over);
        report.generator = before.0.until(&sample(None), passed);
        if let (Some(before), Some(pid)) = (&before.1, plan.server_pid) {
            report.server = before.until(&sample(Some(pid)), passed);
        }
        let is_interrupted = self.interrupted.load(Relaxed);
        let timeout = match outcome {
            PingWait::Silent => Duration::ZERO,
            _ if none_established => Duration::ZERO,
            _ if is_interrupted => plan.timeout.min(HURRY),
            _ => plan.timeout,
        };
        let is_over = self.shared.wait(&AtomicBool::new(false), timeout, is_over);
        if !is_over && !is_interrupted {
            self.shared.note(|| not_answered(plan, none_established));
        }
        client.stop();
        report.fast_paths = client.join().fast_paths;
        report.enter(self.shared, passed);
        report.interrupted = self.interrupted.load(Relaxed);
        report.warnings = warnings(&report, passed);
        report
    }

    /// Waits for a condition, and looks meanwhile whether the target is silent. With a number of round trips it is not
    /// waited for a target that answers nothing for the whole timeout.
    fn follow(
        &mut self,
        client: &RunningClient,
        run_began: Instant,
        limit: Duration,
        met: impl Fn(Count) -> bool,
    ) -> PingWait {
        let begun = Instant::now();
        let mut heard = (client.stats().bytes_in, begun);
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if self.shared.wait(self.interrupted, left.min(LOOK), &met) {
                return PingWait::Met;
            }
            if self.interrupted.load(Relaxed) || begun.elapsed() >= limit {
                return PingWait::Unmet;
            }
            let stats = client.stats();
            if stats.bytes_in != heard.0 {
                heard = (stats.bytes_in, Instant::now());
            }
            self.is_settled |= stats.bytes_in > 0;
            if !self.is_settled && run_began.elapsed() >= SILENT {
                self.is_settled = true;
                let silence = if stats.accepted > 0 { Silence::NotAnswering } else { Silence::NotConnected };
                (self.on_silence)(silence);
            }
            if matches!(self.plan.amount, Amount::Requests(_)) && heard.1.elapsed() > self.plan.timeout {
                return PingWait::Silent;
            }
        }
    }
}

/// What came of waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PingWait {
    Met,
    /// The time is over, or somebody interrupts.
    Unmet,
    /// The target has answered nothing for the whole timeout.
    Silent,
}

fn not_answered(plan: &PingPlan, none_established: bool) -> String {
    let (target, s) = (&plan.target, plan.timeout.as_secs_f64());
    match none_established {
        true => format!("{target}: no connection within {s:.1} s: {}", Silence::NotConnected),
        false => format!(
            "{target}: no answer for {s:.1} s; check that the server echoes and does not hang, or raise --timeout"
        ),
    }
}

fn warnings(report: &PingReport, passed: Duration) -> Vec<Warning> {
    let mut found = Vec::new();
    if report.round_trips == 0 {
        return found; // there is nothing to warn of
    }
    if let Some(waited) = report.generator.map(|share| share.waited).filter(|&waited| waited >= 0.1) {
        found.push(Warning::GeneratorStarved { waited });
    }
    if report.lost > 0 {
        found.push(Warning::LostSamples { lost: report.lost, known: report.round_trips });
    }
    if passed < SHORT {
        found.push(Warning::ShortWindow { elapsed_s: passed.as_secs_f64() });
    }
    if report.server.is_none() {
        found.push(Warning::ServerUnseen);
    }
    found
}

#[cfg(test)]
mod tests;
