//! tidegate's lab: experiments that measure every I/O model on this machine, and their reports.
//!
//! Server and load run as separate processes of the same binary, each pinned to its own processor where there are two.
//! The server's cost is read from the system's accounting, not from the server.
//!
//! | module | contents |
//! |---|---|
//! | [`experiment`] | the experiments, see below |
//! | [`process`] | starting and stopping the processes |
//! | [`sample`], [`kernel_memory`] | what the server uses while it is measured |
//! | [`spread`], [`bootstrap`] | medians, their confidence intervals, and whether two differ |
//! | [`run`](mod@run), [`compare`] | saved runs with every round, and their comparison |
//! | [`ab`] | interleaved comparison of two programs until the result is significant |
//! | [`tune`] | finds the best server settings for a goal by testing |
//! | [`plan`] | the experiments of a `bench`, one after the other |
//! | [`machine`] | description of the machine |
//! | [`report`] | Markdown, CSV, JSON, SVG and one HTML page |
//!
//! The experiments are Table 6-3, responses per second by concurrency, service demand at fixed rates, very many
//! connections, reused sockets, buffers, files from disk, survival under attack, datagrams, round trips on one host,
//! and other servers.
#![forbid(unsafe_code)]

pub mod ab;
pub mod bootstrap;
pub mod compare;
mod control_group;
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
pub use experiment::peers::program::ServerProgram;
pub use experiment::{
    concurrency, connections, demand, files, latency, memory, models, peers, reuse, survival, udp,
};

/// An error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A file or directory of the report.
    #[error("cannot write {path}: {error}; choose another directory with --out")]
    Write {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// An invalid saved run.
    #[error(
        "{path}: {why}; give a file that `tidegate bench` saved in DIR/runs, or DIR itself for the latest of it"
    )]
    Run {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// An invalid file of peers.
    #[error("{path}: {why}")]
    Peers {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
    /// An incomplete command line of a program to be measured.
    #[error(
        "the program to measure: {why}; for example: tidegate bench app -- \
         ./my-server --model {{model}} --listen {{listen}}"
    )]
    Program {
        /// The error.
        why: String,
    },
    /// An invalid program for a comparison.
    #[error(
        "{text}: {why}; give the path of a tidegate binary, or a command line with {{listen}} where ADDRESS:PORT goes"
    )]
    Contender {
        /// The text.
        text: String,
        /// The error.
        why: String,
    },
    /// No request was answered in a round.
    #[error("{what}: no request was answered")]
    NoAnswer {
        /// The load.
        what: String,
    },
    /// A server used no processor time in a round.
    #[error(
        "{what}: used no processor time itself; the command must be the server, not a program that starts one"
    )]
    NoProcessorTime {
        /// The server.
        what: String,
    },
    /// A server or load failed.
    #[error("{what}: {why}")]
    Process {
        /// Its name.
        what: String,
        /// The error, with the last lines of its standard error.
        why: String,
    },
}

impl LabError {
    /// Whether a busy machine alone can cause it.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::NoProcessorTime { .. })
    }

    /// A saved run that cannot be used.
    pub(crate) fn run(path: &std::path::Path, why: impl ToString) -> Self {
        Self::Run { path: path.into(), why: why.to_string() }
    }
}

/// Settings common to all experiments.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The `tidegate` binary to run as server and as load.
    pub program: PathBuf,
    /// Processors of the server.
    pub server_cpus: Vec<usize>,
    /// Processors of the load.
    pub load_cpus: Vec<usize>,
    /// The control group in which both are started, if it differs from that of this process. Linux.
    pub group: Option<PathBuf>,
}

impl Bench {
    /// Server on one half of the available processors and load on the other; both on the same one if there is only one.
    #[must_use]
    pub fn new(program: PathBuf, cpus: &[usize]) -> Self {
        let (server, load) = match cpus {
            [] => (Vec::new(), Vec::new()),
            [only] => (vec![*only], vec![*only]),
            [first, second, ..] => (vec![*first], vec![*second]),
        };
        Self { program, server_cpus: server, load_cpus: load, group: None }
    }

    /// The same with all available processors on each side: shows how a server scales.
    #[must_use]
    pub fn halved(program: PathBuf, cpus: &[usize]) -> Self {
        let (server, load) = cpus.split_at(cpus.len() / 2);
        if server.is_empty() {
            Self::new(program, cpus)
        } else {
            Self { program, server_cpus: server.into(), load_cpus: load.into(), group: None }
        }
    }

    /// Whether server and load have separate processors.
    #[must_use]
    pub fn is_pinned_apart(&self) -> bool {
        !self.server_cpus.is_empty() && self.server_cpus != self.load_cpus
    }
}
