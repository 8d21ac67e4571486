//! Windows: Ctrl-C, no hand-over, no service manager notifications.

pub mod handover;
pub mod manager;
pub mod signals;

use std::fs::File;
use std::io;
use std::path::Path;

/// Whether single threads, not only the whole process, can be pinned to processors.
pub const PINS_THREADS: bool = false;

/// Creates a file; its directory determines who may read it.
///
/// # Errors
/// It exists, or cannot be created.
pub fn create_private(path: &Path) -> io::Result<File> {
    File::create_new(path)
}
