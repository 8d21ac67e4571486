//! HTTP (RFC 9110, RFC 9112): responds to every request with the same page.
//!
//! | part | contents |
//! |---|---|
//! | [`page`] | the page: built in, from bytes or from a file |
//! | `head` | a request's head: method, body framing, persistence; the only request parser |
//! | `scan`, `target`, `authority` | its syntax byte by byte, its target, its host |
//! | `body` | skips a request's body |
//! | `answer` | responses, built once a second and shared by all connections |
//! | `fault` | error statuses and the bodies of their responses |
//! | `session` | one connection: requests in, responses out |
//! | [`generated`] | a service that generates pages for each request |
//! | [`access`] | accepted host names and origins |
//! | [`http2()`] | the same page over HTTP/2, too, by hyper (feature `http2`); `head_timer`: its time limit of a head |
//!
//! HTTP/1.1 and 1.0 with keep-alive and pipelining. `GET` and `HEAD` return the page; the other methods of RFC 9110 and
//! `PATCH` return 405, unknown ones 501, both after their body was skipped, so the connection persists. A request whose
//! end is ambiguous closes the connection.

pub mod access;
pub(crate) mod answer;
pub(crate) mod authority;
mod body;
pub(crate) mod fault;
pub mod generated;
pub(crate) mod head;
#[cfg(feature = "http2")]
mod head_timer;
#[cfg(feature = "http2")]
pub(crate) mod http2;
pub mod page;
mod scan;
pub(crate) mod session;
mod target;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tidegate::policy::{Limit, Limited};
use tidegate::{Peer, Policy, PolicyError, Refusal, Service};

pub use access::{Access, AccessError};
pub use generated::{Generated, GeneratedSession, Generates, Made};
pub use page::{Page, PageError};
pub use session::HttpSession;

use answer::SharedPage;

/// This was built without the feature `http2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this was built without HTTP/2: build it with the feature `http2`, or let a proxy in front speak HTTP/2"
)]
#[non_exhaustive]
pub struct NoHttp2 {}

/// A service that responds to every request with the same page over HTTP/2 and HTTP/1.1, by hyper on `tidegate-async`.
///
/// Without TLS it takes HTTP/2 by prior knowledge (RFC 9113, section 3.3); with TLS offer `h2` and `http/1.1`. Methods
/// and limits are those of [`Http`]; a head has room for at least 8 KiB, and one of HTTP/1.1 that is not complete in
/// time is not answered: the connection is closed.
///
/// # Errors
/// This was built without the feature `http2`.
#[cfg(feature = "http2")]
pub fn http2(page: Page, limits: HttpLimits) -> Result<impl Service, NoHttp2> {
    Ok(http2::page(page, limits))
}

/// A service that responds to every request with the same page over HTTP/2 and HTTP/1.1: not in this build.
///
/// # Errors
/// Always: this was built without the feature `http2`.
#[cfg(not(feature = "http2"))]
pub fn http2(_: Page, _: HttpLimits) -> Result<impl Service, NoHttp2> {
    Err::<Http, _>(NoHttp2 {})
}

tidegate::limits! {
/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpLimits, as "" of HttpLimits, at |limits| Some(limits);
    parts {}

    /// It bounds the trailers of a chunked body, too.
    head_bytes: usize = 16 * 1024 => {
        what: "Largest head of a request; more is answered with 431, or 414 if its first line alone is longer",
        cost: "input for each connection that holds a partial head; HTTP/2 has room for at least 8 KiB",
        option: "head-bytes",
        unit: Bytes,
        range: Within(256, 1 << 30),
        change: Fixed,
        on: BY_THE_SERVICE,
        default_note: Some("16KiB, at most input-bytes"),
        relation: Some(Relation {
            holds: AtMost,
            other: "input_bytes",
            remedy: "an unfinished head is unconsumed input; lower `head_bytes` or raise `input_bytes`",
        }),
    }
    body_bytes: u64 = 1024 * 1024 => {
        what: "Largest body of a request; more is answered with 413",
        cost: "larger: time and traffic for bodies that are not used",
        option: "body-bytes",
        unit: Bytes,
        range: Any,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
    /// From the first byte of an incomplete request to its last. `None` waits forever.
    request_timeout: Option<Duration> = Some(Duration::from_secs(30)) => {
        what: "Time limit of an incomplete request, or none; then the response is 408",
        cost: "slow clients are disconnected",
        option: "request-timeout",
        unit: Time,
        range: TIME,
        change: Fixed,
        on: BY_THE_SERVICE,
    }
}

impl Limited for HttpLimits {
    const TABLE: &'static [&'static [Limit<Self>]] = &[Self::ROWS];
}

impl HttpLimits {
    /// Checks the limits, also against the policy of the service; `bind` does the same.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.check_under(policy)
    }
}

/// Maximum header fields of a request; more are answered with 431.
pub const MOST_FIELDS: usize = scan::MOST_FIELDS;

/// I/O threads that have a slot to themselves; more of them share.
const MOST_SLOTS: usize = 1024;

/// A service that responds to every request with the same page.
#[derive(Debug)]
pub struct Http {
    page: Page,
    limits: HttpLimits,
    /// One for each I/O thread, made with its first connection: threads share no lock and no reference count.
    slots: Box<[OnceLock<Arc<SharedPage>>]>,
}

impl Http {
    /// Serves `page` within `limits`.
    #[must_use]
    pub fn new(page: Page, limits: HttpLimits) -> Self {
        Self { page, limits, slots: (0..MOST_SLOTS).map(|_| OnceLock::new()).collect() }
    }

    /// What the connections of an I/O thread share.
    fn slot(&self, thread: usize) -> &Arc<SharedPage> {
        let make = || Arc::new(SharedPage::new(&self.page, self.limits, Instant::now()));
        self.slots[thread % MOST_SLOTS].get_or_init(make)
    }
}

impl Default for Http {
    /// Uses the built-in page of 4 KiB and the default limits.
    fn default() -> Self {
        Self::new(Page::default(), HttpLimits::default())
    }
}

impl Service for Http {
    type Session = HttpSession;

    fn open(&self, peer: &Peer) -> Result<HttpSession, Refusal> {
        Ok(HttpSession::new(Arc::clone(self.slot(peer.thread))))
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.limits.check(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_processors_have_a_slot_each() {
        let http = Http::default();
        let of_threads: Vec<_> = (0..300).map(|thread| Arc::as_ptr(http.slot(thread))).collect();
        let again: Vec<_> = (0..300).map(|thread| Arc::as_ptr(http.slot(thread))).collect();
        assert_eq!(of_threads, again, "connections of a thread share it");
        assert_eq!(of_threads.into_iter().collect::<std::collections::BTreeSet<_>>().len(), 300);
    }
}
