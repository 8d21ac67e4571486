//! Aggregates the counters of the I/O threads: once a second while the load runs, and at the end.

use std::mem;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::assessment::SAMPLES;
use crate::histogram::encode;
use crate::pacer::Pacer;
use crate::plan::{AfterResponse, Protocol};
use crate::report::{Latency, OpenLoop, Report, Second};
use crate::run_state::RunState;
use crate::thread_stats::histogram;

/// Counters of all threads at one moment.
#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u64,
    failed: u64,
    late_starts: u64,
    in_flight: u64,
    bytes_sent: u64,
    bytes_received: u64,
}

/// The aggregated counters so far.
pub(crate) struct Recorder {
    latency_us: Histogram<u64>,
    /// Of the last second.
    second_us: Histogram<u64>,
    service_us: Histogram<u64>,
    delay_us: Histogram<u64>,
    seconds: Vec<Second>,
    /// Empty histograms to exchange for those of a thread.
    spare: Histogram<u64>,
    spare_service: Histogram<u64>,
    spare_delay: Histogram<u64>,
    before: Counts,
    since: Instant,
    begun: Instant,
    /// Samples of the requests in flight: their sum, and their number.
    looks: (u64, u64),
    backlog: Backlog,
}

/// Requests in flight in the course of an open loop: samples at even distances, which grow with the window.
struct Backlog {
    samples: Vec<u64>,
    every: Duration,
    next: Instant,
}

impl Backlog {
    /// So many samples are kept.
    const MOST: usize = 1024;

    fn new(begun: Instant) -> Self {
        Self { samples: Vec::new(), every: Duration::from_millis(10), next: begun }
    }

    fn look(&mut self, now: Instant, in_flight: u64) {
        if now < self.next {
            return;
        }
        self.samples.push(in_flight);
        if self.samples.len() == Self::MOST {
            self.samples = self.samples.iter().copied().step_by(2).collect();
            self.every *= 2;
        }
        self.next = now + self.every;
    }

    /// By how much the mean of the last quarter of the window exceeds that of the second one. In the first quarter it
    /// grows until the first answers come, however fast the server is. 0 if there are too few samples.
    fn growth(&self) -> f64 {
        if (self.samples.len() as u64) < SAMPLES {
            return 0.0;
        }
        let quarter = self.samples.len() / 4;
        let mean = |samples: &[u64]| samples.iter().sum::<u64>() as f64 / quarter.max(1) as f64;
        mean(&self.samples[self.samples.len() - quarter..]) - mean(&self.samples[quarter..2 * quarter])
    }
}

impl Recorder {
    /// Empty, for a window that begins at `begun`.
    pub(crate) fn new(begun: Instant) -> Self {
        Self {
            latency_us: histogram(),
            second_us: histogram(),
            service_us: histogram(),
            delay_us: histogram(),
            seconds: Vec::new(),
            spare: histogram(),
            spare_service: histogram(),
            spare_delay: histogram(),
            before: Counts::default(),
            since: begun,
            begun,
            looks: (0, 0),
            backlog: Backlog::new(begun),
        }
    }

    /// Adds a sample of the requests in flight.
    pub(crate) fn look(&mut self, in_flight: u64) {
        self.looks = (self.looks.0 + in_flight, self.looks.1 + 1);
    }

    /// Adds a sample of the requests in flight while the schedule goes on at its final rate: during a ramp they grow
    /// with the rate, even if each answer takes the same time.
    pub(crate) fn look_at_backlog(&mut self, pacer: &Pacer, now: Instant, in_flight: u64) {
        if !pacer.is_spent() && pacer.is_at_final_rate(now) {
            self.backlog.look(now, in_flight);
        }
    }

    /// How many more requests were in flight at the end of the schedule than in the middle.
    pub(crate) fn backlog_growth(&self) -> f64 {
        self.backlog.growth()
    }

    /// The mean of the requests in flight, and the number of samples.
    pub(crate) fn concurrency(&self) -> (f64, u64) {
        let (sum, looks) = self.looks;
        (sum as f64 / looks.max(1) as f64, looks)
    }

