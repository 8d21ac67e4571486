//! The tables of the models, of concurrency and of connections.

use super::cells::{Cells, NOT_MEASURED, figure, figures_head, figures_row, grouped, pivot, spread};
use super::verdict;
use crate::experiment::models::{ClientPace, size_in_words};
use crate::experiment::round::Figures;
use crate::experiment::{concurrency, connections, models};
use crate::spread::Spread;

/// Table 6-3 as cells.
#[must_use]
pub fn models_cells(table: &models::ResultTable) -> Cells {
    let head = [
        "model",
        "clients",
        "attempted/connected/verified",
        "user memory KiB",
        "kernel socket memory KiB",
        "CPU %",
        "threads",
        "send/receive MB/s",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "CPU s/100k",
        "limit",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    for row in &table.rows {
        let ms = |us: u64| format!("{:.1}", us as f64 / 1e3);
        // What a whole processor would give.
        let whole = |per_s: f64| grouped((per_s / row.share) as u64);
        let megabytes = |per_s: f64| format!("{:.1}", per_s / row.share / 1e6);
        cells.push(vec![
            row.model.clone(),
            match row.pace {
                ClientPace::Unlimited => format!("unlimited{}", size_in_words(row.pace, row.message_bytes)),
                ClientPace::Outstanding { messages } => format!("{messages} outstanding"),
                ClientPace::Limited { bytes_per_s } => format!("{} B/s a block", grouped(bytes_per_s)),
            },
            numbers(row),
            grouped(row.usage.user_memory_kib),
            row.usage.kernel_memory_kib.map_or(NOT_MEASURED.into(), grouped),
            format!("{:.0}", row.usage.cpu_percent / row.share),
            grouped(row.usage.threads),
            format!("{}/{}", megabytes(row.load.received_bytes_per_s), megabytes(row.load.sent_bytes_per_s)),
            match row.pace {
                // The load sets the rate of the others, whichever side is the limit.
                ClientPace::Limited { .. } => whole(row.load.requests_per_s),
                _ => verdict::marked(whole(row.load.requests_per_s), &row.figures.verdicts),
            },
            ms(row.load.latency_us.p50),
            ms(row.load.latency_us.p99),
            spread(&row.figures.cpu_s_per_100k, 3),
            verdict::limits(&row.figures.verdicts),
        ]);
    }
    cells
}

/// How many of a row's connections there were, and why not as many as asked for.
fn numbers(row: &models::Row) -> String {
    let counts = [row.attempted, row.connected, row.verified].map(grouped).join("/");
    match row.bound {
        Some(scarce) => format!("{counts} of {}: {}", grouped(row.asked), scarce.name()),
        None if row.attempted < row.asked => format!("{counts} of {}", grouped(row.asked)),
        None => counts,
    }
}

/// Responses against concurrency: a line for each model, a column for each concurrency, of one figure.
#[must_use]
pub fn concurrency_cells(
    table: &concurrency::ResultTable,
    of: fn(&Figures) -> Spread,
    digits: usize,
) -> Cells {
    pivot(
        &table.points,
        |point| (&point.model, point.concurrency as u64),
        |level| format!("{} at once", grouped(level)),
        |point| verdict::marked(spread(&of(&point.figures), digits), &point.figures.verdicts),
    )
}

/// All figures of all points, one row each, for CSV.
pub(super) fn concurrency_rows(table: &concurrency::ResultTable) -> Cells {
    let mut cells = vec![figures_head(&["model", "concurrency"])];
    for p in &table.points {
        cells.push(figures_row(vec![p.model.clone(), p.concurrency.to_string()], &p.figures));
    }
    cells
}

/// Very many connections as cells.
#[must_use]
pub fn connections_cells(table: &connections::ResultTable) -> Cells {
    let head = [
        "model",
        "connections asked for",
        "attempted/connected/verified",
        "held",
        "user B/connection",
        "kernel B/connection",
        "kernel objects B/connection",
        "connects/s",
        "threads",
        "probe alone µs (mean/p50/p99)",
        "probe among idle µs (mean/p50/p99)",
    ];
    let each = |bytes: Option<f64>| bytes.map_or(NOT_MEASURED.into(), |b| grouped(b.round() as u64));
    let probe = |p: &connections::Probe| format!("{:.0}/{}/{}", p.mean_us, p.p50_us, p.p99_us);
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    for row in &table.rows {
        cells.push(vec![
            row.model.clone(),
            grouped(row.asked),
            [row.attempted, row.connected, row.verified].map(grouped).join("/"),
            row.held.map_or(NOT_MEASURED.into(), grouped),
            each(row.user_bytes_each),
            each(row.kernel_bytes_each),
            row.object_bytes_each.map_or(NOT_MEASURED.into(), |bytes| figure(bytes, 0)),
            grouped(row.connects_per_s as u64),
            grouped(row.threads),
            probe(&row.probe_alone),
            row.probe_among.as_ref().map_or("–".into(), probe),
        ]);
    }
    cells
}

/// The same for CSV, every figure in a separate column.
pub(super) fn connections_rows(table: &connections::ResultTable) -> Cells {
    let head = "model,asked,attempted,connected,verified,held,held_s,connect_s,connects_per_s,threads,user_bytes_before,user_bytes_with,\
        kernel_bytes_before,kernel_bytes_with,user_bytes_per_connection,kernel_bytes_per_connection,\
        kernel_object_bytes_per_connection,\
        probe_alone_round_trips,probe_alone_mean_us,probe_alone_p50_us,probe_alone_p99_us,probe_among_round_trips,probe_among_mean_us,probe_among_p50_us,probe_among_p99_us";
    let mut cells: Cells = vec![head.split(',').map(Into::into).collect()];
    let number = |n: Option<u64>| n.map(|n| n.to_string()).unwrap_or_default();
    let decimal = |v: Option<f64>| v.map(|v| format!("{v:.4}")).unwrap_or_default();
    for r in &table.rows {
        let mut row = vec![r.model.clone()];
        row.extend([r.asked, r.attempted, r.connected, r.verified].map(|n| n.to_string()));
        row.push(number(r.held));
        row.extend([r.held_s, r.load.connect_s, r.connects_per_s].map(|v| decimal(Some(v))));
        row.extend([r.threads, r.user_bytes[0], r.user_bytes[1]].map(|n| n.to_string()));
        row.extend([r.kernel_bytes.map(|b| b[0]), r.kernel_bytes.map(|b| b[1])].map(number));
        row.extend([r.user_bytes_each, r.kernel_bytes_each, r.object_bytes_each].map(decimal));
        for probe in [Some(r.probe_alone), r.probe_among] {
            row.push(number(probe.map(|p| p.round_trips)));
            row.push(decimal(probe.map(|p| p.mean_us)));
            row.extend([probe.map(|p| p.p50_us), probe.map(|p| p.p99_us)].map(number));
        }
        cells.push(row);
    }
    cells
}
