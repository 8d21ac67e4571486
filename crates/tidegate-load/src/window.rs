//! The time that counts.

use std::time::{Duration, Instant};

use tidegate::system;

use crate::crew::Crew;
use crate::plan::{Amount, Plan};
use crate::procs::{Sample, Share, sample};

/// The time that counts.
pub(crate) struct Window {
    pub(crate) begun: Instant,
    pub(crate) length: Duration,
    /// Processor time, user and system, in seconds: at the beginning, then what was used.
    pub(crate) cpu_s: (f64, f64),
    /// The busiest threads of generator and server, once it is closed.
    pub(crate) generator: Option<Share>,
    pub(crate) server: Option<Share>,
    samples: (Sample, Option<Sample>),
}

impl Window {
    pub(crate) fn open(plan: &Plan) -> Self {
        let samples = (sample(None), plan.server_pid.map(|pid| sample(Some(pid))));
        let cpu_s = processor_time_s();
        Self { begun: Instant::now(), length: Duration::ZERO, cpu_s, generator: None, server: None, samples }
    }

    /// Ends it now, or with the last answer if a fixed number was asked for; with the schedule, if there is one.
    pub(crate) fn close(&mut self, crew: &Crew) {
        let now = Instant::now();
        let end = match crew.plan.amount {
            Amount::Time(_) => Some(now),
            Amount::Requests(_) => {
                (0..crew.threads()).filter_map(|thread| crew.tally(thread).last_answer).max()
            }
        };
        self.length = end.unwrap_or(now).saturating_duration_since(self.begun);
        if let Some(pacer) = &crew.pacer {
            self.length = match crew.plan.amount {
                Amount::Time(time) => time,
                Amount::Requests(_) => self.length.max(pacer.length()),
            };
        }
        let passed = now.saturating_duration_since(self.begun);
        self.generator = self.samples.0.until(&sample(None), passed);
        if let (Some(before), Some(pid)) = (&self.samples.1, crew.plan.server_pid) {
            self.server = before.until(&sample(Some(pid)), passed);
        }
        let cpu_s = processor_time_s();
        self.cpu_s = (cpu_s.0 - self.cpu_s.0, cpu_s.1 - self.cpu_s.1);
    }
}

/// Processor time of this process in user mode and in the kernel, in seconds (`/proc/self/stat`, `proc(5)`);
/// zero where the system has no such file.
pub(crate) fn processor_time_s() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name in parentheses that may hold anything.
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let per_s = system::clock_ticks_per_s() as f64;
    (next() / per_s, next() / per_s)
}
