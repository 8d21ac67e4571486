//! Service demand at fixed rates, as tables and a chart.

use super::cells::{Cells, counted, figure, figures_head, figures_row, grouped, pivot, spread};
use super::chart::{Chart, chart as lines, series};
use super::sections::AS_ABOVE;
use super::svg::{Scale, Sheet};
use crate::experiment::demand::{ResultTable, Row};
use crate::experiment::round::Figures;
use crate::spread::Spread;

/// A line for each model, a column for each rate, of one figure.
fn cells(table: &ResultTable, of: fn(&Figures) -> Spread, digits: usize) -> Cells {
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
pub(super) fn sections(table: &ResultTable) -> Vec<(String, Cells, String)> {
    if table.rows.iter().any(|row| row.threads.is_some()) {
        return vec![of_threads(table)];
    }
    let about = format!(
        "A 4 KiB page, {} connections kept, requests on an exact schedule (open loop) for {} s, {} a row, \
         models in turn; median [95% confidence interval], of fewer than four rounds (minimum–maximum). A server that \
         is mostly idle pays a wake-up for nearly each request, so a request costs more than at saturation. Latency \
         counts from when a request was due. Where less than the rate was answered, the cell says how much.",
        grouped(table.connections as u64),
        table.window_s,
        counted(table.repeats, "round")
    );
    vec![
        (TITLE.into(), cells(table, |f| f.cpu_s_per_100k.times(10.0), 2), about),
        (
            "99th percentile of latency at fixed rates in ms".into(),
            cells(table, |f| f.p99_us.times(1e-3), 2),
            AS_ABOVE.into(),
        ),
    ]
}

/// A line for each model, rate and number of threads.
fn of_threads(table: &ResultTable) -> (String, Cells, String) {
    let head = ["model", "requests/s", "threads", "µs a request", "to the fewest threads", "p99 ms"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    let mut rows: Vec<&Row> = table.rows.iter().collect();
    rows.sort_by_key(|row| (crate::experiment::position(&row.model), row.rate, row.threads));
    cells.extend(rows.into_iter().map(|row| {
        let ratio = match table.against_fewest(row) {
            None => "1".to_owned(),
            Some((ratio, None)) => figure(ratio, 2),
            Some((ratio, Some(i))) => {
                format!("{} [{}–{}]", figure(ratio, 2), figure(i.low, 2), figure(i.high, 2))
            }
        };
        vec![
            row.model.clone(),
            grouped(row.rate),
            row.threads.map_or("–".into(), |n| n.to_string()),
            shown(row, &row.figures.cpu_s_per_100k.times(10.0), 2),
            ratio,
            spread(&row.figures.p99_us.times(1e-3), 2),
        ]
    }));
    let about = format!(
        "A 4 KiB page, {} connections kept, requests on an exact schedule (open loop) for {} s, {} a row, models and \
         numbers of I/O threads in turn; median [95% confidence interval], of fewer than four rounds \
         (minimum–maximum). Where server and load have a processor each, all threads of the server share one. The \
         ratio is that of the medians. Where less than the rate was answered, the cell says how much.",
        grouped(table.connections as u64),
        table.window_s,
        counted(table.repeats, "round")
    );
    (TITLE.into(), cells, about)
}

/// All figures of all rows, for CSV.
pub(super) fn rows(table: &ResultTable) -> Cells {
    let mut cells = vec![figures_head(&["model", "rate", "threads"])];
    cells.extend(table.rows.iter().map(|row| {
        let threads = row.threads.map_or_else(String::new, |n| n.to_string());
        figures_row(vec![row.model.clone(), row.rate.to_string(), threads], &row.figures)
    }));
    cells
}

/// Demand against rate, if there is more than one.
pub(super) fn chart(table: &ResultTable) -> Option<Chart> {
    let first = table.rows.first()?.rate;
    table.rows.iter().any(|row| row.rate != first).then(|| {
        let points = table
            .rows
            .iter()
            .map(|row| (row.name(), row.rate as f64, row.figures.cpu_s_per_100k.times(10.0)));
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
