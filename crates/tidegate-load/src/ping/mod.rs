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
use session::{PingLoad, PingShared, PingStage};

use crate::plan::{Amount, LoadError};
use crate::procs::sample;
use crate::verdict::Warning;

/// Bytes of the time in front of each message.
const STAMP: usize = 8;
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

/// Runs the ping-pong; ends early once `interrupted` is true.
///
/// # Errors
/// [`LoadError`] if it cannot start. Later errors are in the report.
pub fn ping(interrupted: &AtomicBool, plan: &PingPlan) -> Result<PingReport, LoadError> {
    plan.check()?;
    let shared = Arc::new(PingShared::new(plan));
    let mut client = Client::new(PingLoad(shared.clone())).policy(plan.policy());
    if let Some(model) = plan.model {
        client = client.model(model);
    }
    let client = client.start()?;
    Ok(conduct(interrupted, plan, &shared, client))
}

fn conduct(
    interrupted: &AtomicBool,
    plan: &PingPlan,
    shared: &PingShared,
    client: RunningClient,
) -> PingReport {
    let model = client.model();
    for tag in 0..plan.connections as u64 {
        // The queue of dials is longer than the most connections allowed.
        let _ = client.dialler().dial(Dial::to(plan.target.clone()).tag(tag));
    }
    let all = plan.connections;
    let stand = shared.wait(interrupted, plan.timeout, |count| count.stand + count.failed >= all);
    let mut report = PingReport::new(plan, model);
    if stand && matches!(plan.amount, Amount::Time(_)) {
        shared.wait(interrupted, plan.warm_up, |_| false);
    }
    let before = (sample(None), plan.server_pid.map(|pid| sample(Some(pid))));
    let begun = Instant::now();
    shared.set(PingStage::Measuring);
    let patience = match plan.amount {
        Amount::Time(time) => time,
        Amount::Requests(_) => Duration::MAX,
    };
    // Ends early if nobody is left who could send.
    shared.wait(interrupted, patience, |count| count.ended + count.failed >= all);
    let passed = begun.elapsed();
    shared.set(PingStage::Over);
    report.generator = before.0.until(&sample(None), passed);
    if let (Some(before), Some(pid)) = (&before.1, plan.server_pid) {
        report.server = before.until(&sample(Some(pid)), passed);
    }
    shared.wait(&AtomicBool::new(false), plan.timeout, |count| count.ended + count.failed >= all);
    client.stop();
    report.fast_paths = client.join().fast_paths;
    report.enter(shared, passed);
    report.interrupted = interrupted.load(Relaxed);
    report.warnings = warnings(&report, passed);
    report
}

fn warnings(report: &PingReport, passed: Duration) -> Vec<Warning> {
    let mut found = Vec::new();
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
