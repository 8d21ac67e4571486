//! Commands, options and configuration files on the pages, held against the built binary.
//!
//! A command is tried with `--help` behind it: the words before are parsed, and nothing is done.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::slice;
use std::sync::OnceLock;

use super::pages::Page;

pub const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Options and lines that belong to other programs, or are no command on purpose: where, what and why.
pub const FOREIGN: &[(&str, &str, &str)] = &[
    ("CONTRIBUTING.md", "git clone URL tidegate && cd tidegate", "of git"),
    ("docs/models/windows.md", "--brief", "of cargo xtask windows"),
    ("docs/models/windows.md", "--apps", "of cargo xtask windows"),
    ("benchmarks/async.md", "--h1", "of h2load"),
    ("benchmarks/windows.md", "--brief", "of cargo xtask windows"),
    ("docs/testing.md", "--all", "of examples/apps/check"),
    ("docs/async.md", "--all", "of examples/apps/check"),
    ("docs/async.md", "--models", "of examples/apps"),
    ("docs/async.md", "--features", "of cargo"),
    ("docs/install.md", "--features", "of cargo"),
    ("benchmarks/files.md", "--compressed", "of curl"),
    ("benchmarks/files.md", "--loads", "of scenarios/files/cpu"),
    ("benchmarks/files.md", "--also", "of scenarios/files/cpu"),
];

/// What replaces a placeholder when a command is tried.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("A", "a"),
    ("ADDR", "127.0.0.1"),
    ("B", "b"),
    ("COMMAND", "serve"),
    ("COUNT", "1"),
    ("DIR", "."),
    ("FILE", "file.toml"),
    ("HOST", "127.0.0.1"),
    ("IP", "127.0.0.1"),
    ("M", "poll"),
    ("MODEL", "poll"),
    ("N", "1"),
    ("NAME", "name"),
    ("NEW", "./new"),
    ("OLD", "./old"),
    ("PATH", "path"),
    ("PID", "1"),
    ("PORT", "1"),
    ("R", "1"),
    ("SERVICE", "echo"),
    ("SIZE", "4k"),
    ("TARGET", "127.0.0.1:1"),
    ("TIME", "1s"),
    ("URL", "http://127.0.0.1:1/"),
];

/// An option that no command has.
const NO_OPTION: &str = "--no-option-has-this-name";

/// First words of a command without the program's name, as prose has them: `serve echo`.
const BARE: &[&str] =
    &["serve", "load", "agent", "bench", "compare", "tune", "fastpath", "doctor", "lesson", "cert"];

/// Commands of `pages` that the binary does not take.
pub fn refused(pages: &[Page]) -> Vec<String> {
    let mut tried: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages {
        for (line, words) in of(page) {
            if is_foreign(&page.path, &line) {
                continue;
            }
            count += 1;
            let error = tried.entry(words.clone()).or_insert_with(|| refusal(&words));
            if let Some(error) = error {
                faults.push(format!("{}: {line}\n    {error}", page.path));
            }
        }
    }
    assert!(count > 0, "no command was found");
    faults
}

/// Lines of `pages` that name the program and were not understood as a command, so that they were not tried. A block
/// that is no command on purpose has a word behind its fence (`text`).
pub fn not_understood(pages: &[Page]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        for line in in_shell(page).chain(page.spans.iter().cloned()) {
            let of_cargo = line.replace("-p tidegate ", ""); // the package, not the program
            let words = of_cargo.split_whitespace().skip_while(|word| *word != "tidegate");
            if words.count() > 1 && in_line(&line).is_empty() && !is_foreign(&page.path, &line) {
                faults.push(format!("{}: {line}", page.path));
            }
        }
    }
    faults
}

/// Options of `pages` that no command has.
pub fn unknown_options(pages: &[Page]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        // What begins with a name is a command: ours are tried whole, those of others are theirs.
        let alone = page.spans.iter().map(String::as_str).chain(
            page.blocks.iter().filter(|(word, _)| word.is_empty()).flat_map(|(_, lines)| lines.lines()),
        );
        for line in alone.filter(|line| line.trim_start().starts_with("--")) {
            for name in line.split_whitespace().filter_map(option_name) {
                if !options().contains(name) && !is_foreign(&page.path, name) {
                    faults.push(format!("{}: {name}", page.path));
                }
            }
        }
    }
    faults
}

/// Configuration files of `pages` that the binary does not take.
pub fn refused_files(pages: &[Page]) -> Vec<String> {
    let mut faults = Vec::new();
    for page in pages {
        for (_, text) in page.blocks.iter().filter(|(_, text)| text.contains("[[server]]")) {
            let folder = folder();
            fs::write(folder.path().join("page.toml"), text).unwrap();
            // The file is read before the rest of the line is looked at, of which this is refused; nothing is started.
            let words = ["serve", "--config", "page.toml", NO_OPTION].map(str::to_owned);
            let (_, error) = run(folder.path(), &words);
            if !error.contains(NO_OPTION) {
                faults.push(format!("{}: {error}", page.path));
            }
        }
    }
    faults
}

