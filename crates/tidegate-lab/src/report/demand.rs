//! Service demand at fixed rates, as tables and a chart.

use super::cells::{Cells, counted, figures_head, figures_row, grouped, pivot, spread};
use super::chart::{Chart, chart as lines, series};
use super::sections::AS_ABOVE;
use super::svg::{Scale, Sheet};
use crate::experiment::demand::{Row, Table};
use crate::experiment::round::Figures;
use crate::spread::Spread;

/// A line for each model, a column for each rate, of one figure.
fn cells(table: &Table, of: fn(&Figures) -> Spread, digits: usize) -> Cells {
    pivot(
        &table.rows,
        |row| (&row.model, row.rate),
        |rate| format!("{}/s", grouped(rate)),
        |row| shown(row, &of(&row.figures), digits),
    )
}

fn shown(row: &Row, figure: &Spread, digits: usize) -> String {
    let figure = spread(figure, digits);
    if row.is_kept() {
        return figure;
    }
    let answered = grouped(row.figures.requests_per_s.median.round() as u64);
    format!("{figure}; answered {answered}/s")
}

/// Title of the section with the chart.
pub(super) const TITLE: &str = "Service demand at fixed rates: server processor time for a request in µs";

/// Titles, tables and what is to be said about them.
pub(super) fn sections(table: &Table) -> [(String, Cells, String); 2] {
    let about = format!(
        "A 4 KiB page, {} connections kept, requests on an exact schedule (open loop) for {} s, {} a row, \
         models in turn; median [95% confidence interval], of fewer than four rounds (minimum–maximum). A server that \
         is mostly idle pays a wake-up for nearly each request, so a request costs more than at saturation. Latency \
         counts from when a request was due. Where less than the rate was answered, the cell says how much.",
        grouped(table.connections as u64),
        table.window_s,
        counted(table.repeats, "round")
    );
    [
        (TITLE.into(), cells(table, |f| f.cpu_s_per_100k.times(10.0), 2), about),
        (
            "99th percentile of latency at fixed rates in ms".into(),
            cells(table, |f| f.p99_us.times(1e-3), 2),
            AS_ABOVE.into(),
        ),
    ]
}

/// All figures of all rows, for CSV.
pub(super) fn rows(table: &Table) -> Cells {
    let mut cells = vec![figures_head(&["model", "rate"])];
    cells.extend(
        table.rows.iter().map(|row| figures_row(vec![row.model.clone(), row.rate.to_string()], &row.figures)),
    );
    cells
}

/// Demand against rate, if there is more than one.
pub(super) fn chart(table: &Table) -> Option<Chart> {
    let first = table.rows.first()?.rate;
    table.rows.iter().any(|row| row.rate != first).then(|| {
        let points = table
            .rows
            .iter()
            .map(|row| (row.model.clone(), row.rate as f64, row.figures.cpu_s_per_100k.times(10.0)));
        let sheet = Sheet {
            title: "Server processor time for a request at fixed rates",
            x_title: "requests a second",
            y_title: "µs",
            x: Scale::Log,
            y: Scale::Log,
        };
        lines("demand", TITLE, &sheet, &series(points))
    })
}
