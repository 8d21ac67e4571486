//! What goes to stderr: notes about what was decided, logs of the library, and the last error; for people or for
//! programs.
//!
//! As text, a note is one line `note: …`. As JSON, everything is one object a line with `timestamp`, `level`, `target`
//! and `fields`; notes carry `fields.event`, a short stable name, beside `fields.message`.

use std::sync::OnceLock;

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::Failure;
use crate::out::complain;

/// How lines on stderr look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The least important events that are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// What failed for good.
    Error,
    /// What went wrong and is survived.
    Warn,
    /// What happens to the server as a whole.
    Info,
    /// What happens to its parts.
    Debug,
    /// Everything.
    Trace,
}

/// Options of every command.
#[derive(clap::Args, Clone, Copy)]
pub struct Args {
    /// Format of what goes to stderr.
    #[arg(long = "log", value_name = "FORMAT", default_value = "text", global = true)]
    format: Format,
    /// Least important events that are logged [default: what TIDEGATE_LOG says, or warn].
    #[arg(long = "log-level", value_name = "LEVEL", global = true)]
    level: Option<Level>,
}

/// The format, once it is known.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Notes are said whatever the level: they tell what the user did not ask for.
const NOTES: &str = "tidegate::note";

impl Args {
    /// Sends logs to stderr. To be called once.
    ///
    /// # Errors
    /// TIDEGATE_LOG is no filter.
    pub fn start(self) -> Result<(), Failure> {
        let _ = FORMAT.set(self.format); // the first call counts
        let notes = format!("{NOTES}=info").parse().context("the filter of notes").map_err(Failure::Run)?;
        let filter = self.filter()?.add_directive(notes);
        let builder = tracing_subscriber::fmt().with_env_filter(filter);
        // What it says of its own errors would panic where nobody takes it.
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

/// One line about what was decided without being asked, or what happens to the server; `event` is its stable name for
/// programs.
pub fn note(event: &str, text: &str) {
    if is_json() {
        tracing::info!(target: NOTES, event, "{text}");
    } else {
        complain!("note: {text}");
    }
}

/// The same about one of several servers.
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
