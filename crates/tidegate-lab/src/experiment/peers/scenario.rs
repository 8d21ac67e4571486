//! Which peers there are: `peers/peers.toml` of this crate, which this program carries within it, and files like it
//! that a user gives.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::LabError;
use crate::process::with_last_lines;

/// What the built-in peers are made of, so that the program needs no checkout.
macro_rules! built_in {
    ($($path:literal $(from $file:literal)?),*) => {
        &[$(($path, include_str!(concat!("../../../peers/", built_in!(@ $path $($file)?))))),*]
    };
    (@ $path:literal) => { $path };
    (@ $path:literal $file:literal) => { $file };
}

const BUILT_IN: &[(&str, &str)] = built_in![
    "peers.toml",
    "baseline.c",
    "http.js",
    "http.go",
    "asio.cpp",
    // A folder with a file called Cargo.toml would be left out of this crate's package.
    "hyper/Cargo.toml" from "hyper/manifest.toml",
    "hyper/Cargo.lock",
    "hyper/src/main.rs"
];

/// The peer that all others are measured by.
pub const BASELINE: &str = "baseline";

/// A server to be measured beside tidegate; `peers/peers.toml` says what each field means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerProgram {
    /// What the row is called.
    pub name: String,
    /// A line about it.
    #[serde(default)]
    pub about: String,
    /// A command that succeeds if all it takes is installed.
    pub check: Option<String>,
    /// What to do if it is not.
    #[serde(default)]
    pub install: String,
    /// A command that builds it.
    pub build: Option<String>,
    /// Files it is built from.
    #[serde(default)]
    pub sources: Vec<PathBuf>,
    /// Files it needs, by name, with place-holders.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The command that starts it.
    pub start: String,
    /// The same where each request has its own connection.
    pub start_close: Option<String>,
    /// What it writes once it serves.
    pub ready_line: Option<String>,
    /// What to ask it for.
    #[serde(default = "root")]
    pub path: String,
    /// The folder of the file that described it.
    #[serde(skip)]
    pub here: PathBuf,
}

fn root() -> String {
    "/".into()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    peer: Vec<PeerProgram>,
}

/// The built-in peers, and those of `file`; of two with the same name the later one counts. Writes what the built-in
/// ones are made of below `cache`.
///
/// # Errors
/// A file cannot be read or written, or says something wrong.
pub fn peers(cache: &Path, file: Option<&Path>) -> Result<Vec<PeerProgram>, LabError> {
    let here = cache.join("scenarios");
    for (name, text) in BUILT_IN {
        put(&here.join(name), text)?;
    }
    let mut peers = read(&here.join("peers.toml"))?;
    for peer in file.map(read).transpose()?.unwrap_or_default() {
        match peers.iter_mut().find(|known| known.name == peer.name) {
            Some(known) => *known = peer,
            None => peers.push(peer),
        }
    }
    Ok(peers)
}

/// Writes a file and the folders it lies in, unless it is there already.
fn put(path: &Path, text: &str) -> Result<(), LabError> {
    if std::fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(()); // a newer time would have everything built again
    }
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|error| LabError::Write { path: path.into(), error })
}

fn read(path: &Path) -> Result<Vec<PeerProgram>, LabError> {
    let wrong = |why: String| LabError::Peers { path: path.into(), why };
    let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
    let file: File = toml::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let here = path.canonicalize().map_err(|e| wrong(e.to_string()))?;
    let here = here.parent().unwrap_or(&here).to_owned();
    let mut peers: Vec<PeerProgram> = Vec::new();
    for peer in file.peer {
        let name = &peer.name;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(wrong(format!("the name {name:?} must be of letters, digits, '-', '_' and '.'")));
        }
        if peers.iter().any(|other| other.name == *name) {
            return Err(wrong(format!("two peers are called {name}")));
        }
        if tidegate::Model::ALL.iter().any(|model| model.name() == name) {
            return Err(wrong(format!("{name} is a model of tidegate; call the peer something else")));
        }
        if !peer.start.contains("{port}") && !peer.files.values().any(|text| text.contains("{port}")) {
            return Err(wrong(format!("{name} does not receive its port: write {{port}} in start or files")));
        }
        if !peer.path.starts_with('/') {
            return Err(wrong(format!("the path {:?} of {name} must begin with '/'", peer.path)));
        }
        peers.push(PeerProgram { here: here.clone(), ..peer });
    }
    Ok(peers)
}

/// What place-holders stand for.
#[derive(Clone, Debug)]
pub(super) struct Placeholders {
    pub(super) port: u16,
    pub(super) cpu: usize,
    pub(super) dir: PathBuf,
    pub(super) build: PathBuf,
    pub(super) here: PathBuf,
}

impl Placeholders {
    /// The text with its place-holders filled in, for a file.
    pub(super) fn fill(&self, text: &str) -> String {
        self.fill_with(text, |path| path.display().to_string())
    }

    /// The same for `sh`.
    pub(super) fn command(&self, text: &str) -> String {
        self.fill_with(text, |path| quoted(&path.display().to_string()))
    }

    fn fill_with(&self, text: &str, path: impl Fn(&Path) -> String) -> String {
        text.replace("{port}", &self.port.to_string())
            .replace("{cpu}", &self.cpu.to_string())
            .replace("{dir}", &path(&self.dir))
            .replace("{build}", &path(&self.build))
            .replace("{here}", &path(&self.here))
    }
}

/// In single quotes, unless it needs none (so that `{dir}/name` reads as one word either way).
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.+".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// A command of a peer. Daemons live in folders that not every user has in the path.
pub(super) fn shell(command: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    shell.stdin(Stdio::null());
    shell
}

