//! What members hear, second by second, for the observer. Nothing of it goes into the result.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::ChatPlan;
use super::shared::{ChatProgress, ChatShared};
use crate::measurement::Measurement;
use crate::report::{Latency, RunStatus, Second};
use crate::thread_stats::histogram;

const LENGTH: Duration = Duration::from_secs(1);

/// A second that is over.
pub(super) struct FinishedSecond {
    pub(super) second: Second,
    pub(super) latency_us: Histogram<u64>,
    pub(super) status: RunStatus,
}

/// What was known when the last second was over.
pub(super) struct Seconds {
    begun: Instant,
    last: Instant,
    said: u64,
    heard: u64,
    wrong: u64,
    latency_us: Histogram<u64>,
    window: Measurement,
}

impl Seconds {
    pub(super) fn begin(plan: &ChatPlan) -> Self {
        let now = Instant::now();
        let window = Measurement::open(plan.server_pid);
        Self { begun: now, last: now, said: 0, heard: 0, wrong: 0, latency_us: histogram(), window }
    }

    /// One more second, if it is over.
    pub(super) fn turn(
        &mut self,
        plan: &ChatPlan,
        shared: &ChatShared,
        progress: &ChatProgress,
    ) -> Option<FinishedSecond> {
        let now = Instant::now();
        let length = now.duration_since(self.last);
        if length < LENGTH {
            return None;
        }
        let (mut all, mut wrong) = (histogram(), 0);
        for thread_stats in shared.all_stats() {
            let _ = all.add(&thread_stats.latency_us); // the bounds are the same
            wrong += thread_stats.wrong;
        }
        let mut latency_us = all.clone();
        let _ = latency_us.subtract(&self.latency_us); // it only grows
        let (said, heard) = (progress.said - self.said, progress.heard - self.heard);
        let bytes = plan.size as u64;
        let second = Second {
            at_s: now.duration_since(self.begun).as_secs_f64(),
            length_s: length.as_secs_f64(),
            requests: heard,
            failed: wrong - self.wrong,
            late_starts: 0,
            in_flight: progress.owed.saturating_sub(progress.heard + progress.spared),
            bytes_sent: said * bytes,
            bytes_received: heard * bytes,
            latency_us: Latency::of(&latency_us),
        };
        let ((generator, server), _) = self.window.look(plan.server_pid);
        let open = shared.joined().saturating_sub(shared.lost()) as u64;
        let status = RunStatus { open, generator, server, ..RunStatus::default() };
        (self.last, self.said, self.heard) = (now, progress.said, progress.heard);
        (self.wrong, self.latency_us) = (wrong, all);
        Some(FinishedSecond { second, latency_us, status })
    }
}
