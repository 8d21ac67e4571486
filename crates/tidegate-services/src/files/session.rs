//! Handles the requests of one connection.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use tidegate::system::file::Blocking;
use tidegate::{Mail, Outbox, Policy, PolicyError};

use super::answer::{FileResponse, answer};
use super::cache::{DocumentCache, DocumentCaches, HttpDate};
use super::conditions::{Asked, matters};
use super::path::{Resource, resource};
use super::store::{Document, Found, Store};
use super::transfer::Transfer;
use crate::http::HttpLimits;
use crate::http::fault::{RequestError, Status};
use crate::http::head::{ResponseForm, Spoken};
use crate::http::session::{Answered, Request, Responder};

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct SharedFiles {
    pub(super) store: Store,
    pub(super) caches: DocumentCaches,
    pub(super) limits: HttpLimits,
}

/// State shared by the connections of one server.
#[derive(Debug)]
pub(super) struct ServedFiles {
    pub(super) shared: Arc<SharedFiles>,
    /// Connections that are open.
    open: AtomicUsize,
}

impl ServedFiles {
    pub(super) fn new(shared: Arc<SharedFiles>) -> Self {
        Self { shared, open: AtomicUsize::new(0) }
    }

    /// Whether so many connections are too many.
    fn is_busy_with(&self, open: usize) -> bool {
        self.shared.store.options.limits.busy_above.is_some_and(|most| open > most)
    }
}

impl SharedFiles {
    pub(super) fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.limits.check(policy)?;
        // `max_connections` may be lowered later, by a launcher that has few descriptors or while the server runs: then
        // nobody gets the 503 of `busy_above`, and the policy decides, as without it.
        self.store.options.limits.busy_above(None).check(policy)
    }

    /// Finds a key's document. If no descriptor is left, idle cached files are closed: of this thread's cache first,
    /// then of the others.
    fn find(&self, cache: usize, key: &str, blocking: Blocking) -> io::Result<Found> {
        let close_one = || {
            let used = self.caches.used();
            (0..used).any(|after| self.caches.lock((cache + after) % used).close_one())
        };
        self.store.find(key, self.caches.small_bytes(), blocking, close_one)
    }
}

/// One connection's access to the files.
#[derive(Debug)]
pub(super) struct FileAccess {
    served: Arc<ServedFiles>,
    cache: usize,
    /// The limit of connections was reached when it was accepted, and has been since.
    busy: AtomicBool,
}

impl FileAccess {
    pub(super) fn new(served: Arc<ServedFiles>, thread: usize) -> Self {
        let open = served.open.fetch_add(1, Relaxed) + 1;
        let busy = AtomicBool::new(served.is_busy_with(open));
        let cache = served.shared.caches.index(thread);
        Self { served, cache, busy }
    }

    /// The response to the requests of a connection too many, until others have left.
    pub(super) fn refusal(&self) -> Option<RequestError> {
        if !self.busy.load(Relaxed) {
            return None;
        }
        let busy = self.served.is_busy_with(self.served.open.load(Relaxed));
        self.busy.store(busy, Relaxed);
        let why = "the server is busy; retry later";
        busy.then(|| RequestError { status: Status::Unavailable, why: why.into() })
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, DocumentCache> {
        self.served.shared.caches.lock(self.cache)
    }

    /// Finds a key's document without waiting for the disk.
    ///
    /// # Errors
    /// That may take a while: [`lookup`](Self::lookup) is the job for it.
    pub(super) fn find(&self, key: &str) -> io::Result<Found> {
        self.served.shared.find(self.cache, key, Blocking::Never)
    }

    /// A job that finds a key's document.
    pub(super) fn lookup(&self, key: &str) -> impl FnOnce() -> io::Result<Found> + Send + use<> {
        let (shared, cache, key) = (self.served.shared.clone(), self.cache, key.to_owned());
        move || shared.find(cache, &key, Blocking::Waits)
    }

    /// The response when the lookup is not queued.
    pub(super) fn not_queued() -> RequestError {
        let why = "too many files are being opened; retry later".into();
        RequestError { status: Status::Unavailable, why }
    }

    /// The response when the lookup has no result.
    pub(super) fn lookup_failed() -> RequestError {
        RequestError { status: Status::InternalError, why: "opening the file failed".into() }
    }

    /// Responds with a document that was found, and keeps it if it fits.
    ///
    /// # Errors
    /// The response when it is no document.
    pub(super) fn respond<T>(
        &self,
        resource: &Resource<'_>,
        found: Found,
        now: Instant,
        with_document: impl FnOnce(&mut Document, &HttpDate) -> T,
    ) -> Result<T, FileResponse> {
        let mut cache = self.cache();
        cache.clock.tick(now);
        match found {
            Found::File(document) => Ok(match cache.keep(&resource.key, document, now) {
                Ok((document, clock)) => with_document(document, clock),
                Err(mut alone) => with_document(&mut alone, &cache.clock),
            }),
            Found::Page(page) => Err(FileResponse::listing(page)),
            Found::Folder => Err(FileResponse::redirect(resource)),
            Found::Refused(fault) => {
                cache.forget(&resource.key);
                Err(FileResponse::refusal(&fault))
            }
        }
    }
}

impl Drop for FileAccess {
    fn drop(&mut self) {
        self.served.open.fetch_sub(1, Relaxed);
    }
}

/// One connection.
#[derive(Debug)]
pub struct FileResponder {
    access: FileAccess,
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
    pub(super) fn new(access: FileAccess) -> Self {
        Self { access, work: None }
    }