impl PeerProgram {
    /// Sees that all it takes is installed, and builds it; says where, or why it cannot be measured.
    pub(super) fn prepare(&self, cache: &Path) -> Result<PathBuf, String> {
        let build = cache.join("build").join(&self.name);
        let places = Placeholders {
            port: 0,
            cpu: 0,
            dir: build.clone(),
            build: build.clone(),
            here: self.here.clone(),
        };
        let remedy = if self.install.is_empty() { String::new() } else { format!(": {}", self.install) };
        if let Some(check) = &self.check {
            let status = shell(&places.command(check)).stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !status.is_ok_and(|status| status.success()) {
                return Err(format!("not installed{remedy}"));
            }
        }
        let Some(command) = &self.build else { return Ok(build) };
        std::fs::create_dir_all(&build).map_err(|e| format!("{}: {e}", build.display()))?;
        let (command, mark) = (places.command(command), build.join(".built"));
        let print = self.print(&command).map(|print| print.to_string());
        if print.is_some() && std::fs::read_to_string(&mark).ok() == print {
            return Ok(build);
        }
        let output = shell(&command).output().map_err(|e| format!("{command}: {e}"))?;
        if !output.status.success() {
            let why = format!("could not be built ({command})");
            return Err(with_last_lines(why, &String::from_utf8_lossy(&output.stderr)) + &remedy);
        }
        let _ = std::fs::write(mark, print.unwrap_or_default()); // or it is built again next time
        Ok(build)
    }

    /// Of what it is built from; `None` if that is not known, so that it is built each time.
    fn print(&self, command: &str) -> Option<u64> {
        let mut hash = DefaultHasher::new();
        command.hash(&mut hash);
        for source in &self.sources {
            std::fs::read(self.here.join(source)).ok()?.hash(&mut hash);
        }
        (!self.sources.is_empty()).then(|| hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<Vec<PeerProgram>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        std::fs::write(&file, text).unwrap();
        peers(&folder.path().join("cache"), Some(&file)).map_err(|e| e.to_string())
    }

    #[test]
    fn peers_of_a_user_are_added_or_take_the_place_of_ours() {
        let all = with("[[peer]]\nname = \"mine\"\nstart = \"serve {port}\"\n[[peer]]\nname = \"go\"\nstart = \"x {port}\"").unwrap();
        assert_eq!(all.first().unwrap().name, BASELINE);
        assert_eq!(all.last().unwrap().name, "mine");
        assert_eq!(
            all.iter().filter(|p| p.name == "go").map(|p| p.start.as_str()).collect::<Vec<_>>(),
            ["x {port}"]
        );
        let sources =
            all.iter().filter(|p| p.name != "go").flat_map(|p| p.sources.iter().map(|s| p.here.join(s)));
        assert!(sources.count() >= 5);
    }

    #[test]
    fn every_source_of_ours_is_carried_within() {
        let folder = tempfile::tempdir().unwrap();
        for peer in peers(folder.path(), None).unwrap() {
            for source in &peer.sources {
                assert!(peer.here.join(source).is_file(), "{} of {}", source.display(), peer.name);
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, why) in [
            ("[[peer]]\nname = \"a\"", "start"),
            ("[[peer]]\nname = \"a\"\nstart = \"x\"", "{port}"),
            ("[[peer]]\nname = \"../a\"\nstart = \"{port}\"", "letters"),
            ("[[peer]]\nname = \"epoll\"\nstart = \"{port}\"", "model"),
            ("[[peer]]\nname = \"a\"\nstart = \"{port}\"\nstrat = 1", "strat"),
            ("[[peer]]\nname = \"a\"\nstart = \"{port}\"\npath = \"x\"", "begin"),
            ("[[peer]]\nname = \"a\"\nstart = \"{port}\"\n[[peer]]\nname = \"a\"\nstart = \"{port}\"", "two"),
            ("peer = 3", "peer"),
        ] {
            let error = with(text).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }

    #[test]
    fn place_holders_are_filled_and_quoted_for_the_shell_only() {
        let places = Placeholders {
            port: 7,
            cpu: 1,
            dir: "/a b".into(),
            build: "/it's".into(),
            here: "/plain".into(),
        };
        assert_eq!(places.fill("{port} {cpu} {dir}/x {y}"), "7 1 /a b/x {y}");
        assert_eq!(places.command("{dir}/x {build} {here}/y"), "'/a b'/x '/it'\\''s' /plain/y");
    }

    #[test]
    fn what_is_not_installed_or_does_not_build_says_so_and_builds_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let peer = |check: &str, build: &str| PeerProgram {
            name: "x".into(),
            about: String::new(),
            check: Some(check.into()),
            install: "apt install x".into(),
            build: Some(build.into()),
            sources: vec!["source".into()],
            files: BTreeMap::new(),
            start: String::new(),
            start_close: None,
            ready_line: None,
            path: "/".into(),
            here: folder.path().into(),
        };
        std::fs::write(folder.path().join("source"), "1").unwrap();
        assert_eq!(peer("false", "true").prepare(folder.path()), Err("not installed: apt install x".into()));
        let error = peer("true", "echo no such thing >&2; false").prepare(folder.path()).unwrap_err();
        assert!(error.contains("no such thing") && error.contains("apt install x"), "{error}");
        let good = peer("true", "echo built >> {build}/log");
        let built = || std::fs::read_to_string(good.prepare(folder.path()).unwrap().join("log")).unwrap();
        assert_eq!((built(), built()), ("built\n".into(), "built\n".into()));
        std::fs::write(folder.path().join("source"), "2").unwrap();
        assert_eq!(built(), "built\nbuilt\n");
    }
}
