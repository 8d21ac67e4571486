//! Service demand at fixed rates, as tables and a chart.

use super::about::AS_ABOVE;
use super::cells::{Cells, counted, figure, figures_head, figures_row, grouped, pivot, spread};
use super::chart::{Chart, chart as lines, judged_series};
use super::svg::{ChartPoint, Scale, Sheet};
use super::verdict::{is_doubtful_at_a_rate, marked_at_a_rate};
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
    let mut cell = spread(figure, digits);
    if !row.is_kept() {
        let answered = grouped(row.figures.requests_per_s.median.round() as u64);
        cell += &format!("; answered {answered}/s");
    }
    marked_at_a_rate(cell, &row.figures.verdicts)
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
            shown(row, &row.figures.p99_us.times(1e-3), 2),
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
        let points = table.rows.iter().map(|row| {
            let figure = row.figures.cpu_s_per_100k.times(10.0);
            let is_doubtful = is_doubtful_at_a_rate(&row.figures.verdicts);
            (row.name(), ChartPoint { x: row.rate as f64, figure, is_doubtful })
        });
        let sheet = Sheet {
            title: "Server processor time for a request at fixed rates",
            x_title: "requests a second",
            y_title: "µs",
            x: Scale::Log,
            y: Scale::Log,
        };
        lines("demand", TITLE, &sheet, &judged_series(points))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::verdict::MARK;
    use tidegate_load::verdict::{Evidence, LimitedBy, Verdict};

    fn row(rate: u64, threads: Option<usize>, limited_by: LimitedBy) -> Row {
        let of = |value: f64| Spread::of([value]).unwrap();
        let verdict = Verdict {
            limited_by,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        let figures = Figures {
            requests_per_s: of(rate as f64),
            cpu_s_per_100k: of(2.0),
            p99_us: of(500.0),
            verdicts: vec![verdict],
            ..Figures::default()
        };
        Row { model: "epoll".into(), rate, threads, figures }
    }

    fn table(threads: Option<usize>) -> ResultTable {
        let rows = vec![row(1_000, threads, LimitedBy::Neither), row(50_000, threads, LimitedBy::Generator)];
        ResultTable { rows, ..ResultTable::default() }
    }

    #[test]
    fn a_load_that_was_late_is_marked_in_cells_and_in_the_chart() {
        for threads in [None, Some(2)] {
            for (title, cells, _) in sections(&table(threads)) {
                let marked: Vec<bool> = match threads {
                    None => cells[1][1..].iter().map(|cell| cell.ends_with(MARK)).collect(),
                    Some(_) => cells[1..].iter().map(|row| row.iter().any(|c| c.ends_with(MARK))).collect(),
                };
                assert_eq!(marked, [false, true], "{title}: {cells:?}");
            }
            let svg = chart(&table(threads)).unwrap().svg;
            assert_eq!(svg.matches("class=\"h\"").count(), 2, "one point, and one in the legend: {svg}");
        }
    }
}
