//! Destinations of load results: files, standard output, a stream of seconds.

use std::io::Write;

use anyhow::anyhow;
use tidegate_load::histogram::{decode, percentiles};
use tidegate_load::{Report, Second};

use super::args::Output;
use super::summary::summary;
use crate::Failure;
use crate::out;
use crate::out::json::{Destination, Json, is_stdout, repeated};

/// Open files, so that write errors are detected before the load and not after it.
pub struct Sinks {
    json: Json,
    hgrm: Option<Destination>,
    csv: Option<Destination>,
    ndjson: bool,
    /// The summary is not wanted.
    quiet: bool,
}

impl Sinks {
    /// Opens the given destinations.
    pub fn open(output: &Output) -> Result<Self, Failure> {
        if is_stdout(output.json.as_deref()) && output.ndjson {
            let why = anyhow!("--json - and --ndjson would mix on standard output: give --json a file");
            return Err(Failure::Usage(why));
        }
        let files = [("--json", &output.json), ("--hgrm", &output.hgrm), ("--csv", &output.csv)];
        let files = files.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
        if let Some((other, option, path)) = repeated(files.filter(|(_, path)| !is_stdout(Some(path)))) {
            let why = anyhow!("{other} and {option} both name {}: give each its own file", path.display());
            return Err(Failure::Usage(why));
        }
        Ok(Self {
            json: Json::open(output.json.as_deref())?,
            hgrm: output.hgrm.as_deref().map(Destination::open).transpose()?,
            csv: output.csv.as_deref().map(Destination::open).transpose()?,
            ndjson: output.ndjson,
            quiet: output.phases,
        })
    }

    /// One more second is over.
    pub fn second(&self, second: &Second) {
        if self.ndjson
            && let Ok(line) = serde_json::to_string(second)
        {
            // The reader is gone: the run continues, and its result is in the files.
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        }
    }

    /// Writes the result to all destinations.
    pub fn report(&mut self, report: &Report) -> anyhow::Result<()> {
        // An error of one destination does not affect the others or the summary.
        let to_stdout = matches!(self.json, Json::Stdout);
        let written = [self.json.put(report), self.percentiles(report), self.seconds(report)];
        match () {
            () if self.quiet || to_stdout => {}
            () if self.ndjson => out::put_error(format_args!("{}", summary(report))),
            () => out::put(format_args!("{}", out::indented(&summary(report))))?,
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
