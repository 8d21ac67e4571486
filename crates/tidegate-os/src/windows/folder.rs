//! A folder whose files are opened by name, and from which no name leads out.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_BACKUP_SEMANTICS;

use crate::file::{Listed, is_hidden};
use crate::terms::Blocking;

/// A folder. Names are relative to it, with `/` between their parts; an empty one is the folder itself.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// What the system says: it does not exist, or is no folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = path.canonicalize()?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { root })
    }

    /// What keeps names inside, for the log.
    #[must_use]
    pub fn confinement(&self) -> &'static str {
        "the path behind all links is looked at before a file is opened"
    }

    /// Opens a file inside for reading; a folder, too, as on Unix.
    ///
    /// # Errors
    /// What the system says; a name that leads out is not found. With [`Blocking::Never`] always
    /// [`io::ErrorKind::WouldBlock`].
    pub fn open_file(&self, name: &str, blocking: Blocking) -> io::Result<File> {
        if blocking == Blocking::Never {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Without the flag a folder is refused as if it were forbidden (`CreateFileW`, *Directories*).
        OpenOptions::new().read(true).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(self.path_of(name)?)
    }

    fn path_of(&self, name: &str) -> io::Result<PathBuf> {
        // Streams (`file:stream`), devices (`NUL`, `COM1.txt`), and names that the system shortens.
        let is_odd = |part: &str| {
            let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
            let numbered = |kind: &str| stem.strip_prefix(kind).is_some_and(|rest| rest.chars().count() == 1);
            part.is_empty()
                || part.ends_with(['.', ' '])
                || part.contains(['\\', ':', '<', '>', '"', '|', '?', '*'])
                || part.chars().any(char::is_control)
                || matches!(&*stem, "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
                || numbered("COM")
                || numbered("LPT")
        };
        if !name.is_empty() && name.split('/').any(is_odd) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.root.join(name.replace('/', "\\")).canonicalize()?;
        // What the name resolves to decides, not how it is written: `GIT~1` is `.git` (`GetFinalPathNameByHandleW`,
        // which `canonicalize` calls,
        // returns long names).
        match path.strip_prefix(&self.root) {
            Ok(inside) if !is_hidden(inside) => Ok(path),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// What is in a folder inside, at most `most` of it, in no order.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::FileTooLarge`] if there is more.
    pub fn list(&self, name: &str, most: usize) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for entry in std::fs::read_dir(self.path_of(name)?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if listed.len() == most {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            listed.push(Listed { name, is_folder: entry.file_type()?.is_dir() });
        }
        Ok(listed)
    }
}

/// Reads what is in the system's cache: this system does not tell what is.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`], always.
pub fn read_cached(_: &File, _: &mut [u8], _: u64) -> io::Result<usize> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// Writes everything to the disk that the file system still holds back: this system does that for a file alone.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`], always.
pub fn write_back(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Drops what the system's cache holds of a file: this system has no such call.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`], always.
pub fn forget_cached(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A number that tells this file from others that had its name: when it was created.
pub fn identity(metadata: &std::fs::Metadata) -> u64 {
    std::os::windows::fs::MetadataExt::creation_time(metadata)
}

/// Whether nothing is left to open a file with: handles or memory.
pub fn is_exhausted(e: &io::Error) -> bool {
    // ERROR_TOO_MANY_OPEN_FILES, ERROR_NOT_ENOUGH_MEMORY, ERROR_OUTOFMEMORY
    matches!(e.raw_os_error(), Some(4 | 8 | 14))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_has_no_other_name() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::create_dir(outer.path().join(".git")).unwrap();
        std::fs::write(outer.path().join(".git").join("config"), b"secret").unwrap();
        std::fs::write(outer.path().join("a long name.text"), b"open").unwrap();
        let folder = Folder::open(outer.path()).unwrap();
        // Where the volume makes short names, these are them; elsewhere they are not found either.
        for name in [".git/config", "GIT~1/config", "git~1/config", "GIT~1"] {
            let opened = folder.open_file(name, Blocking::Waits);
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound, "{name}");
        }
        assert!(folder.open_file("a long name.text", Blocking::Waits).is_ok());
    }
}
