//! Opens files in the served directory. May block on the disk, or returns that it would.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tidegate::system::file::{Blocking, Folder, identity, is_exhausted, read_cached};

use super::coding::Coding;
use super::{FilesOptions, Listing, listing, path};
use crate::http::fault::{RequestError, Status};

/// Minimum time between two log lines about unreadable files: clients choose how often they ask.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The served directory and its options.
#[derive(Debug)]
pub(super) struct Store {
    folder: Folder,
    pub(super) options: FilesOptions,
    failures: ReadFailures,
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) enum Found {
    File(Document),
    /// A directory requested without a trailing slash.
    Folder,
    /// A directory, as a listing.
    Page(String),
    Refused(RequestError),
}

/// A file and its precompressed variants.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) content_type: String,
    /// The uncompressed file comes first.
    pub(super) variants: Vec<Variant>,
}

/// One of its representations.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) coding: Option<Coding>,
    pub(super) length: u64,
    pub(super) modified: SystemTime,
    /// With its quotes.
    pub(super) etag: String,
    pub(super) content: Content,
    /// A complete response and the second in which it was built.
    pub(super) whole: Option<(u64, Bytes)>,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Memory(Bytes),
    File(Arc<File>),
}

impl Store {
    pub(super) fn new(folder: Folder, options: FilesOptions) -> Self {
        Self { folder, options, failures: ReadFailures::default() }
    }

    /// Looks up a key; reads files up to `small_bytes` into memory. When no descriptor is left it calls `close_one`,
    /// which returns whether a retry may succeed.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`], with [`Blocking::Never`]: the lookup may have to read the disk.
    pub(super) fn find(
        &self,
        key: &str,
        small_bytes: usize,
        blocking: Blocking,
        close_one: impl Fn() -> bool,
    ) -> io::Result<Found> {
        loop {
            match self.look(key, small_bytes, blocking) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && blocking == Blocking::Never => return Err(e),
                Err(e) if is_exhausted(&e) && close_one() => {}
                Err(e) => return Ok(Found::Refused(self.refusal(&e))),
                found => return found,
            }
        }
    }

    fn look(&self, key: &str, small_bytes: usize, blocking: Blocking) -> io::Result<Found> {
        let name = path::name(key);
        let file = self.folder.open_file(name, blocking)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return if path::is_folder(key) {
                self.index(name, small_bytes, blocking)
            } else {
                Ok(Found::Folder)
            };
        }
        if !metadata.is_file() {
            return Err(ErrorKind::Unsupported.into());
        }
        if path::is_folder(key) {
            return Err(ErrorKind::NotFound.into());
        }
        self.document(name, file, &metadata, small_bytes, blocking).map(Found::File)
    }

    fn index(&self, folder: &str, small_bytes: usize, blocking: Blocking) -> io::Result<Found> {
        for index in &self.options.index {
            let name = beside(folder, index);
            match self.open(&name, blocking) {
                Ok((file, metadata)) => {
                    return self.document(&name, file, &metadata, small_bytes, blocking).map(Found::File);
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        match self.options.listing {
            Listing::Off => {
                let why = "this directory has no index, and listings are off".into();
                Ok(Found::Refused(RequestError { status: Status::Forbidden, why }))
            }
            Listing::On if blocking == Blocking::Never => Err(ErrorKind::WouldBlock.into()),
            Listing::On => listing::page(&self.folder, folder).map(Found::Page),
        }
    }

    /// Opens a regular file; anything else is not found.
    fn open(&self, name: &str, blocking: Blocking) -> io::Result<(File, Metadata)> {
        let file = match self.folder.open_file(name, blocking) {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Err(ErrorKind::NotFound.into()),
            opened => opened?,
        };
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn document(
        &self,
        name: &str,
        file: File,
        metadata: &Metadata,
        small_bytes: usize,
        blocking: Blocking,
    ) -> io::Result<Document> {
        let plain = self.variant(None, file, metadata, small_bytes, blocking)?;
        let modified = plain.modified;
        let mut variants = vec![plain];
        for &coding in &self.options.precompressed {
            match self.open(&format!("{name}.{}", coding.extension()), blocking) {
                // An older variant was made from another version of the file.
                Ok((file, metadata)) if metadata.modified()? >= modified => {
                    variants.push(self.variant(Some(coding), file, &metadata, small_bytes, blocking)?);
                }
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Document { content_type: content_type(name), variants })
    }

    fn variant(
        &self,
        coding: Option<Coding>,
        file: File,
        metadata: &Metadata,
        small_bytes: usize,
        blocking: Blocking,
    ) -> io::Result<Variant> {
        let (length, modified) = (metadata.len(), metadata.modified()?);
        let (sign, since) = match modified.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => ("", since),
            Err(before) => ("-", before.duration()),
        };
        let end = coding.map_or("", Coding::extension);
        let etag = format!("\"{sign}{:x}-{length:x}-{:x}{end}\"", since.as_nanos(), identity(metadata));
        let content = if length <= small_bytes as u64 {
            Content::Memory(read(&file, length as usize, blocking)?)
        } else {
            Content::File(Arc::new(file))
        };
        Ok(Variant { coding, length, modified, etag, content, whole: None })
    }

    /// The response for a file that cannot be opened or read.
    fn refusal(&self, e: &io::Error) -> RequestError {
        let (status, why) = match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
                return path::not_found();
            }
            ErrorKind::PermissionDenied => (Status::Forbidden, "permission denied"),
            ErrorKind::Unsupported => (Status::Forbidden, "this is neither a file nor a directory"),
            ErrorKind::FileTooLarge => {
                (Status::Forbidden, "this directory has too many entries to be listed")
            }
            _ if is_exhausted(e) => {
                (Status::Unavailable, "the server has no free file descriptors; retry later")
            }
            _ => {
                if let Some(requests) = self.failures.count(Instant::now()) {
                    tracing::warn!(error = %e, requests, "cannot read a file");
                }
                (Status::InternalError, "this file cannot be read")
            }
        };
        RequestError { status, why: why.into() }
    }
}

/// Requests for unreadable files: the time of the last log line, and the number of requests since then.
#[derive(Debug, Default)]
struct ReadFailures(Mutex<(Option<Instant>, u64)>);

impl ReadFailures {
    /// Counts a request. Returns how many to log if a log line is due.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (logged, unlogged) = &mut *state;
        *unlogged += 1;
        if logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        *logged = Some(now);
        Some(std::mem::take(unlogged))
    }
}

/// Reads a small file.
fn read(mut file: &File, length: usize, blocking: Blocking) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    match blocking {
        Blocking::Waits => file.read_exact(&mut bytes)?,
        Blocking::Never if length == 0 => {}
        Blocking::Never => {
            if read_cached(file, &mut bytes, 0)? < length {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
    Ok(bytes.into())
}

/// Joins a name to a directory.
pub(super) fn beside(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.into() } else { format!("{folder}/{name}") }
}

/// The media type by file name extension; text is assumed to be UTF-8.
fn content_type(name: &str) -> String {
    match mime_guess::from_path(name).first_raw() {
        None => "application/octet-stream".into(),
        Some(text) if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        Some(other) => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_one_line_for_many_failures() {
        let (failures, start) = (ReadFailures::default(), Instant::now());
        assert_eq!(failures.count(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(failures.count(start + LOG_INTERVAL - Duration::from_nanos(1)), None);
        }
        assert_eq!(failures.count(start + LOG_INTERVAL), Some(1001));
        assert_eq!(failures.count(start + LOG_INTERVAL), None);
    }
}
