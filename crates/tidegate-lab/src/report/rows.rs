//! Everything measured, as the rows of a saved run.

use super::Results;
use crate::experiment::peers::PAGE_BYTES;
use crate::experiment::peers::scenario::BASELINE;
use crate::experiment::round::Figures;
use crate::experiment::{
    concurrency, connections, demand, files, latency, memory, models, peers, reuse, survival, udp,
};
use crate::run::{Better, Measure, Row};

/// All rows, in the order of the report.
pub(super) fn of(results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    rows.extend(results.models.iter().flat_map(|t| &t.rows).map(model));
    for table in [&results.answer, &results.concurrency].into_iter().flatten().chain(&results.pages) {
        rows.extend(table.points.iter().map(|point| at(table, point)));
    }
    rows.extend(results.reuse.iter().flat_map(|t| &t.rows).map(reused));
    rows.extend(results.demand.iter().flat_map(|t| &t.rows).map(at_rate));
    rows.extend(results.connections.iter().flat_map(|t| &t.rows).map(connections_row));
    rows.extend(results.memory.iter().flat_map(|t| &t.rows).map(buffers));
    rows.extend(results.files.iter().flat_map(|t| &t.rows).map(files_row));
    rows.extend(results.survival.iter().flat_map(|t| &t.rows).map(survival_row));
    rows.extend(results.udp.iter().flat_map(|t| &t.rows).map(datagrams));
    rows.extend(results.peers.iter().flat_map(|t| &t.rows).map(peer));
    rows.extend(results.latency.iter().flat_map(round_trips));
    rows
}

fn measure(name: &str, better: Better, rounds: Vec<f64>) -> Measure {
    Measure { name: name.into(), better, rounds }
}

fn row(experiment: &str, name: String, figures: &Figures) -> Row {
    let spreads = [
        ("cpu_s_per_100k", Better::Lower, &figures.cpu_s_per_100k),
        ("requests_per_s", Better::Higher, &figures.requests_per_s),
        ("per_processor_s", Better::Higher, &figures.per_processor_s),
        ("mean_us", Better::Lower, &figures.mean_us),
        ("p50_us", Better::Lower, &figures.p50_us),
        ("p99_us", Better::Lower, &figures.p99_us),
        ("p99_9_us", Better::Lower, &figures.p99_9_us),
    ];
    Row {
        experiment: experiment.into(),
        name,
        measures: spreads.map(|(name, better, s)| measure(name, better, s.rounds.clone())).into(),
        verdicts: figures.verdicts.clone(),
        requests: figures.requests,
        failed: figures.failed,
    }
}

fn model(r: &models::Row) -> Row {
    let size = models::size_in_words(r.pace, r.message_bytes);
    // Not by those attempted: where there is room for fewer, rows would share a name.
    let name = format!("{}, {} connections, {}{size}", r.model, r.asked, r.pace);
    let mut row = row("models", name, &r.figures);
    let memory = r.usage.user_memory_kib as f64 * 1024.0;
    row.measures.push(measure("user_bytes", Better::Lower, vec![memory]));
    row
}

fn at(table: &concurrency::ResultTable, point: &concurrency::Point) -> Row {
    let kept = if table.keep_alive { "kept" } else { "a connection each" };
    let page = match table.page_bytes {
        PAGE_BYTES => String::new(),
        bytes => format!(", page of {bytes} bytes"),
    };
    row(
        "concurrency",
        format!("{}, {} at once, {kept}{page}", point.model, point.concurrency),
        &point.figures,
    )
}

fn at_rate(r: &demand::Row) -> Row {
    row("demand", format!("{}, {} requests/s", r.name(), r.rate), &r.figures)
}

fn reused(r: &reuse::Row) -> Row {
    row("reuse", format!("{}, sockets {}", r.model, r.setting()), &r.figures)
}

fn connections_row(r: &connections::Row) -> Row {
    let mut measures = Vec::new();
    let mut add =
        |name, better, value: Option<f64>| measures.extend(value.map(|v| measure(name, better, vec![v])));
    add("user_bytes_each", Better::Lower, r.user_bytes_each);
    add("kernel_bytes_each", Better::Lower, r.kernel_bytes_each);
    add("kernel_object_bytes_each", Better::Lower, r.object_bytes_each);
    add("connects_per_s", Better::Higher, Some(r.connects_per_s));
    add("probe_alone_us", Better::Lower, Some(r.probe_alone.mean_us));
    add("probe_among_us", Better::Lower, r.probe_among.map(|p| p.mean_us));
    Row {
        experiment: "connections".into(),
        name: format!("{}, {} connections", r.model, r.asked),
        measures,
        ..Row::default()
    }
}

