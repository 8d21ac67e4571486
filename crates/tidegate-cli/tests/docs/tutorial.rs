//! What the tutorial and the chapter after it say is run: their code is compiled (`cargo test -p tidegate`), the loads
//! are run here.

#[path = "../../../../examples/tutorial/throttle.rs"]
mod throttle;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::{Model, Running, Server};

use super::commands;
use super::none;
use super::pages::{Page, root};
use throttle::Throttle;

fn page(path: &str) -> Page {
    Page::all().into_iter().find(|page| page.path == path).expect(path)
}

fn start(model: Model, echoed: &Arc<AtomicU64>) -> (Running, String) {
    let service = Throttle { bytes_per_s: 64_000, echoed: Arc::clone(echoed) };
    let running = Server::new(service).model(model).bind("127.0.0.1:0").unwrap().start().unwrap();
    let url = running.local_addr().to_string();
    (running, url)
}

#[test]
fn its_loads_succeed() {
    let loads: Vec<_> =
        commands::of(&page("docs/tutorial.md")).into_iter().filter(|(_, words)| words[0] == "load").collect();
    assert!(loads.len() >= 4, "only {} loads were found", loads.len());
    for model in [Model::Poll, Model::best().model] {
        let echoed = Arc::new(AtomicU64::new(0));
        let (running, addr) = start(model, &echoed);
        for (line, words) in &loads {
            let words: Vec<&str> = words
                .iter()
                .map(|word| if word.starts_with("127.0.0.1:") { &addr } else { word })
                .map(String::as_str)
                .collect();
            let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(&words).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line} on {model}: {said}");
        }
        running.stop();
        running.join();
        assert!(echoed.load(Ordering::Relaxed) > 0, "{model}");
    }
}

#[test]
fn what_it_includes_and_names_is_there() {
    let manifest = std::fs::read_to_string(root().join("crates/tidegate/Cargo.toml")).unwrap();
    let mut faults = Vec::new();
    let (mut included, mut named) = (0, 0);
    let pages = ["docs/tutorial.md", "docs/sessions.md"].map(page);
    for (_, text) in pages.iter().flat_map(|page| &page.blocks) {
        for line in text.lines() {
            if let Some(what) =
                line.trim().strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"))
            {
                included += 1;
                let (file, anchor) = what.split_once(':').unwrap_or((what, ""));
                let code = std::fs::read_to_string(root().join("docs").join(file)).unwrap_or_default();
                let is_lines = anchor.chars().all(|c| c.is_ascii_digit() || c == ':');
                let is_there = is_lines || code.contains(&format!("// ANCHOR: {anchor}\n"));
                if code.is_empty() || !is_there {
                    faults.push(what.to_owned());
                }
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2).filter(|pair| ["--example", "--test"].contains(&pair[0])) {
                named += 1;
                let kind = pair[0].trim_start_matches('-');
                if !manifest.contains(&format!("[[{kind}]]\nname = \"{}\"\n", pair[1])) {
                    faults.push(line.to_owned());
                }
            }
        }
    }
    assert!(included > 10 && named > 2, "{included} inclusions, {named} names");
    none("are not there", faults);
}

/// Pages of the book that are in the documentation of the crate as well, and where.
const IN_THE_CRATE: [(&str, &str); 2] =
    [("docs/tutorial.md", "src/tutorial.md"), ("docs/sessions.md", "src/cookbook.md")];

/// Where links to pages of the book lead in the documentation of the crate; other pages are named.
const IN_ITS_DOCS: [(&str, &str); 4] = [
    ("tutorial.md", "crate::_tutorial"),
    ("sessions.md", "crate::_cookbook"),
    ("policy.md", "crate::policy"),
    ("testing.md#your-own-services", "crate::testing"),
];

/// The package has no folder beside it, and rustdoc includes no part of a file: what the crate includes is made here.
#[test]
fn the_crate_has_the_same_pages() {
    let mut stale = Vec::new();
    for (from, to) in IN_THE_CRATE {
        let made = as_rustdoc(&page(from).text);
        let path = root().join("crates/tidegate").join(to);
        if std::env::var_os("TIDEGATE_WRITE_DOCS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        if std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n") != made {
            stale.push(to.to_owned());
        }
    }
    none("pages are stale: TIDEGATE_WRITE_DOCS=1 cargo test -p tidegate-cli --test docs tutorial", stale);
}

/// A page with the code that it includes, as examples that rustdoc compiles.
fn as_rustdoc(page: &str) -> String {
    let mut made = String::new();
    let mut is_code = false;
    for line in page.lines() {
        let include = line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}"));
        let text = match (include, line, is_code) {
            (Some(what), ..) => compiled(what),
            (None, "```rust", _) => "```rust,no_run\n".to_owned(),
            (None, "```", false) => "```text\n".to_owned(),
            (None, line, true) => format!("{line}\n"),
            (None, line, false) => format!("{}\n", relinked(line)),
        };
        is_code ^= line.starts_with("```");
        made.push_str(&text);
    }
    made
}

/// The part of a file that a page includes, with the rest of it hidden.
fn compiled(what: &str) -> String {
    let (file, part) = what.split_once(':').unwrap_or((what, ""));
    let file = root().join("docs").join(file);
    let code = std::fs::read_to_string(&file).unwrap().replace("\r\n", "\n");
    let is_whole = !part.starts_with(char::is_alphabetic); // from a line on: all but the comment about the file
    let (begins, ends) = (format!("// ANCHOR: {part}"), format!("// ANCHOR_END: {part}"));
    let mut is_shown = is_whole;
    let mut made = String::new();
    for line in code.lines() {
        match line.trim() {
            mark if mark.starts_with("// ANCHOR") => {
                is_shown = is_whole || mark == begins || (is_shown && mark != ends);
            }
            comment if comment.starts_with("//!") => {}
            "" if made.is_empty() => {}
            module if module.starts_with("mod ") && module.ends_with(';') => {
                made.push_str(&hidden_module(&file, module));
            }
            _ if is_shown => made.push_str(&format!("{line}\n")),
            _ => made.push_str(&hidden(line)),
        }
    }
    if !code.contains("fn main(") {
        made.push_str("# fn main() {}\n");
    }
    made
}

/// `mod name;` of an example, with the file of that name in its place.
fn hidden_module(file: &Path, module: &str) -> String {
    let module = module.trim_end_matches(';');
    let name = module.trim_start_matches("mod ");
    let code = std::fs::read_to_string(file.with_file_name(format!("{name}.rs"))).unwrap();
    let is_code = |line: &&str| !line.starts_with("//!") && !line.trim().starts_with("// ANCHOR");
    let lines: String = code.lines().filter(is_code).map(hidden).collect();
    format!("{}{lines}{}", hidden(&format!("{module} {{")), hidden("}"))
}

fn hidden(line: &str) -> String {
    if line.trim().is_empty() { String::new() } else { format!("# {line}\n") }
}

/// A line of prose without links to pages that the documentation of the crate has not.
fn relinked(line: &str) -> String {
    let mut made = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once("](") {
        let Some((to, after)) = link.split_once(')') else { break };
        let known = IN_ITS_DOCS.iter().find(|(page, _)| *page == to).map(|(_, item)| *item);
        match known.or(to.starts_with('#').then_some(to)) {
            Some(to) => made.push_str(&format!("{before}]({to})")),
            None => {
                let (text_before, text) = before.rsplit_once('[').expect("a link on one line");
                made.push_str(&format!("{text_before}{text} (`docs/{to}`)"));
            }
        }
        rest = after;
    }
    made + rest
}