fn is_foreign(page: &str, text: &str) -> bool {
    FOREIGN.iter().any(|(at, what, _)| *at == page && *what == text)
}

/// `--name` at the beginning of a word.
fn option_name(word: &str) -> Option<&str> {
    let end = word.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(word.len());
    let name = &word[..end];
    (name.len() > 2 && name.starts_with("--")).then_some(name)
}

/// Every option of every command.
fn options() -> &'static BTreeSet<String> {
    static OPTIONS: OnceLock<BTreeSet<String>> = OnceLock::new();
    OPTIONS.get_or_init(|| {
        let mut all = BTreeSet::from(["--help".to_owned(), "--version".to_owned()]);
        for command in tree() {
            let lines = help(command).lines().map(str::trim_start).map(str::to_owned).collect::<Vec<_>>();
            for line in lines.iter().filter(|line| line.starts_with('-')) {
                let names = line.split([',', ' ']).filter_map(option_name);
                all.extend(names.map(str::to_owned));
            }
        }
        assert!(all.len() > 100, "only {} options were found", all.len());
        all
    })
}

/// The defaults of every option in `--help`; commands may have different ones.
pub fn defaults() -> &'static BTreeMap<String, BTreeSet<String>> {
    static DEFAULTS: OnceLock<BTreeMap<String, BTreeSet<String>>> = OnceLock::new();
    DEFAULTS.get_or_init(|| {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for help in tree().iter().map(|command| help(command)) {
            let mut last = String::new();
            for line in help.lines().map(str::trim_start) {
                let mut names = line.split([',', ' ']).filter_map(option_name);
                last = names.next_back().filter(|_| line.starts_with('-')).map_or(last, str::to_owned);
                if let Some((_, default)) = line.split_once("[default: ") {
                    all.entry(last.clone()).or_default().insert(default.trim_end_matches(']').to_owned());
                }
            }
        }
        assert!(all.len() > 30, "only {} defaults were found", all.len());
        all
    })
}

/// The lines of every `--help` that begin with an option.
pub fn option_lines() -> Vec<String> {
    let lines = tree().iter().flat_map(|command| {
        help(command)
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|line| line.starts_with('-'))
            .collect::<Vec<_>>()
    });
    lines.collect()
}

/// Every command with its subcommands, such as `serve echo`.
fn tree() -> &'static Vec<Vec<String>> {
    static TREE: OnceLock<Vec<Vec<String>>> = OnceLock::new();
    TREE.get_or_init(|| {
        let mut found = vec![Vec::new()];
        let mut at = 0;
        while let Some(command) = found.get(at).cloned() {
            for name in subcommands(&help(&command)) {
                let mut inner = command.clone();
                inner.push(name);
                found.push(inner);
            }
            at += 1;
        }
        assert!(found.len() > 10, "only {} commands were found", found.len());
        found
    })
}

fn help(command: &[String]) -> String {
    let output = Command::new(TIDEGATE).args(command).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Names in the section `Commands:` of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = section.take_while(|line| line.is_empty() || line.starts_with("  "));
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The commands of a page: the line as it is written there, and the words behind the program's name.
pub fn of(page: &Page) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for line in in_shell(page) {
        found.extend(in_line(&line));
    }
    for span in &page.spans {
        let first = span.split_whitespace().next().unwrap_or_default();
        if BARE.contains(&first) && span.contains(' ') {
            found.extend(in_line(&format!("tidegate {span}")));
        } else {
            found.extend(in_line(span));
        }
    }
    let placed = found.into_iter().flat_map(|(line, words)| {
        let words: Vec<Vec<String>> = words.iter().map(|word| alternatives(word)).collect();
        product(&words).into_iter().map(move |words| (line.clone(), words)).collect::<Vec<_>>()
    });
    placed.collect()
}

/// The lines of all blocks that a shell reads; a line that goes on is one.
pub fn in_shell(page: &Page) -> impl Iterator<Item = String> + '_ {
    let blocks = page.blocks.iter().filter(|(kind, _)| kind.is_empty() || kind == "sh" || kind == "console");
    blocks.flat_map(|(_, text)| text.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>())
}

