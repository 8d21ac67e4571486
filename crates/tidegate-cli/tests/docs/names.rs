//! The names of types: each is defined once, in one crate, but for those that are listed here with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::words::sources;

/// Crate, names that are defined more than once in it, and why that is one meaning.
const TWICE: &[(&str, &[&str], &str)] = &[
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
    ("tidegate-os", &["SplicePipe"], "without Linux there is none"),
    ("tidegate-os", &["FdSetWord"], "systems differ in what an fd_set is made of"),
    ("tidegate-services", &["At"], "every parser has it: the position of the next byte"),
];

/// Crates, names that all of them define, and why that is one meaning.
const SHARED: &[(&[&str], &[&str], &str)] = &[
    (
        &["tidegate", "tidegate-async"],
        &["Connection"],
        "one connection: with its session, and as async code sees it",
    ),
    (
        &["tidegate", "tidegate-async", "tidegate-load", "tidegate-services", "tidegate-tls"],
        &["FrontPage"],
        "a README whose example is compiled",
    ),
    (
        &["tidegate", "tidegate-os"],
        &["Buffer", "Operation", "Slot"],
        "the simulated kernel has what a kernel has",
    ),
    (
        &["tidegate", "tidegate-os"],
        &["Completion"],
        "what came back from the kernel: on a ring, and on any model",
    ),
    (
        &["tidegate-load", "tidegate-services"],
        &["Persistence"],
        "of an HTTP connection after a response: as a client reads it, and as a server decides it",
    ),
    (&["tidegate", "tidegate-os"], &["Epoll"], "an epoll instance: alone, and with room for its reports"),
    (&["tidegate", "tidegate-os"], &["Stream"], "a connected socket: the system's, and that of any poller"),
];

/// Folders of which only one is compiled: twins there are one type on two systems.
const SYSTEMS: [&[&str]; 2] = [&["unix", "linux"], &["windows"]];

/// A source, and what it is read as.
pub struct Source<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// The folder of the modules it declares.
    pub fn folder(&self) -> PathBuf {
        let parent = self.path.parent().unwrap_or(Path::new(""));
        match self.path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib" | "main") | None => parent.to_owned(),
            Some(stem) => parent.join(stem),
        }
    }

    /// Lines that are not only for tests, with their numbers, and the modules that are.
    pub fn lines(&self) -> (Vec<(usize, &'a str)>, Vec<PathBuf>) {
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
            let module = private(item).and_then(|item| item.strip_prefix("mod ")?.strip_suffix(';'));
            if let Some(name) = module {
                tests.push(self.folder().join(name));
            } else if item.ends_with('{') {
                let end = format!("{}}}", &item[..item.len() - item.trim_start().len()]);
                while lines.next_if(|(_, line)| *line != end).is_some() {}
            }
        }
        (kept, tests)
    }
}

/// An item without its visibility.
fn private(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let Some(rest) = line.strip_prefix("pub").map(str::trim_start) else { return Some(line) };
    match rest.strip_prefix('(') {
        Some(inside) => Some(inside.split_once(')')?.1.trim_start()),
        None => Some(rest),
    }
}

/// The type that a line defines. Associated types belong to their trait.
fn defined(line: &str) -> Option<&str> {
    let rest = private(line)?;
    let is_inside = line.starts_with(char::is_whitespace);
    let (kind, rest) = rest.strip_prefix("unsafe ").unwrap_or(rest).split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "union") || kind == "type" && !is_inside;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    (is_type && rest.starts_with(|c: char| c.is_ascii_uppercase())).then(|| &rest[..end])
}

/// The types that these sources of one crate define, but for its tests: name, file and line.
fn types<'a>(all: &[Source<'a>]) -> Vec<(&'a str, &'a Path, usize)> {
    let (mut types, mut tests) = (Vec::new(), Vec::new());
    for source in all {
        let (lines, modules) = source.lines();
        types.extend(lines.into_iter().filter_map(|(at, line)| Some((defined(line)?, source.path, at))));
        tests.extend(modules);
    }
    types.retain(|(_, path, _)| !tests.iter().any(|test| path.with_extension("").starts_with(test)));
    types
}