fn buffers(r: &memory::Row) -> Row {
    let mut row = row("memory", format!("{}, {}", r.model, r.buffers), &r.figures);
    let kib = [("user_kib", Some(&r.user_kib)), ("socket_kib", r.socket_kib.as_ref())];
    let kib = kib.into_iter().chain([("kernel_object_kib", r.object_kib.as_ref())]);
    row.measures
        .extend(kib.filter_map(|(name, kib)| Some(measure(name, Better::Lower, kib?.rounds.clone()))));
    row
}

fn files_row(r: &files::Row) -> Row {
    row("files", format!("{}, {}, {} clients {}", r.model, r.cache, r.clients, r.arrival), &r.figures)
}

fn datagrams(r: &udp::Row) -> Row {
    Row {
        experiment: "udp".into(),
        name: format!("{}, {}, {} bytes", r.model, r.path, r.bytes),
        measures: vec![
            measure("cpu_us", Better::Lower, r.cpu_us.rounds.clone()),
            measure("taken_per_s", Better::Higher, r.taken_per_s.rounds.clone()),
            measure("sent_per_s", Better::Higher, r.sent_per_s.rounds.clone()),
        ],
        verdicts: r.verdicts.clone(),
        ..Row::default()
    }
}

/// The lines of the table, and those of the chart that are not among them.
fn round_trips(table: &latency::ResultTable) -> impl Iterator<Item = Row> {
    let of = |r: &latency::Row| (r.setup.clone(), r.message_bytes);
    let is_new = move |r: &&latency::Row| table.rows.iter().all(|row| of(row) != of(r));
    table.rows.iter().chain(table.sizes.iter().filter(is_new)).map(round_trip)
}

fn round_trip(r: &latency::Row) -> Row {
    let spreads = [
        ("mean_us", Better::Lower, &r.mean_us),
        ("p50_us", Better::Lower, &r.p50_us),
        ("p99_us", Better::Lower, &r.p99_us),
        ("p99_9_us", Better::Lower, &r.p99_9_us),
        ("jitter_us", Better::Lower, &r.jitter_us),
        ("jitter_below_us", Better::Lower, &r.jitter_below_us),
        ("per_s", Better::Higher, &r.per_s),
        ("bytes_per_s", Better::Higher, &r.bytes_per_s),
    ];
    Row {
        experiment: "latency".into(),
        name: format!("{}, {} bytes", r.setup.name(), r.message_bytes),
        measures: spreads.map(|(name, better, s)| measure(name, better, s.rounds.clone())).into(),
        ..Row::default()
    }
}

fn survival_row(r: &survival::Row) -> Row {
    let measures = vec![
        measure("kept_ratio", Better::Higher, vec![r.ratio()]),
        measure("requests_per_s", Better::Higher, vec![r.under.requests_per_s]),
        measure("user_bytes", Better::Lower, vec![r.under.user_bytes as f64]),
    ];
    Row { experiment: "survival".into(), name: r.model.clone(), measures, ..Row::default() }
}

/// Judged by its cost in baselines, where there is one: the machine drifts by some percent from run to run, but hardly
/// between two servers of one round.
fn peer(r: &peers::Row) -> Row {
    let mut row = row("peers", format!("{}, {}", r.name, r.case.words()), &r.figures);
    if let Some(times) = r.times_baseline.as_ref().filter(|_| r.name != BASELINE) {
        row.measures.insert(0, measure("times_baseline", Better::Lower, times.rounds.clone()));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bench;
    use crate::experiment::latency::{MESSAGE, TransportKind, WaitStrategy};
    use crate::report::latency::tests::measured;

    #[test]
    fn each_round_trip_is_a_row_once() {
        let row = |waiting, message_bytes| latency::Row {
            message_bytes,
            ..measured("epoll", TransportKind::Tcp, waiting, &[5.0, 6.0])
        };
        let mut results = Results::new(&Bench::new("tidegate".into(), &[0, 1]));
        results.latency = Some(latency::ResultTable {
            rows: [WaitStrategy::Block, WaitStrategy::Spin].map(|waiting| row(waiting, MESSAGE)).into(),
            sizes: [MESSAGE, 4_096].map(|bytes| row(WaitStrategy::Spin, bytes)).into(),
            ..latency::ResultTable::default()
        });
        let rows = of(&results);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(
            names,
            ["epoll, TCP, block, 64 bytes", "epoll, TCP, spin, 64 bytes", "epoll, TCP, spin, 4096 bytes"]
        );
        for row in &rows {
            assert_eq!((row.experiment.as_str(), row.measures[0].name.as_str()), ("latency", "mean_us"));
            assert!(row.measures.iter().all(|measure| measure.rounds == [5.0, 6.0]), "{row:?}");
        }
    }
}
