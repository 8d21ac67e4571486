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
//! | `http2` | the same over HTTP/2, by hyper (feature `http2`): [`Files::http2`] |
//!
//! Small files are cached in memory with their heads, and are sent with one call. Larger ones are kept open, and are
//! sent by [`Outbox::file`](tidegate::Outbox::file). Work that may block on the disk is offloaded; files in the page
//! cache are served directly.

mod answer;
mod cache;
pub mod coding;
mod conditions;
#[cfg(feature = "http2")]
mod http2;
mod listing;
pub mod path;
mod range;
mod session;
mod store;
mod transfer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{Limit, Limited, PolicyError};
use tidegate::system::file::Folder;
use tidegate::{Peer, Policy, Refusal, Service};

pub use coding::{Coding, ParseCodingError};

use crate::http::session::Conversation;
use crate::http::{HttpLimits, NoHttp2};
use cache::DocumentCaches;
use session::{FileAccess, FileResponder, ServedFiles, SharedFiles};
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
    /// Limits of the cache, and of connections served.
    pub limits: FilesLimits,
}

tidegate::limits! {
/// Limits of a file server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesLimits, as "" of FilesLimits, at |limits| Some(limits);
    parts {}

    /// Each I/O thread that has had a connection has an equal share, and so its own copy of what it serves; beyond 64
    /// threads some share one. Without a cache no file is small.
    cache_bytes: usize = 64 * 1024 * 1024 => {
        what: "Memory for cached small files, over all I/O threads; 0 disables the cache",
        cost: "this much memory; too little: files are read again",
        option: "cache-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// At most what fits into a thread's share of the cache.
    small_bytes: usize = 64 * 1024 => {
        what: "Files up to this size are cached in memory",
        cost: "larger: fewer files fit; smaller: more files are kept open, and sent from the page cache",
        option: "small-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
        default_note: Some("64KiB, at most cache-bytes"),
        relation: Some(Relation {
            holds: AtMost,
            other: "cache_bytes",
            remedy: "a file has to fit into the cache; lower `small_bytes` or raise `cache_bytes`",
        }),
    }
    /// Shared like `cache_bytes`; if there are fewer than threads, so many threads keep one.
    open_files: usize = 1_000 => {
        what: "Larger files that are kept open, over all I/O threads",
        cost: "a descriptor for each",
        option: "open-files",
        unit: Count,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
        default_note: Some("1000, and at most a quarter of the descriptors"),
    }
    valid: Duration = Duration::from_secs(1) => {
        what: "How long a cached file is served without checking for changes; 0s checks each time",
        cost: "longer: changes show later; shorter: more system calls",
        option: "valid",
        unit: Time,
        range: TIME_OR_ZERO,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// With Retry-After. `None` leaves it to the policy, and so does a value that `max_connections` does not exceed.
    /// Counts all connections to one [`Files`], as `max_connections` does those of one server: see
    /// [`Files::for_another_server`].
    busy_above: Option<usize> = None => {
        what: "Answer further connections with 503 while this many are open",
        cost: "lower: fewer clients are served; the connections above it are for these answers",
        option: "busy-above",
        unit: Count,
        range: Within(1, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
        default_note: Some("15/16 of max-connections where a full server refuses, as with --strategy throughput"),
        relation: Some(Relation {
            holds: Below,
            other: "max_connections",
            remedy: "no connection is left for 503 responses; lower `busy_above` or raise `max_connections`",
        }),
    }
}

impl Limited for FilesLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl FilesLimits {
    /// Checks the limits, also against the policy of the service; `bind` does the same, but takes a
    /// [`busy_above`](#structfield.busy_above) that has no effect because `max_connections` is lower.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.effective().check_under(policy)
    }

    /// Without a cache no file is small.
    fn effective(self) -> Self {
        if self.cache_bytes == 0 { self.small_bytes(0) } else { self }
    }
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
            limits: FilesLimits::default(),
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
    /// A limit is out of range, or contradicts another one.
    #[error(transparent)]
    Limits(#[from] PolicyError),
}

/// Serves the files of a directory.
#[derive(Debug)]
pub struct Files {
    served: Arc<ServedFiles>,
}

impl Files {
    /// Serves the directory `root` with these options.
    ///
    /// # Errors
    /// It cannot be opened, or an option is invalid.
    pub fn new(root: &Path, mut options: FilesOptions, limits: HttpLimits) -> Result<Self, FilesError> {
        let odd =
            |name: &&String| name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']);
        if let Some(name) = options.index.iter().find(odd) {
            return Err(FilesError::Index(name.clone()));
        }
        options.limits = options.limits.effective();
        options.limits.check_alone()?;
        let folder = Folder::open(root).map_err(|error| FilesError::Open { path: root.into(), error })?;
        tracing::info!(root = %root.display(), confinement = folder.confinement(), "serving files");
        let caches = DocumentCaches::new(options.limits);
        let store = Store::new(folder, options);
        Ok(Self::of(Arc::new(SharedFiles { store, caches, limits })))
    }

    fn of(shared: Arc<SharedFiles>) -> Self {
        Self { served: Arc::new(ServedFiles::new(shared)) }
    }

    /// The same files from the same cache for another server, such as one at another address: its connections are
    /// counted separately for [`FilesLimits::busy_above`].
    #[must_use]
    pub fn for_another_server(&self) -> Self {
        Self::of(self.served.shared.clone())
    }
}

impl Files {
    /// Serves the same files with the same answers over HTTP/2 and HTTP/1.1, by hyper on `tidegate-async`.
    ///
    /// Without TLS it takes HTTP/2 by prior knowledge (RFC 9113, section 3.3); with TLS offer `h2` and `http/1.1`. A
    /// head has room for at least 8 KiB. Larger files are read in pieces and copied, not sent by the kernel.
    ///
    /// # Errors
    /// This was built without the feature `http2`.
    #[cfg(feature = "http2")]
    pub fn http2(self) -> Result<impl Service, NoHttp2> {
        Ok(http2::service(self.served))
    }

    /// Serves the same files over HTTP/2 and HTTP/1.1: not in this build.
    ///
    /// # Errors
    /// Always: this was built without the feature `http2`.
    #[cfg(not(feature = "http2"))]
    pub fn http2(self) -> Result<impl Service, NoHttp2> {
        Err::<Self, _>(NoHttp2 {})
    }
}

/// One connection of [`Files`].
pub type FilesSession = Conversation<FileResponder>;

impl Service for Files {
    type Session = FilesSession;

    fn open(&self, peer: &Peer) -> Result<FilesSession, Refusal> {
        Ok(Conversation::new(FileResponder::new(FileAccess::new(self.served.clone(), peer.thread))))
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.served.shared.check_limits(policy)
    }
}
