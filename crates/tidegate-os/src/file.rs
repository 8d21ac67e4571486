//! A part of a file on its way out. The file is shared, and its own position is neither used nor moved on Unix.

use std::fs::File;
use std::io;
use std::sync::Arc;

/// Bytes of a file, from a place in it: what a send may take instead of bytes in memory.
#[derive(Clone, Debug)]
pub struct FileRange {
    file: Arc<File>,
    at: u64,
    bytes: usize,
}

impl FileRange {
    /// `bytes` bytes from byte `at` on. Nothing is looked at: a file that is shorter fails when it is read.
    #[must_use]
    pub fn new(file: Arc<File>, at: u64, bytes: usize) -> Self {
        Self { file, at, bytes }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it begins.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of it.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is left of it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Takes `n` bytes from the front.
    pub fn advance(&mut self, n: usize) {
        let n = n.min(self.bytes);
        self.at += n as u64;
        self.bytes -= n;
    }

    /// Reads from its front into `into`, and returns how many bytes that were; [`advance`](Self::advance) is the
    /// caller's.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file is shorter than it was said to be, and what the system says.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let most = self.bytes.min(into.len());
        if most == 0 {
            return Ok(0);
        }
        loop {
            match read_at(&self.file, &mut into[..most], self.at) {
                Ok(0) => return Err(shorter()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }
}

/// One of the things in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Whether it is a folder itself.
    pub is_folder: bool,
}

/// Whether a name, as the system resolves it, is of something hidden or leads through it.
#[cfg(any(windows, test))]
pub(crate) fn is_hidden(resolved: &std::path::Path) -> bool {
    resolved.iter().any(|part| part.as_encoded_bytes().first() == Some(&b'.'))
}

/// The file has become shorter than the answer that was begun.
pub(crate) fn shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter while it was being sent")
}

#[cfg(unix)]
fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, into, at)
}

#[cfg(windows)]
fn read_at(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, into, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_range_is_read_in_steps_and_no_further_than_it_goes() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut range = FileRange::new(Arc::new(file), 2, 6);
        let mut all = Vec::new();
        while !range.is_empty() {
            let mut step = [0; 4];
            let n = range.read(&mut step).unwrap();
            all.extend_from_slice(&step[..n]);
            range.advance(n);
        }
        assert_eq!((all.as_slice(), range.at()), (&b"234567"[..], 8));
        assert_eq!(range.read(&mut [0; 4]).unwrap(), 0);
    }

    #[test]
    fn what_a_name_resolves_to_is_hidden_or_not() {
        use std::path::Path;
        for name in ["", "a", "a/b.txt", "git~1", "a./b"] {
            assert!(!is_hidden(Path::new(name)), "{name}");
        }
        for name in [".git", "a/.git/config", ".env", "sub/.hidden"] {
            assert!(is_hidden(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_shorter_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123").unwrap();
        let range = FileRange::new(Arc::new(file), 4, 1);
        assert_eq!(range.read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
