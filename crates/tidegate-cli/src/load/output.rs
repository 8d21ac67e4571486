//! Where results go: files, standard output, a stream of seconds.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;
use tidegate_lab::save::ResultFile;
use tidegate_load::histogram::{decode, percentiles};
use tidegate_load::{Report, Second};

use super::args::Output;
use super::summary::summary;
use crate::Failure;
use crate::out::{self, say};

/// Open files, so that what cannot be written is known before the load and not after it.
pub struct Sinks {
    json: Json,
    hgrm: Option<Destination>,
    csv: Option<Destination>,
    ndjson: bool,
    /// The summary is not wanted.
    quiet: bool,
}

impl Sinks {
    /// Opens what was asked for.
    pub fn open(output: &Output) -> Result<Self, Failure> {
        if is_stdout(output.json.as_deref()) && output.ndjson {
            let why = anyhow!("--json - and --ndjson would mix on standard output: give --json a file");
            return Err(Failure::Usage(why));
        }
        Ok(Self {
            json: Json::open(output.json.as_deref())?,
            hgrm: output.hgrm.as_deref().map(create).transpose()?,
            csv: output.csv.as_deref().map(create).transpose()?,
            ndjson: output.ndjson,
            quiet: output.phases,
        })
    }

    /// One more second is over.
    pub fn second(&self, second: &Second) {
        if self.ndjson
            && let Ok(line) = serde_json::to_string(second)
        {
            // Nobody reads any more: the run goes on, and its result is in the files.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// Gives the result out where it was asked for.
    pub fn report(&mut self, report: &Report) -> anyhow::Result<()> {
        // Whatever cannot be written, the rest is, and the summary is shown.
        let to_stdout = matches!(self.json, Json::Stdout);
        let written = [self.json.put(report), self.percentiles(report), self.seconds(report)];
        match () {
            () if self.quiet || to_stdout => {}
            () if self.ndjson => out::put_error(format_args!("{}", summary(report))),
            () => out::put(format_args!("{}", summary(report)))?,
        }
        written.into_iter().collect()
    }

    fn percentiles(&mut self, report: &Report) -> anyhow::Result<()> {
        let Some(file) = self.hgrm.take() else { return Ok(()) };
        file.write(&percentiles(&decode(&report.latency_v2)?))
    }

    fn seconds(&mut self, report: &Report) -> anyhow::Result<()> {
        self.csv.take().map_or(Ok(()), |file| file.write(&csv(&report.seconds)))
    }
}

/// Where a result goes as JSON.
pub enum Json {
    Nowhere,
    Stdout,
    File(Destination),
    /// It has been written.
    Done,
}

/// A file for results, and what the user calls it.
pub struct Destination {
    path: PathBuf,
    file: ResultFile,
}

impl Destination {
    fn write(self, text: &str) -> anyhow::Result<()> {
        let Self { path, file } = self;
        file.write(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Json {
    /// A file, or standard output for `-`.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::Nowhere),
            path if is_stdout(path) => Ok(Self::Stdout),
            Some(path) => create(path).map(Self::File),
        }
    }

    /// Gives a result out.
    pub fn put(&mut self, report: &impl Serialize) -> anyhow::Result<()> {
        let text = || serde_json::to_string_pretty(report).context("the result cannot be written as JSON");
        match self {
            Self::Nowhere | Self::Done => Ok(()),
            Self::Stdout => say!("{}", text()?),
            Self::File(_) => {
                let text = text()? + "\n";
                match std::mem::replace(self, Self::Done) {
                    Self::File(file) => file.write(&text),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives a result out, and its summary to standard output, unless that has the JSON.
    pub fn put_or_print(&mut self, report: &impl Serialize, summary: &str) -> anyhow::Result<()> {
        let written = self.put(report);
        if !matches!(self, Self::Stdout) {
            out::put(format_args!("{summary}"))?; // also if it cannot be saved
        }
        written
    }
}

fn is_stdout(path: Option<&Path>) -> bool {
    path == Some(Path::new("-"))
}

/// A file for results.
fn create(path: &Path) -> Result<Destination, Failure> {
    let file = ResultFile::create(path).with_context(|| format!("cannot write {}", path.display()));
    file.map(|file| Destination { path: path.into(), file }).map_err(Failure::Usage)
}

/// One row for each second. Numbers only, so nothing needs quotes.
fn csv(seconds: &[Second]) -> String {
    let mut text = String::from(
        "at_s,length_s,requests,failed,late_starts,in_flight,bytes_sent,bytes_received,\
         mean_us,min_us,p50_us,p75_us,p90_us,p99_us,p99_9_us,max_us\n",
    );
    for s in seconds {
        let l = &s.latency_us;
        text.push_str(&format!(
            "{:.3},{:.3},{},{},{},{},{},{},{:.1},{},{},{},{},{},{},{}\n",
            s.at_s,
            s.length_s,
            s.requests,
            s.failed,
            s.late_starts,
            s.in_flight,
            s.bytes_sent,
            s.bytes_received,
            l.mean,
            l.min,
            l.p50,
            l.p75,
            l.p90,
            l.p99,
            l.p99_9,
            l.max,
        ));
    }
    text
}
