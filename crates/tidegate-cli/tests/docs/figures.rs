//! Figures on the pages: those taken from a measurement are on its page, defaults are those of `--help`, and versions
//! those of the manifest. What is stale fails.

use std::collections::BTreeSet;

use super::links::beside;
use super::pages::{Page, root};
use super::{commands, tables};

/// Numbers beside a link to a measurement that are not on its page: where, which and why.
const DERIVED: &[(&str, &str, &str)] = &[
    ("docs/bench.md", "1999", "a year of literature"),
    ("docs/bench.md", "1970", "a year of literature"),
    (
        "docs/coalescing.md",
        "8,000",
        "where the rule begins to pause, at 1.5 requests a budget and several connections",
    ),
    ("docs/coalescing.md", "100,000", "where a batch begins to take longer than the budget"),
    ("docs/planning.md", "3.3", "of 44,269 KiB for 12,000, less 384 bytes each, in the same row"),
    ("docs/planning.md", "3.7", "of 44,293 KiB for 12,000, in the same row"),
    ("docs/planning.md", "12,000", "the page has 12000/12000"),
    ("docs/planning.md", "0", "the assumption named on the page"),
    ("docs/planning.md", "244,000", "100,000 by 0.41"),
];

/// A page of measurements that a link of `page` leads to.
fn measurement(page: &Page, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or(link);
    let at = beside(&page.path, file);
    (at.starts_with("benchmarks/") && at.ends_with(".md") && at != page.path).then_some(at)
}

/// Numbers in paragraphs and rows of `page` that link to a measurement, and are not on the page they link to.
pub fn unfounded(page: &Page) -> Vec<String> {
    if page.path.starts_with("benchmarks/") {
        return Vec::new(); // they have figures of their own
    }
    let mut faults = Vec::new();
    for block in blocks(&page.text) {
        let sources: BTreeSet<String> = targets(&block).filter_map(|link| measurement(page, link)).collect();
        if sources.is_empty() {
            continue;
        }
        let texts = sources.iter().map(|at| std::fs::read_to_string(root().join(at)).unwrap_or_default());
        let known: BTreeSet<String> = texts.flat_map(|text| numbers(&text)).collect();
        let is_derived = |n: &str| DERIVED.iter().any(|(at, number, _)| *at == page.path && *number == n);
        let missing = numbers(&plain(&block)).into_iter().filter(|n| !known.contains(n) && !is_derived(n));
        faults.extend(missing.map(|n| format!("{}: {n} is not in {sources:?}", page.path)));
    }
    faults
}

/// Paragraphs, items of lists and rows of tables, without what is fenced.
fn blocks(text: &str) -> Vec<String> {
    let (mut all, mut fenced): (Vec<String>, bool) = (vec![String::new()], false);
    for line in text.lines() {
        let begins = line.trim_start();
        if begins.starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let is_new = begins.is_empty() || begins.starts_with(['|', '#']) || begins.starts_with("- ");
            if is_new {
                all.push(String::new());
            }
            let last = all.last_mut().expect("there is always one");
            last.push_str(line);
            last.push('\n');
        }
    }
    all
}

/// Where the links of a block lead.
fn targets(block: &str) -> impl Iterator<Item = &str> {
    block.match_indices("](").filter_map(|(at, _)| block[at + 2..].split_once(')').map(|(target, _)| target))
}