    /// When the current second ends: a whole number of seconds from the beginning, so that delays do not accumulate and
    /// the seconds of generators that began together stay aligned.
    pub(crate) fn next(&self) -> Instant {
        let over = self.since.saturating_duration_since(self.begun).as_secs();
        self.begun + Duration::from_secs(over + 1)
    }

    /// All latencies of the last second.
    pub(crate) fn last(&self) -> &Histogram<u64> {
        &self.second_us
    }

    /// Fetches the counters since the last call. Each thread is blocked for no longer than an exchange of two pointers.
    pub(crate) fn collect(&mut self, run_state: &RunState, now: Instant) -> Option<&Second> {
        let mut counts = Counts::default();
        self.second_us.reset();
        for thread in 0..run_state.threads() {
            let mut thread_stats = run_state.thread_stats(thread);
            counts.requests += thread_stats.requests;
            counts.failed += thread_stats.failed;
            counts.late_starts += thread_stats.late_starts;
            counts.in_flight += thread_stats.in_flight;
            counts.bytes_sent += thread_stats.bytes_sent;
            counts.bytes_received += thread_stats.bytes_received;
            mem::swap(&mut thread_stats.latency_us, &mut self.spare);
            if let Some(service_us) = &mut thread_stats.service_us {
                mem::swap(service_us, &mut self.spare_service);
            }
            if let Some(delay_us) = &mut thread_stats.delay_us {
                mem::swap(delay_us, &mut self.spare_delay);
            }
            drop(thread_stats);
            // All bounds are the same, so nothing can be out of range.
            let _ = self.second_us.add(&self.spare);
            let _ = self.service_us.add(&self.spare_service);
            let _ = self.delay_us.add(&self.spare_delay);
            self.spare.reset();
            self.spare_service.reset();
            self.spare_delay.reset();
        }
        let _ = self.latency_us.add(&self.second_us);
        let before = mem::replace(&mut self.before, counts);
        let since = mem::replace(&mut self.since, now);
        let length_s = now.saturating_duration_since(since).as_secs_f64();
        if length_s <= 0.0
            || (length_s < 0.01 && counts.requests + counts.failed == before.requests + before.failed)
        {
            return None; // the last second has just been reported
        }
        self.seconds.push(Second {
            at_s: now.saturating_duration_since(self.begun).as_secs_f64(),
            length_s,
            requests: counts.requests - before.requests,
            failed: counts.failed - before.failed,
            late_starts: counts.late_starts - before.late_starts,
            in_flight: counts.in_flight,
            bytes_sent: counts.bytes_sent - before.bytes_sent,
            bytes_received: counts.bytes_received - before.bytes_received,
            latency_us: Latency::of(&self.second_us),
        });
        self.seconds.last()
    }

    /// Writes everything into a report whose `elapsed_s` is set.
    pub(crate) fn enter(&mut self, run_state: &RunState, report: &mut Report) {
        self.enter_figures(run_state, report);
        report.latency_v2 = encode(&self.latency_us);
        report.seconds = mem::take(&mut self.seconds);
        if let Some(open) = &mut report.open_loop {
            open.service_v2 = encode(&self.service_us);
            open.delay_v2 = encode(&self.delay_us);
        }
    }

