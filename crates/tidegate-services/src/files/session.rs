//! Handles the requests of one connection.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::system::file::Blocking;
use tidegate::{Mail, Outbox};

use super::answer::answer;
use super::cache::DocumentCache;
use super::conditions::matters;
use super::path::{escaped, resource};
use super::store::{Document, Found, Store};
use super::transfer::Transfer;
use crate::http::HttpLimits;
use crate::http::answer::{refusal, said};
use crate::http::fault::{RequestError, Status};
use crate::http::head::{ResponseForm, Spoken};
use crate::http::session::{Answered, Request, Responder};

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct SharedFiles {
    pub(super) store: Store,
    pub(super) caches: Vec<Mutex<DocumentCache>>,
    pub(super) limits: HttpLimits,
    /// Connections that are open.
    pub(super) open: AtomicUsize,
}

impl SharedFiles {
    fn cache(&self, cache: usize) -> MutexGuard<'_, DocumentCache> {
        self.caches[cache].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a key's document. If no descriptor is left, idle cached files are closed: of this thread's cache first,
    /// then of the others.
    fn find(&self, cache: usize, key: &str, blocking: Blocking) -> io::Result<Found> {
        let caches = || (0..self.caches.len()).map(|after| (cache + after) % self.caches.len());
        self.store.find(key, blocking, || caches().any(|cache| self.cache(cache).close_one()))
    }
}

/// One connection.
#[derive(Debug)]
pub struct FileResponder {
    shared: Arc<SharedFiles>,
    cache: usize,
    /// The limit of connections was reached when it was accepted.
    busy: bool,
    work: Option<Box<Work>>,
}

/// Why a response is not complete.
#[derive(Debug)]
enum Work {
    /// A job opens the file.
    Looking(Wanted),
    /// The outbox is full, or a job reads.
    Sending(Transfer),
}

/// A request that waits for its file, reduced to what its response depends on.
#[derive(Debug)]
struct Wanted {
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    form: ResponseForm,
}

impl FileResponder {
    pub(super) fn new(shared: Arc<SharedFiles>, thread: usize) -> Self {
        let open = shared.open.fetch_add(1, Relaxed) + 1;
        let busy = shared.store.options.limits.busy_above.is_some_and(|most| open > most);
        let cache = thread % shared.caches.len().max(1);
        Self { shared, cache, busy, work: None }
    }

    fn cache(&self) -> MutexGuard<'_, DocumentCache> {
        self.shared.cache(self.cache)
    }

    /// Responds, or continues responding, with the document of a key.
    fn respond(&mut self, key: &str, found: Found, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let fault = match found {
            Found::File(document) => return self.respond_with(key, document, request, out),
            Found::Page(page) => return self.page(&page, request, out),
            Found::Folder => return self.redirect(request, out),
            Found::Refused(fault) => fault,
        };
        self.cache().forget(key);
        self.refuse(&fault, request.form, out);
        Answered::Whole
    }

    fn respond_with(
        &mut self,
        key: &str,
        document: Document,
        request: &Request<'_>,
        out: &mut Outbox<'_>,
    ) -> Answered {
        let transfer = {
            let mut cache = self.cache();
            match cache.keep(key, document, out.now()) {
                Ok(()) => match cache.get(key, out.now()) {
                    Some((document, clock)) => answer(document, request, clock, out),
                    None => None,
                },
                Err(mut alone) => answer(&mut alone, request, &cache.clock, out),
            }
        };
        self.send(transfer, out)
    }

    #[inline]
    fn send(&mut self, transfer: Option<Transfer>, out: &mut Outbox<'_>) -> Answered {
        let Some(mut transfer) = transfer else { return Answered::Whole };
        let answered = transfer.feed(out);
        if answered == Answered::UnderWay {
            self.work = Some(Box::new(Work::Sending(transfer)));
        }
        answered
    }

    /// Redirects to the same path with a trailing slash. Never to another host: a name has no leading slash.
    fn redirect(&self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let Ok(resource) = resource(request.spoken.target) else { return Answered::Whole };
        let (name, query) = (escaped(resource.name()), resource.query);
        let head = format!(
            "HTTP/1.1 301 Moved Permanently\r\nServer: tidegate\r\nDate: {}\r\nLocation: /{name}/{query}\r\n\
             Content-Length: 0\r\n{}\r\n",
            self.date(out),
            said(request.form.connection)
        );
        out.share(head.into());
        Answered::Whole
    }

    fn page(&self, page: &str, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let mut text = format!(
            "HTTP/1.1 200 OK\r\nServer: tidegate\r\nDate: {}\r\nContent-Type: text/html; charset=utf-8\r\n\
             Content-Length: {}\r\nCache-Control: no-cache\r\n{}\r\n",
            self.date(out),
            page.len(),
            said(request.form.connection)
        );
        if !request.form.head_only {
            text.push_str(page);
        }
        out.share(text.into());
        Answered::Whole
    }

    fn date(&self, out: &Outbox<'_>) -> String {
        let mut cache = self.cache();
        cache.clock.tick(out.now());
        cache.clock.date.clone()
    }

    /// Offloads opening a file that is not in the cache.
    #[cold]
    fn look(&mut self, key: &str, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let (shared, cache, key) = (self.shared.clone(), self.cache, key.to_owned());
        if out.offload(move || shared.find(cache, &key, Blocking::Waits)).is_err() {
            let why = "too many files are being opened; retry later".into();
            self.refuse(&RequestError { status: Status::Unavailable, why }, request.form, out);
            return Answered::Whole;
        }
        self.work = Some(Box::new(Work::Looking(Wanted::of(request))));
        Answered::UnderWay
    }
}

