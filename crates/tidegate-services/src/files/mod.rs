//! HTTP (RFC 9110, RFC 9112): serves the files of a directory.
//!
//! | part | contents |
//! |---|---|
//! | [`path`] | maps a request target to a file name |
//! | `store` | opens files; `listing`: renders directory listings |
//! | `cache` | recently used documents, one cache for each I/O thread |
//! | `conditions`, `range`, [`coding`] | conditional requests, ranges, content codings |
//! | `answer` | selects the response; `transfer`: sends it in steps |
//! | `session` | handles one connection; [`http`](crate::http) parses its requests |
//!
//! Small files are cached in memory with their heads, and are sent with one call. Larger ones are kept open, and are
//! sent by [`Outbox::file`](tidegate::Outbox::file). Work that may block on the disk is offloaded; files in the page
//! cache are served directly.

mod answer;
mod cache;
pub mod coding;
mod conditions;
mod listing;
pub mod path;
mod range;
mod session;
mod store;
mod transfer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::system::file::Folder;
use tidegate::{Peer, Refusal, Service};

pub use coding::Coding;

use crate::http::HttpLimits;
use crate::http::session::Conversation;
use cache::DocumentCache;
use session::{FileResponder, SharedFiles};
use store::Store;

/// Options of the file server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// Index files of a directory, in order of preference. Default `index.html`.
    pub index: Vec<String>,
    /// Whether a directory without an index is answered with a listing. Default off: 403.
    pub listing: Listing,
    /// Codings of precompressed files, such as `a.css.gz` next to `a.css`. One that is older than the file is not used.
    /// Default all. Each costs a directory lookup when a file is opened.
    pub precompressed: Vec<Coding>,
    /// Memory for small files, over all I/O threads. Each thread has an equal share, and so its own copy of what it
    /// serves. Default 64 MiB; 0 disables the cache.
    pub cache_bytes: usize,
    /// Files of at most this many bytes are kept in memory. Default 64 KiB.
    pub small_bytes: usize,
    /// Larger files that are kept open, over all I/O threads. Default 1,000. Each is a descriptor.
    pub open_files: usize,
    /// How long a cached file is served without checking it again. Default 1 s; zero checks each time.
    pub valid: Duration,
    /// Maximum connections served; further ones are answered with 503 and Retry-After. Default `None`: the policy's
    /// limit. Only useful below [`Policy::max_connections`](tidegate::Policy::max_connections).
    pub busy_above: Option<usize>,
}

/// Whether directories without an index are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// They are answered with 403.
    #[default]
    Off,
    /// They are listed.
    On,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            index: vec!["index.html".into()],
            listing: Listing::Off,
            precompressed: Coding::ALL.to_vec(),
            cache_bytes: 64 << 20,
            small_bytes: 64 << 10,
            open_files: 1000,
            valid: Duration::from_secs(1),
            busy_above: None,
        }
    }
}

/// The directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// An error of the system.
    #[error("cannot serve {}: {error}; give a directory that exists and is readable", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// An invalid name of an index file.
    #[error("the index {0:?} is not a file name; it must have no slashes and no leading dot")]
    Index(String),
    /// More may be cached per file than in total.
    #[error("small_bytes ({small_bytes}) is above cache_bytes ({cache_bytes}): lower one or raise the other")]
    SmallAboveCache {
        /// [`FilesOptions::small_bytes`].
        small_bytes: usize,
        /// [`FilesOptions::cache_bytes`].
        cache_bytes: usize,
    },
}

/// Serves the files of a directory.
#[derive(Debug)]
pub struct Files {
    shared: Arc<SharedFiles>,
}

impl Files {
    /// Serves the directory `root` with these options.
    ///
    /// # Errors
    /// It cannot be opened, or an option is invalid.
    pub fn new(root: &Path, options: FilesOptions, limits: HttpLimits) -> Result<Self, FilesError> {
        let odd =
            |name: &&String| name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']);
        if let Some(name) = options.index.iter().find(odd) {
            return Err(FilesError::Index(name.clone()));
        }
        let (small_bytes, cache_bytes) = (options.small_bytes, options.cache_bytes);
        if small_bytes > cache_bytes && cache_bytes > 0 {
            return Err(FilesError::SmallAboveCache { small_bytes, cache_bytes });
        }
        let folder = Folder::open(root).map_err(|error| FilesError::Open { path: root.into(), error })?;
        tracing::info!(root = %root.display(), confinement = folder.confinement(), "serving files");
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(64);
        let caches = (0..processors).map(|_| Mutex::new(DocumentCache::new(&options, processors))).collect();
        let store = Store::new(folder, options);
        Ok(Self { shared: Arc::new(SharedFiles { store, caches, limits, open: AtomicUsize::new(0) }) })
    }
}

/// One connection of [`Files`].
pub type FilesSession = Conversation<FileResponder>;

impl Service for Files {
    type Session = FilesSession;

    fn open(&self, peer: &Peer) -> Result<FilesSession, Refusal> {
        Ok(Conversation::new(FileResponder::new(self.shared.clone(), peer.thread)))
    }
}
