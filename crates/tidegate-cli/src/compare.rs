//! `tidegate compare`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use tidegate_lab::compare::{CompareOptions, Comparison, Judged, compare};
use tidegate_lab::run::{Circumstances, Run};

use crate::out;
use crate::out::json::Json;
use crate::{CommandResult, Failure, usage};

/// Options of `compare`.
#[derive(clap::Args)]
pub struct Args {
    /// A run saved by bench, or a report directory for its latest run.
    run_a: PathBuf,
    /// The run to compare it with.
    run_b: PathBuf,
    /// The figure to compare, for example requests_per_s or p99_us [default: each row's main figure, CPU for 100,000
    /// requests where available].
    #[arg(long, value_name = "NAME")]
    measure: Option<String>,
    /// Differences up to this many percent are not reported as significant.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    margin: f64,
    /// Write the comparison as JSON to this file, or to standard output for -.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    if !(0.0..100.0).contains(&args.margin) {
        return Err(Failure::Usage(anyhow!("--margin {} is not from 0 to 100 percent", args.margin)));
    }
    let mut json = Json::open(args.json.as_deref())?;
    let load = |path: &Path| Run::load(path).map_err(usage);
    let (a, b) = (load(&args.run_a)?, load(&args.run_b)?);
    let question = CompareOptions { measure: args.measure.clone(), margin: args.margin / 100.0 };
    let comparison = compare(&a, &b, &question);
    if comparison.rows.is_empty() {
        return Err(Failure::Usage(nothing_to_compare(&a, &args)));
    }
    json.put_or_print(&comparison, &shown(&a, &b, &comparison))?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_to_compare(a: &Run, args: &Args) -> anyhow::Error {
    let mut measures: Vec<&str> =
        a.rows.iter().flat_map(|row| &row.measures).map(|m| m.name.as_str()).collect();
    measures.sort_unstable();
    measures.dedup();
    match &args.measure {
        Some(name) if !measures.contains(&name.as_str()) => {
            anyhow!("{} has no --measure {name}; it has {}", args.run_a.display(), measures.join(", "))
        }
        _ => anyhow!(
            "{} and {} have no rows in common; compare two runs of the same experiment",
            args.run_a.display(),
            args.run_b.display()
        ),
    }
}

fn shown(a: &Run, b: &Run, comparison: &Comparison) -> String {
    let mut text = format!("A: {}\nB: {}\n", origin(&a.circumstances), origin(&b.circumstances));
    for warning in &comparison.warnings {
        text += &format!("warning: {warning}\n");
    }
    let mut table = out::table(["row", "measure", "A", "B", "rounds", "B against A"]);
    for row in &comparison.rows {
        table.add_row(cells(row));
    }
    text += &format!("{table}\n");
    for (name, only) in [("A", &comparison.only_a), ("B", &comparison.only_b)] {
        for row in only {
            text += &format!("note: only {name} has {row}\n");
        }
    }
    text += &format!(
        "Medians; in brackets the {:.4}% confidence interval of their ratio, so that all rows together are 95% sure.\n",
        comparison.confidence * 100.0
    );
    text
}

fn origin(c: &Circumstances) -> String {
    format!("{}; {}; {}", c.date, c.build.line(), c.machine.line())
}

fn cells(row: &Judged) -> [String; 6] {
    [
        format!("{}: {}", row.experiment, row.name),
        row.measure.clone(),
        number(row.a),
        number(row.b),
        format!("{}/{}", row.rounds[0], row.rounds[1]),
        row.words(),
    ]
}

/// Four significant digits.
pub(crate) fn number(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { 3 - value.abs().log10().floor() as i32 };
    format!("{value:.*}", usize::try_from(digits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_have_four_digits_that_count() {
        assert_eq!([0.51234, 1.0, 123_456.7, 0.0].map(super::number), ["0.5123", "1.000", "123457", "0"]);
    }
}