    /// Responds, or continues responding, with what was found.
    fn respond(
        &mut self,
        resource: &Resource<'_>,
        found: Found,
        request: &Request<'_>,
        out: &mut Outbox<'_>,
    ) -> Answered {
        let responded = self.access.respond(resource, found, out.now(), |document, clock| {
            let asked = Asked::of(request.spoken.fields, request.form.method());
            answer(document, asked, request.form, clock, out)
        });
        match responded {
            Ok(transfer) => self.send(transfer, out),
            Err(reply) => self.write(reply, request.form, out),
        }
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

    fn write(&mut self, reply: FileResponse, form: ResponseForm, out: &mut Outbox<'_>) -> Answered {
        let date = {
            let mut cache = self.access.cache();
            cache.clock.tick(out.now());
            cache.clock.date.clone()
        };
        let transfer = reply.write(form, &date, out);
        self.send(transfer, out)
    }

    /// Offloads opening a file that is not in the cache.
    #[cold]
    fn look(&mut self, key: &str, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        if out.offload(self.access.lookup(key)).is_err() {
            return self.write(FileResponse::refusal(&FileAccess::not_queued()), request.form, out);
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
        &self.access.served.shared.limits
    }

    #[inline]
    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        if let Some(fault) = self.access.refusal() {
            self.refuse(&fault, request.form.closing(), out);
            return Answered::Final;
        }
        let resource = match resource(request.spoken.target) {
            Ok(resource) => resource,
            Err(fault) => return self.write(FileResponse::refusal(&fault), request.form, out),
        };
        let known = {
            let mut cache = self.access.cache();
            cache.get(&resource.key, out.now()).map(|(document, clock)| {
                let asked = Asked::of(request.spoken.fields, request.form.method());
                answer(document, asked, request.form, clock, out)
            })
        };
        if let Some(transfer) = known {
            return self.send(transfer, out);
        }
        match self.access.find(&resource.key) {
            Ok(found) => self.respond(&resource, found, request, out),
            Err(_) => self.look(&resource.key, request, out),
        }
    }

    #[cold]
    fn refuse(&mut self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>) {
        self.write(FileResponse::refusal(fault), form, out); // complete: it is text
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
                let found = found.unwrap_or_else(|| Found::Refused(FileAccess::lookup_failed()));
                wanted.with(|request| match resource(request.spoken.target) {
                    Ok(resource) => self.respond(&resource, found, request, out),
                    Err(_) => Answered::Whole, // this name was looked up
                })
            }
            None => Answered::Whole,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

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
        let caches = DocumentCaches::new(limits);
        caches.index(1);
        let store = Store::new(Folder::open(folder.path()).unwrap(), options);
        let shared = SharedFiles { store, caches, limits: HttpLimits::default() };
        let mut refused = 0;
        for round in 0..4 {
            for n in 0..300 {
                let (key, cache) = (resource(&format!("/f{n}")).unwrap().key.to_string(), round % 2);
                match shared.find(cache, &key, Blocking::Waits).unwrap() {
                    Found::File(document) => {
                        shared.caches.lock(cache).keep(&key, document, Instant::now()).unwrap();
                    }
                    _ => refused += 1,
                }
            }
        }
        assert_eq!(refused, 0, "of 1,200");
    }
}
