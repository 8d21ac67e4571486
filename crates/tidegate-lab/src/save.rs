//! Files of results: whole or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file to be written once. What was at its path stays until all of the new contents is on the disk.
#[derive(Debug)]
pub struct ResultFile {
    /// Symbolic links resolved: the file is replaced, not the link.
    path: PathBuf,
    way: SaveMethod,
}

#[derive(Debug)]
enum SaveMethod {
    /// Written beside its path and moved there.
    Beside(NamedTempFile),
    /// Devices, pipes, and files in a folder that takes no others.
    InPlace(File),
}

impl ResultFile {
    /// Makes sure, before the results are there, that they can be written.
    ///
    /// # Errors
    /// The file, or its folder, cannot be written.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let there = std::fs::metadata(&path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let file = File::options().write(true).open(&path)?;
            return Ok(Self { path, way: SaveMethod::InPlace(file) });
        }
        if there.is_some() {
            File::options().write(true).open(&path)?; // one that may not be written is not replaced either
        }
        match beside(&path) {
            Ok(file) => {
                if let Some(there) = there {
                    file.as_file().set_permissions(there.permissions())?;
                }
                Ok(Self { path, way: SaveMethod::Beside(file) })
            }
            Err(_) if there.is_some() => {
                let file = File::options().write(true).open(&path)?;
                Ok(Self { path, way: SaveMethod::InPlace(file) })
            }
            Err(e) => Err(e),
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// It cannot be written, for example because the disk is full; then what was at the path is as before.
    pub fn write(self, contents: &[u8]) -> io::Result<()> {
        match self.way {
            SaveMethod::Beside(mut file) => {
                file.write_all(contents)?;
                file.as_file().sync_all()?;
                file.persist(&self.path).map(drop).map_err(|e| e.error)
            }
            SaveMethod::InPlace(mut file) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                file.write_all(contents)
            }
        }
    }

    /// Writes all of it, unless something has come to the path.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`io::ErrorKind::AlreadyExists`].
    pub fn write_new(self, contents: &[u8]) -> io::Result<()> {
        match self.way {
            SaveMethod::Beside(mut file) => {
                file.write_all(contents)?;
                file.as_file().sync_all()?;
                file.persist_noclobber(&self.path).map(drop).map_err(|e| e.error)
            }
            SaveMethod::InPlace(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

/// A file in the same folder that is removed unless it is moved to the path. With the rights that a new file has.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Opened here, so that an error has no name of a file that the user did not ask for.
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    tempfile::Builder::new().prefix(".tidegate-").make_in(folder, |path| options.open(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn what_was_there_stays_until_the_new_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        ResultFile::create(&path).unwrap().write(b"first").unwrap();
        let second = ResultFile::create(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        drop(second); // given up
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        ResultFile::create(&path).unwrap().write(b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(
            ResultFile::create(&path).unwrap().write_new(b"third").unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(
            (std::fs::read(&path).unwrap(), names(folder.path())),
            (b"second".to_vec(), vec!["result".into()])
        );
        assert!(ResultFile::create(&folder.path().join("none/result")).is_err());
        assert!(ResultFile::create(folder.path()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        ResultFile::create(&link).unwrap().write(b"new").unwrap();
        assert!(link.is_symlink() && std::fs::read(&file).unwrap() == b"new");
        ResultFile::create(Path::new("/dev/null")).unwrap().write(b"nothing").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