/// The calls of tidegate in a line of a shell.
pub fn in_line(line: &str) -> Vec<(String, Vec<String>)> {
    let mut calls = Vec::new();
    let Some(words) = shlex::split(line.strip_prefix("$ ").unwrap_or(line)) else { return calls };
    let ends = |word: &String| ["|", "||", "&&", "&", ";", ">", ">>", "2>"].contains(&word.as_str());
    for part in words.split(ends) {
        let named = part.iter().position(|word| word == "tidegate" || word.ends_with("/tidegate"));
        // `cargo run -- …` without a package or an example is tidegate, too.
        let ran = part.starts_with(&["cargo".into(), "run".into()])
            && !part.iter().any(|word| ["-p", "--example", "--bin"].contains(&word.as_str()));
        let run = part.iter().position(|word| word == "--").filter(|_| ran);
        if let Some(at) = named.or(run) {
            let words = part[at + 1..].iter().map(|word| word.trim_end_matches(';').to_owned());
            let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
            let is_program = at == 0 || named.is_none() || starts_programs(&part[..at]);
            if is_program && !words.is_empty() {
                calls.push((line.to_owned(), words));
            }
        }
    }
    calls
}

/// Whether these words start the program that is named next.
fn starts_programs(words: &[String]) -> bool {
    let wrappers = ["nice", "mptcpize", "smc_run", "exec", "sudo", "chrt"];
    words.iter().any(|word| wrappers.contains(&word.as_str()) || word.contains("LD_PRELOAD="))
}

/// `http|echo` is both; the rest is itself. A list of values of an option is not taken apart: it is never alone.
pub fn alternatives(word: &str) -> Vec<String> {
    let names = |c: char| c.is_ascii_lowercase() || c == '-' || c == '|';
    match word.chars().all(names) {
        true => word.split('|').map(str::to_owned).collect(),
        false => vec![word.to_owned()],
    }
}

pub fn product(words: &[Vec<String>]) -> Vec<Vec<String>> {
    words.iter().fold(vec![Vec::new()], |lines, word| {
        let longer = lines.iter().flat_map(|line| {
            word.iter().map(|choice| {
                let mut line = line.clone();
                line.push(choice.clone());
                line
            })
        });
        longer.collect()
    })
}

/// Why the binary does not take these words. `serve --option` and `load … --option` are tried with each service.
fn refusal(words: &[String]) -> Option<String> {
    let mut named: Vec<String> = Vec::new();
    let until = words.iter().position(|word| word == "--").unwrap_or(words.len());
    for word in &words[..until] {
        match filled(word) {
            // A value that is left out, or whatever else may stand there.
            Ok(word) if word.contains('…') && !named.last().is_some_and(|last| last.starts_with("--")) => {}
            Ok(word) => named.push(word),
            Err(placeholder) => return Some(format!("{placeholder} is no known placeholder")),
        }
    }
    let inner: Vec<&Vec<String>> = tree().iter().filter(|at| at.len() == 2 && at[0] == named[0]).collect();
    let second = named.get(1);
    let left_out = second.is_none_or(|word| word.starts_with('-') && word != "--config");
    if inner.is_empty() || !left_out || try_words(&named).is_none() {
        return try_words(&named);
    }
    let with = inner.iter().map(|at| [&at[..], &named[1..]].concat());
    let errors: Vec<Option<String>> = with.map(|words| try_words(&words)).collect();
    errors.into_iter().min_by_key(Option::is_some).flatten()
}

/// A word with its placeholders filled in.
pub fn filled(word: &str) -> Result<String, String> {
    let mut whole = String::new();
    let mut rest = word;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphanumeric()) {
        let length = rest[start..]
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(rest.len() - start);
        let (name, before) = (&rest[start..start + length], &rest[..start]);
        whole.push_str(before);
        let is_placeholder = name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        match PLACEHOLDERS.iter().find(|(placeholder, _)| *placeholder == name) {
            Some((_, value)) => whole.push_str(value),
            None if is_placeholder => return Err(name.to_owned()),
            None => whole.push_str(name),
        }
        rest = &rest[start + length..];
    }
    whole.push_str(rest);
    Ok(whole)
}

fn try_words(words: &[String]) -> Option<String> {
    let folder = folder();
    let help = "--help".to_owned();
    let (accepted, error) = run(folder.path(), &[words, slice::from_ref(&help)].concat());
    // An option that is only named, without its value, is there if a value is what it lacks.
    let named_only =
        words.last().is_some_and(|word| error.contains(&format!("value is required for '{word} ")));
    let short = &words[..words.len().saturating_sub(1)];
    let accepted = accepted || named_only && run(folder.path(), &[short, slice::from_ref(&help)].concat()).0;
    (!accepted).then(|| format!("tidegate {}: {error}", words.join(" ")))
}

/// Whether the binary ends well, and the first line that it says else.
fn run(folder: &Path, words: &[String]) -> (bool, String) {
    let output = Command::new(TIDEGATE).args(words).current_dir(folder).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    (output.status.success(), line.to_owned())
}

/// A folder with the files that commands name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["file.toml", "tidegate.toml"] {
        fs::write(folder.path().join(name), "[[server]]\nservice = \"http\"\n").unwrap();
    }
    folder
}
