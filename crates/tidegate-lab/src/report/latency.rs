//! Round trips, as a table and as a chart over sizes.

use super::cells::{Cells, counted, grouped};
use crate::experiment::latency::{ResultTable, Row};
use crate::spread::Spread;

const HEAD: [&str; 12] = [
    "model",
    "transport",
    "wait",
    "mean µs (min–max)",
    "messages/s",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "jitter µs",
    "jitter µs below p99.9",
    "latency reduction",
    "jitter reduction (below p99.9)",
];

/// A row for each line.
pub(super) fn cells(table: &ResultTable) -> Cells {
    let mut cells: Cells = vec![HEAD.map(Into::into).to_vec()];
    let base = table.rows.first();
    cells.extend(table.rows.iter().map(|r| row(r, base.unwrap_or(r))));
    cells
}

fn row(row: &Row, base: &Row) -> Vec<String> {
    let us = |s: &Spread| format!("{:.2}", s.median);
    let less = |of: fn(&Row) -> &Spread| format!("{:.1}%", (1.0 - of(row).median / of(base).median) * 100.0);
    vec![
        row.setup.model.clone().unwrap_or_else(|| "none".into()),
        row.setup.transport.name().into(),
        row.setup.waiting.option().into(),
        mean(&row.mean_us),
        grouped(row.per_s.median as u64),
        us(&row.p50_us),
        us(&row.p99_us),
        us(&row.p99_9_us),
        us(&row.jitter_us),
        us(&row.jitter_below_us),
        less(|r| &r.mean_us),
        format!("{} ({})", less(|r| &r.jitter_us), less(|r| &r.jitter_below_us)),
    ]
}

/// With the extremes of its windows, if there were several.
fn mean(us: &Spread) -> String {
    match us.rounds.len() {
        1 => format!("{:.2}", us.median),
        _ => format!("{:.2} ({:.2}–{:.2})", us.median, us.min, us.max),
    }
}

/// Title of the section.
pub(super) const TITLE: &str = "Round trips on one host";

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let about = format!(
        "Two processes of one thread each; a message of 64 bytes with the time it was sent goes to and fro, Nagle off. Each line \
         {} of {:.1} s, lines in turn; medians of those. Reductions against the first line. Sockmap is TCP whose bytes go through a \
         map in the kernel, as for unchanged programs. The bare ring is shared memory with no library around it: the baseline.",
        counted(table.repeats, "window"),
        table.window_s
    );
    (TITLE.into(), cells(table), about)
}
