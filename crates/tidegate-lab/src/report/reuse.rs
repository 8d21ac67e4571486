//! Reused sockets, as a table.

use super::about::shares;
use super::cells::{Cells, counted, figures_head, figures_row, spread};
use super::verdict::{limits, marked};
use crate::experiment::reuse::ResultTable;

/// Title, table and what is to be said about it; none if no model here has it.
pub(super) fn section(table: &ResultTable) -> Option<(String, Cells, String)> {
    if table.rows.is_empty() {
        return None;
    }
    let head = ["model", "sockets", "CPU µs/request", "requests/s of a processor", "limit"];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().map(|row| {
        vec![
            row.model.clone(),
            row.setting().into(),
            spread(&row.figures.cpu_s_per_100k.times(10.0), 2),
            marked(spread(&row.figures.per_processor_s, 0), &row.figures.verdicts),
            limits(&row.figures.verdicts),
        ]
    }));
    let about = format!(
        "A 4 KiB page, a new connection for each request, {} at once, {} a round, {} a row, in turns; median [95% \
         confidence interval], of fewer than four rounds (minimum–maximum). {} Reused: `accept.reuse`, each thread keeps \
         up to {} sockets of ended connections for accepts; closed: the default.",
        table.connections,
        table.length,
        counted(table.repeats, "round"),
        shares(table.rows.iter().map(|row| row.share), &table.throttle),
        table.kept
    );
    Some(("Reused sockets".into(), cells, about))
}

/// All figures of all rows, for CSV.
pub(super) fn rows(table: &ResultTable) -> Cells {
    let mut cells = vec![figures_head(&["model", "sockets"])];
    let row = |row: &crate::experiment::reuse::Row| {
        figures_row(vec![row.model.clone(), row.setting().into()], &row.figures)
    };
    cells.extend(table.rows.iter().map(row));
    cells
}
