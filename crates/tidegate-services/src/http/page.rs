//! The page of the HTTP service.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;

/// The built-in page. The figures of the documentation are measured with its size.
static BUILT_IN: &[u8] = include_bytes!("page.html");
const _: () = assert!(BUILT_IN.len() == 4096, "the built-in page is to be exactly 4 KiB");

/// Maximum bytes of a page read from a file: 64 MiB. It is kept in memory.
pub const MOST_FILE_BYTES: u64 = 64 << 20;

/// A page: its bytes and media type.
#[derive(Clone, Debug)]
pub struct Page {
    pub(super) body: Bytes,
    pub(super) content_type: &'static str,
}

/// Why a page cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// An error of the system.
    #[error("cannot read the page {}: {error}; give a file that exists and is readable", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("the page {} is {what}; give a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is too large to keep in memory.
    #[error(
        "the page {} is larger than {} MiB, and it is kept in memory; use a smaller one",
        path.display(), MOST_FILE_BYTES >> 20
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
}

impl Default for Page {
    /// The built-in page: HTML, 4,096 bytes.
    fn default() -> Self {
        Self { body: Bytes::from_static(BUILT_IN), content_type: "text/html; charset=utf-8" }
    }
}

/// Bytes of another owner behind a reference count that is on separate cache lines.
#[repr(align(128))]
pub(super) struct CountedApart(Bytes);

impl AsRef<[u8]> for CountedApart {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Page {
    /// The same page, whose body has a separate reference count: for one thread, which counts with each response.
    pub(super) fn counted_apart(&self) -> Self {
        Self { body: Bytes::from_owner(CountedApart(self.body.clone())), ..*self }
    }

    /// Creates a page from bytes and a media type (RFC 9110, section 8.3.1).
    #[must_use]
    pub fn new(body: impl Into<Bytes>, content_type: &'static str) -> Self {
        Self { body: body.into(), content_type }
    }

    /// Reads a page from a file; the file name extension determines its type.
    ///
    /// # Errors
    /// It does not exist, is not readable, is not a file, or has more than [`MOST_FILE_BYTES`].
    pub fn read(path: &Path) -> Result<Self, PageError> {
        let failed = |error| PageError::Read { path: path.into(), error };
        let kind = std::fs::metadata(path).map_err(failed)?;
        if !kind.is_file() {
            let what = if kind.is_dir() { "a directory" } else { "not a regular file" };
            return Err(PageError::NotAFile { path: path.into(), what });
        }
        let mut body = Vec::new();
        // Bounded by the bytes read rather than by the initial size: the file may grow meanwhile.
        File::open(path)
            .and_then(|file| file.take(MOST_FILE_BYTES + 1).read_to_end(&mut body))
            .map_err(failed)?;
        if body.len() as u64 > MOST_FILE_BYTES {
            return Err(PageError::TooLarge { path: path.into() });
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        Ok(Self::new(body, content_type(extension)))
    }

    /// Bytes of the page.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Its media type.
    #[must_use]
    pub fn content_type(&self) -> &'static str {
        self.content_type
    }
}

/// The media type by file name extension, HTML if unknown.
fn content_type(extension: &str) -> &'static str {
    match extension.to_ascii_lowercase().as_str() {
        "txt" | "md" => "text/plain; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "pdf" => "application/pdf",
        "wasm" => "application/wasm",
        "bin" => "application/octet-stream",
        _ => "text/html; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_page_is_html_of_4096_bytes() {
        let page = Page::default();
        assert_eq!(page.body().len(), 4096);
        assert!(page.body().starts_with(b"<!DOCTYPE html>") && page.body().ends_with(b"</html>\n"));
    }

    #[test]
    fn a_file_is_read_and_its_extension_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for (name, expected) in [
            ("a.TXT", "text/plain; charset=utf-8"),
            ("a.json", "application/json"),
            ("a", "text/html; charset=utf-8"),
            ("a.unheard", "text/html; charset=utf-8"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, name).unwrap();
            let page = Page::read(&path).unwrap();
            assert_eq!((page.body(), page.content_type()), (name.as_bytes(), expected));
        }
    }

    #[test]
    fn what_is_no_page_is_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let missing = Page::read(&folder.path().join("none")).unwrap_err();
        assert!(missing.to_string().contains("give a file that exists"), "{missing}");
        let directory = Page::read(folder.path()).unwrap_err();
        assert!(directory.to_string().contains("is a directory; give a regular file"), "{directory}");
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(MOST_FILE_BYTES + 1).unwrap(); // sparse
        let large = Page::read(&large).unwrap_err();
        assert!(large.to_string().contains("larger than 64 MiB"), "{large}");
    }
}
