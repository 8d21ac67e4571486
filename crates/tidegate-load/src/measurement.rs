//! The measuring window.

use std::time::{Duration, Instant};

use crate::cpu_time::CpuTime;
use crate::plan::Amount;
use crate::procs::{Sample, Share, sample};
use crate::run_state::{RunState, Stage};

/// The measuring window.
pub(crate) struct Measurement {
    pub(crate) begun: Instant,
    pub(crate) length: Duration,
    /// CPU time, user and system, in seconds: at the beginning, then the amount used.
    pub(crate) cpu_s: (f64, f64),
    /// The busiest threads of generator and server, once it is closed.
    pub(crate) generator: Option<Share>,
    pub(crate) server: Option<Share>,
    /// Processor time of the server's processes in it, in seconds, once it is closed.
    pub(crate) server_cpu_s: Option<f64>,
    server_time: Option<CpuTime>,
    samples: (Sample, Option<Sample>),
    /// Those of the last sample, and its time.
    last: (Sample, Option<Sample>, Instant),
}

/// How a window ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowEnd {
    /// After its time, or its requests.
    Planned,
    /// Before: it was interrupted, or the server is gone.
    Early,
}

/// The busiest threads of generator and server.
type Shares = (Option<Share>, Option<Share>);

impl Measurement {
    pub(crate) fn open(server_pid: Option<u32>) -> Self {
        let mut server_time = server_pid.map(CpuTime::of); // looks at all processes, which takes a while
        let samples = (sample(None), server_pid.map(|pid| sample(Some(pid))));
        let cpu_s = processor_time_s();
        server_time.iter_mut().for_each(CpuTime::restart);
        let begun = Instant::now();
        Self {
            begun,
            length: Duration::ZERO,
            cpu_s,
            generator: None,
            server: None,
            server_cpu_s: None,
            server_time,
            samples,
            last: (Sample::default(), None, begun),
        }
    }

    /// Has what the server used since the end of the window count, too: in an open loop the answers do.
    pub(crate) fn include_late_answers(&mut self) {
        self.server_cpu_s = self.server_time.as_ref().map(CpuTime::used_s);
    }

    /// The busiest threads since the last sample, and since the window began.
    pub(crate) fn look(&mut self, server_pid: Option<u32>) -> (Shares, Shares) {
        let now = Instant::now();
        let (generator, server) = (sample(None), server_pid.map(|pid| sample(Some(pid))));
        let since = |before: (&Sample, Option<&Sample>), begun: Instant| {
            let passed = now.saturating_duration_since(begun);
            let server =
                before.1.zip(server.as_ref()).and_then(|(before, after)| before.until(after, passed));
            (before.0.until(&generator, passed), server)
        };
        let whole = since((&self.samples.0, self.samples.1.as_ref()), self.begun);
        let second = match self.last.2 == self.begun {
            true => whole,
            false => since((&self.last.0, self.last.1.as_ref()), self.last.2),
        };
        self.last = (generator, server, now);
        (second, whole)
    }

    /// Ends it now, or with the last response for a fixed number of requests; with the schedule, if there is one. What
    /// is answered from now on does not count, nor does what the server uses for it.
    pub(crate) fn close(&mut self, run_state: &RunState, end: WindowEnd) {
        let now = Instant::now();
        run_state.set_stage(Stage::Draining);
        self.take(now, run_state.plan.server_pid);
        if let Some(pacer) = run_state.pacer.as_ref().filter(|_| end == WindowEnd::Early) {
            pacer.cut(now);
        }
        let last = match run_state.plan.amount {
            Amount::Time(_) => Some(now),
            Amount::Requests(_) => {
                (0..run_state.threads()).filter_map(|thread| run_state.thread_stats(thread).last_answer).max()
            }
        };
        self.length = last.unwrap_or(now).saturating_duration_since(self.begun);
        if let Some(pacer) = run_state.pacer.as_ref().filter(|_| end == WindowEnd::Planned) {
            self.length = match run_state.plan.amount {
                Amount::Time(time) => run_state.plan.window_time(time, self.begun),
                Amount::Requests(_) => self.length.max(pacer.length()),
            };
        }
    }

    /// Takes what generator and server have used until now.
    pub(crate) fn take(&mut self, now: Instant, server_pid: Option<u32>) {
        let known_s = self.server_time.as_ref().map(CpuTime::known_s);
        let samples = (sample(None), server_pid.map(|pid| sample(Some(pid))));
        let cpu_s = processor_time_s();
        let passed = now.saturating_duration_since(self.begun);
        self.generator = self.samples.0.until(&samples.0, passed);
        if let (Some(before), Some(after)) = (&self.samples.1, &samples.1) {
            self.server = before.until(after, passed);
        }
        self.server_cpu_s =
            known_s.zip(self.server_time.as_ref()).map(|(known_s, time)| known_s + time.new_s());
        self.cpu_s = (cpu_s.0 - self.cpu_s.0, cpu_s.1 - self.cpu_s.1);
    }
}

/// CPU time of this process in user mode and in the kernel, in seconds; zero if unknown.
pub(crate) fn processor_time_s() -> (f64, f64) {
    let (user, kernel) = tidegate_os::process::own_cpu_times().unwrap_or_default();
    (user.as_secs_f64(), kernel.as_secs_f64())
}
