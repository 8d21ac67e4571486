//! HTTP (RFC 9110, RFC 9112): the files of a folder.
//!
//! | part | what it is |
//! |---|---|
//! | [`path`] | from the target of a request to a name |
//! | `store` | from a name to a file; `listing`: from a folder to a page |
//! | `cache` | what was found lately, one for each I/O thread |
//! | `conditions`, `range`, [`coding`] | what a request says about the answer it wants |
//! | `answer` | which answer that is; `transfer`: one that is handed over in steps |
//! | `session` | answering one connection; reading its requests is [`http`](crate::http)'s |
//!
//! Small files are kept in memory with their heads, and leave in one send. Larger ones are kept open, and leave by
//! [`Outbox::file`](tidegate::Outbox::file). What may have to wait for the disk is offloaded; what the kernel has at
//! hand is not.

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
use cache::Lane;
use session::{Clerk, Shop};
use store::Store;

/// How files are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOptions {
    /// What a folder is answered with, the first of these that it has. Default `index.html`.
    pub index: Vec<String>,
    /// Whether a folder without an index is answered with a list of what is in it. Default off: 403.
    pub listing: Listing,
    /// Codings in which files may lie beside a file, such as `a.css.gz` beside `a.css`. One that is older than the file
    /// is not used. Default all. Each costs a look into the folder when a file is looked for.
    pub precompressed: Vec<Coding>,
    /// Bytes of memory for small files, over all I/O threads. Each of them has an equal share, and so a copy of what it
    /// serves. Default 64 MiB; 0 keeps nothing.
    pub cache_bytes: usize,
    /// Files of at most this many bytes are kept in memory. Default 64 KiB.
    pub small_bytes: usize,
    /// Larger files that are kept open, over all I/O threads. Default 1,000. Each is a descriptor.
    pub open_files: usize,
    /// How long what was found is served without looking at the file again. Default 1 s; zero looks each time.
    pub valid: Duration,
    /// Connections that are served; who comes while so many are open is answered with 503 and Retry-After. Default
    /// `None`: as many as the policy lets in. Of use only below
    /// [`Policy::max_connections`](tidegate::Policy::max_connections).
    pub busy_above: Option<usize>,
}

/// Whether folders without an index are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listing {
    /// They are refused.
    #[default]
    Off,
    /// They are.
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

/// The folder cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// The system does not give it.
    #[error("cannot serve {}: {source}; name a folder that exists and may be read", path.display())]
    Open {
        /// The folder asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// An index that is not in the folder that is asked for.
    #[error("the index {0:?} is no name of a file; write one without slashes that does not begin with a dot")]
    Index(String),
    /// More is kept in memory than there is memory for.
    #[error("small_bytes ({small_bytes}) is above cache_bytes ({cache_bytes}): lower one or raise the other")]
    SmallAboveCache {
        /// [`FilesOptions::small_bytes`].
        small_bytes: usize,
        /// [`FilesOptions::cache_bytes`].
        cache_bytes: usize,
    },
}

/// The service that answers with the files of a folder.
#[derive(Debug)]
pub struct Files {
    shop: Arc<Shop>,
}

impl Files {
    /// Serves the folder at `root` within `limits`.
    ///
    /// # Errors
    /// It cannot be opened, or an option cannot be kept.
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
        let folder = Folder::open(root).map_err(|source| FilesError::Open { path: root.into(), source })?;
        tracing::info!(root = %root.display(), confinement = folder.confinement(), "serving files");
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(64);
        let lanes = (0..processors).map(|_| Mutex::new(Lane::new(&options, processors))).collect();
        let store = Store { folder, options };
        Ok(Self { shop: Arc::new(Shop { store, lanes, limits, open: AtomicUsize::new(0) }) })
    }
}

/// One connection of [`Files`].
pub type FilesSession = Conversation<Clerk>;

impl Service for Files {
    type Session = FilesSession;

    fn open(&self, peer: &Peer) -> Result<FilesSession, Refusal> {
        Ok(Conversation::new(Clerk::new(self.shop.clone(), peer.thread)))
    }
}
