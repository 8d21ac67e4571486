//! Saved runs: every round of every row, with everything needed to compare them later. One file per run, never
//! overwritten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tidegate_load::verdict::Verdict;

use crate::LabError;
use crate::control_group;
use crate::machine::{Machine, MachineActivity};
use crate::process::without_secrets;
use crate::save::ResultFile;

/// Settings as text, by name: those that change the figures of a run.
pub type Facts = BTreeMap<String, String>;

/// The usual value of a setting that runs record only if it is another.
fn usual(setting: &str) -> Option<String> {
    match setting {
        "agents" => Some("none".into()),
        "program" => Some("tidegate serve http".into()),
        _ => None,
    }
}

/// The value of `kind`, which distinguishes runs from other JSON files.
const KIND: &str = "tidegate run";

/// Version of the format.
const FORMAT: u32 = 1;

/// The build of the measuring program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Version of the package.
    pub version: String,
    /// The commit, with `-dirty` if sources were edited; none if it was not built in a checkout.
    pub commit: Option<String>,
    /// `release` or `debug`.
    pub profile: String,
}

impl Build {
    /// Of this program.
    #[must_use]
    pub fn here() -> Self {
        let commit = env!("TIDEGATE_COMMIT");
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: (!commit.is_empty()).then(|| commit.to_owned()),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
        }
    }

    /// For under a table.
    #[must_use]
    pub fn line(&self) -> String {
        let commit = self.commit.as_ref().map_or(String::new(), |c| format!(" ({c})"));
        let debug = if self.profile == "debug" { ", debug build" } else { "" };
        format!("tidegate {}{commit}{debug}", self.version)
    }
}

/// When, where and how something was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Circumstances {
    /// When it began, RFC 3339, UTC.
    pub date: String,
    /// The command line.
    pub command: Vec<String>,
    /// The program.
    pub build: Build,
    /// The machine.
    pub machine: Machine,
    /// Whether server and load had separate processors.
    pub pinned_apart: bool,
    /// Settings of all experiments.
    pub settings: Facts,
    /// What else the machine did, during each experiment.
    #[serde(default)]
    pub activity: Vec<MachineActivity>,
    /// What limits this program, and so all figures.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Circumstances {
    /// The value of a setting, named `EXPERIMENT: SETTING`; the usual one if the experiment was run without recording
    /// it.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<String> {
        let of = |name: &str| name.split_once(": ").map(|(experiment, _)| experiment.to_owned());
        let was_run = || self.settings.keys().any(|key| of(key) == of(name));
        let usual = || name.split_once(": ").and_then(|(_, setting)| usual(setting)).filter(|_| was_run());
        self.settings.get(name).cloned().or_else(usual)
    }

    /// Here and now.
    #[must_use]
    pub fn here(bench: &crate::Bench) -> Self {
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: command(),
            build: Build::here(),
            machine: Machine::here(),
            pinned_apart: bench.is_pinned_apart(),
            settings: Facts::new(),
            activity: Vec::new(),
            notes: control_group::too_small_a_quota(bench, &control_group::own()).into_iter().collect(),
        }
    }
}

/// The command line without secrets, and without the path of the program.
fn command() -> Vec<String> {
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    let name = std::path::Path::new(&program).file_name().unwrap_or(&program).to_owned();
    without_secrets(std::iter::once(name).chain(words).map(|word| word.to_string_lossy().into_owned()))
}

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Lower is better: time, CPU time, memory.
    Lower,
    /// Higher is better: rates.
    Higher,
}

/// One figure of a row, of every round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Its name, for example `cpu_s_per_100k`.
    pub name: String,
    /// Which direction is better.
    pub better: Better,
    /// Every round, in order.
    pub rounds: Vec<f64>,
}

/// One row of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The experiment.
    pub experiment: String,
    /// The row in it, for example `epoll, 100 at once`.
    pub name: String,
    /// Its figures; the first one is the main one.
    pub measures: Vec<Measure>,
    /// The limiting side of each round; empty if unknown.
    pub verdicts: Vec<Verdict>,
    /// Requests of all rounds, those that failed included; 0 if unknown.
    #[serde(default)]
    pub requests: u64,
    /// Requests of all rounds that failed, or were not answered in time.
    #[serde(default)]
    pub failed: u64,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Distinguishes it from other JSON.
    pub kind: String,
    /// Version of this format: 1.
    pub format: u32,
    /// When, where and how.
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// Everything measured.
    pub rows: Vec<Row>,
}

