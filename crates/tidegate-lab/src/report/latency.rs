//! Round trips, as a table and as a chart over sizes.

use super::cells::{Cells, counted, grouped};
use crate::experiment::latency::{ResultTable, Row};
use crate::spread::Spread;

/// A row for each line.
pub(super) fn cells(table: &ResultTable) -> Cells {
    let has_extremes = table.rows.iter().any(|row| row.mean_us.has_several());
    let head = [
        "model",
        "transport",
        "wait",
        if has_extremes { "mean µs (min–max)" } else { "mean µs" },
        "messages/s",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "jitter µs",
        "jitter µs below p99.9",
        "latency reduction",
        "jitter reduction (below p99.9)",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.base().into_iter().flat_map(|base| table.rows.iter().map(|r| row(r, base))));
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
    match us.has_several() {
        true => format!("{:.2} ({:.2}–{:.2})", us.median, us.min, us.max),
        false => format!("{:.2}", us.median),
    }
}

/// Title of the section.
pub(super) const TITLE: &str = "Round trips on one host";

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let base = table.base().map(|row| row.setup.name()).unwrap_or_default();
    let about = format!(
        "Two processes of one thread each; a message of 64 bytes with the time it was sent goes to and fro, Nagle \
         off. Each line {} of {:.1} s, lines in turn; medians of those. Reductions against the line {base}. Sockmap \
         is TCP whose bytes go through a map in the kernel, as for unchanged programs. The bare ring is shared memory \
         with no library around it: the baseline.",
        counted(table.repeats, "window"),
        table.window_s
    );
    (TITLE.into(), cells(table), about)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiment::latency::{LatencySetup, MESSAGE, TransportKind, WaitStrategy};

    pub(crate) fn measured(
        model: &str,
        transport: TransportKind,
        waiting: WaitStrategy,
        windows: &[f64],
    ) -> Row {
        let of = || Spread::of(windows.iter().copied()).unwrap();
        Row {
            setup: LatencySetup { model: Some(model.into()), transport, waiting },
            message_bytes: MESSAGE,
            mean_us: of(),
            per_s: of(),
            bytes_per_s: of(),
            p50_us: of(),
            p99_us: of(),
            p99_9_us: of(),
            jitter_us: of(),
            jitter_below_us: of(),
        }
    }

    #[test]
    fn extremes_are_in_the_heading_only_where_there_are_some() {
        let row = |windows: &[f64]| measured("epoll", TransportKind::Tcp, WaitStrategy::Block, windows);
        let means = |rows: Vec<Row>| {
            let cells = cells(&ResultTable { rows, ..ResultTable::default() });
            cells.into_iter().map(|row| row[3].clone()).collect::<Vec<_>>()
        };
        assert_eq!(means(vec![row(&[7.0]), row(&[8.0])]), ["mean µs", "7.00", "8.00"]);
        let mixed = means(vec![row(&[7.0]), row(&[8.0, 6.0, 9.5])]);
        assert_eq!(mixed, ["mean µs (min–max)", "7.00", "8.00 (6.00–9.50)"], "one window of a line failed");
    }

    /// What the text says that the reductions are against, and the reduction of each line.
    fn reductions(rows: Vec<Row>) -> (String, Vec<String>) {
        let (_, cells, about) = section(&ResultTable { rows, ..ResultTable::default() });
        let (_, against) = about.split_once("Reductions against the line ").unwrap();
        let (against, _) = against.split_once('.').unwrap();
        (against.into(), cells[1..].iter().map(|row| row[10].clone()).collect())
    }

    #[test]
    fn reductions_are_against_the_line_of_the_article_or_else_the_first() {
        use TransportKind::{FastPath, Tcp};
        use WaitStrategy::{Block, Spin};
        let mut rows = vec![
            measured("blocking", Tcp, Block, &[100.0]),
            measured("iocp", Tcp, Spin, &[20.0]),
            measured("iocp", FastPath, Block, &[40.0]),
            measured("iocp", Tcp, Block, &[80.0]),
            measured("rio", FastPath, Spin, &[8.0]),
        ];
        let expected = ["-25.0%", "75.0%", "50.0%", "0.0%", "90.0%"].map(String::from);
        assert_eq!(reductions(rows.clone()), ("iocp, TCP, block".into(), expected.into()));
        rows.remove(3);
        let expected = ["0.0%", "80.0%", "60.0%", "92.0%"].map(String::from);
        assert_eq!(reductions(rows), ("blocking, TCP, block".into(), expected.into()));
    }
}
