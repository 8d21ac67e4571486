//! Which side was the limit, and warnings about rows, for the whole report: the load's list of warnings, each with its
//! remedy.

use std::mem::discriminant;

use tidegate_load::text::{counted, grouped};
use tidegate_load::verdict::{LimitedBy, Verdict, Warning};

use super::cells::Cells;
use crate::run::Row;

/// One word of each verdict that rounds of a row had, the most frequent one first.
#[must_use]
pub fn limits(verdicts: &[Verdict]) -> String {
    tally(verdicts.iter().map(|verdict| word(verdict.limited_by)))
}

/// Marks a figure whose rounds do not prove that the server was the limit.
pub(super) const MARK: &str = "†";

/// The legend of the mark, and of a hollow point.
pub(super) const NOT_PROVEN: &str =
    "not every round proves that the server was the limit: the rate may be that of the load";

/// Whether a round of these had another limit than the server. Where nothing is known, nothing is marked.
pub(super) fn is_doubtful(verdicts: &[Verdict]) -> bool {
    verdicts.iter().any(|verdict| verdict.limited_by != LimitedBy::Server)
}

/// The same of rounds at a fixed rate, in which neither side is the limit if all goes well.
pub(super) fn is_doubtful_at_a_rate(verdicts: &[Verdict]) -> bool {
    verdicts.iter().any(|verdict| verdict.limited_by == LimitedBy::Generator)
}

/// A cell, with the mark if its rounds call for it.
pub(super) fn marked(cell: String, verdicts: &[Verdict]) -> String {
    if is_doubtful(verdicts) { format!("{cell} {MARK}") } else { cell }
}

/// The same of a cell about rounds at a fixed rate.
pub(super) fn marked_at_a_rate(cell: String, verdicts: &[Verdict]) -> String {
    if is_doubtful_at_a_rate(verdicts) { format!("{cell} {MARK}") } else { cell }
}

/// What is said about a table, after the legend of the mark if it is in a cell.
pub(super) fn with_legend(cells: &Cells, about: String) -> String {
    let is_marked = cells.iter().flatten().any(|cell| cell.ends_with(MARK));
    if is_marked { format!("{MARK}: {NOT_PROVEN}. {about}") } else { about }
}

/// A side in a table.
pub(super) fn word(limited_by: LimitedBy) -> &'static str {
    match limited_by {
        LimitedBy::Server => "server",
        LimitedBy::Generator => "load",
        LimitedBy::Neither => "neither",
    }
}

/// Words of rounds with how often they occur, the most frequent one first; a dash of none.
pub(super) fn tally(words: impl Iterator<Item = &'static str>) -> String {
    let mut counts: Vec<(usize, &str)> = Vec::new();
    for word in words {
        match counts.iter_mut().find(|(_, known)| *known == word) {
            Some((count, _)) => *count += 1,
            None => counts.push((1, word)),
        }
    }
    counts.sort_by_key(|&(count, _)| std::cmp::Reverse(count));
    match counts.as_slice() {
        [] => "–".into(),
        [(_, only)] => (*only).into(),
        all => all.iter().map(|(n, word)| format!("{word} {n}×")).collect::<Vec<_>>().join(", "),
    }
}

/// What the reader of a report can do. The load's own remedies name its options, which the lab sets itself.
fn remedy(warning: &Warning) -> Option<&'static str> {
    Some(match warning {
        Warning::GeneratorBusy { .. } | Warning::WakeUpBound => {
            "compare processor time of a request instead of rates"
        }
        Warning::GeneratorStarved { .. } | Warning::LateWakeUps { .. } => {
            "end what else runs on this machine, and measure again"
        }
        Warning::PacingMissed { .. } => "compare at a lower rate",
        Warning::LostSamples { .. } => "the true percentiles are higher",
        Warning::LittlesLaw { .. } => "compare processor time of a request, and not latencies",
        Warning::ShortWindow { .. } => "the interval shows how much such rounds spread",
        Warning::AgentsLost { .. } => "see on their hosts why, and measure again",
        Warning::ServerUnseen => return None,
    })
}

/// A warning of some rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Doubt {
    /// Its first occurrence.
    pub warning: Warning,
    /// Rounds that have it.
    pub rounds: usize,
    /// Rows that have it, in order.
    pub rows: Vec<String>,
}

impl Doubt {
    /// In one line, with the remedy if there is one.
    #[must_use]
    pub fn line(&self) -> String {
        let others = match self.rows.len() - 1 {
            0 => String::new(),
            n => format!(", and {}", counted(n, "more row")),
        };
        let first = self.rows.first().map_or("", String::as_str);
        let rounds = counted(self.rounds, "round");
        let remedy = remedy(&self.warning).map_or(String::new(), |remedy| format!(": {remedy}"));
        format!("{}{remedy} ({rounds}: {first}{others})", self.warning)
    }
}

