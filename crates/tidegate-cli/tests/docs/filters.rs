//! Filters of `cargo test` on the pages: each names something, because a filter that matches nothing succeeds.

use std::path::{Path, PathBuf};

use tidegate::Model;

use super::pages::{Page, root};

/// Lines of `page` whose filter is in no name of a test, a module or a model.
pub fn unmatched(page: &Page) -> Vec<String> {
    let blocks = page.blocks.iter().flat_map(|(_, text)| text.lines());
    let lines = blocks.chain(page.spans.iter().map(String::as_str));
    let faults = lines.filter(|line| filter(line).is_some_and(|(within, name)| !is_known(&within, name)));
    faults.map(|line| format!("{}: {line}", page.path)).collect()
}

/// The folder with the tests and the filter of a line that runs tests.
fn filter(line: &str) -> Option<(PathBuf, &str)> {
    let (_, words) = line.split('#').next()?.split_once("cargo test ")?;
    let words: Vec<&str> = words.split_whitespace().collect();
    let after = |option: &str| words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1));
    let package = root().join("crates").join(after("-p")?);
    let target =
        after("--test").map(|test| package.join("tests").join(test)).filter(|folder| folder.is_dir());
    let of_option = |at: usize| at > 0 && ["-p", "--test", "--target", "--features"].contains(&words[at - 1]);
    let is_name = |word: &str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let name = (0..words.len()).find(|&at| is_name(words[at]) && !of_option(at))?;
    Some((target.unwrap_or(package), words[name]))
}

fn is_known(within: &Path, filter: &str) -> bool {
    let last = filter.rsplit("::").next().unwrap_or(filter);
    let of_model = Model::ALL.iter().any(|model| model.name().replace('-', "_").contains(last));
    of_model || names_in(within, last)
}

/// Whether a source below `folder` has the text in its name, or defines a test or a module with it.
fn names_in(folder: &Path, text: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            return path.file_name().is_some_and(|name| name == text) || names_in(&path, text);
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
            return false;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let defines = |line: &str| {
            let defined = line.split_once("fn ").or_else(|| line.split_once("mod "));
            defined.is_some_and(|(_, rest)| rest.split(['(', ';', ' ']).next().unwrap_or(rest).contains(text))
        };
        path.file_stem().is_some_and(|stem| stem.to_string_lossy().contains(text))
            || source.lines().any(defines)
    })
}

#[test]
fn filters_that_match_nothing_are_found() {
    let page = Page::of(
        "docs/made-up.md",
        "```\ncargo test -p tidegate --test conformance -- half_close  # of another suite\ncargo test -p tidegate --lib \
         policy\ncargo test -p tidegate\ncargo test -p tidegate --test conformance -- uring\n```\n\n`cargo test -p \
         tidegate --lib no::such_module`\n",
    );
    assert_eq!(unmatched(&page).len(), 2, "{:?}", unmatched(&page));
}
