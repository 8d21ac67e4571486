//! Bringing together what the I/O threads have counted: once a second while the load runs, and at the end.

use std::mem;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::crew::Crew;
use crate::histogram::encode;
use crate::plan::Protocol;
use crate::report::{Latency, OpenLoop, Report, Second};
use crate::tally::histogram;

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

/// What has been brought together so far.
pub(crate) struct Ledger {
    latency_us: Histogram<u64>,
    /// Of the last second.
    second_us: Histogram<u64>,
    service_us: Histogram<u64>,
    delay_us: Histogram<u64>,
    seconds: Vec<Second>,
    /// Empty histograms that a thread gets in exchange for its own.
    spare: Histogram<u64>,
    spare_service: Histogram<u64>,
    spare_delay: Histogram<u64>,
    before: Counts,
    since: Instant,
    begun: Instant,
    /// Requests in flight, added up each time they were looked at, and how often that was.
    looks: (u64, u64),
}

impl Ledger {
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
        }
    }

    /// So many requests are in flight now.
    pub(crate) fn look(&mut self, in_flight: u64) {
        self.looks = (self.looks.0 + in_flight, self.looks.1 + 1);
    }

    /// The mean of the requests in flight, and how often it was looked.
    pub(crate) fn concurrency(&self) -> (f64, u64) {
        let (sum, looks) = self.looks;
        (sum as f64 / looks.max(1) as f64, looks)
    }

    /// When the second that runs is over: a whole number of seconds from the beginning, so that lateness does not add
    /// up and the seconds of generators that began together stay side by side.
    pub(crate) fn next(&self) -> Instant {
        let over = self.since.saturating_duration_since(self.begun).as_secs();
        self.begun + Duration::from_secs(over + 1)
    }

    /// All latencies of the last second.
    pub(crate) fn last(&self) -> &Histogram<u64> {
        &self.second_us
    }

    /// Fetches what was counted since the last time. Each thread is held up for no longer than an exchange of two
    /// pointers.
    pub(crate) fn collect(&mut self, crew: &Crew, now: Instant) -> Option<&Second> {
        let mut counts = Counts::default();
        self.second_us.reset();
        for thread in 0..crew.threads() {
            let mut tally = crew.tally(thread);
            counts.requests += tally.requests;
            counts.failed += tally.failed;
            counts.late_starts += tally.late_starts;
            counts.in_flight += tally.in_flight;
            counts.bytes_sent += tally.bytes_sent;
            counts.bytes_received += tally.bytes_received;
            mem::swap(&mut tally.latency_us, &mut self.spare);
            if let Some(service_us) = &mut tally.service_us {
                mem::swap(service_us, &mut self.spare_service);
            }
            if let Some(delay_us) = &mut tally.delay_us {
                mem::swap(delay_us, &mut self.spare_delay);
            }
            drop(tally);
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
            return None; // the last second has just been told
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

    /// Enters everything into a report whose `elapsed_s` is there already.
    pub(crate) fn enter(&mut self, crew: &Crew, report: &mut Report) {
        self.enter_figures(crew, report);
        report.latency_v2 = encode(&self.latency_us);
        report.seconds = mem::take(&mut self.seconds);
        if let Some(open) = &mut report.open_loop {
            open.service_v2 = encode(&self.service_us);
            open.delay_v2 = encode(&self.delay_us);
        }
    }

    /// Enters what costs little, so that it can be looked at while the load runs.
    pub(crate) fn enter_figures(&self, crew: &Crew, report: &mut Report) {
        match &crew.plan.protocol {
            Protocol::Echo { size, .. } => {
                report.protocol = "echo".into();
                report.message_bytes = *size;
                report.keep_alive = true;
            }
            Protocol::Http(shape) => {
                report.protocol = "http".into();
                report.keep_alive = shape.keep_alive;
            }
        }
        let mut open = OpenLoop::default();
        for thread in 0..crew.threads() {
            let tally = crew.tally(thread);
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
            open.started += tally.started;
            open.late_starts += tally.late_starts;
            open.late_wake_ups += tally.late_wake_ups;
            open.worst_late_us = open.worst_late_us.max(tally.worst_late_us);
        }
        report.latency_us = Latency::of(&self.latency_us);
        if report.elapsed_s > 0.0 {
            report.requests_per_s = report.requests as f64 / report.elapsed_s;
            report.sent_bytes_per_s = report.bytes_sent as f64 / report.elapsed_s;
            report.received_bytes_per_s = report.bytes_received as f64 / report.elapsed_s;
            open.started_per_s = open.started as f64 / report.elapsed_s;
        }
        if let (Some(pacer), Some(rate)) = (&crew.pacer, crew.plan.rate) {
            (open.scheduled, open.not_started) = pacer.outcome();
            open.rate_per_s = rate.requests_per_s / crew.plan.its_part().of() as f64;
            open.service_us = Latency::of(&self.service_us);
            open.delay_us = Latency::of(&self.delay_us);
            report.open_loop = Some(open);
        }
    }
}
