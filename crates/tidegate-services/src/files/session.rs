//! Answering the requests of one connection.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::system::file::Patience;
use tidegate::{Mail, Outbox};

use super::answer::answer;
use super::cache::Lane;
use super::conditions::matters;
use super::path::{escaped, place};
use super::store::{Document, Found, Store};
use super::transfer::Transfer;
use crate::http::HttpLimits;
use crate::http::answer::{refusal, said};
use crate::http::fault::{Fault, Status};
use crate::http::head::{Connection, Spoken};
use crate::http::session::{Answered, Request, Responder};

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) store: Store,
    pub(super) lanes: Vec<Mutex<Lane>>,
    pub(super) limits: HttpLimits,
    /// Connections that are open.
    pub(super) open: AtomicUsize,
}

impl Shop {
    fn lane(&self, lane: usize) -> MutexGuard<'_, Lane> {
        self.lanes[lane].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a key leads to. Files that are only kept open yield to one that is asked for: of this lane first, then of
    /// the others.
    fn find(&self, lane: usize, key: &str, patience: Patience) -> io::Result<Found> {
        let lanes = || (0..self.lanes.len()).map(|after| (lane + after) % self.lanes.len());
        self.store.find(key, patience, || lanes().any(|lane| self.lane(lane).close_one()))
    }
}

/// Answers one connection.
#[derive(Debug)]
pub struct Clerk {
    shop: Arc<Shop>,
    lane: usize,
    /// There were too many connections when this one came.
    busy: bool,
    work: Option<Box<Work>>,
}

/// What keeps an answer from being whole.
#[derive(Debug)]
enum Work {
    /// A job looks for the file.
    Looking(Wanted),
    /// The outbox is full, or a job reads.
    Sending(Transfer),
}

/// A request that waits for its file, as far as its answer depends on it.
#[derive(Debug)]
struct Wanted {
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    head_only: bool,
    connection: Connection,
}

impl Clerk {
    pub(super) fn new(shop: Arc<Shop>, thread: usize) -> Self {
        let open = shop.open.fetch_add(1, Relaxed) + 1;
        let busy = shop.store.options.busy_above.is_some_and(|most| open > most);
        let lane = thread % shop.lanes.len().max(1);
        Self { shop, lane, busy, work: None }
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.shop.lane(self.lane)
    }

    /// Answers, or goes on with it, with what a key leads to.
    fn respond(&mut self, key: &str, found: Found, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let fault = match found {
            Found::File(document) => return self.respond_with(key, document, request, out),
            Found::Page(page) => return self.page(&page, request, out),
            Found::Folder => return self.redirect(request, out),
            Found::Refused(fault) => fault,
        };
        self.lane().forget(key);
        self.refuse(&fault, request.head_only, request.connection, out);
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
            let mut lane = self.lane();
            match lane.keep(key, document, out.now()) {
                Ok(()) => match lane.get(key, out.now()) {
                    Some((document, clock)) => answer(document, request, clock, out),
                    None => None,
                },
                Err(mut alone) => answer(&mut alone, request, &lane.clock, out),
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

    /// To the same place with a slash at its end. Never to another host: a name has no slash at its front.
    fn redirect(&self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let Ok(place) = place(request.spoken.target) else { return Answered::Whole };
        let (name, query) = (escaped(place.name()), place.query);
        let head = format!(
            "HTTP/1.1 301 Moved Permanently\r\nServer: tidegate\r\nDate: {}\r\nLocation: /{name}/{query}\r\n\
             Content-Length: 0\r\n{}\r\n",
            self.date(out),
            said(request.connection)
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
            said(request.connection)
        );
        if !request.head_only {
            text.push_str(page);
        }
        out.share(text.into());
        Answered::Whole
    }

    fn date(&self, out: &Outbox<'_>) -> String {
        let mut lane = self.lane();
        lane.clock.tick(out.now());
        lane.clock.date.clone()
    }

    /// Has a job look for a file that is not known to be in memory.
    #[cold]
    fn look(&mut self, key: &str, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        let (shop, lane, key) = (self.shop.clone(), self.lane, key.to_owned());
        if out.offload(move || shop.find(lane, &key, Patience::Waits)).is_err() {
            let why = "too many files are being looked for; come again".into();
            self.refuse(
                &Fault { status: Status::Unavailable, why },
                request.head_only,
                request.connection,
                out,
            );
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
            head_only: request.head_only,
            connection: request.connection,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&Request<'_>) -> T) -> T {
        let fields = self.fields.iter().map(|(name, value)| httparse::Header { name, value });
        let fields: Vec<_> = fields.collect();
        let spoken = Spoken { target: &self.target, authority: b"", fields: &fields };
        f(&Request { head_only: self.head_only, connection: self.connection, spoken })
    }
}

impl Responder for Clerk {
    #[inline]
    fn limits(&self) -> &HttpLimits {
        &self.shop.limits
    }

    #[inline]
    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        if self.busy {
            let why = "the server is busy; come again".into();
            self.refuse(
                &Fault { status: Status::Unavailable, why },
                request.head_only,
                Connection::Closes,
                out,
            );
            return Answered::Final;
        }
        let place = match place(request.spoken.target) {
            Ok(place) => place,
            Err(fault) => {
                self.refuse(&fault, request.head_only, request.connection, out);
                return Answered::Whole;
            }
        };
        let known = {
            let mut lane = self.lane();
            lane.get(&place.key, out.now()).map(|(document, clock)| answer(document, request, clock, out))
        };
        if let Some(transfer) = known {
            return self.send(transfer, out);
        }
        match self.shop.find(self.lane, &place.key, Patience::Never) {
            Ok(found) => self.respond(&place.key, found, request, out),
            Err(_) => self.look(&place.key, request, out),
        }
    }

    #[cold]
    fn refuse(&mut self, fault: &Fault, head_only: bool, connection: Connection, out: &mut Outbox<'_>) {
        let more = if fault.status == Status::Unavailable { "Retry-After: 1\r\n" } else { "" };
        let date = self.date(out);
        out.share(refusal(fault.status, &fault.why, &date, more, head_only, connection));
    }

    fn go_on(&mut self, out: &mut Outbox<'_>) -> Answered {
        let answered = match self.work.as_deref_mut() {
            // A job reads what comes next, or looks for the file.
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
                let why = "looking for the file failed".into();
                let found = found.unwrap_or(Found::Refused(Fault { status: Status::InternalError, why }));
                wanted.with(|request| match place(request.spoken.target) {
                    Ok(place) => self.respond(&place.key, found, request, out),
                    Err(_) => Answered::Whole, // it was looked for under this name
                })
            }
            None => Answered::Whole,
        }
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.shop.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use tidegate::system::file::Folder;

    use super::*;
    use crate::files::FilesOptions;

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
        let options = FilesOptions { small_bytes: 1024, open_files: 2_000, ..FilesOptions::default() };
        let lanes = (0..2).map(|_| Mutex::new(Lane::new(&options, 2))).collect();
        let store = Store { folder: Folder::open(folder.path()).unwrap(), options };
        let shop = Shop { store, lanes, limits: HttpLimits::default(), open: AtomicUsize::new(0) };
        let mut refused = 0;
        for round in 0..4 {
            for n in 0..300 {
                let (key, lane) = (place(&format!("/f{n}")).unwrap().key.to_string(), round % 2);
                match shop.find(lane, &key, Patience::Waits).unwrap() {
                    Found::File(document) => shop.lane(lane).keep(&key, document, Instant::now()).unwrap(),
                    _ => refused += 1,
                }
            }
        }
        assert_eq!(refused, 0, "of 1,200");
    }
}