impl Wanted {
    fn of(request: &Request<'_>) -> Self {
        let fields = request.spoken.fields.iter().filter(|field| matters(field.name));
        Self {
            target: request.spoken.target.to_owned(),
            fields: fields.map(|field| (field.name.to_owned(), field.value.to_vec())).collect(),
            form: request.form,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&Request<'_>) -> T) -> T {
        let fields = self.fields.iter().map(|(name, value)| httparse::Header { name, value });
        let fields: Vec<_> = fields.collect();
        let spoken = Spoken { target: &self.target, authority: b"", fields: &fields };
        f(&Request { form: self.form, spoken })
    }
}

impl Responder for FileResponder {
    #[inline]
    fn limits(&self) -> &HttpLimits {
        &self.shared.limits
    }

    #[inline]
    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        if self.busy {
            let why = "the server is busy; retry later".into();
            self.refuse(&RequestError { status: Status::Unavailable, why }, request.form.closing(), out);
            return Answered::Final;
        }
        let resource = match resource(request.spoken.target) {
            Ok(resource) => resource,
            Err(fault) => {
                self.refuse(&fault, request.form, out);
                return Answered::Whole;
            }
        };
        let known = {
            let mut cache = self.cache();
            cache.get(&resource.key, out.now()).map(|(document, clock)| answer(document, request, clock, out))
        };
        if let Some(transfer) = known {
            return self.send(transfer, out);
        }
        match self.shared.find(self.cache, &resource.key, Blocking::Never) {
            Ok(found) => self.respond(&resource.key, found, request, out),
            Err(_) => self.look(&resource.key, request, out),
        }
    }

    #[cold]
    fn refuse(&mut self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>) {
        let more = if fault.status == Status::Unavailable { "Retry-After: 1\r\n" } else { "" };
        let date = self.date(out);
        out.share(refusal(fault.status, &fault.why, &date, more, form));
    }

    fn go_on(&mut self, out: &mut Outbox<'_>) -> Answered {
        let answered = match self.work.as_deref_mut() {
            // A job reads the next bytes, or opens the file.
            Some(Work::Sending(transfer)) if transfer.waits() => Answered::UnderWay,
            Some(Work::Looking(_)) => Answered::UnderWay,
            Some(Work::Sending(transfer)) => transfer.feed(out),
            None => Answered::Whole,
        };
        if answered != Answered::UnderWay {
            self.work = None;
        }
        answered
    }

    fn done(&mut self, mail: Mail, out: &mut Outbox<'_>) -> Answered {
        match self.work.take().map(|work| *work) {
            Some(Work::Sending(mut transfer)) => {
                transfer.was_read();
                self.send(Some(transfer), out)
            }
            Some(Work::Looking(wanted)) => {
                let found = match mail {
                    Mail::Done(found) => {
                        found.downcast::<io::Result<Found>>().ok().and_then(|found| found.ok())
                    }
                    _ => None,
                };
                let why = "opening the file failed".into();
                let found =
                    found.unwrap_or(Found::Refused(RequestError { status: Status::InternalError, why }));
                wanted.with(|request| match resource(request.spoken.target) {
                    Ok(resource) => self.respond(&resource.key, found, request, out),
                    Err(_) => Answered::Whole, // this name was looked up
                })
            }
            None => Answered::Whole,
        }
    }
}

impl Drop for FileResponder {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use tidegate::system::file::Folder;

    use super::*;
    use crate::files::{FilesLimits, FilesOptions};

    const CHILD: &str = "TIDEGATE_TEST_WITH_FEW_DESCRIPTORS";

    #[test]
    fn files_that_are_only_kept_open_yield_to_one_that_is_asked_for() {
        if std::env::var_os(CHILD).is_none() {
            let name = "files::session::tests::files_that_are_only_kept_open_yield_to_one_that_is_asked_for";
            let output = Command::new("sh")
                .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
                .arg(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture"])
                .env(CHILD, "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for n in 0..300 {
            std::fs::write(folder.path().join(format!("f{n}")), [b'x'; 2048]).unwrap();
        }
        // As many may be kept open as there are not.
        let limits = FilesLimits::default().small_bytes(1024).open_files(2_000);
        let options = FilesOptions { limits, ..FilesOptions::default() };
        let caches = (0..2).map(|_| Mutex::new(DocumentCache::new(limits, 2))).collect();
        let store = Store::new(Folder::open(folder.path()).unwrap(), options);
        let shared = SharedFiles { store, caches, limits: HttpLimits::default(), open: AtomicUsize::new(0) };
        let mut refused = 0;
        for round in 0..4 {
            for n in 0..300 {
                let (key, cache) = (resource(&format!("/f{n}")).unwrap().key.to_string(), round % 2);
                match shared.find(cache, &key, Blocking::Waits).unwrap() {
                    Found::File(document) => {
                        shared.cache(cache).keep(&key, document, Instant::now()).unwrap()
                    }
                    _ => refused += 1,
                }
            }
        }
        assert_eq!(refused, 0, "of 1,200");
    }
}
