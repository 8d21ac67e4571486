//! The file whose parts sessions send.

use std::fs::File;
#[cfg(test)]
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fastrand::Rng;
use tidegate_os::file::FileRange;

use super::script::chance;
use crate::proto::queue::FileSending;

/// What a seed decides about files. It has its own randomness, so that seeds without files stay as they were before
/// there were any.
pub(super) struct SimulatedFiles {
    rng: Rng,
    /// Pieces that are parts of a file, of 256. Three seeds in four have none.
    often: u8,
    /// How sockets take them; a poller's just take them or do not.
    pub(super) files: FileSending,
    file: Option<Arc<File>>,
    bytes: u64,
}

impl SimulatedFiles {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let often = if rng.u8(..4) == 0 { rng.u8(1..=200) } else { 0 };
        let files = [FileSending::Read, FileSending::Alone, FileSending::Among][rng.usize(..3)];
        Self { rng, often, files, file: None, bytes: 0 }
    }

    /// Whether the next piece is a part of a file.
    pub(super) fn is_next(&mut self) -> bool {
        chance(&mut self.rng, self.often)
    }

    /// A part of the file that has these bytes. A byte that nobody wrote lies before each.
    #[cfg(test)]
    pub(super) fn put(&mut self, bytes: &[u8]) -> FileRange {
        let file = self.file.get_or_insert_with(|| Arc::new(tempfile::tempfile().expect("a file")));
        let at = self.bytes + 1;
        file.write_all_at(bytes, at).expect("room for a file");
        self.bytes = at + bytes.len() as u64;
        FileRange::new(file.clone(), at, bytes.len())
    }
}

/// All of a part.
pub(super) fn read(range: &FileRange) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    let n = range.read(&mut bytes).expect("what was written");
    assert_eq!(n, bytes.len(), "a file that is read in pieces");
    bytes
}
