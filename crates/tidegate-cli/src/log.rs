//! Output on stderr: notes about automatic decisions, logs of the library, and the final error; for people or for
//! programs.
//!
//! As text, a note is one line `note: …`. As JSON, each line is one object with `timestamp`, `level`, `target`
//! and `fields`; notes carry `fields.event`, a short stable name, beside `fields.message`.

use std::sync::OnceLock;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

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
        let notes = format!("{NOTES}=info").parse().context("the filter of notes").map_err(Failure::Run)?;
        let filter = self.filter()?.add_directive(notes);
        let builder = tracing_subscriber::fmt().with_env_filter(filter);
        // Reporting its own errors would panic if stderr is closed.
        let builder = builder.with_writer(std::io::stderr).log_internal_errors(false);
        match self.format {
            Format::Text => builder.init(),
            Format::Json => builder.json().init(),
        }
        Ok(())
    }

    fn filter(self) -> Result<EnvFilter, Failure> {
        let level = match self.level {
            Some(Level::Error) => "error",
            Some(Level::Warn) => "warn",
            Some(Level::Info) => "info",
            Some(Level::Debug) => "debug",
            Some(Level::Trace) => "trace",
            None => match std::env::var("TIDEGATE_LOG") {
                Ok(text) => return parsed(&text),
                Err(_) => "warn",
            },
        };
        Ok(EnvFilter::new(level))
    }
}

fn parsed(text: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(text).map_err(|e| {
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