/// Names that more than one crate defines, and these crates.
fn shared<'a>(crates: &[(&'a str, Vec<Source<'a>>)]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (name, all) in crates {
        for (defined, ..) in types(all) {
            found.entry(defined).or_default().insert(*name);
        }
    }
    found.retain(|_, crates| crates.len() > 1);
    found
}

/// Names that these sources of one crate define more than once on one system, and where.
fn twice(all: &[Source<'_>]) -> BTreeMap<String, BTreeSet<String>> {
    let defined = types(all);
    let is_of = |path: &Path, system: &[&str]| {
        path.iter().filter_map(|part| part.to_str()).any(|part| system.contains(&part))
    };
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    for (one, other) in [(SYSTEMS[0], SYSTEMS[1]), (SYSTEMS[1], SYSTEMS[0])] {
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for (name, path, at) in &defined {
            if is_of(path, one) || !is_of(path, other) {
                places.entry(*name).or_default().push((*path, at));
            }
        }
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            let places = places.into_iter().map(|(path, at)| format!("{}:{at}", path.display()));
            found.entry(name.to_owned()).or_default().extend(places);
        }
    }
    found
}

/// The sources of a crate: their paths inside it, and their texts.
fn read(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    sources(&folder.join("src"), &mut paths);
    let text = |path: &PathBuf| std::fs::read_to_string(path).expect("a source");
    let short = |path: &PathBuf| path.strip_prefix(folder).map_or_else(|_| path.clone(), Path::to_owned);
    paths.iter().map(|path| (short(path), text(path))).collect()
}

/// All crates, by name, with their sources.
pub fn crates() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let folders = std::fs::read_dir(folder).expect("crates").map(|entry| entry.expect("a crate").path());
    let named = |folder: PathBuf| Some((folder.file_name()?.to_str()?.to_owned(), read(&folder)));
    folders.filter_map(named).collect()
}

/// Names with two meanings, and lines of the lists that are out of date.
pub fn faults() -> Vec<String> {
    let (mut faults, crates) = (Vec::new(), crates());
    let crates: Vec<(&str, Vec<Source<'_>>)> = crates
        .iter()
        .map(|(name, all)| (&**name, all.iter().map(|(path, text)| Source { path, text }).collect()))
        .collect();
    for (name, own) in &crates {
        let mut found = twice(own);
        for allowed in TWICE.iter().filter(|(of, ..)| of == name).flat_map(|(_, names, _)| *names) {
            if found.remove(*allowed).is_none() {
                faults.push(format!("{name}: {allowed} is no longer defined twice: take it off the list"));
            }
        }
        faults.extend(found.into_iter().map(|(twice, places)| {
            format!("{name}: {twice} at {}", places.into_iter().collect::<Vec<_>>().join(", "))
        }));
    }
    let mut found = shared(&crates);
    for (of, names, _) in SHARED {
        for allowed in *names {
            if !found.remove(allowed).is_some_and(|crates| crates.iter().eq(*of)) {
                faults
                    .push(format!("{allowed} is no longer in {} alone: correct the list", of.join(" and ")));
            }
        }
    }
    for (name, crates) in found {
        faults.push(format!("{name} in {}", crates.into_iter().collect::<Vec<_>>().join(" and ")));
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

#[test]
fn a_name_of_two_crates_is_found() {
    let crate_of = |name, text| (name, vec![Source { path: Path::new("lib.rs"), text }]);
    let tests = "#[cfg(test)]\npub(crate) mod tests {\n    struct Shared;\n}\n";
    let found = shared(&[
        crate_of("a", "pub struct Shared;\nstruct Own;\n"),
        crate_of("b", "enum Shared {}\nenum Other {}\n"),
        crate_of("c", tests),
    ]);
    assert_eq!(found, BTreeMap::from([("Shared", BTreeSet::from(["a", "b"]))]));
    let files = vec![
        Source { path: Path::new("a.rs"), text: "#[cfg(all(test, unix))]\npub(in crate::x) mod tests;\n" },
        Source { path: Path::new("a/tests.rs"), text: "struct Shared;\n" },
    ];
    assert_eq!(shared(&[crate_of("b", "struct Shared;\n"), ("c", files)]), BTreeMap::new());
}
