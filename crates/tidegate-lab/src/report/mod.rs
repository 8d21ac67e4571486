//! Reports in every format: Markdown, CSV, JSON, SVG charts, and one HTML page with everything.

mod about;
pub mod answer;
mod cells;
mod chart;
mod charts;
mod demand;
mod files;
mod html;
mod latency;
mod markdown;
mod memory;
mod peers;
mod reuse;
mod rows;
mod sections;
mod survival;
mod svg;
mod tables;
mod udp;
pub mod verdict;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::experiment::udp as datagrams;
use crate::experiment::{self, LeftOut, concurrency, connections, models};
use crate::machine::MachineActivity;
use crate::run::{Circumstances, Row, Run};
use crate::save::ResultFile;
use crate::{Bench, LabError};

pub use cells::Cells;
pub use sections::{left_out_together, sections};
pub use tables::{concurrency_cells, connections_cells, models_cells};

/// All results of one `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of this format: 2.
    pub format: u32,
    /// When, where and how it was measured.
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// What the answer is taken from, if that was measured besides [`concurrency`](Self::concurrency).
    #[serde(default)]
    pub answer: Option<concurrency::ResultTable>,
    /// Table 6-3, if it was measured.
    pub models: Option<models::ResultTable>,
    /// Responses against concurrency, if that was measured.
    pub concurrency: Option<concurrency::ResultTable>,
    /// The same of pages of other sizes.
    #[serde(default)]
    pub pages: Vec<concurrency::ResultTable>,
    /// Reused sockets, if they were measured.
    #[serde(default)]
    pub reuse: Option<experiment::reuse::ResultTable>,
    /// Service demand at fixed rates, if it was measured.
    #[serde(default)]
    pub demand: Option<experiment::demand::ResultTable>,
    /// Very many connections, if they were measured.
    pub connections: Option<connections::ResultTable>,
    /// Buffers, if they were measured.
    #[serde(default)]
    pub memory: Option<experiment::memory::ResultTable>,
    /// Files from disk, if they were measured.
    #[serde(default)]
    pub files: Option<experiment::files::ResultTable>,
    /// Survival under attack, if that was measured.
    #[serde(default)]
    pub survival: Option<experiment::survival::ResultTable>,
    /// Datagrams, if they were measured.
    #[serde(default)]
    pub udp: Option<datagrams::ResultTable>,
    /// Other servers, if they were measured.
    #[serde(default)]
    pub peers: Option<experiment::peers::ResultTable>,
    /// Round trips on one host, if they were measured.
    #[serde(default)]
    pub latency: Option<experiment::latency::ResultTable>,
}

/// Where no model has it, there is nothing to measure, and what is left out says why.
impl TableNotes for experiment::reuse::ResultTable {
    fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    fn failed(&self) -> &[LeftOut] {
        &self.failed
    }

    fn notes(&self) -> &[String] {
        &[]
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.left_out.is_empty()
    }
}

impl Results {
    /// No results yet, on this machine.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        Self {
            format: 2,
            circumstances: Circumstances::here(bench),
            answer: None,
            models: None,
            concurrency: None,
            pages: Vec::new(),
            reuse: None,
            demand: None,
            connections: None,
            memory: None,
            files: None,
            survival: None,
            udp: None,
            peers: None,
            latency: None,
        }
    }

    /// What the answer is taken from.
    pub(super) fn answered(&self) -> Option<&concurrency::ResultTable> {
        let tables = [&self.answer, &self.concurrency].into_iter().flatten();
        tables.into_iter().find(|table| !table.points.is_empty())
    }

    /// The method, printed below each table.
    #[must_use]
    pub fn method(&self) -> String {
        let pinning = match self.circumstances.pinned_apart {
            true => "server and load in separate processes, each pinned to its own processor",
            false => {
                "server and load in separate processes on the same processor: figures are for both together"
            }
        };
        let Circumstances { date, build, machine, .. } = &self.circumstances;
        let activity = self.activity().map_or(String::new(), |activity| format!("; {activity}"));
        format!("{}; {}; {date}; {pinning}{activity}.", machine.line(), build.line())
    }

    /// What else the machine did meanwhile, in one line.
    fn activity(&self) -> Option<String> {
        Some(MachineActivity::line(self.circumstances.activity.iter())).filter(|line| !line.is_empty())
    }

    /// Every round of every row, for saving and comparing.
    #[must_use]
    pub fn run(&self) -> Run {
        Run::new(self.circumstances.clone(), self.rows())
    }

    /// Every row with every round.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        rows::of(self)
    }

    /// What limited the program, was measured differently from the book, or failed: rows, rounds and requests.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.circumstances.notes.clone();
        for table in self.tables() {
            remarks.extend(table.notes().iter().cloned());
            remarks.extend(table.failed().iter().map(|f| format!("{} failed: {}", f.model, f.why)));
        }
        remarks.dedup();
        remarks.extend(verdict::failures(&self.rows()));
        remarks
    }

    /// Whether everything attempted was measured.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.tables().iter().all(|table| table.failed().is_empty() && !table.is_empty())
    }

    /// The tables that were measured, in the order of the report.
    fn tables(&self) -> Vec<&dyn TableNotes> {
        let all = [
            as_measured(&self.answer),
            as_measured(&self.models),
            as_measured(&self.concurrency),
            as_measured(&self.reuse),
            as_measured(&self.demand),
            as_measured(&self.connections),
            as_measured(&self.memory),
            as_measured(&self.files),
            as_measured(&self.survival),
            as_measured(&self.udp),
            as_measured(&self.peers),
            as_measured(&self.latency),
        ];
        all.into_iter().flatten().chain(self.pages.iter().map(|table| table as &dyn TableNotes)).collect()
    }
}