/// A block without code and without the targets of its links.
fn plain(block: &str) -> String {
    let mut text = block.to_owned();
    for target in targets(block) {
        text = text.replace(&format!("]({target})"), "]");
    }
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Numbers of a text, as they are written. A part of a name or a version is none: `p99`, `6-3`, `x86`.
fn numbers(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let is_digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let in_word = |c: Option<&char>| c.is_some_and(|c| c.is_alphanumeric() || *c == '_');
    let (mut found, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        if !is_digit(at) {
            at += 1;
            continue;
        }
        let from = at;
        while is_digit(at) || (matches!(chars.get(at), Some(',' | '.')) && is_digit(at + 1)) {
            at += 1;
        }
        let before = from.checked_sub(1).and_then(|i| chars.get(i));
        let is_free = !in_word(before) && !matches!(before, Some('-' | '.'));
        if is_free && !in_word(chars.get(at)) {
            found.push(chars[from..at].iter().collect());
        }
    }
    found
}

/// Rows of tables that name an option and a default, where no command has the option with that default.
pub fn wrong_defaults(page: &Page) -> Vec<String> {
    let mut faults = Vec::new();
    for table in tables::of(&page.text) {
        let Some(column) = table.head.iter().position(|cell| cell == "default") else { continue };
        for row in &table.rows {
            let options: Vec<&str> = row.iter().flat_map(|cell| code(cell)).filter_map(option).collect();
            let defaults: Vec<&str> = match options.len() {
                0 | 1 => vec![row[column].as_str()],
                _ => row[column].split(", ").collect(),
            };
            for (option, said) in options.iter().zip(defaults) {
                let known = commands::defaults().get(*option);
                let (Some(said), Some(known)) = (amount(said), known) else { continue };
                if !known.iter().any(|default| amount(default).as_ref() == Some(&said)) {
                    faults.push(format!("{}: {option}: {said}, where --help has {known:?}", page.path));
                }
            }
        }
    }
    faults
}

/// Pieces of code in a text.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn option(code: &str) -> Option<&str> {
    code.split_whitespace().next().filter(|word| word.starts_with("--"))
}

/// A number with its unit, written in one way: `64KiB` of `64 KiB`, `1000` of `1,000`, `50` of `50 messages`.
fn amount(text: &str) -> Option<String> {
    let text = text.trim_matches(['`', ' ']).replace(',', "");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    if end == 0 {
        return None;
    }
    let unit = text[end..].split_whitespace().next().unwrap_or_default();
    let is_unit = ["KiB", "MiB", "GiB", "s", "ms", "us", "h", "d", "m"].contains(&unit);
    Some(format!("{}{}", &text[..end], if is_unit { unit } else { "" }))
}

/// Versions of Rust on `page` that are not the one of the manifest.
pub fn wrong_versions(page: &Page) -> Vec<String> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let wanted = wanted.expect("rust-version in Cargo.toml");
    let text = page.text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = text.match_indices("Rust 1.").filter_map(|(at, _)| {
        let version = text[at + 5..].split_whitespace().next()?;
        text[at..].starts_with(&format!("Rust {version} or later")).then_some(version)
    });
    said.filter(|version| *version != wanted)
        .map(|version| format!("{}: Rust {version}, where Cargo.toml has {wanted}", page.path))
        .collect()
}

/// Lines of the front page's samples that no measurement has.
pub fn unmeasured_samples(front: &Page) -> Vec<String> {
    let record = std::fs::read_to_string(root().join("benchmarks/first-minutes.md")).unwrap();
    let record: BTreeSet<&str> = record.lines().collect();
    let samples = front.blocks.iter().filter(|(_, text)| text.starts_with("$ "));
    let lines: Vec<&str> = samples.flat_map(|(_, text)| text.lines()).collect();
    assert!(lines.len() > 3, "no sample was found on {}", front.path);
    let unknown = lines.into_iter().filter(|line| !record.contains(line));
    unknown.map(|line| format!("{}: {line:?} is not in benchmarks/first-minutes.md", front.path)).collect()
}

#[test]
fn figures_that_are_stale_are_found() {
    let page = |text: &str| Page::of("docs/made-up.md", text);
    let quoting = "It took 1,234.5 ms for `7` on x86 ([run](../benchmarks/tls.md#a)), p99.\n";
    assert_eq!(unfounded(&page(quoting)).len(), 1, "{:?}", unfounded(&page(quoting)));
    let others = "It took 1,234.5 ms.\n\nOthers: [run](../benchmarks/tls.md).\n";
    assert_eq!(unfounded(&page(others)), Vec::<String>::new());
    let table = |default: &str| {
        page(&format!(
            "| option | what | default |\n|---|---|---|\n| `--line-bytes N` | a line | {default} |\n"
        ))
    };
    assert_eq!(wrong_defaults(&table("1 KiB")), Vec::<String>::new());
    assert_eq!(wrong_defaults(&table("2 KiB")).len(), 1);
    assert_eq!(wrong_versions(&page("With Rust 1.2 or\nlater, and Rust 1.95.")).len(), 1);
    assert_eq!(unmeasured_samples(&page("```\n$ tidegate doctor\n1\n2\n3\n```\n")).len(), 4);
}
