//! Counters in Prometheus text format, with its naming rules: a prefix, a base unit, `_total` for counters. Samples of
//! a server have its name as the label `server`.

use std::collections::BTreeMap;

use prometheus::{Encoder, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use tidegate::{CloseReason, DatagramStats, Model, Stats, system};
use tidegate_services::chat::{ChatStats, FederationCounts};
use tidegate_services::proxy::{UpstreamStats, Upstreams};
use tidegate_tls::{Fault, TlsCounters};

use super::source::{ServerPhase, StatsSource};

/// A server on the page.
pub(super) struct ServerRow<'a> {
    pub(super) server: &'a str,
    pub(super) service: &'static str,
    pub(super) phase: ServerPhase,
    /// Once it runs.
    pub(super) source: Option<(Model, &'a StatsSource)>,
}

/// Renders the page. A registry is created for each scrape: the counters live in the engines and are only read on
/// demand.
pub(super) fn text(rows: &[ServerRow<'_>]) -> Result<String, prometheus::Error> {
    let page = page(rows)?;
    let mut text = Vec::new();
    TextEncoder::new().encode(&page.registry.gather(), &mut text)?;
    String::from_utf8(text).map_err(|e| prometheus::Error::Msg(e.to_string()))
}

fn page(rows: &[ServerRow<'_>]) -> Result<Exposition, prometheus::Error> {
    let mut page = Exposition::default();
    let descriptors = IntGauge::new("process_max_fds", "Descriptors this process may have open.")?;
    descriptors.set(i64::try_from(system::descriptor_limit().0).unwrap_or(i64::MAX));
    page.registry.register(Box::new(descriptors))?;
    for row in rows {
        page.row(row)?;
    }
    Ok(page)
}

/// Names and values of labels.
type Labels<'a> = [(&'a str, &'a str)];

#[derive(Default)]
struct Exposition {
    registry: Registry,
    counters: BTreeMap<&'static str, IntCounterVec>,
    gauges: BTreeMap<&'static str, IntGaugeVec>,
}

impl Exposition {
    /// Adds to a counter, creating it on first use.
    fn counter(
        &mut self,
        name: &'static str,
        help: &str,
        labels: &Labels<'_>,
        value: u64,
    ) -> Result<(), prometheus::Error> {
        if !self.counters.contains_key(name) {
            let counter = IntCounterVec::new(Opts::new(name, help), &names(labels))?;
            self.registry.register(Box::new(counter.clone()))?;
            self.counters.insert(name, counter);
        }
        self.counters[name].get_metric_with_label_values(&values(labels))?.inc_by(value);
        Ok(())
    }

    fn gauge(
        &mut self,
        name: &'static str,
        help: &str,
        labels: &Labels<'_>,
        value: u64,
    ) -> Result<(), prometheus::Error> {
        if !self.gauges.contains_key(name) {
            let gauge = IntGaugeVec::new(Opts::new(name, help), &names(labels))?;
            self.registry.register(Box::new(gauge.clone()))?;
            self.gauges.insert(name, gauge);
        }
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.gauges[name].get_metric_with_label_values(&values(labels))?.set(value);
        Ok(())
    }

    fn row(&mut self, row: &ServerRow<'_>) -> Result<(), prometheus::Error> {
        let ServerRow { server, service, phase, source } = *row;
        let help = "1 while the server accepts, 0 before that and while it drains.";
        let accepting = u64::from(phase == ServerPhase::Accepting);
        self.gauge("tidegate_accepting", help, &[("server", server)], accepting)?;
        let Some((model, source)) = source else { return Ok(()) };
        let facts = [
            ("server", server),
            ("service", service),
            ("model", model.name()),
            ("version", env!("CARGO_PKG_VERSION")),
        ];
        let help = "Build and configuration information as labels; always 1.";
        self.gauge("tidegate_server_info", help, &facts, 1)?;
        match source {
            StatsSource::Connections { stats, tls, chat, proxy } => {
                self.connections(server, &stats())?;
                tls.as_ref().map_or(Ok(()), |tls| self.tls(server, tls))?;
                chat.as_ref().map_or(Ok(()), |chat| self.chat(server, chat.stats()))?;
                proxy.as_ref().map_or(Ok(()), |upstreams| self.proxy(server, upstreams))
            }
            StatsSource::Datagrams(stats) => self.datagrams(server, &stats()),
        }
    }

    /// Every counter: a test fails if one is added to [`Stats`] and not published here.
    fn connections(&mut self, server: &str, stats: &Stats) -> Result<(), prometheus::Error> {
        let Stats {
            attempted,
            accepted,
            refused,
            fast_paths,
            fast_paths_refused,
            sockets_reused,
            dial_failed,
            bytes_in,
            bytes_out,
            bytes_spliced,
            receives,
            sends,
            outstanding,
            accepts_posted,
            no_buffers,
            no_memory,
            recovered,
            no_descriptors,
            no_threads,
            wake_ups,
            events,
            pauses,
            paused_us,
            largest_batch,
            .. // `closed`, by reason, below
        } = *stats;
        let of = [("server", server)];
        for (name, help, value) in [
            (
                "tidegate_connections_attempted_total",
                "Connections attempted, accepted or dialled.",
                attempted,
            ),
            ("tidegate_connections_accepted_total", "Connections established with a session.", accepted),
            ("tidegate_connections_refused_total", "Connections closed before they had a session.", refused),
            ("tidegate_fast_paths_total", "Accepted connections on the fast path.", fast_paths),
            ("tidegate_fast_paths_refused_total", "Rejected offers of shared memory.", fast_paths_refused),
            ("tidegate_sockets_reused_total", "Connections accepted with a reused socket.", sockets_reused),
            ("tidegate_dials_failed_total", "Failed dials.", dial_failed),
            ("tidegate_received_bytes_total", "Bytes received.", bytes_in),
            ("tidegate_spliced_bytes_total", "Bytes received into pipes, not copied.", bytes_spliced),
            ("tidegate_sent_bytes_total", "Bytes the kernel took for sending.", bytes_out),
            ("tidegate_receives_total", "Receive operations that returned data.", receives),
            ("tidegate_sends_total", "Send operations that took data.", sends),
            ("tidegate_no_buffers_total", "Times the system or a pool had no buffer.", no_buffers),
            ("tidegate_no_memory_total", "Sends and receives retried for lack of memory.", no_memory),
            ("tidegate_memory_recoveries_total", "Connections that recovered from that.", recovered),
            ("tidegate_no_descriptors_total", "Times there was no descriptor.", no_descriptors),
            ("tidegate_no_threads_total", "Times a thread could not be started.", no_threads),
            ("tidegate_wake_ups_total", "Times an I/O thread woke up from waiting.", wake_ups),
            ("tidegate_events_total", "Events or completions of those wake-ups.", events),
            ("tidegate_pauses_total", "Pauses in which an I/O thread collected events.", pauses),
            ("tidegate_paused_microseconds_total", "Requested length of those pauses.", paused_us),
        ] {
            self.counter(name, help, &of, value)?;
        }
        for (name, help, value) in [
            ("tidegate_connections_open", "Connections that are open.", stats.open()),
            ("tidegate_operations_outstanding", "Operations submitted and not completed.", outstanding),
            ("tidegate_accepts_posted", "Accepts posted and not completed.", accepts_posted),
            ("tidegate_largest_batch_events", "Largest number of events of one wake-up.", largest_batch),
        ] {
            self.gauge(name, help, &of, value)?;
        }
        for &why in CloseReason::ALL {
            let (name, help) = ("tidegate_connections_closed_total", "Connections that ended, by reason.");
            let of = [("server", server), ("reason", why.name())];
            self.counter(name, help, &of, stats.closed_by(why))?;
        }
        Ok(())
    }

    fn tls(&mut self, server: &str, counters: &TlsCounters) -> Result<(), prometheus::Error> {
        let of = [("server", server)];
        let help = "Completed TLS handshakes.";
        self.counter("tidegate_tls_handshakes_total", help, &of, counters.handshakes())?;
        let help = "TLS handshakes that resumed an earlier session.";
        self.counter("tidegate_tls_resumed_total", help, &of, counters.resumed())?;
        for &fault in Fault::ALL {
            let (name, help) = ("tidegate_tls_faults_total", "Connections that TLS ended, by fault.");
            self.counter(name, help, &[("server", server), ("fault", fault.name())], counters.of(fault))?;
        }
        Ok(())
    }

    fn chat(&mut self, server: &str, stats: ChatStats) -> Result<(), prometheus::Error> {
        let ChatStats { members, rooms, messages, deliveries, cut_off, federation } = stats;
        let of = [("server", server)];
        self.gauge("tidegate_chat_members", "Members that are in a room.", &of, members)?;
        self.gauge("tidegate_chat_rooms", "Rooms, including empty ones.", &of, rooms)?;
        for (name, help, value) in [
            ("tidegate_chat_messages_total", "Messages accepted from members.", messages),
            (
                "tidegate_chat_deliveries_total",
                "Messages and notices delivered, counted per member.",
                deliveries,
            ),
            (
                "tidegate_chat_members_cut_off_total",
                "Members disconnected because they read too slowly.",
                cut_off,
            ),
        ] {
            self.counter(name, help, &of, value)?;
        }
        federation.map_or(Ok(()), |federation| self.federation(server, federation))
    }

    fn proxy(&mut self, server: &str, upstreams: &Upstreams) -> Result<(), prometheus::Error> {
        let help = "Clients reset because no upstream could be reached.";
        self.counter("tidegate_proxy_unserved_total", help, &[("server", server)], upstreams.unserved())?;
        for UpstreamStats { at, open, connected, failed, is_left_out } in upstreams.stats() {
            let at = at.to_string();
            let of = [("server", server), ("upstream", at.as_str())];
            let help = "Connections to an upstream that are open or being established.";
            self.gauge("tidegate_proxy_upstream_open", help, &of, open)?;
            let help = "Connections established to an upstream.";
            self.counter("tidegate_proxy_upstream_connected_total", help, &of, connected)?;
            let help = "Failed connects to an upstream.";
            self.counter("tidegate_proxy_upstream_failed_total", help, &of, failed)?;
            let help = "1 while an upstream is skipped after a failed connect.";
            self.gauge("tidegate_proxy_upstream_left_out", help, &of, u64::from(is_left_out))?;
        }
        Ok(())
    }

    /// What rooms that span nodes add.
    fn federation(&mut self, server: &str, counts: FederationCounts) -> Result<(), prometheus::Error> {
        let FederationCounts { refused_busy, refused_cut_off, waits, cut_offs, rejected, is_cut_off } =
            counts;
        let of = [("server", server)];
        let help = "1 while this node is cut off from the others.";
        self.gauge("tidegate_chat_node_is_cut_off", help, &of, u64::from(is_cut_off))?;
        let help = "Times this node was cut off from the others.";
        self.counter("tidegate_chat_node_cut_offs_total", help, &of, cut_offs)?;
        let help = "Invalid broker messages, ignored.";
        self.counter("tidegate_chat_node_rejected_total", help, &of, rejected)?;
        let help = "Times the bridge waited for full member queues.";
        self.counter("tidegate_chat_node_waits_total", help, &of, waits)?;
        let (name, help) = ("tidegate_chat_node_refused_total", "Actions of members refused by federation.");
        for (reason, value) in [("busy", refused_busy), ("cut-off", refused_cut_off)] {
            self.counter(name, help, &[("server", server), ("reason", reason)], value)?;
        }
        Ok(())
    }

    /// The same for datagrams.
    fn datagrams(&mut self, server: &str, stats: &DatagramStats) -> Result<(), prometheus::Error> {
        let DatagramStats {
            datagrams_in,
            datagrams_out,
            bytes_in,
            bytes_out,
            receives,
            sends,
            truncated,
            replies_dropped,
            replies_too_long,
            no_buffers,
            send_errors,
            receive_errors,
            abandoned,
            panics,
            wake_ups,
            ..
        } = *stats;
        let of = [("server", server)];
        for (name, help, value) in [
            ("tidegate_datagrams_received_total", "Datagrams shown to the service.", datagrams_in),
            ("tidegate_datagrams_sent_total", "Datagrams the kernel took for sending.", datagrams_out),
            ("tidegate_datagram_receive_errors_total", "Failed datagram receives.", receive_errors),
            ("tidegate_datagram_panics_total", "Panics of the datagram service.", panics),
            ("tidegate_datagrams_too_long_total", "Datagrams longer than the limit, dropped.", truncated),
            ("tidegate_received_bytes_total", "Bytes received.", bytes_in),
            ("tidegate_sent_bytes_total", "Bytes the kernel took for sending.", bytes_out),
            ("tidegate_receives_total", "Receive operations that returned data.", receives),
            ("tidegate_sends_total", "Send operations that took data.", sends),
            ("tidegate_wake_ups_total", "Times an I/O thread woke up from waiting.", wake_ups),
        ] {
            self.counter(name, help, &of, value)?;
        }
        for (reason, value) in [
            ("too-many", replies_dropped),
            ("too-long", replies_too_long),
            ("no-buffers", no_buffers),
            ("send-error", send_errors),
            ("stopped", abandoned),
        ] {
            let (name, help) = ("tidegate_replies_dropped_total", "Replies that were not sent, by reason.");
            self.counter(name, help, &[("server", server), ("reason", reason)], value)?;
        }
        Ok(())
    }
}

fn names<'a>(labels: &Labels<'a>) -> Vec<&'a str> {
    labels.iter().map(|(name, _)| *name).collect()
}

fn values<'a>(labels: &Labels<'a>) -> Vec<&'a str> {
    labels.iter().map(|(_, value)| *value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(server: &'static str, source: &StatsSource) -> String {
        let source = Some((Model::Poll, source));
        text(&[ServerRow { server, service: "http", phase: ServerPhase::Accepting, source }]).unwrap()
    }

    fn connections(stats: impl Fn() -> Stats + Send + Sync + 'static) -> StatsSource {
        StatsSource::Connections { stats: Box::new(stats), tls: None, chat: None, proxy: None }
    }

    #[track_caller]
    fn appear_once(text: &str, values: impl Iterator<Item = u64>) {
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for n in values {
            let hits = samples.iter().filter(|line| line.ends_with(&format!(" {n}"))).count();
            assert_eq!(hits, 1, "{n} in {text}");
        }
    }

    #[test]
    fn every_value_appears_once_under_its_own_name() {
        let mut stats = Stats::default();
        stats.attempted = 101;
        stats.accepted = 102;
        stats.refused = 103;
        stats.dial_failed = 104;
        stats.bytes_in = 105;
        stats.bytes_out = 106;
        stats.receives = 107;
        stats.sends = 108;
        stats.outstanding = 109;
        stats.no_buffers = 110;
        stats.no_descriptors = 111;
        stats.no_threads = 112;
        stats.wake_ups = 113;
        stats.events = 114;
        stats.largest_batch = 115;
        stats.fast_paths = 116;
        stats.sockets_reused = 117;
        stats.fast_paths_refused = 118;
        stats.pauses = 119;
        stats.paused_us = 120;
        stats.no_memory = 121;
        stats.recovered = 122;
        stats.accepts_posted = 123;
        stats.bytes_spliced = 124;
        for (why, n) in CloseReason::ALL.iter().copied().zip(201..) {
            stats = stats.with_closed(why, n);
        }
        let unset: Vec<_> = stats.named().into_iter().filter(|(_, value)| *value == 0).collect();
        assert!(unset.is_empty(), "publish these too, and set them here: {unset:?}");
        let text = row("a", &connections(move || stats.clone()));
        appear_once(&text, (101..=124).chain(201..201 + CloseReason::ALL.len() as u64));
        let reset = "\ntidegate_connections_closed_total{reason=\"idle-timeout\",server=\"a\"} 205\n";
        assert!(text.contains(reset), "{text}");
    }

    #[test]
    fn every_value_of_datagrams_too() {
        let mut stats = DatagramStats::default();
        stats.datagrams_in = 101;
        stats.datagrams_out = 102;
        stats.bytes_in = 103;
        stats.bytes_out = 104;
        stats.receives = 105;
        stats.sends = 106;
        stats.truncated = 107;
        stats.replies_dropped = 108;
        stats.replies_too_long = 109;
        stats.no_buffers = 110;
        stats.send_errors = 111;
        stats.receive_errors = 112;
        stats.abandoned = 113;
        stats.panics = 114;
        stats.wake_ups = 115;
        let unset: Vec<_> = stats.named().into_iter().filter(|(_, value)| *value == 0).collect();
        assert!(unset.is_empty(), "publish these too, and set them here: {unset:?}");
        let text = row("a", &StatsSource::Datagrams(Box::new(move || stats.clone())));
        appear_once(&text, 101..=115);
    }

    #[test]
    fn every_value_of_a_messenger_too() {
        let mut page = Exposition::default();
        let federation = FederationCounts {
            refused_busy: 106,
            refused_cut_off: 107,
            waits: 108,
            cut_offs: 109,
            rejected: 110,
            is_cut_off: true,
        };
        let stats = ChatStats {
            members: 101,
            rooms: 102,
            messages: 103,
            deliveries: 104,
            cut_off: 105,
            federation: Some(federation),
        };
        page.chat("a", stats).unwrap();
        let mut text = Vec::new();
        TextEncoder::new().encode(&page.registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        appear_once(&text, 101..=110);
        assert!(text.contains("\ntidegate_chat_node_is_cut_off{server=\"a\"} 1\n"), "{text}");
        // One that is alone has nothing to say of nodes.
        let mut page = Exposition::default();
        page.chat("a", ChatStats::default()).unwrap();
        assert!(page.registry.gather().iter().all(|family| !family.name().contains("_node_")));
    }

    /// Every metric with its type, its labels besides `server`, and its help, as rows of a table.
    #[cfg(target_os = "linux")]
    fn table(text: &str) -> String {
        use std::collections::BTreeSet;
        use std::fmt::Write;

        let mut table = String::from("| metric | type | labels | what |\n|---|---|---|---|\n");
        for family in text.split("# HELP ").skip(1) {
            let (name, help) = family.lines().next().and_then(|line| line.split_once(' ')).expect("a help");
            let kind = family.lines().nth(1).and_then(|line| line.rsplit(' ').next()).expect("a type");
            let mut labels: Vec<(&str, BTreeSet<&str>)> = Vec::new();
            let samples = family.lines().filter_map(|line| line.split_once('{')?.1.rsplit_once("\"}"));
            for (label, value) in
                samples.flat_map(|(labels, _)| labels.split("\",")).filter_map(|l| l.split_once("=\""))
            {
                match labels.iter_mut().find(|(known, _)| *known == label) {
                    Some((_, values)) => drop(values.insert(value)),
                    None => labels.push((label, [value].into())),
                }
            }
            let labels = labels.iter().filter(|(label, _)| *label != "server").map(|(label, values)| {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                let is_closed = ["reason", "fault"].contains(label);
                format!(
                    "`{label}`{}",
                    if is_closed { format!(": {}", values.join(", ")) } else { String::new() }
                )
            });
            let labels = labels.collect::<Vec<_>>().join("; ");
            let _ = writeln!(table, "| `{name}` | {kind} | {labels} | {} |", help.trim_end_matches('.'));
        }
        table
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_page_of_metrics_has_all_of_them() {
        use tidegate_services::proxy::{Proxy, ProxyOptions};

        let of = |server, source| ServerRow {
            server,
            service: "http",
            phase: ServerPhase::Accepting,
            source: Some((Model::Poll, source)),
        };
        let datagrams = StatsSource::Datagrams(Box::new(DatagramStats::default));
        let mut page = page(&[of("a", &connections(Stats::default)), of("b", &datagrams)]).unwrap();
        page.tls("a", &TlsCounters::default()).unwrap();
        page.chat("a", ChatStats { federation: Some(FederationCounts::default()), ..ChatStats::default() })
            .unwrap();
        let upstream = vec!["127.0.0.1:1".parse().unwrap()];
        page.proxy("a", &Proxy::new(upstream, ProxyOptions::default()).unwrap().upstreams()).unwrap();
        let mut text = Vec::new();
        TextEncoder::new().encode(&page.registry.gather(), &mut text).unwrap();
        let table = table(&String::from_utf8(text).unwrap());
        assert!(table.lines().count() > 50, "{table}");
        crate::reference::check("metrics.md", |page| crate::reference::with_part(page, "metrics", &table));
    }

    #[test]
    fn servers_of_one_page_are_distinguished() {
        let of = |n| {
            connections(move || {
                let mut stats = Stats::default();
                stats.accepted = n;
                stats
            })
        };
        let (one, two) = (of(5), of(7));
        let row = |server, source| ServerRow {
            server,
            service: "echo",
            phase: ServerPhase::Accepting,
            source: Some((Model::Poll, source)),
        };
        let text = text(&[row("a", &one), row("b", &two)]).unwrap();
        for (server, n) in [("a", 5), ("b", 7)] {
            let line = format!("\ntidegate_connections_accepted_total{{server=\"{server}\"}} {n}\n");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn before_the_server_runs_the_process_is_described() {
        let text =
            text(&[ServerRow { server: "a", service: "http", phase: ServerPhase::Starting, source: None }])
                .unwrap();
        assert!(text.contains("\ntidegate_accepting{server=\"a\"} 0\n"), "{text}");
        assert!(text.contains("\nprocess_max_fds "), "{text}");
    }
}
