//! Tables as cells: how a figure is written in one, CSV and Markdown.

pub(super) use tidegate_load::text::{counted, grouped};

use super::verdict;
use crate::bootstrap::Interval;
use crate::experiment::round::Figures;
use crate::spread::Spread;

/// A head and rows.
pub type Cells = Vec<Vec<String>>;

/// A line for each model, a column for each `x` that occurs, under its name.
pub(super) fn pivot<R>(
    rows: &[R],
    key: impl Fn(&R) -> (&str, u64),
    name: impl Fn(u64) -> String,
    cell: impl Fn(&R) -> String,
) -> Cells {
    let (mut models, mut xs): (Vec<&str>, Vec<u64>) = rows.iter().map(&key).unzip();
    models.dedup();
    xs.sort_unstable();
    xs.dedup();
    let head = xs.iter().map(|&x| name(x));
    let mut cells: Cells = vec![std::iter::once("model".to_owned()).chain(head).collect()];
    for model in models {
        let at = |&x: &u64| rows.iter().find(|row| key(row) == (model, x)).map_or("–".into(), &cell);
        cells.push(std::iter::once(model.to_owned()).chain(xs.iter().map(at)).collect());
    }
    cells
}

/// The head of a table for CSV with a column for each figure.
pub(super) fn figures_head(names: &[&str]) -> Vec<String> {
    let mut head: Vec<String> = names.iter().map(ToString::to_string).chain(["rounds".to_owned()]).collect();
    for figure in
        ["requests_per_s", "per_processor_s", "mean_us", "p50_us", "p99_us", "p99_9_us", "cpu_s_per_100k"]
    {
        head.extend(["median", "low", "high", "min", "max"].map(|part| format!("{figure}_{part}")));
    }
    head.extend(["failed".to_owned(), "limits".to_owned()]);
    head
}

/// A row of it.
pub(super) fn figures_row(mut row: Vec<String>, f: &Figures) -> Vec<String> {
    row.push(f.requests_per_s.rounds.len().to_string());
    for s in [
        &f.requests_per_s,
        &f.per_processor_s,
        &f.mean_us,
        &f.p50_us,
        &f.p99_us,
        &f.p99_9_us,
        &f.cpu_s_per_100k,
    ] {
        let end = |of: fn(Interval) -> f64| s.interval.map_or(String::new(), |i| format!("{:.4}", of(i)));
        row.extend([format!("{:.4}", s.median), end(|i| i.low), end(|i| i.high)]);
        let extreme = |v: f64| if s.has_several() { format!("{v:.4}") } else { String::new() };
        row.extend([s.min, s.max].map(extreme));
    }
    row.push(f.failed.to_string());
    row.push(verdict::limits(&f.verdicts));
    row
}

/// What is written for a figure that is not there.
pub(super) const NOT_MEASURED: &str = "not measured";

/// From here on decimals say nothing.
const LARGE: f64 = 1e4;

/// A figure with so many decimals, or with commas between its thousands.
pub(super) fn figure(value: f64, digits: usize) -> String {
    if digits == 0 || value >= LARGE { grouped(value.round() as u64) } else { format!("{value:.digits$}") }
}

/// A median with its confidence interval; of too few rounds for one, with minimum and maximum.
pub(super) fn spread(s: &Spread, digits: usize) -> String {
    let number = |v: f64| figure(v, digits);
    let bounds = s.bounds();
    match (s.has_several(), s.interval) {
        (false, _) => number(s.median),
        (_, Some(_)) => format!("{} [{}–{}]", number(s.median), number(bounds.low), number(bounds.high)),
        (_, None) => format!("{} ({}–{})", number(s.median), number(bounds.low), number(bounds.high)),
    }
}

/// RFC 4180: cells with commas, quotes or line ends are quoted.
pub(super) fn csv(cells: &Cells) -> String {
    let cell = |c: &String| {
        if c.contains([',', '"', '\n']) { format!("\"{}\"", c.replace('"', "\"\"")) } else { c.clone() }
    };
    cells.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n").collect()
}

/// A table in Markdown.
pub(super) fn markdown_table(cells: &Cells) -> String {
    let line = |row: &Vec<String>| {
        format!("| {} |\n", row.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let mut rows = cells.iter();
    let head =
        rows.next().map(|head| line(head) + "|" + &"---|".repeat(head.len()) + "\n").unwrap_or_default();
    head + &rows.map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted() {
        let cells = vec![vec!["a,b".to_owned(), "c\"d".to_owned()], vec!["1".to_owned(), "x|y".to_owned()]];
        assert_eq!(csv(&cells), "\"a,b\",\"c\"\"d\"\n1,x|y\n");
        assert_eq!(markdown_table(&cells), "| a,b | c\"d |\n|---|---|\n| 1 | x\\|y |\n");
    }

    #[test]
    fn a_spread_shows_how_far_apart_the_rounds_lay() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        assert_eq!(spread(&of(&[1000.0, 1500.4, 2000.0]), 0), "1,500 (1,000–2,000)");
        assert_eq!(spread(&of(&[1.0, 2.0, 3.0, 4.0, 5.0]), 1), "3.0 [1.0–5.0]");
        assert_eq!(spread(&of(&[1500.4]), 1), "1500.4");
        let figures = Figures { cpu_s_per_100k: of(&[2.5]), ..Figures::default() };
        let (head, row) = (figures_head(&[]), figures_row(Vec::new(), &figures));
        let at = |name: &str| row[head.iter().position(|known| known == name).unwrap()].clone();
        let names = ["median", "low", "high", "min", "max"].map(|part| at(&format!("cpu_s_per_100k_{part}")));
        assert_eq!(names, ["2.5000", "", "", "", ""], "one run has no spread");
        assert_eq!(spread(&of(&[100_417.56]), 2), "100,418", "of so many, no hundredths");
    }
}
