//! Unix: signals, a Unix socket for the successor, `sd_notify(3)`.

pub mod handover;
pub mod manager;
pub mod signals;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Whether single threads, not only the whole process, can be pinned to processors.
pub const PINS_THREADS: bool = true;

/// Creates a file that only its owner may read and write.
///
/// # Errors
/// It exists, or cannot be created.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
