//! Output on stderr: notes about automatic decisions, logs of the library, and the final error; for people or for
//! programs.
//!
//! As text, a note is one line `note: …`. As JSON, each line is one object with `timestamp`, `level`, `target`
//! and `fields`; notes carry `fields.event`, a short stable name, beside `fields.message`.

use std::sync::OnceLock;

use anyhow::anyhow;
use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::Failure;
use crate::out::complain;

/// The format of stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The minimum log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Fatal errors.
    Error,
    /// Recovered errors.
    Warn,
    /// Events of the whole server.
    Info,
    /// Events of its parts.
    Debug,
    /// Everything.
    Trace,
}

/// Options of every command.
#[derive(clap::Args, Clone, Copy)]
pub struct Args {
    /// Format of stderr.
    #[arg(long = "log", value_name = "FORMAT", default_value = "text", global = true)]
    format: Format,
    /// Minimum log level [default: TIDEGATE_LOG, or warn].
    #[arg(long = "log-level", value_name = "LEVEL", global = true)]
    level: Option<Level>,
}

/// The format, once it is known.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Notes are written at every level: they report decisions that the user did not make.
const NOTES: &str = "tidegate::note";

impl Args {
    /// Sends logs to stderr. Call once.
    ///
    /// # Errors
    /// TIDEGATE_LOG is not a valid filter.
    pub fn start(self) -> Result<(), Failure> {
        let _ = FORMAT.set(self.format); // the first call counts
        let filter = self.filter()?.with_target(NOTES, LevelFilter::INFO);
        // Reporting its own errors would panic if stderr is closed.
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
        let layer = match self.format {
            Format::Text => layer.boxed(),
            Format::Json => layer.json().boxed(),
        };
        tracing_subscriber::registry().with(layer).with(filter).init();
        Ok(())
    }

    fn filter(self) -> Result<Targets, Failure> {
        let level = match self.level {
            Some(Level::Error) => LevelFilter::ERROR,
            Some(Level::Warn) => LevelFilter::WARN,
            Some(Level::Info) => LevelFilter::INFO,
            Some(Level::Debug) => LevelFilter::DEBUG,
            Some(Level::Trace) => LevelFilter::TRACE,
            None => match std::env::var("TIDEGATE_LOG") {
                Ok(text) => return parsed(&text),
                Err(_) => LevelFilter::WARN,
            },
        };
        Ok(Targets::new().with_default(level))
    }
}

fn parsed(text: &str) -> Result<Targets, Failure> {
    text.parse().map_err(|e| {
        Failure::Usage(anyhow!("TIDEGATE_LOG={text:?}: {e}; write a level such as info, or tidegate=debug"))
    })
}

fn is_json() -> bool {
    FORMAT.get() == Some(&Format::Json)
}

/// Writes a note about an automatic decision or a server event; `event` is its stable name for programs.
pub fn note(event: &str, text: &str) {
    if is_json() {
        tracing::info!(target: NOTES, event, "{text}");
    } else {
        complain!("note: {text}");
    }
}

/// The same for one of several servers.
pub fn note_of(server: &str, event: &str, text: &str) {
    if is_json() {
        tracing::info!(target: NOTES, event, server, "{text}");
    } else {
        complain!("note: {server}: {text}");
    }
}

/// The last line: why the command failed.
pub fn failed(error: &anyhow::Error, code: u8) {
    if is_json() {
        tracing::error!(target: NOTES, event = "failed", code, "{error:#}");
    } else {
        complain!("error: {error:#}");
    }
}