    /// Writes the cheap values, for use while the load runs.
    pub(crate) fn enter_figures(&self, run_state: &RunState, report: &mut Report) {
        match &run_state.plan.protocol {
            Protocol::Echo { size, .. } => {
                report.protocol = "echo".into();
                report.message_bytes = *size;
                report.keep_alive = true;
            }
            Protocol::Http(shape) => {
                report.protocol = "http".into();
                report.keep_alive = shape.keep_alive();
                report.reset_on_close = shape.after_response == AfterResponse::Reset;
            }
        }
        let mut open = OpenLoop::default();
        for thread in 0..run_state.threads() {
            let thread_stats = run_state.thread_stats(thread);
            report.requests += thread_stats.requests;
            report.failed += thread_stats.failed;
            report.wrong += thread_stats.wrong;
            report.timed_out += thread_stats.in_flight;
            report.late_sends += thread_stats.late_sends;
            if run_state.pacer.is_none() {
                report.late_wake_ups += thread_stats.late_wake_ups;
            }
            report.bytes_sent += thread_stats.bytes_sent;
            report.bytes_received += thread_stats.bytes_received;
            report.verified_connections += thread_stats.verified_connections;
            report.verified_in_window += thread_stats.verified_in_window;
            report.reconnects += thread_stats.reconnects;
            for (sum, n) in report.failed_by_status.iter_mut().zip(thread_stats.failed_by_status) {
                *sum += n;
            }
            report.add_answers(&thread_stats.answers_by_status);
            report.first_error = report.first_error.take().or_else(|| thread_stats.first_error.clone());
            open.started += thread_stats.started;
            open.answered_late += thread_stats.answered_late;
            open.late_starts += thread_stats.late_starts;
            open.late_wake_ups += thread_stats.late_wake_ups;
            open.worst_late_us = open.worst_late_us.max(thread_stats.worst_late_us);
        }
        report.latency_us = Latency::of(&self.latency_us);
        if report.elapsed_s > 0.0 {
            report.requests_per_s = (report.requests - open.answered_late) as f64 / report.elapsed_s;
            report.sent_bytes_per_s = report.bytes_sent as f64 / report.elapsed_s;
            report.received_bytes_per_s = report.bytes_received as f64 / report.elapsed_s;
            open.started_per_s = open.started as f64 / report.elapsed_s;
        }
        if let (Some(pacer), Some(rate)) = (&run_state.pacer, run_state.plan.rate) {
            (open.scheduled, open.not_started) = pacer.outcome();
            open.rate_per_s = rate.requests_per_s / run_state.plan.its_part().of() as f64;
            open.service_us = Latency::of(&self.service_us);
            open.delay_us = Latency::of(&self.delay_us);
            report.open_loop = Some(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;
    use crate::plan::{Amount, Plan, Rate};

    /// The growth of a window of so many samples, with so many requests in flight in each.
    fn growth(samples: u64, in_flight: impl Fn(u64) -> u64) -> f64 {
        let begun = Instant::now();
        let mut backlog = Backlog::new(begun);
        for at in 0..samples {
            backlog.look(begun + Duration::from_millis(10 * at), in_flight(at));
        }
        assert!(backlog.samples.len() < Backlog::MOST);
        backlog.growth()
    }

    #[test]
    fn a_growing_backlog_is_distinguished_from_a_steady_one() {
        for samples in [20, 100, 5_000, 100_000] {
            let steady = growth(samples, |at| at.min(samples / 4));
            assert!(steady < 1.0, "of a server that answers after a while: {steady}");
            let part = growth(samples, |at| at) / samples as f64;
            assert!((part - 0.5).abs() < 0.02, "half of what the whole window adds: {part}");
        }
        let last = SAMPLES - 1;
        assert_eq!((growth(0, |_| 9), growth(last, |at| 9 * at)), (0.0, 0.0), "too few to tell");
        assert!(growth(SAMPLES, |at| 9 * at) > 0.0);
    }

    /// Answers take 100 ms each, while the rate grows from 100 to 10,000 requests/s in the first two seconds of four.
    #[test]
    fn requests_in_flight_that_grow_with_a_ramp_are_no_backlog() {
        let ramp = Duration::from_secs(2);
        let rate = Rate { requests_per_s: 10_000.0, ramp: Some((100.0, ramp)) };
        let plan = Plan { rate: Some(rate), amount: Amount::Requests(30_000), ..plan() };
        let begun = Instant::now();
        let growth_after = |length_s: u64| {
            let pacer = Pacer::of(&plan).unwrap();
            pacer.begin(begun, begun, begun);
            let mut recorder = Recorder::new(begun);
            for ms in (0..length_s * 1000).step_by(10) {
                let in_flight = ms.min(2_000) / 2;
                recorder.look_at_backlog(&pacer, begun + Duration::from_millis(ms), in_flight);
            }
            (recorder.backlog_growth(), recorder.backlog.samples.len())
        };
        assert_eq!(growth_after(2), (0.0, 0), "a ramp for the whole window");
        assert_eq!(growth_after(4), (0.0, 200), "what follows the ramp is judged");
    }
}
