//! Responses, built once a second and shared by all connections of a thread.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use tidegate::Outbox;

use super::HttpLimits;
use super::fault::RequestError;
use super::head::{Persistence, ResponseForm};
use super::page::Page;

/// Up to this size the page is copied behind each of its heads, so that a response is one piece. Larger pages are the
/// second piece of each response: copying would cost more than it saves.
const ONE_PIECE_BYTES: usize = 16 * 1024;

/// The page with each of its heads, valid for one second. Clones share memory.
#[derive(Debug)]
struct Answers {
    /// By [`Persistence`]: for `GET`, without the page if that is a separate piece.
    whole: [Bytes; 3],
    /// By [`Persistence`]: for `HEAD`.
    heads: [Bytes; 3],
    /// The value of the Date field.
    date: String,
}

/// State shared by the connections of one I/O thread, on separate cache lines: every request writes to the lock.
#[derive(Debug)]
#[repr(align(128))]
pub struct SharedPage {
    page: Page,
    pub(super) limits: HttpLimits,
    started: Instant,
    /// Whole seconds from `started` to when `answers` was built.
    second: AtomicU64,
    answers: RwLock<Answers>,
}

impl SharedPage {
    pub(super) fn new(page: &Page, limits: HttpLimits, now: Instant) -> Self {
        let page = page.counted_apart();
        let answers = RwLock::new(Answers::new(&page));
        Self { page, limits, started: second_begun(now), second: AtomicU64::new(0), answers }
    }

    /// Writes the response to `GET` or `HEAD` into the outbox.
    #[inline]
    pub(super) fn answer(&self, form: ResponseForm, out: &mut Outbox<'_>) {
        let has_page = self.with(out.now(), |answers| {
            let [persists, kept_alive, closes] = if form.head_only { &answers.heads } else { &answers.whole };
            out.share(match form.connection {
                Persistence::Persists => persists.clone(),
                Persistence::KeptAlive => kept_alive.clone(),
                Persistence::Closes => closes.clone(),
            });
            form.head_only || self.page.body.len() <= ONE_PIECE_BYTES
        });
        if !has_page {
            out.share(self.page.body.clone());
        }
    }

    /// Writes an error response, with a body that states the reason.
    #[cold]
    pub(super) fn refuse(&self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>) {
        let text = self.with(out.now(), |answers| refusal(fault, &answers.date, form));
        out.share(text);
    }

    /// Passes the responses of this second to the closure.
    #[inline]
    fn with<T>(&self, now: Instant, f: impl FnOnce(&Answers) -> T) -> T {
        let second = now.saturating_duration_since(self.started).as_secs();
        if second > self.second.load(Relaxed) {
            self.rebuild(second);
        }
        f(&self.answers.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// One thread builds; others that find the lock taken use the previous responses.
    #[cold]
    fn rebuild(&self, second: u64) {
        let Ok(mut answers) = self.answers.try_write() else { return };
        if second > self.second.load(Relaxed) {
            *answers = Answers::new(&self.page);
            self.second.store(second, Relaxed);
        }
    }
}

/// The start of the current second of the system clock, plus a millisecond, so that dates computed each second from it
/// are never behind and none is computed just before the second changes.
pub(crate) fn second_begun(now: Instant) -> Instant {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let into = Duration::from_nanos(since.subsec_nanos().into()).saturating_sub(Duration::from_millis(1));
    now.checked_sub(into).unwrap_or(now)
}

/// Formats a time for HTTP; `None` before 1970 or after the year 9999.
pub(crate) fn http_date(time: SystemTime) -> Option<String> {
    // The year 10000 begins (RFC 9110, section 5.6.7: four digits).
    const END: Duration = Duration::from_secs(253_402_300_800);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    (since < END).then(|| httpdate::fmt_http_date(time))
}

/// The date. An impossible clock value counts as its minimum.
pub(crate) fn date_now() -> String {
    http_date(SystemTime::now()).unwrap_or_else(|| httpdate::fmt_http_date(SystemTime::UNIX_EPOCH))
}

impl Answers {
    fn new(page: &Page) -> Self {
        let date = date_now();
        let (length, content_type) = (page.body.len().to_string(), page.content_type);
        let heads = [Persistence::Persists, Persistence::KeptAlive, Persistence::Closes].map(|connection| {
            let fields = [("Content-Type", content_type), ("Content-Length", &length)];
            head("200 OK", &date, fields.into_iter(), connection)
        });
        let heads = heads.map(Bytes::from);
        let whole = heads.each_ref().map(|head| {
            if page.body.len() > ONE_PIECE_BYTES {
                head.clone()
            } else {
                [head, &page.body[..]].concat().into()
            }
        });
        Self { whole, heads, date }
    }
}

/// An error response whose body states the reason.
pub(crate) fn refusal(fault: &RequestError, date: &str, form: ResponseForm) -> Bytes {
    let body = fault.body();
    let length = body.len().to_string();
    let text = [("Content-Type", TEXT), ("Content-Length", &length)];
    let fields = text.into_iter().chain(fault.status.fields().iter().copied());
    let head = head(fault.status.line(), date, fields, form.connection);
    if form.head_only { head.into() } else { (head + &body).into() }
}

/// The media type of error responses.
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// The head of a response: status line, the fields of all responses, and these.
pub(crate) fn head<'a>(
    line: &str,
    date: &str,
    fields: impl Iterator<Item = (&'a str, &'a str)>,
    connection: Persistence,
) -> String {
    let mut head = format!("HTTP/1.1 {line}\r\nServer: tidegate\r\nDate: {date}\r\n");
    for (name, value) in fields {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.extend([said(connection), "\r\n"]);
    head
}

/// The Connection field, where one is needed.
fn said(connection: Persistence) -> &'static str {
    match connection {
        Persistence::Persists => "",
        Persistence::KeptAlive => "Connection: keep-alive\r\n",
        Persistence::Closes => "Connection: close\r\n",
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::CountedApart;
    use super::*;

    #[test]
    fn threads_share_the_bytes_of_a_page_but_no_cache_line_that_is_written() {
        assert!(align_of::<SharedPage>() >= 128);
        assert!(align_of::<CountedApart>() >= 128, "the count is before it, in the same allocation");
        let page = Page::new(vec![b'x'; 2 * ONE_PIECE_BYTES], "text/plain");
        let [one, other] = [(); 2].map(|()| SharedPage::new(&page, HttpLimits::default(), Instant::now()));
        assert_eq!(one.page.body.as_ptr(), other.page.body.as_ptr(), "there is one copy");
    }

    #[test]
    fn seconds_begin_when_those_of_the_clock_do() {
        loop {
            let now = Instant::now();
            let before = clock();
            let into = now - second_begun(now) + Duration::from_millis(1);
            let after = clock();
            // A second that ends in between says nothing, nor does its first millisecond.
            if before.0 == after.0 && before.1 > Duration::from_millis(1) {
                assert!(before.1 <= into && into <= after.1, "{before:?} {into:?} {after:?}");
                return;
            }
        }
    }

    /// Seconds since 1970, and what is gone of the next.
    fn clock() -> (u64, Duration) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        (since.as_secs(), Duration::from_nanos(since.subsec_nanos().into()))
    }
}
