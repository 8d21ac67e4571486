//! What the connections of one I/O thread share: documents that were found lately, and the date.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::FilesOptions;
use super::store::{Content, Document};
use crate::http::answer::{date_now, second_begun};

/// What a document costs besides its bytes, about: names, tags, a head.
const EACH_BYTES: usize = 1024;

/// Most documents of a thread, however small they are.
const MOST: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

#[derive(Debug)]
pub(super) struct Lane {
    documents: LruCache<Box<str>, Kept>,
    /// Bytes and files of all documents, and how many there may be.
    bytes: usize,
    files: usize,
    most_bytes: usize,
    most_files: usize,
    /// How long a document is taken for unchanged.
    valid: Duration,
    pub(super) clock: Clock,
}

#[derive(Debug)]
struct Kept {
    document: Document,
    found: Instant,
    bytes: usize,
    files: usize,
}

/// The date, as answers say it.
#[derive(Debug)]
pub(super) struct Clock {
    started: Instant,
    pub(super) second: u64,
    pub(super) date: String,
}

impl Clock {
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

impl Lane {
    /// A share of what the options allow, of so many.
    pub(super) fn new(options: &FilesOptions, lanes: usize) -> Self {
        Self {
            documents: LruCache::new(MOST),
            bytes: 0,
            files: 0,
            most_bytes: options.cache_bytes / lanes,
            most_files: options.open_files / lanes,
            valid: options.valid,
            clock: Clock::new(Instant::now()),
        }
    }

    /// A document that was found lately enough, and the date.
    #[inline]
    pub(super) fn get(&mut self, key: &str, now: Instant) -> Option<(&mut Document, &Clock)> {
        self.clock.tick(now);
        let kept = self.documents.get_mut(key)?;
        let fresh = now.saturating_duration_since(kept.found) < self.valid;
        fresh.then_some((&mut kept.document, &self.clock))
    }

    /// Keeps a document that was just found, if it fits; forgets others for it. Gives it back to be answered with.
    pub(super) fn keep(&mut self, key: &str, document: Document, now: Instant) -> Result<(), Document> {
        self.forget(key);
        let (bytes, files) = cost(&document);
        if bytes > self.most_bytes || files > self.most_files || self.valid.is_zero() {
            return Err(document);
        }
        while self.bytes + bytes > self.most_bytes || self.files + files > self.most_files {
            let Some((_, gone)) = self.documents.pop_lru() else { break };
            self.uncount(&gone);
        }
        self.bytes += bytes;
        self.files += files;
        if let Some((_, gone)) = self.documents.push(key.into(), Kept { document, found: now, bytes, files })
        {
            self.uncount(&gone);
        }
        Ok(())
    }

    /// Forgets the document with open files that was not asked for the longest; false if there is none.
    pub(super) fn close_one(&mut self) -> bool {
        let oldest = self.documents.iter().rev().find(|(_, kept)| kept.files > 0);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else { return false };
        self.forget(&key);
        true
    }

    /// What was found is no longer there.
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
        let content = Content::Memory(Bytes::from(vec![0; bytes]));
        let modified = SystemTime::UNIX_EPOCH;
        let (etag, length) = ("\"\"".into(), bytes as u64);
        let plain = Variant { coding: None, length, modified, etag, content, whole: None };
        Document { content_type: "text/plain".into(), variants: vec![plain] }
    }

    #[test]
    fn the_cache_keeps_its_bounds_and_forgets_what_was_not_asked_for() {
        let options = FilesOptions { cache_bytes: 10 * EACH_BYTES, ..FilesOptions::default() };
        let mut lane = Lane::new(&options, 1);
        let now = Instant::now();
        for key in ["a", "b", "c"] {
            lane.keep(key, document(2 * EACH_BYTES), now).unwrap();
        }
        assert!(lane.get("a", now).is_some());
        lane.keep("d", document(2 * EACH_BYTES), now).unwrap();
        assert!(lane.get("b", now).is_none(), "the one that was not asked for");
        assert!(
            lane.get("a", now).is_some() && lane.get("c", now).is_some() && lane.bytes <= lane.most_bytes
        );
        assert!(lane.keep("e", document(10 * EACH_BYTES), now).is_err(), "larger than all");
        assert!(lane.get("a", now + options.valid).is_none(), "too old");
        for key in ["a", "c", "d"] {
            lane.forget(key);
        }
        assert_eq!((lane.bytes, lane.files, lane.documents.len()), (0, 0, 0));
    }
}
