//! The arrows between folders: of two folders beside each other only one uses the other, also by way of third ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::names::{self, Source};

/// The names of a module and those around it, from the outermost.
type Module = Vec<String>;

/// Who uses whom among the modules in one module, and where.
type Uses = BTreeMap<(String, String), BTreeSet<String>>;

/// The modules of a crate.
struct CrateModules<'a> {
    sources: Vec<(Module, &'a Source<'a>)>,
}

impl<'a> CrateModules<'a> {
    /// Of these sources, but for those that are only for tests.
    fn of(all: &'a [Source<'a>]) -> Self {
        let tests: Vec<PathBuf> = all.iter().flat_map(|source| source.lines().1).collect();
        let is_for_tests = |path: &Path| tests.iter().any(|test| path.with_extension("").starts_with(test));
        let kept = all.iter().filter(|source| !is_for_tests(source.path));
        Self { sources: kept.map(|source| (module(&source.folder()), source)).collect() }
    }

    fn has(&self, module: &[String]) -> bool {
        self.sources.iter().any(|(own, _)| own == module)
    }

    /// Whether others are in it.
    fn is_folder(&self, module: &[String]) -> bool {
        self.sources.iter().any(|(own, _)| own.len() > module.len() && own.starts_with(module))
    }

    /// The module in which a path of `from` ends; `None` if it leads into another crate.
    fn target(&self, from: &[String], path: &str) -> Option<Module> {
        let mut names = path.split("::").map(str::trim).peekable();
        let mut at = match *names.peek()? {
            "crate" => Vec::new(),
            "self" | "super" => from.to_vec(),
            first => {
                let inside = [from, &[first.to_owned()]].concat();
                return self.has(&inside).then_some(inside);
            }
        };
        for name in names {
            match name {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                name => {
                    at.push(name.to_owned());
                    if !self.has(&at) {
                        at.pop();
                        break;
                    }
                }
            }
        }
        Some(at)
    }

    /// Who uses whom, by the module in which both are.
    fn uses(&self) -> BTreeMap<Module, Uses> {
        let mut found = BTreeMap::<Module, Uses>::new();
        for (from, source) in &self.sources {
            let (lines, _) = source.lines();
            for to in paths(&lines).iter().filter_map(|path| self.target(from, path)) {
                let together = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if let (Some(user), Some(used)) = (from.get(together), to.get(together)) {
                    let uses = found.entry(from[..together].to_vec()).or_default();
                    let places = uses.entry((user.clone(), used.clone())).or_default();
                    places.insert(source.path.display().to_string());
                }
            }
        }
        found
    }

    /// Circles in which two folders are, with their arrows.
    fn circles(&self) -> Vec<String> {
        let mut circles = BTreeSet::new();
        for (inside, uses) in self.uses() {
            for (user, _) in uses.keys() {
                let circle: BTreeSet<&str> = reached(&uses, user)
                    .into_iter()
                    .filter(|other| reached(&uses, other).contains(&**user))
                    .collect();
                let is_folder =
                    |name: &&&str| self.is_folder(&[&inside[..], &[(**name).to_owned()]].concat());
                if circle.iter().filter(is_folder).count() > 1 {
                    circles.insert(described(&inside, &uses, &circle));
                }
            }
        }
        circles.into_iter().collect()
    }
}

fn described(inside: &[String], uses: &Uses, circle: &BTreeSet<&str>) -> String {
    let is_of_it = |(user, used): &(String, String)| circle.contains(&**user) && circle.contains(&**used);
    let arrows = uses.iter().filter(|(arrow, _)| is_of_it(arrow)).map(|((user, used), places)| {
        format!("\n  {user} uses {used} in {}", places.iter().cloned().collect::<Vec<_>>().join(", "))
    });
    format!("in `{}`:{}", inside.join("::"), arrows.collect::<String>())
}

/// Whom `from` uses, also by way of others.
fn reached<'a>(uses: &'a Uses, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(user) = open.pop() {
        for (_, used) in uses.keys().filter(|(by, _)| by == user) {
            if found.insert(used.as_str()) {
                open.push(used);
            }
        }
    }
    found
}

