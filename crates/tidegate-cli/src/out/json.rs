//! Results as JSON: to a file that is opened before there is a result, or to standard output.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use tidegate_lab::save::ResultFile;

use super::say;
use crate::{Failure, out};

/// Where a result goes as JSON.
pub enum Json {
    Nowhere,
    Stdout,
    File(Destination),
    /// It has been written.
    Done,
}

/// A file for results, and what the user calls it.
pub struct Destination {
    path: PathBuf,
    file: ResultFile,
}

impl Destination {
    /// Opens it, before there is a result.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = ResultFile::create(path).with_context(|| format!("cannot write {}", path.display()));
        file.map(|file| Self { path: path.into(), file }).map_err(Failure::Usage)
    }

    /// Writes all of it.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let Self { path, file } = self;
        file.write(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Json {
    /// A file, or standard output for `-`.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::Nowhere),
            path if is_stdout(path) => Ok(Self::Stdout),
            Some(path) => Destination::open(path).map(Self::File),
        }
    }

    /// Gives a result out.
    pub fn put(&mut self, report: &impl Serialize) -> anyhow::Result<()> {
        let text = || serde_json::to_string_pretty(report).context("the result cannot be written as JSON");
        match self {
            Self::Nowhere | Self::Done => Ok(()),
            Self::Stdout => say!("{}", text()?),
            Self::File(_) => {
                let text = text()? + "\n";
                match std::mem::replace(self, Self::Done) {
                    Self::File(file) => file.write(&text),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Gives a result out, and its summary to standard output, unless that has the JSON.
    pub fn put_or_print(&mut self, report: &impl Serialize, summary: &str) -> anyhow::Result<()> {
        let written = self.put(report);
        if !matches!(self, Self::Stdout) {
            out::put(format_args!("{summary}"))?; // also if it cannot be saved
        }
        written
    }
}

/// Which file a path leads to, whatever it is called, also if it is not there yet. `None` for devices and pipes, which
/// take one result after the other.
fn place(path: &Path) -> Option<PathBuf> {
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return None;
    }
    let of_folder = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    Some(path.canonicalize().ok().or_else(of_folder).unwrap_or_else(|| path.into()))
}

/// The first file that was listed before under whatever name: the label of its earlier entry, its own, and its path.
pub fn repeated<'a, L: Copy>(files: impl Iterator<Item = (L, &'a Path)>) -> Option<(L, L, &'a Path)> {
    let mut places: Vec<(L, PathBuf)> = Vec::new();
    for (label, path) in files {
        let Some(place) = place(path) else { continue };
        if let Some((earlier, _)) = places.iter().find(|(_, other)| *other == place) {
            return Some((*earlier, label, path));
        }
        places.push((label, place));
    }
    None
}

/// Whether `-` was given.
pub fn is_stdout(path: Option<&Path>) -> bool {
    path == Some(Path::new("-"))
}
