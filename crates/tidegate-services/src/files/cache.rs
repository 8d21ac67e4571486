//! State shared by the connections of one I/O thread: a cache of documents, and the date. The caches of all threads.

use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

use super::FilesLimits;
use super::store::{Content, Document};
use crate::http::answer::{date_now, second_begun};

/// Approximate memory of a document besides its bytes: names, tags, a head.
const EACH_BYTES: usize = 1024;

/// Maximum documents of a thread, whatever their size.
const MOST: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Maximum caches; more I/O threads share them.
const MOST_CACHES: usize = 64;

/// The caches of all I/O threads. Each of those that have had a connection has an equal share of the limits: how many
/// threads there will be, and whether the model tells them apart, is not known before.
#[derive(Debug)]
pub(super) struct DocumentCaches {
    caches: Box<[OnceLock<Mutex<DocumentCache>>]>,
    /// The first so many are in use.
    used: AtomicUsize,
    limits: FilesLimits,
}

impl DocumentCaches {
    pub(super) fn new(limits: FilesLimits) -> Self {
        Self {
            caches: (0..MOST_CACHES).map(|_| OnceLock::new()).collect(),
            used: AtomicUsize::new(1),
            limits,
        }
    }

    /// The index of an I/O thread's cache, which has its share from now on.
    pub(super) fn index(&self, thread: usize) -> usize {
        let index = thread % MOST_CACHES;
        if index >= self.used() {
            self.share_among(index + 1);
        }
        index
    }

    #[cold]
    fn share_among(&self, count: usize) {
        self.used.fetch_max(count, SeqCst);
        for index in 0..count {
            let mut cache = self.lock(index);
            // Read again under the lock: the last one to set it has seen the largest number.
            let share = self.share(index);
            cache.limit(share);
        }
    }

    pub(super) fn lock(&self, index: usize) -> MutexGuard<'_, DocumentCache> {
        let make = || Mutex::new(DocumentCache::new(self.share(index), self.limits.valid));
        self.caches[index].get_or_init(make).lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(SeqCst)
    }

    fn share(&self, index: usize) -> CacheShare {
        let (used, FilesLimits { cache_bytes, open_files, .. }) = (self.used(), self.limits);
        CacheShare {
            bytes: cache_bytes / used,
            files: open_files / used + usize::from(index < open_files % used),
        }
    }

    /// Files up to this size are kept in memory: each fits into a share.
    pub(super) fn small_bytes(&self) -> usize {
        self.limits.small_bytes.min(self.share(0).bytes.saturating_sub(EACH_BYTES))
    }
}

/// A cache's part of the limits on bytes and open files.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheShare {
    bytes: usize,
    files: usize,
}

/// Each is on separate cache lines, with its lock: every request writes to those of its thread.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct DocumentCache {
    documents: LruCache<Box<str>, Kept>,
    /// What they take of `most`.
    bytes: usize,
    files: usize,
    most: CacheShare,
    /// How long a document counts as fresh.
    valid: Duration,
    pub(super) clock: HttpDate,
}

#[derive(Debug)]
struct Kept {
    document: Document,
    found: Instant,
    bytes: usize,
    files: usize,
}

impl Kept {
    /// Whether evicting it closes a file. A response that is being sent holds its own reference, taken under this lock.
    fn has_idle_file(&self) -> bool {
        let is_idle = |file: &Arc<File>| Arc::strong_count(file) == 1;
        self.files > 0
            && self.document.variants.iter().any(|variant| match &variant.content {
                Content::Memory(_) => false,
                Content::File(file) => is_idle(file),
            })
    }
}

/// The date as responses contain it.
#[derive(Debug)]
pub(super) struct HttpDate {
    started: Instant,
    pub(super) second: u64,
    pub(super) date: String,
}

impl HttpDate {
    fn new(now: Instant) -> Self {
        Self { started: second_begun(now), second: 0, date: date_now() }
    }