impl Run {
    /// A run with these rows.
    #[must_use]
    pub fn new(circumstances: Circumstances, rows: Vec<Row>) -> Self {
        Self { kind: KIND.into(), format: FORMAT, circumstances, rows }
    }

    /// Saves it as a new file in `folder`, named after its date; returns the path.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, folder: &Path) -> Result<PathBuf, LabError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| LabError::Write { path, error }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let stamp: String = self.circumstances.date.chars().filter(|c| !"-:".contains(*c)).collect();
        // Plain data always becomes JSON.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        for again in 1.. {
            let suffix = if again == 1 { String::new() } else { format!("-{again}") };
            let path = folder.join(format!("{stamp}{suffix}.json"));
            match ResultFile::create(&path).and_then(|file| file.write_new(text.as_bytes())) {
                Ok(()) => return Ok(path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && again < 1_000 => {}
                Err(e) => return Err(failed(&path)(e)),
            }
        }
        Err(failed(folder)(std::io::ErrorKind::AlreadyExists.into()))
    }

    /// Loads a saved run: a file, or the latest in `runs` of a report directory.
    ///
    /// # Errors
    /// It does not exist, or is not a run.
    pub fn load(path: &Path) -> Result<Self, LabError> {
        let path = &if path.is_dir() { latest(path)? } else { path.to_owned() };
        let text = std::fs::read_to_string(path).map_err(|e| LabError::run(path, e))?;
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| LabError::run(path, format!("no JSON: {e}")))?;
        if json.get("kind").and_then(|kind| kind.as_str()) != Some(KIND) {
            return Err(LabError::run(path, "JSON, but no saved run"));
        }
        match json.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            other => {
                let format = other.map_or("unknown".into(), |f| f.to_string());
                let why = format!("a run of format {format}; this program reads format {FORMAT}");
                return Err(LabError::run(path, why));
            }
        }
        serde_json::from_value(json).map_err(|e| LabError::run(path, format!("a broken run: {e}")))
    }
}

/// Names begin with the date, so the last in order is the latest; of one second, the longer name.
fn latest(folder: &Path) -> Result<PathBuf, LabError> {
    let runs = folder.join("runs");
    let entries = std::fs::read_dir(&runs).map_err(|e| LabError::run(&runs, e))?;
    let files = entries.flatten().map(|entry| entry.path());
    let key = |path: &PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (date, again) = name.split_once('-').unwrap_or((&name, "1"));
        (date.to_owned(), again.parse::<u32>().unwrap_or(0))
    };
    let newest = files.filter(|path| path.extension().is_some_and(|e| e == "json")).max_by_key(key);
    newest.ok_or_else(|| LabError::run(&runs, "holds no run"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run of one row with one measure.
    pub(crate) fn run(name: &str, rounds: &[f64]) -> Run {
        let measure =
            Measure { name: "cpu_s_per_100k".into(), better: Better::Lower, rounds: rounds.to_vec() };
        let row = Row {
            experiment: "concurrency".into(),
            name: name.into(),
            measures: vec![measure],
            ..Row::default()
        };
        let bench = crate::Bench::new("tidegate".into(), &[0, 1]);
        Run::new(Circumstances::here(&bench), vec![row])
    }

    #[test]
    fn runs_are_kept_and_the_latest_of_a_folder_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let first = run("a", &[1.0, 0.1 + 0.2]);
        let path = first.save(&runs).unwrap();
        assert_eq!(Run::load(&path).unwrap(), first);
        for n in 2..12 {
            let mut next = run(&n.to_string(), &[1.0]);
            next.circumstances.date = first.circumstances.date.clone();
            next.save(&runs).unwrap();
        }
        assert_eq!(Run::load(folder.path()).unwrap().rows[0].name, "11");
        assert_eq!(Run::load(&path).unwrap(), first, "no run overwrites another");
    }

    #[test]
    fn what_is_no_run_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.json");
        let refused = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Run::load(&file).unwrap_err().to_string()
        };
        for (text, why) in [
            ("{", "no JSON"),
            ("{}", "no saved run"),
            ("{\"kind\":\"tidegate run\",\"format\":99}", "format 99"),
            ("{\"kind\":\"tidegate run\",\"format\":1,\"rows\":3}", "broken run"),
        ] {
            let error = refused(text);
            assert!(error.contains(why) && error.contains("tidegate bench"), "{error}");
        }
        assert!(Run::load(&folder.path().join("none")).is_err());
        assert!(Run::load(folder.path()).is_err());
    }
}
