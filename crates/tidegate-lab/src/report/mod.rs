//! What was measured, in every format: Markdown, CSV, JSON, SVG charts, and one HTML page that holds all of it.

pub mod answer;
pub mod certificate;
mod charts;
mod html;
mod latency;
mod peers;
mod rows;
mod siege;
mod svg;
mod tables;
mod udp;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::experiment::udp as datagrams;
use crate::experiment::{self, concurrency, connections, models, survival};
use crate::run::{Circumstances, Row, Run};
use crate::save::ResultFile;
use crate::{Bench, LabError};

pub use tables::{Cells, concurrency_cells, connections_cells, left_out_together, models_cells, sections};

/// Everything one `bench` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of this format: 2.
    pub format: u32,
    /// When, where and how it was measured.
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// Table 6-3, if it was measured.
    pub models: Option<models::Table>,
    /// Responses against concurrency, if that was measured.
    pub concurrency: Option<concurrency::Table>,
    /// Very many connections, if they were measured.
    pub connections: Option<connections::Table>,
    /// Survival under attack, if that was measured.
    #[serde(default)]
    pub survival: Option<survival::Table>,
    /// Datagrams, if they were measured.
    #[serde(default)]
    pub udp: Option<datagrams::Table>,
    /// Other servers, if they were measured.
    #[serde(default)]
    pub peers: Option<experiment::peers::Table>,
    /// Round trips on one host, if they were measured.
    #[serde(default)]
    pub latency: Option<experiment::latency::Table>,
}

impl Results {
    /// Nothing measured yet, on this machine.
    #[must_use]
    pub fn new(bench: &Bench) -> Self {
        Self {
            format: 2,
            circumstances: Circumstances::here(bench),
            models: None,
            concurrency: None,
            connections: None,
            survival: None,
            udp: None,
            peers: None,
            latency: None,
        }
    }

    /// How it was measured, for under each table.
    #[must_use]
    pub fn method(&self) -> String {
        let pinning = match self.circumstances.pinned_apart {
            true => "server and load in processes of their own, each kept on its own processor",
            false => {
                "server and load in processes of their own on the same processor: figures are for both together"
            }
        };
        let Circumstances { date, build, machine, .. } = &self.circumstances;
        format!("{}; {}; {date}; {pinning}.", machine.line(), build.line())
    }

    /// Every round of every row, to be saved and compared with another run.
    #[must_use]
    pub fn run(&self) -> Run {
        Run::new(self.circumstances.clone(), self.rows())
    }

    /// Every row with every round.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        rows::of(self)
    }

    /// What could not be measured as in the source, or failed.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut add = |notes: &[String], failed: &[crate::experiment::LeftOut]| {
            remarks.extend(notes.iter().cloned());
            remarks.extend(failed.iter().map(|f| format!("{} failed: {}", f.model, f.why)));
        };
        if let Some(table) = &self.models {
            add(&table.notes, &table.failed);
        }
        if let Some(table) = &self.concurrency {
            add(&table.notes, &table.failed);
        }
        if let Some(table) = &self.connections {
            add(&table.notes, &table.failed);
        }
        if let Some(table) = &self.survival {
            add(&[], &table.failed);
        }
        if let Some(table) = &self.udp {
            add(&[], &table.failed);
        }
        if let Some(table) = &self.peers {
            add(&table.notes, &table.failed);
        }
        if let Some(table) = &self.latency {
            add(&[], &table.failed);
        }
        remarks.dedup();
        remarks
    }

    /// Whether everything that was tried could be measured.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let models = self.models.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        let concurrency =
            self.concurrency.as_ref().is_none_or(|t| t.failed.is_empty() && !t.points.is_empty());
        let connections = self.connections.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        let survival = self.survival.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        let udp = self.udp.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        let peers = self.peers.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        let latency = self.latency.as_ref().is_none_or(|t| t.failed.is_empty() && !t.rows.is_empty());
        models && concurrency && connections && survival && udp && peers && latency
    }
}

/// Makes the folder and checks that it can be written, before anything is measured.
///
/// # Errors
/// It cannot be made or written.
pub fn prepare(folder: &Path) -> Result<(), LabError> {
    let probe = folder.join(".tidegate-probe");
    let tried = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&probe, b""))
        .and_then(|()| std::fs::remove_file(&probe));
    tried.map_err(|source| LabError::Write { path: folder.into(), source })
}

/// Writes the report into a folder that was [prepared](prepare), and beside it the run, which says where it was saved.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, results: &Results) -> Result<PathBuf, LabError> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        let written = ResultFile::create(&path).and_then(|file| file.write(text.as_bytes()));
        written.map_err(|source| LabError::Write { path, source })
    };
    let charts = charts::of(results);
    for chart in &charts {
        put(&format!("{}.svg", chart.name), &chart.svg)?;
    }
    if let Some(table) = &results.models {
        put("models.csv", &tables::csv(&models_cells(table)))?;
    }
    if let Some(table) = &results.concurrency {
        put("concurrency.csv", &tables::csv(&tables::concurrency_rows(table)))?;
    }
    if let Some(table) = &results.connections {
        put("connections.csv", &tables::csv(&tables::connections_rows(table)))?;
    }
    if let Some(table) = &results.survival {
        put("survival.csv", &tables::csv(&siege::cells(table)))?;
    }
    if let Some(table) = &results.udp {
        put("udp.csv", &tables::csv(&udp::cells(table)))?;
    }
    if let Some(table) = &results.peers {
        put("peers.csv", &tables::csv(&peers::rows(table)))?;
    }
    if let Some(table) = &results.latency {
        put("latency.csv", &tables::csv(&latency::cells(table)))?;
    }
    // Plain data always becomes JSON.
    put("report.json", &serde_json::to_string_pretty(results).unwrap_or_default())?;
    put("report.md", &tables::markdown(results, &charts))?;
    put("report.html", &html::page(results, &charts))?;
    results.run().save(&folder.join("runs"))
}
