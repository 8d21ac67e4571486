//! Names that the generated pages of the reference have: metrics, and the names of values of options.

use std::collections::{BTreeMap, BTreeSet};

use super::pages::Page;
use super::{commands, tables};

/// Values that pages write in another way than `--help`: where, the option and why.
const OTHERWISE: &[(&str, &str, &str)] = &[];

/// Metrics on `page` that the program does not publish.
pub fn unknown_metrics(page: &Page, reference: &Page) -> Vec<String> {
    let known: BTreeSet<String> = tables::of(&reference.text)
        .iter()
        .filter(|table| table.head.first().is_some_and(|cell| cell == "metric") && table.head.len() == 4)
        .flat_map(|table| table.rows.iter().map(|row| row[0].trim_matches('`').to_owned()))
        .collect();
    assert!(known.len() > 50, "only {} metrics were found", known.len());
    let crates = [
        "tidegate_os",
        "tidegate_async",
        "tidegate_services",
        "tidegate_tls",
        "tidegate_load",
        "tidegate_lab",
    ];
    let others = ["tidegate_cluster", "tidegate_cli", "tidegate_loom"];
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let named =
        page.text.split(|c| !is_name(c)).filter(|word| word.starts_with("tidegate_") && !word.ends_with('_'));
    named
        .filter(|name| !known.contains(*name) && !crates.contains(name) && !others.contains(name))
        .map(|name| format!("{}: {name}", page.path))
        .collect()
}

/// Options with a value in capital letters that is not the name that `--help` has for it.
pub fn other_values(page: &Page) -> Vec<String> {
    let mut faults = Vec::new();
    for span in &page.spans {
        let words: Vec<&str> = span.split_whitespace().collect();
        for pair in words.windows(2) {
            let [option, value] = pair else { continue };
            let is_value = value.len() > 1 || *value == "N";
            let is_name = |c: char| c.is_ascii_uppercase() || "_:[],|-".contains(c);
            let Some(known) = values().get(*option).filter(|_| is_value && value.chars().all(is_name)) else {
                continue;
            };
            let is_excepted = OTHERWISE.iter().any(|(at, name, _)| *at == page.path && name == option);
            if !known.contains(*value) && !is_excepted {
                faults.push(format!("{}: {option} {value}, where --help has {known:?}", page.path));
            }
        }
    }
    faults
}

/// The names of the values of each option, on any command.
fn values() -> &'static BTreeMap<String, BTreeSet<String>> {
    static VALUES: std::sync::OnceLock<BTreeMap<String, BTreeSet<String>>> = std::sync::OnceLock::new();
    VALUES.get_or_init(|| {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in commands::option_lines() {
            let Some((names, value)) = line.split_once(" <") else { continue };
            let value = value.trim_end().trim_end_matches('>');
            for name in names.split(", ").filter(|name| name.starts_with('-')) {
                all.entry(name.to_owned()).or_default().insert(value.to_owned());
            }
        }
        assert!(all.len() > 100, "only {} options with a value were found", all.len());
        all
    })
}

#[test]
fn names_that_the_program_has_not_are_found() {
    let page = Page::of(
        "docs/made-up.md",
        "`tidegate_no_such_total`, `--idle-timeout TIME`, `--idle-timeout SECONDS`, `-d N`",
    );
    let metrics =
        Page::all().into_iter().find(|page| page.path == "docs/metrics.md").expect("docs/metrics.md");
    assert_eq!(unknown_metrics(&page, &metrics), ["docs/made-up.md: tidegate_no_such_total"]);
    assert_eq!(other_values(&page).len(), 2, "{:?}", other_values(&page));
}