fn module(folder: &Path) -> Module {
    folder
        .iter()
        .filter_map(|name| name.to_str())
        .skip_while(|name| *name == "src")
        .map(str::to_owned)
        .collect()
}

/// The paths in these lines: all of `use`, elsewhere those that begin with `crate` or `super`.
fn paths(lines: &[(usize, &str)]) -> Vec<String> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().trim().to_owned() + " ";
    let text: String = lines.iter().map(|(_, line)| code(line)).collect();
    let mut found = inline(&text);
    let mut rest = text.as_str();
    while let Some(at) = rest.find("use ") {
        let is_word = !rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some(end) = rest[at..].find(';') else { break };
        if is_word {
            leaves("", &rest[at + 4..at + end], &mut found);
        }
        rest = &rest[at + 4..];
    }
    found
}

/// Paths outside of `use`: `crate::a::b`, `super::c`.
fn inline(text: &str) -> Vec<String> {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_of_path(c));
    words
        .filter(|word| word.starts_with("crate::") || word.starts_with("super::"))
        .map(str::to_owned)
        .collect()
}

/// The paths of a tree of `use`.
fn leaves(before: &str, tree: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((head, inside)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        found.extend((!path.is_empty()).then(|| format!("{before}{path}")));
        return;
    };
    let before = format!("{before}{head}");
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return leaves(&before, &inside[start..at], found),
            '}' => depth -= 1,
            ',' if depth == 0 => {
                leaves(&before, &inside[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Circles of folders in all crates.
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for (name, texts) in names::crates() {
        let sources: Vec<Source<'_>> = texts.iter().map(|(path, text)| Source { path, text }).collect();
        faults.extend(
            CrateModules::of(&sources).circles().into_iter().map(|circle| format!("{name}, {circle}")),
        );
    }
    faults
}

#[test]
fn circles_of_folders_are_found() {
    let circles = |all: &[(&str, &str)]| {
        let sources: Vec<_> = all.iter().map(|(path, text)| Source { path: Path::new(path), text }).collect();
        CrateModules::of(&sources).circles()
    };
    let rooms = |a: &'static str, b: &'static str| {
        [("src/lib.rs", ""), ("src/a.rs", a), ("src/a/x.rs", ""), ("src/b/mod.rs", b), ("src/b/y.rs", "")]
    };
    assert!(circles(&rooms("use crate::b::y::Y;\n", "use std::io;\n")).is_empty());
    let found = circles(&rooms("use crate::{c, b::{self, y::Y as Z}};\n", "fn f() -> super::a::x::X {\n}\n"));
    assert_eq!(found, ["in ``:\n  a uses b in src/a.rs\n  b uses a in src/b/mod.rs"]);
    // Not what is a comment, or only for tests.
    assert!(circles(&rooms("use crate::b::Y;\n", "// use crate::a::X;\n")).is_empty());
    assert!(
        circles(&rooms("use crate::b::Y;\n", "#[cfg(test)]\nmod tests {\n    use crate::a::X;\n}\n"))
            .is_empty()
    );
    // By way of a file; and inside a folder.
    let by_file = [("src/a/x.rs", "use crate::f;\n"), ("src/a.rs", ""), ("src/f.rs", "use super::b::y;\n")];
    let back = [("src/b.rs", ""), ("src/b/y.rs", "use super::super::a::x::X;\n")];
    assert_eq!(circles(&[&by_file[..], &back].concat()).len(), 1);
    let inner =
        [("src/o.rs", "pub mod a; pub mod b;\n"), ("src/o/a.rs", "use super::b::y;\n"), ("src/o/a/x.rs", "")];
    let outer = [("src/o/b.rs", "use y::Y;\n"), ("src/o/b/y.rs", "use crate::o::a;\n")];
    assert_eq!(
        circles(&[&inner[..], &outer].concat()),
        ["in `o`:\n  a uses b in src/o/a.rs\n  b uses a in src/o/b/y.rs"]
    );
    // A folder and a file beside it are one room more and one less, not two.
    assert!(
        circles(&[("src/a/x.rs", "use crate::f;\n"), ("src/a.rs", ""), ("src/f.rs", "use crate::a;\n")])
            .is_empty()
    );
}
