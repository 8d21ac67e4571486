//! The tables of docs/policy.md, made from the table of limits. A test fails when the page says something else.

use std::fmt::Write as _;

use super::{Change, Effect, Limit, Limited, Policy, Unit};
use crate::model::Model;

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn option(limit: &Limit<Policy>) -> String {
    match (limit.option, limit.unit) {
        (None, _) => "–".into(),
        (Some(option), Unit::Switch) => format!("`--{option}`"),
        (Some(option), Unit::Words(words)) => format!("`--{option} {}`", words.join("|")),
        (Some(option), unit) => format!("`--{option} {}`", unit.placeholder()),
    }
}

fn default(limit: &Limit<Policy>) -> String {
    match (limit.default_note, limit.unit) {
        (Some(note), _) => note.into(),
        (None, Unit::Switch) => "off".into(),
        (None, _) => limit.default_text(),
    }
}

fn limits() -> String {
    let mut page = String::from(
        "| limit | option | default | range | what it bounds | what it costs | while running |\n|---|---|---|---|---|---|---|\n",
    );
    for limit in Policy::limits() {
        let change = match limit.change {
            Change::Live => "may change",
            Change::Fixed => "fixed",
            Change::WhileSet => "may change while set",
        };
        let cells = [
            format!("`{}`", limit.name),
            option(limit),
            default(limit),
            if limit.range == super::Range::Any { "–".into() } else { limit.range.text(limit.unit) },
            limit.what.into(),
            limit.cost.into(),
            change.into(),
        ];
        let _ = writeln!(page, "| {} |", cells.map(|text| cell(&text)).join(" | "));
    }
    page
}

fn names(models: &[Model]) -> String {
    models.iter().map(|model| format!("`{model}`")).collect::<Vec<_>>().join(", ")
}

fn models() -> String {
    let mut page = String::from("| limit | kept by | elsewhere |\n|---|---|---|\n");
    for limit in Policy::limits() {
        let kept: Vec<_> = Model::ALL.into_iter().filter(|model| limit.on(*model) == Effect::Kept).collect();
        let elsewhere = limit.on.iter().filter_map(|(models, effect)| match effect {
            Effect::Kept => None,
            Effect::NoEffect(why) => Some(format!("no effect on {}: {why}", names(models))),
            Effect::Refused(remedy) => Some(format!("**refused** on {}: {remedy}", names(models))),
        });
        let elsewhere = elsewhere.collect::<Vec<_>>().join("; ");
        if !elsewhere.is_empty() {
            let _ = writeln!(page, "| `{}` | {} | {} |", limit.name, names(&kept), cell(&elsewhere));
        }
    }
    page
}

/// The page with what is made here between the marks.
fn renewed(page: &str) -> String {
    let mut page = page.to_owned();
    for (name, made) in [("limits", limits()), ("models", models())] {
        let (begin, end) =
            (format!("<!-- {name}: begin, made by the test -->\n"), format!("<!-- {name}: end -->"));
        let from = page.find(&begin).unwrap_or_else(|| panic!("{begin:?} is not in the page")) + begin.len();
        let to = page.find(&end).unwrap_or_else(|| panic!("{end:?} is not in the page"));
        page.replace_range(from..to, &made);
    }
    page
}

#[test]
fn the_page_says_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policy.md");
    let page = std::fs::read_to_string(path).expect("docs/policy.md").replace("\r\n", "\n");
    let renewed = renewed(&page);
    if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
        std::fs::write(path, &renewed).expect("the page is written");
    } else if page != renewed {
        let rows = renewed.lines().filter(|line| !page.lines().any(|other| other == *line));
        let rows = rows.collect::<Vec<_>>().join("\n");
        panic!(
            "docs/policy.md is not what the table says; write it with\n  TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate --lib \
             policy::page\nThe right rows are:\n{rows}"
        );
    }
}