/// Every kind of warning once, with the rows that have it.
#[must_use]
pub fn doubts(rows: &[Row]) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> = Vec::new();
    for row in rows {
        for &warning in row.verdicts.iter().flat_map(|c| &c.warnings) {
            let same = |d: &&mut Doubt| discriminant(&d.warning) == discriminant(&warning);
            let name = format!("{}: {}", row.experiment, row.name);
            match doubts.iter_mut().find(same) {
                Some(doubt) => {
                    doubt.rounds += 1;
                    if doubt.rows.last() != Some(&name) {
                        doubt.rows.push(name);
                    }
                }
                None => doubts.push(Doubt { warning, rounds: 1, rows: vec![name] }),
            }
        }
    }
    doubts
}

/// A line for each row of which requests failed.
#[must_use]
pub fn failures(rows: &[Row]) -> Vec<String> {
    let line = |row: &Row| {
        let [failed, requests] = [row.failed, row.requests].map(grouped);
        format!(
            "{}: {}: {failed} of {requests} requests failed or were not answered in time",
            row.experiment, row.name
        )
    };
    rows.iter().filter(|row| row.failed > 0).map(line).collect()
}

/// How many rounds each side was the limit of; `None` if unknown.
#[must_use]
pub fn summary(rows: &[Row]) -> Option<String> {
    let all: Vec<Verdict> = rows.iter().flat_map(|row| row.verdicts.clone()).collect();
    let count = |limited_by| all.iter().filter(|c| c.limited_by == limited_by).count();
    (!all.is_empty()).then(|| {
        format!(
            "Of {} rounds the server was the limit in {}, the load in {}, and neither in {}.",
            all.len(),
            count(LimitedBy::Server),
            count(LimitedBy::Generator),
            count(LimitedBy::Neither)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_load::verdict::Evidence;

    fn row(name: &str, of: &[(LimitedBy, Option<Warning>)]) -> Row {
        let verdict = |(limited_by, warning): &(LimitedBy, Option<Warning>)| Verdict {
            limited_by: *limited_by,
            because: String::new(),
            warnings: warning.iter().copied().collect(),
            evidence: Evidence::default(),
        };
        Row {
            experiment: "e".into(),
            name: name.into(),
            verdicts: of.iter().map(verdict).collect(),
            ..Row::default()
        }
    }

    #[test]
    fn verdicts_and_warnings_of_many_rounds_become_few_lines() {
        let short = |elapsed_s| Some(Warning::ShortWindow { elapsed_s });
        let rows = [
            row(
                "a",
                &[
                    (LimitedBy::Server, short(0.5)),
                    (LimitedBy::Server, short(0.4)),
                    (LimitedBy::Generator, None),
                ],
            ),
            row("b", &[(LimitedBy::Neither, short(0.3)), (LimitedBy::Neither, Some(Warning::WakeUpBound))]),
        ];
        assert_eq!(limits(&rows[0].verdicts), "server 2×, load 1×");
        assert_eq!((limits(&rows[1].verdicts).as_str(), limits(&[]).as_str()), ("neither", "–"));
        assert_eq!(
            summary(&rows).unwrap(),
            "Of 5 rounds the server was the limit in 2, the load in 1, and neither in 2."
        );
        assert_eq!(summary(&[]), None);
        let doubts = doubts(&rows);
        assert_eq!(doubts.len(), 2);
        assert_eq!((doubts[0].rounds, doubts[0].rows.len()), (3, 2));
        let line = doubts[0].line();
        assert!(line.contains("spread") && line.contains("(3 rounds: e: a, and 1 more row)"), "{line}");
    }

    #[test]
    fn a_row_whose_requests_failed_has_a_line() {
        let failed = Row { requests: 50_000, failed: 12, ..row("a", &[]) };
        assert_eq!(
            failures(&[row("b", &[]), failed]),
            ["e: a: 12 of 50,000 requests failed or were not answered in time"]
        );
    }

    #[test]
    fn no_warning_advises_what_a_bench_has_no_option_for() {
        let all = [
            Warning::GeneratorBusy { ran: 1.0 },
            Warning::GeneratorStarved { waited: 0.5 },
            Warning::LateWakeUps { late: 1, started: 2 },
            Warning::PacingMissed { asked_per_s: 2.0, started_per_s: 1.0 },
            Warning::LostSamples { lost: 1, known: 2 },
            Warning::LittlesLaw { seen: 2.0, computed: 1.0 },
            Warning::WakeUpBound,
            Warning::ShortWindow { elapsed_s: 0.5 },
            Warning::ServerUnseen,
            Warning::AgentsLost { lost: 1 },
        ];
        for warning in all {
            let line = Doubt { warning, rounds: 1, rows: vec!["e: a".into()] }.line();
            let options = [" -", "load merge", "measure longer"];
            assert!(options.iter().all(|option| !line.contains(option)), "{line}");
            assert!(line.ends_with(" (1 round: e: a)"), "{line}");
        }
    }
}
