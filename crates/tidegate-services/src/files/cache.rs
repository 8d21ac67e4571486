//! State shared by the connections of one I/O thread: a cache of documents, and the date.

use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::FilesLimits;
use super::store::{Content, Document};
use crate::http::answer::{date_now, second_begun};

/// Approximate memory of a document besides its bytes: names, tags, a head.
const EACH_BYTES: usize = 1024;

/// Maximum documents of a thread, whatever their size.
const MOST: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Each is on separate cache lines, with its lock: every request writes to those of its thread.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct DocumentCache {
    documents: LruCache<Box<str>, Kept>,
    /// Limits on bytes, open files and number of documents.
    bytes: usize,
    files: usize,
    most_bytes: usize,
    most_files: usize,
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
    /// A thread's share of the limits.
    pub(super) fn new(limits: FilesLimits, caches: usize) -> Self {
        Self {
            documents: LruCache::new(MOST),
            bytes: 0,
            files: 0,
            most_bytes: limits.cache_bytes / caches,
            most_files: limits.open_files / caches,
            valid: limits.valid,
            clock: HttpDate::new(Instant::now()),
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
        if bytes > self.most_bytes || files > self.most_files || self.valid.is_zero() {
            return Err(document);
        }
        while self.bytes + bytes > self.most_bytes || self.files + files > self.most_files {
            let Some((_, gone)) = self.documents.pop_lru() else { break };
            self.uncount(&gone);
        }
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
    use std::sync::Mutex;
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
        let mut cache = DocumentCache::new(limits, 1);
        let now = Instant::now();
        for key in ["a", "b", "c"] {
            cache.keep(key, document(2 * EACH_BYTES), now).unwrap();
        }
        assert!(cache.get("a", now).is_some());
        cache.keep("d", document(2 * EACH_BYTES), now).unwrap();
        assert!(cache.get("b", now).is_none(), "the one that was not asked for");
        assert!(
            cache.get("a", now).is_some() && cache.get("c", now).is_some() && cache.bytes <= cache.most_bytes
        );
        assert!(cache.keep("e", document(10 * EACH_BYTES), now).is_err(), "larger than all");
        assert!(cache.get("a", now + limits.valid).is_none(), "too old");
        for key in ["a", "c", "d"] {
            cache.forget(key);
        }
        assert_eq!((cache.bytes, cache.files, cache.documents.len()), (0, 0, 0));
    }

    #[test]
    fn a_file_that_is_being_sent_is_not_closed_to_make_room() {
        let mut cache = DocumentCache::new(FilesLimits::default(), 1);
        let (now, sent) = (Instant::now(), Arc::new(tempfile::tempfile().unwrap()));
        let sending = Content::File(sent.clone());
        cache.keep("sent", containing(sending, 1), now).unwrap();
        cache.keep("memory", document(1), now).unwrap();
        cache
            .keep("kept", containing(Content::File(Arc::new(tempfile::tempfile().unwrap())), 1), now)
            .unwrap();
        assert!(cache.close_one() && cache.get("kept", now).is_none());
        assert!(!cache.close_one(), "nothing is left that would be closed");
        assert!(cache.get("sent", now).is_some() && cache.get("memory", now).is_some());
        drop(sent);
        assert!(cache.close_one() && cache.get("sent", now).is_none());
        assert!(!cache.close_one() && cache.files == 0 && cache.get("memory", now).is_some());
    }
}