fn as_measured<T: TableNotes>(table: &Option<T>) -> Option<&dyn TableNotes> {
    table.as_ref().map(|table| table as &dyn TableNotes)
}

/// What every table has beside its figures.
trait TableNotes {
    /// Models that are unavailable.
    fn left_out(&self) -> &[LeftOut];
    /// What failed, and why.
    fn failed(&self) -> &[LeftOut];
    /// What was measured differently, and why.
    fn notes(&self) -> &[String];
    /// Whether nothing was measured.
    fn is_empty(&self) -> bool;
}

macro_rules! measured {
    ($($table:ty: $rows:ident, $notes:expr;)*) => {$(
        impl TableNotes for $table {
            fn left_out(&self) -> &[LeftOut] {
                &self.left_out
            }
            fn failed(&self) -> &[LeftOut] {
                &self.failed
            }
            fn notes(&self) -> &[String] {
                let of: fn(&Self) -> &[String] = $notes;
                of(self)
            }
            fn is_empty(&self) -> bool {
                self.$rows.is_empty()
            }
        }
    )*};
}

measured! {
    models::ResultTable: rows, |table| &table.notes;
    concurrency::ResultTable: points, |table| &table.notes;
    experiment::demand::ResultTable: rows, |table| &table.notes;
    connections::ResultTable: rows, |table| &table.notes;
    experiment::memory::ResultTable: rows, |table| &table.notes;
    experiment::files::ResultTable: rows, |table| &table.notes;
    experiment::survival::ResultTable: rows, |_| &[];
    datagrams::ResultTable: rows, |_| &[];
    experiment::peers::ResultTable: rows, |table| &table.notes;
    experiment::latency::ResultTable: rows, |_| &[];
}

/// Creates the directory and checks that it is writable, before anything is measured.
///
/// # Errors
/// It cannot be created or written.
pub fn prepare(folder: &Path) -> Result<(), LabError> {
    let probe = folder.join(".tidegate-probe");
    let tried = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&probe, b""))
        .and_then(|()| std::fs::remove_file(&probe));
    tried.map_err(|error| LabError::Write { path: folder.into(), error })
}

/// Writes the report into a [prepared](prepare) directory, and saves the run there; returns the run's path.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, results: &Results) -> Result<PathBuf, LabError> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        let written = ResultFile::create(&path).and_then(|file| file.write(text.as_bytes()));
        written.map_err(|error| LabError::Write { path, error })
    };
    let charts = charts::of(results);
    for chart in &charts {
        put(&format!("{}.svg", chart.name), &chart.svg)?;
    }
    if let Some(table) = &results.models {
        put("models.csv", &cells::csv(&models_cells(table)))?;
    }
    if let Some(table) = &results.concurrency {
        put("concurrency.csv", &cells::csv(&tables::concurrency_rows(table)))?;
    }
    for table in &results.pages {
        let name = format!("concurrency-{}.csv", table.page_bytes);
        put(&name, &cells::csv(&tables::concurrency_rows(table)))?;
    }
    if let Some(table) = results.reuse.as_ref().filter(|table| !table.rows.is_empty()) {
        put("reuse.csv", &cells::csv(&reuse::rows(table)))?;
    }
    if let Some(table) = &results.demand {
        put("demand.csv", &cells::csv(&demand::rows(table)))?;
    }
    if let Some(table) = &results.connections {
        put("connections.csv", &cells::csv(&tables::connections_rows(table)))?;
    }
    if let Some(table) = &results.memory {
        put("memory.csv", &cells::csv(&memory::rows(table)))?;
    }
    if let Some(table) = &results.files {
        put("files.csv", &cells::csv(&files::rows(table)))?;
    }
    if let Some(table) = &results.survival {
        put("survival.csv", &cells::csv(&survival::cells(table)))?;
    }
    if let Some(table) = &results.udp {
        put("udp.csv", &cells::csv(&udp::cells(table)))?;
    }
    if let Some(table) = &results.peers {
        put("peers.csv", &cells::csv(&peers::rows(table)))?;
    }
    if let Some(table) = &results.latency {
        put("latency.csv", &cells::csv(&latency::cells(table)))?;
    }
    // Plain data always becomes JSON.
    put("report.json", &serde_json::to_string_pretty(results).unwrap_or_default())?;
    put("report.md", &markdown::markdown(results, &charts))?;
    put("report.html", &html::page(results, &charts))?;
    results.run().save(&folder.join("runs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::round::Figures;

    #[test]
    fn requests_that_failed_are_among_the_remarks() {
        let figures = Figures { requests: 50_000, failed: 12, ..Figures::default() };
        let whole = Figures { requests: 50_000, ..Figures::default() };
        let point = |concurrency, figures| concurrency::Point {
            model: "epoll".into(),
            concurrency,
            share: 1.0,
            figures,
        };
        let points = vec![point(100, whole), point(1_000, figures)];
        let mut results = Results::new(&Bench::new("tidegate".into(), &[0, 1]));
        results.concurrency =
            Some(concurrency::ResultTable { points, ..concurrency::ResultTable::default() });
        let row = "concurrency: epoll, 1000 at once, a connection each";
        let line = format!("{row}: 12 of 50,000 requests failed or were not answered in time");
        assert_eq!(results.remarks(), [line]);
    }
}