    #[inline]
    pub(super) fn tick(&mut self, now: Instant) {
        let second = now.saturating_duration_since(self.started).as_secs();
        if second != self.second {
            self.second = second;
            self.date = date_now();
        }
    }
}

impl DocumentCache {
    fn new(most: CacheShare, valid: Duration) -> Self {
        let clock = HttpDate::new(Instant::now());
        Self { documents: LruCache::new(MOST), bytes: 0, files: 0, most, valid, clock }
    }

    fn limit(&mut self, most: CacheShare) {
        self.most = most;
        self.make_room(0, 0);
    }

    fn make_room(&mut self, bytes: usize, files: usize) {
        while self.bytes + bytes > self.most.bytes || self.files + files > self.most.files {
            let Some((_, gone)) = self.documents.pop_lru() else { break };
            self.uncount(&gone);
        }
    }

    /// A fresh document, and the date.
    #[inline]
    pub(super) fn get(&mut self, key: &str, now: Instant) -> Option<(&mut Document, &HttpDate)> {
        self.clock.tick(now);
        let kept = self.documents.get_mut(key)?;
        let fresh = now.saturating_duration_since(kept.found) < self.valid;
        fresh.then_some((&mut kept.document, &self.clock))
    }

    /// Caches a new document, if it fits; evicts others for it. Returns it, and the date.
    pub(super) fn keep(
        &mut self,
        key: &str,
        document: Document,
        now: Instant,
    ) -> Result<(&mut Document, &HttpDate), Document> {
        self.forget(key);
        let (bytes, files) = cost(&document);
        if bytes > self.most.bytes || files > self.most.files || self.valid.is_zero() {
            return Err(document);
        }
        self.make_room(bytes, files);
        if self.documents.len() == MOST.get()
            && let Some((_, gone)) = self.documents.pop_lru()
        {
            self.uncount(&gone);
        }
        self.bytes += bytes;
        self.files += files;
        let kept =
            self.documents.get_or_insert_mut(key.into(), || Kept { document, found: now, bytes, files });
        Ok((&mut kept.document, &self.clock))
    }

    /// Closes a file: evicts the least recently used document whose file is not being sent (evicting one that is would
    /// close nothing, and open it twice). False if there is none.
    pub(super) fn close_one(&mut self) -> bool {
        if self.files == 0 {
            return false; // without scanning all documents
        }
        let oldest = self.documents.iter().rev().find(|(_, kept)| kept.has_idle_file());
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return false };
        self.forget(&key);
        true
    }

    /// Removes a document that no longer exists.
    pub(super) fn forget(&mut self, key: &str) {
        if let Some(gone) = self.documents.pop(key) {
            self.uncount(&gone);
        }
    }

    fn uncount(&mut self, gone: &Kept) {
        self.bytes -= gone.bytes;
        self.files -= gone.files;
    }
}

