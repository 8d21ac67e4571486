//! The names of types: within a crate each is defined once, but for those that are listed here with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::words::sources;

/// Crate, names that are defined more than once in it, and why that is one meaning.
const TWICE: &[(&str, &[&str], &str)] = &[
    ("tidegate", &["Leaf"], "every model's leaf has it: the model"),
    ("tidegate", &["Kind"], "both ports that number their operations: what a completion is about"),
    (
        "tidegate",
        &["Handshake", "HandshakeOutcome", "MemoryLink", "Rendezvous"],
        "without Linux there is no fast path",
    ),
    ("tidegate", &["IdleSet"], "without epoll it is the queue"),
    ("tidegate", &["LocalListener"], "Windows has no Unix sockets in tokio"),
    ("tidegate-cli", &["Args"], "every command has it: its options"),
    (
        "tidegate-cli",
        &["ChatArgs", "EchoArgs", "HttpArgs", "TlsArgs", "UdpArgs"],
        "options of serve and of load",
    ),
    ("tidegate-cluster", &["Bridge"], "without the feature `nats` there is none"),
    ("tidegate-lab", &["ResultTable", "Row", "Settings", "Take"], "every experiment has them"),
    ("tidegate-lab", &["SockmapGroup"], "without Linux there are no maps of sockets"),
    ("tidegate-os", &["Functions"], "every interface that is a table of functions has it"),
    ("tidegate-os", &["FdSetWord"], "systems differ in what an fd_set is made of"),
    ("tidegate-services", &["At"], "every parser has it: the position of the next byte"),
];

/// Folders of which only one is compiled: twins there are one type on two systems.
const SYSTEMS: [&[&str]; 2] = [&["unix", "linux"], &["windows"]];

/// A source, and what it is read as.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// The folder of the modules it declares.
    fn folder(&self) -> PathBuf {
        let parent = self.path.parent().unwrap_or(Path::new(""));
        match self.path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib" | "main") | None => parent.to_owned(),
            Some(stem) => parent.join(stem),
        }
    }

    /// Lines that are not only for tests, with their numbers, and the modules that are.
    fn lines(&self) -> (Vec<(usize, &str)>, Vec<PathBuf>) {
        let (mut kept, mut tests) = (Vec::new(), Vec::new());
        let mut lines = self.text.lines().enumerate().peekable();
        while let Some((at, line)) = lines.next() {
            let is_for_tests = ["#[cfg(test)]", "#[cfg(all(test,"].iter().any(|a| line.trim().starts_with(a));
            if !is_for_tests {
                kept.push((at + 1, line));
                continue;
            }
            while lines.next_if(|(_, line)| line.trim().starts_with("#[")).is_some() {}
            let Some((_, item)) = lines.next() else { break };
            if let Some(name) = item.trim().strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) {
                tests.push(self.folder().join(name));
            } else if item.ends_with('{') {
                let end = format!("{}}}", &item[..item.len() - item.trim_start().len()]);
                while lines.next_if(|(_, line)| *line != end).is_some() {}
            }
        }
        (kept, tests)
    }
}

/// The type that a line defines. Associated types belong to their trait.
fn defined(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let is_inside = rest.len() < line.len();
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after.trim_start();
        if let Some(inside) = rest.strip_prefix('(') {
            rest = inside.split_once(')')?.1.trim_start();
        }
    }
    let (kind, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "union") || kind == "type" && !is_inside;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    (is_type && rest.starts_with(|c: char| c.is_ascii_uppercase())).then(|| &rest[..end])
}

/// Names that these sources of one crate define more than once on one system, and where.
fn twice(all: &[Source<'_>]) -> BTreeMap<String, BTreeSet<String>> {
    let read: Vec<_> = all.iter().map(|source| (source, source.lines())).collect();
    let tests: Vec<&PathBuf> = read.iter().flat_map(|(_, (_, tests))| tests).collect();
    let is_test = |path: &Path| tests.iter().any(|test| path.with_extension("").starts_with(test));
    let is_of = |path: &Path, system: &[&str]| {
        path.iter().filter_map(|part| part.to_str()).any(|part| system.contains(&part))
    };
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (one, other) in [(SYSTEMS[0], SYSTEMS[1]), (SYSTEMS[1], SYSTEMS[0])] {
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for (source, (lines, _)) in &read {
            let path = source.path;
            if !is_test(path) && (is_of(path, one) || !is_of(path, other)) {
                let places_of = lines.iter().filter_map(|(at, line)| Some((defined(line)?, *at)));
                places_of.for_each(|(name, at)| places.entry(name).or_default().push((path, at)));
            }
        }
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            let places = places.into_iter().map(|(path, at)| format!("{}:{at}", path.display()));
            found.entry(name.to_owned()).or_default().extend(places);
        }
    }
    found
}

/// Names with two meanings, and lines of the list that are out of date.
pub fn faults() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut faults = Vec::new();
    for entry in std::fs::read_dir(crates).expect("crates") {
        let folder = entry.expect("a crate").path();
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { continue };
        let mut paths = Vec::new();
        sources(&folder.join("src"), &mut paths);
        let texts: Vec<_> =
            paths.iter().map(|path| std::fs::read_to_string(path).expect("a source")).collect();
        let short =
            |path: &'_ PathBuf| path.strip_prefix(&folder).map_or_else(|_| path.clone(), Path::to_owned);
        let shown: Vec<_> = paths.iter().map(short).collect();
        let own: Vec<_> = shown.iter().zip(&texts).map(|(path, text)| Source { path, text }).collect();
        let mut found = twice(&own);
        for allowed in TWICE.iter().filter(|(of, ..)| *of == name).flat_map(|(_, names, _)| *names) {
            if found.remove(*allowed).is_none() {
                faults.push(format!("{name}: {allowed} is no longer defined twice: take it off the list"));
            }
        }
        faults.extend(found.into_iter().map(|(twice, places)| {
            format!("{name}: {twice} at {}", places.into_iter().collect::<Vec<_>>().join(", "))
        }));
    }
    faults
}

#[test]
fn a_name_with_two_meanings_is_found() {
    let names = |all: &[(&str, &str)]| {
        let own: Vec<_> = all.iter().map(|(path, text)| Source { path: Path::new(path), text }).collect();
        twice(&own).into_keys().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names(&[("a.rs", "struct State;\n"), ("b/c.rs", "mod d {\n    pub(crate) enum State {}\n}\n")]),
        "State"
    );
    assert_eq!(
        names(&[("a.rs", "type Out = u8;\n"), ("b.rs", "impl A for B {\n    type Out = u8;\n}\n")]),
        ""
    );
    assert_eq!(names(&[("unix/a.rs", "pub struct A;\n"), ("windows/a.rs", "pub struct A;\n")]), "");
    assert_eq!(names(&[("a.rs", "pub struct A;\n"), ("windows/a.rs", "pub struct A;\n")]), "A");
    assert_eq!(names(&[("unix/a.rs", "pub struct A;\n"), ("linux/a.rs", "pub trait A {\n}\n")]), "A");
    let tests =
        "struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}\nstruct B;\n#[cfg(all(test, b))]\nmod b;\n";
    assert_eq!(names(&[("a.rs", tests), ("a/b.rs", "struct A;\n"), ("c.rs", "struct B;\n")]), "B");
}
