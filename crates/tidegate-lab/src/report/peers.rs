//! Other servers beside tidegate's models, as tables and for CSV.

use super::about::shares;
use super::cells::{Cells, counted, figures_head, figures_row, grouped, spread};
use super::verdict::{limits, marked};
use crate::experiment::peers::{Case, ResultTable, Row};

/// Title of the section of a case.
pub(super) fn title(case: Case) -> String {
    format!("Beside other servers: {}", case.words())
}

/// A table for each case.
pub(super) fn sections(table: &ResultTable) -> Vec<(String, Cells, String)> {
    let mut cases: Vec<Case> = table.rows.iter().map(|row| row.case).collect();
    cases.dedup();
    let about = format!(
        "A 4 KiB page, {} requests a round after a warm-up, {}, all servers in turn, each kept on one processor; median [95% confidence \
        interval], of fewer than four rounds (minimum–maximum). {} CPU is that of the server and all processes it started, user and kernel. Times the baseline: by \
        the cost of the bare epoll loop in the same round.",
        grouped(table.requests),
        counted(table.repeats, "round"),
        shares(table.rows.iter().map(|row| row.share), &table.throttle),
    );
    cases.into_iter().map(|case| (title(case), cells(table, case), about.clone())).collect()
}

fn cells(table: &ResultTable, case: Case) -> Cells {
    let head = ["server", "CPU s/100k", "times the baseline", "requests/s of a processor", "failed", "limit"];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().filter(|row| row.case == case).map(row));
    cells
}

fn row(row: &Row) -> Vec<String> {
    let f = &row.figures;
    vec![
        row.name.clone(),
        spread(&f.cpu_s_per_100k, 3),
        row.times_baseline.as_ref().map_or("–".into(), |s| spread(s, 2)),
        marked(spread(&f.per_processor_s, 0), &f.verdicts),
        grouped(f.failed),
        limits(&f.verdicts),
    ]
}

/// All figures of all rows for CSV.
pub(super) fn rows(table: &ResultTable) -> Cells {
    let mut head = figures_head(&["server", "concurrency", "keep_alive"]);
    head.push("times_baseline_median".into());
    let mut cells = vec![head];
    for row in &table.rows {
        let names = [row.name.clone(), row.case.concurrency.to_string(), row.case.keep_alive.to_string()];
        let mut line = figures_row(names.into(), &row.figures);
        line.push(row.times_baseline.as_ref().map_or(String::new(), |s| format!("{:.4}", s.median)));
        cells.push(line);
    }
    cells
}