/// Bytes in memory, and open files.
fn cost(document: &Document) -> (usize, usize) {
    let (mut bytes, mut files) = (EACH_BYTES, 0);
    for variant in &document.variants {
        match &variant.content {
            Content::Memory(body) => bytes += body.len(),
            Content::File(_) => files += 1,
        }
    }
    (bytes, files)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use bytes::Bytes;

    use super::*;
    use crate::files::store::Variant;

    fn document(bytes: usize) -> Document {
        containing(Content::Memory(Bytes::from(vec![0; bytes])), bytes)
    }

    fn containing(content: Content, bytes: usize) -> Document {
        let modified = SystemTime::UNIX_EPOCH;
        let (etag, length) = ("\"\"".into(), bytes as u64);
        let plain = Variant { coding: None, length, modified, etag, content, whole: None };
        Document { content_type: "text/plain".into(), variants: vec![plain] }
    }

    #[test]
    fn two_caches_and_their_locks_share_no_cache_line() {
        assert!(align_of::<Mutex<DocumentCache>>() >= 128);
    }

    #[test]
    fn the_cache_keeps_its_bounds_and_forgets_what_was_not_asked_for() {
        let limits = FilesLimits::default().cache_bytes(10 * EACH_BYTES);
        let caches = DocumentCaches::new(limits);
        let mut cache = caches.lock(0);
        let now = Instant::now();
        for key in ["a", "b", "c"] {
            cache.keep(key, document(2 * EACH_BYTES), now).unwrap();
        }
        assert!(cache.get("a", now).is_some());
        cache.keep("d", document(2 * EACH_BYTES), now).unwrap();
        assert!(cache.get("b", now).is_none(), "the one that was not asked for");
        assert!(
            cache.get("a", now).is_some() && cache.get("c", now).is_some() && cache.bytes <= cache.most.bytes
        );
        assert!(cache.keep("e", document(10 * EACH_BYTES), now).is_err(), "larger than all");
        assert!(cache.get("a", now + limits.valid).is_none(), "too old");
        for key in ["a", "c", "d"] {
            cache.forget(key);
        }
        assert_eq!((cache.bytes, cache.files, cache.documents.len()), (0, 0, 0));
    }

    fn open_file() -> Document {
        containing(Content::File(Arc::new(tempfile::tempfile().unwrap())), 1)
    }

    #[test]
    fn threads_have_equal_shares_of_the_limits_and_one_alone_has_all() {
        let limits =
            FilesLimits::default().cache_bytes(8 * EACH_BYTES).small_bytes(8 * EACH_BYTES).open_files(3);
        let caches = DocumentCaches::new(limits);
        let now = Instant::now();
        let fill = |index| {
            for n in 0..9 {
                let _ = caches.lock(index).keep(&format!("small {n}"), document(EACH_BYTES), now);
            }
            for n in 0..3 {
                let _ = caches.lock(index).keep(&format!("open {n}"), open_file(), now);
            }
        };
        let sums = || {
            let all =
                (0..caches.used()).map(|index| caches.lock(index)).map(|cache| (cache.bytes, cache.files));
            all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        assert_eq!(caches.index(0), 0);
        fill(0);
        assert_eq!((sums(), caches.small_bytes()), ((7 * EACH_BYTES, 3), 7 * EACH_BYTES));
        // What one thread has kept yields to the others.
        for (thread, small) in [(1, 3), (7, 0)] {
            assert_eq!(caches.index(thread), thread);
            let (bytes, files) = sums();
            assert!(bytes <= 8 * EACH_BYTES && files <= 3, "{bytes} bytes, {files} files");
            (0..=thread).for_each(fill);
            assert_eq!((sums().1, caches.small_bytes()), (3, small * EACH_BYTES), "as many files as ever");
            assert!(sums().0 <= 8 * EACH_BYTES);
        }
        assert_eq!((caches.index(MOST_CACHES + 1), caches.used()), (1, 8));
    }

    #[test]
    fn a_file_that_is_being_sent_is_not_closed_to_make_room() {
        let caches = DocumentCaches::new(FilesLimits::default());
        let mut cache = caches.lock(0);
        let (now, sent) = (Instant::now(), Arc::new(tempfile::tempfile().unwrap()));
        let sending = Content::File(sent.clone());
        cache.keep("sent", containing(sending, 1), now).unwrap();
        cache.keep("memory", document(1), now).unwrap();
        cache.keep("kept", open_file(), now).unwrap();
        assert!(cache.close_one() && cache.get("kept", now).is_none());
        assert!(!cache.close_one(), "nothing is left that would be closed");
        assert!(cache.get("sent", now).is_some() && cache.get("memory", now).is_some());
        drop(sent);
        assert!(cache.close_one() && cache.get("sent", now).is_none());
        assert!(!cache.close_one() && cache.files == 0 && cache.get("memory", now).is_some());
    }
}
