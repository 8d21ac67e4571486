//! Counters as Prometheus text, named by its rules: a prefix, a base unit, `_total` for what only grows.

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tidegate::{CloseReason, Model, Stats, system};

use super::Phase;

/// The whole page. A registry is made for each scrape: the numbers live in the engines, and are read only when asked for.
pub(super) fn text(phase: Phase, source: Option<(&str, Model, Stats)>) -> Result<String, prometheus::Error> {
    let page = Page(Registry::new());
    page.gauge(
        "tidegate_accepting",
        "1 while the server takes connections, 0 before and once it drains.",
        u64::from(phase == Phase::Accepting),
    )?;
    let descriptors = system::descriptor_limit().0;
    page.gauge("process_max_fds", "Descriptors this process may have open.", descriptors)?;
    if let Some((service, model, stats)) = source {
        page.info(service, model)?;
        page.stats(&stats)?;
    }
    let mut text = Vec::new();
    TextEncoder::new().encode(&page.0.gather(), &mut text)?;
    String::from_utf8(text).map_err(|e| prometheus::Error::Msg(e.to_string()))
}

struct Page(Registry);

impl Page {
    fn counter(&self, name: &str, help: &str, value: u64) -> Result<(), prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        counter.inc_by(value);
        self.0.register(Box::new(counter))
    }

    fn gauge(&self, name: &str, help: &str, value: u64) -> Result<(), prometheus::Error> {
        let gauge = IntGauge::new(name, help)?;
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        self.0.register(Box::new(gauge))
    }

    fn info(&self, service: &str, model: Model) -> Result<(), prometheus::Error> {
        let opts = Opts::new("tidegate_server_info", "What runs: always 1, the facts are the labels.");
        let info = IntGaugeVec::new(opts, &["service", "model", "version"])?;
        info.with_label_values(&[service, model.name(), env!("CARGO_PKG_VERSION")]).set(1);
        self.0.register(Box::new(info))
    }

    /// Every counter. The pattern names all fields and has no `..`: a counter that is added to [`Stats`] and not
    /// published here does not compile.
    fn stats(&self, stats: &Stats) -> Result<(), prometheus::Error> {
        let Stats {
            attempted,
            accepted,
            refused,
            fast_paths,
            dial_failed,
            bytes_in,
            bytes_out,
            receives,
            sends,
            outstanding,
            buffers_in_use,
            no_buffers,
            no_descriptors,
            no_threads,
            wake_ups,
            events,
            largest_batch,
            closed: _, // by reason, below
        } = *stats;
        for (name, help, value) in [
            ("tidegate_connections_attempted_total", "Connections that were tried.", attempted),
            ("tidegate_connections_accepted_total", "Connections that had a session.", accepted),
            ("tidegate_connections_refused_total", "Connections closed before they had a session.", refused),
            ("tidegate_fast_paths_total", "Accepted connections through shared memory.", fast_paths),
            ("tidegate_dials_failed_total", "Outgoing connections that could not be made.", dial_failed),
            ("tidegate_received_bytes_total", "Bytes received.", bytes_in),
            ("tidegate_sent_bytes_total", "Bytes the kernel took for sending.", bytes_out),
            ("tidegate_receives_total", "Receive operations that returned data.", receives),
            ("tidegate_sends_total", "Send operations that took data.", sends),
            ("tidegate_no_buffers_total", "Times the system or a pool had no buffer.", no_buffers),
            ("tidegate_no_descriptors_total", "Times there was no descriptor.", no_descriptors),
            ("tidegate_no_threads_total", "Times a thread could not be started.", no_threads),
            ("tidegate_wake_ups_total", "Times an I/O thread woke up from waiting.", wake_ups),
            ("tidegate_events_total", "Events or completions those wake-ups brought.", events),
        ] {
            self.counter(name, help, value)?;
        }
        for (name, help, value) in [
            ("tidegate_connections_open", "Connections that are open.", stats.open()),
            ("tidegate_operations_outstanding", "Operations the kernel has not finished.", outstanding),
            ("tidegate_receive_buffers_in_use", "Receive buffers in use.", buffers_in_use),
            ("tidegate_largest_batch_events", "Most events one wake-up brought.", largest_batch),
        ] {
            self.gauge(name, help, value)?;
        }
        self.closed(stats)
    }

    fn closed(&self, stats: &Stats) -> Result<(), prometheus::Error> {
        let opts = Opts::new("tidegate_connections_closed_total", "Connections that ended, by reason.");
        let closed = IntCounterVec::new(opts, &["reason"])?;
        for why in CloseReason::ALL {
            closed.with_label_values(&[why.name()]).inc_by(stats.closed_by(why));
        }
        self.0.register(Box::new(closed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_appears_once_under_its_own_name() {
        let mut stats = Stats {
            attempted: 101,
            accepted: 102,
            refused: 103,
            dial_failed: 104,
            bytes_in: 105,
            bytes_out: 106,
            receives: 107,
            sends: 108,
            outstanding: 109,
            buffers_in_use: 110,
            no_buffers: 111,
            no_descriptors: 112,
            no_threads: 113,
            wake_ups: 114,
            events: 115,
            largest_batch: 116,
            fast_paths: 117,
            closed: [0; CloseReason::ALL.len()],
        };
        for (closed, n) in stats.closed.iter_mut().zip(201..) {
            *closed = n;
        }
        let text = text(Phase::Accepting, Some(("http", Model::Poll, stats.clone()))).unwrap();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for n in (101..=117).chain(201..201 + CloseReason::ALL.len() as u64) {
            let hits = samples.iter().filter(|line| line.ends_with(&format!(" {n}"))).count();
            assert_eq!(hits, 1, "{n} in {text}");
        }
        assert!(
            samples.contains(&"tidegate_connections_closed_total{reason=\"idle-timeout\"} 205"),
            "{text}"
        );
    }

    #[test]
    fn before_the_server_runs_the_process_is_described() {
        let text = text(Phase::Starting, None).unwrap();
        assert!(text.contains("\ntidegate_accepting 0\n") && text.contains("\nprocess_max_fds "), "{text}");
    }
}
