//! Merges results of several generators that ran at the same time.

use hdrhistogram::Histogram;

use crate::histogram::{HistogramError, decode, encode};
use crate::report::{Latency, OpenLoop, Report};

/// Why results cannot be merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("no result to merge: give at least one JSON file")]
    Nothing,
    /// They are results of different loads.
    #[error("result {number} is of {found}, the first one of {first}: merge only results of the same load")]
    Different {
        /// Its number, from 1.
        number: usize,
        /// Its load.
        found: String,
        /// The load of the first.
        first: String,
    },
    /// One has no histogram.
    #[error("result {number}: {error}")]
    Histogram {
        /// Its number, from 1.
        number: usize,
        /// Why.
        error: HistogramError,
    },
}

/// Merges results of generators that ran at the same time: counts and rates are summed, latencies come from the merged
/// histograms without loss. `seconds` stays empty, because percentiles of seconds cannot be merged. A result that is
/// incomplete makes the whole so.
///
/// # Errors
/// [`MergeError`] if they do not match.
pub fn merge(reports: &[Report]) -> Result<Report, MergeError> {
    let first = reports.first().ok_or(MergeError::Nothing)?;
    let kind = |r: &Report| {
        let pace = if r.open_loop.is_some() { "an open loop" } else { "a closed loop" };
        let end = if r.reset_on_close { ", reset on close" } else { "" };
        format!("{} with {pace}{end}", r.protocol)
    };
    let mut sum = Report {
        format: first.format,
        protocol: first.protocol.clone(),
        keep_alive: first.keep_alive,
        reset_on_close: first.reset_on_close,
        message_bytes: first.message_bytes,
        ..Report::default()
    };
    let mut latency_us = crate::thread_stats::histogram();
    let mut service_us = crate::thread_stats::histogram();
    let mut delay_us = crate::thread_stats::histogram();
    let mut open: Option<OpenLoop> = None;
    for (at, r) in reports.iter().enumerate() {
        let number = at + 1;
        if kind(r) != kind(first) {
            return Err(MergeError::Different { number, found: kind(r), first: kind(first) });
        }
        let add = |all: &mut Histogram<u64>, text: &str| {
            let one = decode(text).map_err(|error| MergeError::Histogram { number, error })?;
            // Values outside the bounds were cut when they were recorded; other tools' histograms are stretched to fit.
            all.auto(true);
            let _ = all.add(one);
            Ok(())
        };
        add(&mut latency_us, &r.latency_v2)?;
        if let Some(o) = &r.open_loop {
            add(&mut service_us, &o.service_v2)?;
            // Results of earlier versions have none.
            if !o.delay_v2.is_empty() {
                add(&mut delay_us, &o.delay_v2)?;
            }
            add_open(open.get_or_insert_default(), o);
        }
        add_counts(&mut sum, r);
    }
    sum.latency_us = Latency::of(&latency_us);
    sum.latency_v2 = encode(&latency_us);
    if let Some(open) = &mut open {
        open.service_us = Latency::of(&service_us);
        open.service_v2 = encode(&service_us);
        open.delay_us = Latency::of(&delay_us);
        open.delay_v2 = encode(&delay_us);
    }
    sum.open_loop = open;
    Ok(sum)
}

fn add_open(sum: &mut OpenLoop, o: &OpenLoop) {
    sum.rate_per_s += o.rate_per_s;
    sum.scheduled += o.scheduled;
    sum.started += o.started;
    sum.not_started += o.not_started;
    sum.started_per_s += o.started_per_s;
    sum.answered_late += o.answered_late;
    sum.late_starts += o.late_starts;
    sum.late_wake_ups += o.late_wake_ups;
    sum.worst_late_us = sum.worst_late_us.max(o.worst_late_us);
}

fn add_counts(sum: &mut Report, r: &Report) {
    let join = |all: &mut String, one: &str| {
        if !all.split(", ").any(|part| part == one) {
            all.push_str(if all.is_empty() { "" } else { ", " });
            all.push_str(one);
        }
    };
    join(&mut sum.target, &r.target);
    join(&mut sum.model, &r.model);
    sum.interrupted |= r.interrupted;
    sum.server_gone_after_s =
        [sum.server_gone_after_s, r.server_gone_after_s].into_iter().flatten().reduce(f64::max);
    sum.threads += r.threads;
    sum.connections += r.connections;
    sum.attempted += r.attempted;
    sum.connected += r.connected;
    sum.verified_connections += r.verified_connections;
    sum.verified_in_window += r.verified_in_window;
    sum.reconnects += r.reconnects;
    sum.connect_failed += r.connect_failed;
    if let Some(tls) = r.tls {
        let all = sum.tls.get_or_insert_default();
        all.handshakes += tls.handshakes;
        all.resumed += tls.resumed;
    }
    sum.open_at_end += r.open_at_end;
    sum.connect_s = sum.connect_s.max(r.connect_s);
    sum.elapsed_s = sum.elapsed_s.max(r.elapsed_s);
    sum.warm_up_s = sum.warm_up_s.max(r.warm_up_s);
    sum.requests += r.requests;
    sum.failed += r.failed;
    sum.wrong += r.wrong;
    for (all, one) in sum.failed_by_status.iter_mut().zip(r.failed_by_status) {
        *all += one;
    }
    sum.add_answers(&r.answers_by_status);
    sum.timed_out += r.timed_out;
    if let Some(udp) = &r.udp {
        sum.udp.get_or_insert_default().add(udp);
    }
    sum.late_sends += r.late_sends;
    sum.late_wake_ups += r.late_wake_ups;
    sum.requests_per_s += r.requests_per_s;
    sum.bytes_sent += r.bytes_sent;
    sum.bytes_received += r.bytes_received;
    sum.sent_bytes_per_s += r.sent_bytes_per_s;
    sum.received_bytes_per_s += r.received_bytes_per_s;
    sum.cpu_user_s += r.cpu_user_s;
    // Each has seen the same server.
    sum.server_cpu_s = [sum.server_cpu_s, r.server_cpu_s].into_iter().flatten().reduce(f64::max);
    sum.cpu_system_s += r.cpu_system_s;
    if let Some(together) = &r.together {
        let all = sum.together.get_or_insert_default();
        all.agents.extend_from_slice(&together.agents);
        all.troubles.extend_from_slice(&together.troubles);
    }
    sum.first_error = sum.first_error.take().or_else(|| r.first_error.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(latencies: std::ops::Range<u64>) -> Report {
        let mut histogram = crate::thread_stats::histogram();
        latencies.clone().for_each(|us| histogram.saturating_record(us));
        Report {
            protocol: "http".into(),
            requests: latencies.count() as u64,
            requests_per_s: 10.0,
            latency_us: Latency::of(&histogram),
            latency_v2: encode(&histogram),
            ..Report::default()
        }
    }

    #[test]
    fn two_halves_merge_to_the_whole() {
        let merged = merge(&[result(1..5_000), result(5_000..10_000)]).unwrap();
        let whole = result(1..10_000);
        assert_eq!((merged.requests, merged.latency_us), (whole.requests, whole.latency_us));
        assert_eq!(decode(&merged.latency_v2), decode(&whole.latency_v2));
        assert_eq!(merged.requests_per_s, 20.0);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let echo = Report { protocol: "echo".into(), ..result(1..2) };
        let bare = Report { latency_v2: String::new(), ..result(1..2) };
        for (reports, part) in [
            (vec![], "no result"),
            (vec![result(1..2), echo], "result 2 is of echo"),
            (vec![bare], "result 1: not a histogram"),
        ] {
            let why = merge(&reports).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
    }
}
