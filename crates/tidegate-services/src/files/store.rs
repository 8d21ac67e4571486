//! Finding files in the folder. May wait for the disk, or says that it would have to.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tidegate::system::file::{Folder, Patience, identity, is_exhausted, read_cached};

use super::coding::Coding;
use super::{FilesOptions, Listing, listing, path};
use crate::http::fault::{Fault, Status};

/// The folder that is served, and how.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) folder: Folder,
    pub(super) options: FilesOptions,
}

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Found {
    File(Document),
    /// A folder that was asked for without a slash at the end.
    Folder,
    /// A folder, as a page.
    Page(String),
    Refused(Fault),
}

/// A file, and what lies beside it in other codings.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) content_type: String,
    /// The file as it is comes first.
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
    /// A whole answer and the second it was made in.
    pub(super) whole: Option<(u64, Bytes)>,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Memory(Bytes),
    File(Arc<File>),
}

impl Store {
    /// What a key leads to. Where nothing is left to open a file with, `close_one` is asked for it; it returns
    /// whether there is hope.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`], with [`Patience::Never`]: the disk has to be looked at, or perhaps.
    pub(super) fn find(
        &self,
        key: &str,
        patience: Patience,
        close_one: impl Fn() -> bool,
    ) -> io::Result<Found> {
        loop {
            match self.look(key, patience) {
                Err(e) if e.kind() == ErrorKind::WouldBlock && patience == Patience::Never => return Err(e),
                Err(e) if is_exhausted(&e) && close_one() => {}
                Err(e) => return Ok(Found::Refused(refusal(&e))),
                found => return found,
            }
        }
    }

    fn look(&self, key: &str, patience: Patience) -> io::Result<Found> {
        let name = path::name(key);
        let file = self.folder.open_file(name, patience)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return if path::is_folder(key) { self.index(name, patience) } else { Ok(Found::Folder) };
        }
        if !metadata.is_file() {
            let why = "this is neither a file nor a folder".into();
            return Ok(Found::Refused(Fault { status: Status::Forbidden, why }));
        }
        if path::is_folder(key) {
            return Err(ErrorKind::NotFound.into());
        }
        self.document(name, file, &metadata, patience).map(Found::File)
    }

    fn index(&self, folder: &str, patience: Patience) -> io::Result<Found> {
        for index in &self.options.index {
            let name = beside(folder, index);
            match self.open(&name, patience) {
                Ok((file, metadata)) => {
                    return self.document(&name, file, &metadata, patience).map(Found::File);
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        match self.options.listing {
            Listing::Off => {
                let why = "this folder has no index, and listings are off".into();
                Ok(Found::Refused(Fault { status: Status::Forbidden, why }))
            }
            Listing::On if patience == Patience::Never => Err(ErrorKind::WouldBlock.into()),
            Listing::On => listing::page(&self.folder, folder).map(Found::Page),
        }
    }

    /// Opens a file, and nothing else.
    fn open(&self, name: &str, patience: Patience) -> io::Result<(File, Metadata)> {
        let file = self.folder.open_file(name, patience)?;
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn document(
        &self,
        name: &str,
        file: File,
        metadata: &Metadata,
        patience: Patience,
    ) -> io::Result<Document> {
        let plain = self.variant(None, file, metadata, patience)?;
        let modified = plain.modified;
        let mut variants = vec![plain];
        for &coding in &self.options.precompressed {
            match self.open(&format!("{name}.{}", coding.extension()), patience) {
                // One that is older was made of another version of the file.
                Ok((file, metadata)) if metadata.modified()? >= modified => {
                    variants.push(self.variant(Some(coding), file, &metadata, patience)?);
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
        patience: Patience,
    ) -> io::Result<Variant> {
        let (length, modified) = (metadata.len(), metadata.modified()?);
        let (sign, since) = match modified.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => ("", since),
            Err(before) => ("-", before.duration()),
        };
        let end = coding.map_or("", Coding::extension);
        let etag = format!("\"{sign}{:x}-{length:x}-{:x}{end}\"", since.as_nanos(), identity(metadata));
        let content = if length <= self.options.small_bytes as u64 {
            Content::Memory(read(&file, length as usize, patience)?)
        } else {
            Content::File(Arc::new(file))
        };
        Ok(Variant { coding, length, modified, etag, content, whole: None })
    }
}

/// All of a small file.
fn read(mut file: &File, length: usize, patience: Patience) -> io::Result<Bytes> {
    let mut bytes = vec![0; length];
    match patience {
        Patience::Waits => file.read_exact(&mut bytes)?,
        Patience::Never if length == 0 => {}
        Patience::Never => {
            if read_cached(file, &mut bytes, 0)? < length {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
    Ok(bytes.into())
}

/// A name in a folder.
pub(super) fn beside(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.into() } else { format!("{folder}/{name}") }
}

/// The media type that the name says; text is taken for UTF-8.
fn content_type(name: &str) -> String {
    match mime_guess::from_path(name).first_raw() {
        None => "application/octet-stream".into(),
        Some(text) if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        Some(other) => other.into(),
    }
}

fn refusal(e: &io::Error) -> Fault {
    let (status, why) = match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
            return path::not_found();
        }
        ErrorKind::PermissionDenied => (Status::Forbidden, "this file may not be read"),
        ErrorKind::FileTooLarge => (Status::Forbidden, "this folder has too much in it to be listed"),
        _ if is_exhausted(e) => (Status::Unavailable, "the server can open no more files; come again"),
        _ => {
            tracing::warn!(error = %e, "a file could not be read");
            (Status::InternalError, "this file cannot be read")
        }
    };
    Fault { status, why: why.into() }
}
