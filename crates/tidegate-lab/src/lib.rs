//! tidegate's lab: experiments that measure every I/O model on this machine, and their reports.
//!
//! Server and load run as separate processes of the same binary, each kept on its own processor where there are two.
//! What the server costs is read from the system's own accounting, not from the server.
//!
//! | module | what it holds |
//! |---|---|
//! | [`experiment`] | Table 6-3, responses a second against concurrency, very many connections, survival under attack, datagrams, round trips on one host, and other servers |
//! | [`process`] | starting and stopping the processes |
//! | [`sample`], [`kernel_memory`] | what the server uses while it is measured |
//! | [`spread`], [`bootstrap`] | medians, their confidence intervals, and whether two differ |
//! | [`run`](mod@run), [`compare`] | saved runs with every round, and two of them side by side |
//! | [`tune`] | the settings of a server that serve a goal best here, found by testing |
//! | [`plan`] | the experiments of a `bench`, one after the other |
//! | [`machine`] | what all that was measured on |
//! | [`report`] | Markdown, CSV, JSON, SVG and one HTML page |
#![forbid(unsafe_code)]

pub mod bootstrap;
pub mod compare;
pub mod experiment;
pub mod kernel_memory;
pub mod machine;
pub mod plan;
pub mod process;
pub mod report;
pub mod run;
pub mod sample;
pub mod save;
pub mod spread;
mod throttle;
pub mod tune;

use std::path::PathBuf;

pub use experiment::generator::Agents;
pub use experiment::peers::program::Program;
pub use experiment::{concurrency, connections, latency, models, peers, survival, udp};

/// Something the lab could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A file or folder of the report.
    #[error("cannot write {path}: {source}; choose another folder with --out")]
    Write {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A saved run is not one.
    #[error(
        "{path}: {why}; give a file that `tidegate bench` saved in DIR/runs, or DIR itself for the latest of it"
    )]
    Run {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file of peers says something wrong.
    #[error("{path}: {why}")]
    Peers {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The command line of a program to be measured says too little.
    #[error(
        "the program to measure: {why}; for example: tidegate bench app -- ./my-server --model {{model}} --listen {{listen}}"
    )]
    Program {
        /// What is wrong with it.
        why: String,
    },
    /// A server or load did not do what it should.
    #[error("{what}: {why}")]
    Process {
        /// Which one.
        what: String,
        /// What went wrong, with the last lines it wrote to its standard error.
        why: String,
    },
}

impl LabError {
    /// A saved run that is of no use.
    pub(crate) fn run(path: &std::path::Path, why: impl ToString) -> Self {
        Self::Run { path: path.into(), why: why.to_string() }
    }
}

/// What every experiment needs to know.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The `tidegate` binary to run as server and as load.
    pub program: PathBuf,
    /// Processors of the server.
    pub server_cpus: Vec<usize>,
    /// Processors of the load.
    pub load_cpus: Vec<usize>,
    /// The control group that both are started in, if it is another than that of this process. Linux.
    pub group: Option<PathBuf>,
}

impl Bench {
    /// Server on one half of the processors this process may use and load on the other; both on the one if there is
    /// only one.
    #[must_use]
    pub fn new(program: PathBuf, cpus: &[usize]) -> Self {
        let (server, load) = match cpus {
            [] => (Vec::new(), Vec::new()),
            [only] => (vec![*only], vec![*only]),
            [first, second, ..] => (vec![*first], vec![*second]),
        };
        Self { program, server_cpus: server, load_cpus: load, group: None }
    }

    /// The same with as many processors on each side as there are: what shows how a server scales.
    #[must_use]
    pub fn halved(program: PathBuf, cpus: &[usize]) -> Self {
        let (server, load) = cpus.split_at(cpus.len() / 2);
        if server.is_empty() {
            Self::new(program, cpus)
        } else {
            Self { program, server_cpus: server.into(), load_cpus: load.into(), group: None }
        }
    }

    /// Whether server and load have a processor each.
    #[must_use]
    pub fn is_pinned_apart(&self) -> bool {
        !self.server_cpus.is_empty() && self.server_cpus != self.load_cpus
    }
}
