//! What the tutorial and the chapter after it say is run: their code is compiled (`cargo test -p tidegate`), the loads
//! are run here.

#[path = "../../../../examples/tutorial/throttle.rs"]
mod throttle;

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
