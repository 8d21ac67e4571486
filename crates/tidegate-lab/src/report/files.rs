//! Files from disk, as a table and charts.

use tidegate_load::verdict::{LimitedBy, Verdict};

use super::cells::{Cells, NOT_MEASURED, counted, figures_head, figures_row, grouped, spread};
use super::chart::Chart;
use super::{svg, verdict};
use crate::experiment::files::{ArrivalRate, Cache, FILE_BYTES, ResultTable, Row};

/// A server whose processor is less busy than this waited for something else, which here is the disk.
const BUSY: f64 = 0.8;

/// Who was the limit of the rounds of a row.
fn limits(row: &Row) -> String {
    let is_disk = |verdict: &Verdict| {
        let is_idle = verdict.evidence.server.is_some_and(|share| share.wanted() < BUSY);
        row.cache == Cache::Cold && verdict.limited_by == LimitedBy::Server && is_idle
    };
    verdict::tally(row.figures.verdicts.iter().map(|verdict| match is_disk(verdict) {
        true => "disk",
        false => verdict::word(verdict.limited_by),
    }))
}

/// Title of the section.
const TITLE: &str = "Files from disk";

/// Title, table and what is to be said about it.
pub(super) fn section(table: &ResultTable) -> (String, Cells, String) {
    let head = [
        "model",
        "page cache",
        "requests",
        "clients/answered",
        "CPU µs/request",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "KiB read/request",
        "limit",
    ];
    let mut cells: Cells = vec![head.map(Into::into).to_vec()];
    cells.extend(table.rows.iter().map(|row| {
        let counts = format!("{}/{}", grouped(row.clients), grouped(row.answered));
        let rate = spread(&row.figures.requests_per_s, 0);
        let disk = row.disk_bytes_each.as_ref().map(|bytes| spread(&bytes.times(1.0 / 1024.0), 1));
        vec![
            row.model.clone(),
            row.cache.to_string(),
            arrival(row.arrival),
            if row.clients < row.asked { format!("{counts} of {}", grouped(row.asked)) } else { counts },
            spread(&row.figures.cpu_s_per_100k.times(10.0), 2),
            match row.arrival {
                ArrivalRate::AtOnce => verdict::marked(rate, &row.figures.verdicts),
                ArrivalRate::Rate(_) => verdict::marked_at_a_rate(rate, &row.figures.verdicts),
            },
            spread(&row.figures.p50_us.times(1e-3), 2),
            spread(&row.figures.p99_us.times(1e-3), 2),
            disk.unwrap_or(NOT_MEASURED.into()),
            limits(row),
        ]
    }));
    let about = format!(
        "`serve files`, a fresh server for each round; each client has a connection and asks once for a \
         different file of {} KiB when all are connected: as fast as the load can send (at once), or at a fixed \
         rate. Cold: the page cache has none of the files, but names and inodes; warm: it has all of them. The \
         server's own cache is empty either way. {} a row, models in turn; median [95% confidence interval], \
         of fewer than four rounds (minimum–maximum). Latency counts from when a request was due. KiB read are what the server had disks read. \
         The limit is the disk where the server's processor was less than 80% busy and the load was not the limit.",
        FILE_BYTES / 1024,
        counted(table.repeats, "round")
    );
    (TITLE.into(), cells, about)
}

fn arrival(arrival: ArrivalRate) -> String {
    match arrival {
        ArrivalRate::AtOnce => arrival.to_string(),
        ArrivalRate::Rate(rate) => format!("{}/s", grouped(rate)),
    }
}

/// All figures of all rows, for CSV.
pub(super) fn rows(table: &ResultTable) -> Cells {
    let names = ["model", "page_cache", "arrival", "asked", "clients", "answered", "disk_bytes_each_median"];
    let mut cells = vec![figures_head(&names)];
    cells.extend(table.rows.iter().map(|row| {
        let disk = row.disk_bytes_each.as_ref().map_or(String::new(), |bytes| format!("{:.1}", bytes.median));
        let [asked, clients, answered] = [row.asked, row.clients, row.answered].map(|n| n.to_string());
        let names = [
            row.model.clone(),
            row.cache.to_string(),
            row.arrival.to_string(),
            asked,
            clients,
            answered,
            disk,
        ];
        figures_row(names.into(), &row.figures)
    }));
    cells
}

/// Bars of processor time for each arrival.
pub(super) fn charts(table: &ResultTable) -> Vec<Chart> {
    let mut arrivals: Vec<ArrivalRate> = Vec::new();
    for row in &table.rows {
        if !arrivals.contains(&row.arrival) {
            arrivals.push(row.arrival);
        }
    }
    let draw = |(i, arrived): (usize, ArrivalRate)| {
        let rows = table.rows.iter().filter(|row| row.arrival == arrived);
        let figures: Vec<_> = rows
            .map(|row| (format!("{}, {}", row.model, row.cache), row.figures.cpu_s_per_100k.times(10.0)))
            .collect();
        let title = format!("Server processor time for a 4 KiB file in µs, requests {}", arrival(arrived));
        let svg = svg::bars(&title, &figures, |name| name.ends_with("cold"));
        Chart { name: format!("files-{}", i + 1), title, svg, section: TITLE.into() }
    };
    arrivals.into_iter().enumerate().map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::round::Figures;
    use crate::spread::Spread;
    use tidegate_load::verdict::Evidence;

    fn row(arrival: ArrivalRate, rounds: &[LimitedBy]) -> Row {
        let of = |value: f64| Spread::of([value]).unwrap();
        let verdict = |&limited_by: &LimitedBy| Verdict {
            limited_by,
            because: String::new(),
            warnings: Vec::new(),
            evidence: Evidence::default(),
        };
        let figures = Figures {
            requests_per_s: of(5_000.0),
            cpu_s_per_100k: of(2.0),
            p50_us: of(100.0),
            p99_us: of(500.0),
            verdicts: rounds.iter().map(verdict).collect(),
            ..Figures::default()
        };
        Row {
            model: "epoll".into(),
            cache: Cache::Warm,
            arrival,
            asked: 10,
            clients: 10,
            answered: 10,
            disk_bytes_each: None,
            figures,
        }
    }

    #[test]
    fn a_rate_is_marked_where_the_load_did_not_keep_it() {
        use LimitedBy::{Generator, Neither, Server};
        for (arrival, rounds, is_marked) in [
            (ArrivalRate::Rate(5_000), &[Neither, Neither][..], false), // it was kept
            (ArrivalRate::Rate(5_000), &[Neither, Server], false),
            (ArrivalRate::Rate(5_000), &[Neither, Generator], true),
            (ArrivalRate::AtOnce, &[Server, Server], false),
            (ArrivalRate::AtOnce, &[Server, Neither], true),
            (ArrivalRate::AtOnce, &[Server, Generator], true),
        ] {
            let table = ResultTable { rows: vec![row(arrival, rounds)], ..ResultTable::default() };
            let (_, cells, about) = section(&table);
            let shown = if is_marked { "5,000 †" } else { "5,000" };
            assert_eq!(
                (cells[0][5].as_str(), cells[1][5].as_str()),
                ("requests/s", shown),
                "{arrival}, {rounds:?}"
            );
            assert_eq!(verdict::with_legend(&cells, about).contains(verdict::NOT_PROVEN), is_marked);
        }
    }
}
