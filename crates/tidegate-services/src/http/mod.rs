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
//! | [`http2()`] | the same page over HTTP/2, too, by hyper (feature `http2`) |
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
mod http2;
pub mod page;
mod scan;
pub(crate) mod session;
mod target;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Peer, Policy, Refusal, Service};

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
/// and limits are those of [`Http`]; a head has room for at least 8 KiB.
///
/// # Errors
/// This was built without the feature `http2`.
#[cfg(feature = "http2")]
pub fn http2(page: Page, limits: HttpLimits) -> Result<impl Service, NoHttp2> {
    Ok(http2::service(page, limits))
}

/// A service that responds to every request with the same page over HTTP/2 and HTTP/1.1: not in this build.
///
/// # Errors
/// Always: this was built without the feature `http2`.
#[cfg(not(feature = "http2"))]
pub fn http2(_: Page, _: HttpLimits) -> Result<impl Service, NoHttp2> {
    Err::<Http, _>(NoHttp2 {})
}

/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Bytes of a request's head, and of the trailers of a chunked body. More is answered with 431, or with 414 if the
    /// request line alone is longer. Default 16 KiB.
    ///
    /// An unfinished head is input the session leaves, so this must not be above
    /// [`Policy::input_bytes`](tidegate::Policy::input_bytes): the connection would be reset without an answer.
    pub head_bytes: usize,
    /// Bytes of a request's body. More is answered with 413. Default 1 MiB.
    pub body_bytes: u64,
    /// Time from the first byte of an incomplete request to its last; after that the response is 408. `None` waits
    /// forever. Default 30 s.
    pub request_timeout: Option<Duration>,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head_bytes: 16 * 1024,
            body_bytes: 1024 * 1024,
            request_timeout: Some(Duration::from_secs(30)),
        }
    }
}

/// Invalid limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HttpLimitsError {
    /// The policy would reset a connection with an unfinished head, without a response.
    #[error(
        "head_bytes ({head_bytes}) contradicts input_bytes ({input_bytes}): \
         an unfinished head is unconsumed input; lower head_bytes or raise input_bytes"
    )]
    HeadAboveInput {
        /// [`HttpLimits::head_bytes`].
        head_bytes: usize,
        /// [`Policy::input_bytes`].
        input_bytes: usize,
    },
    /// No request fits.
    #[error("head_bytes is {0}; it must be at least {LEAST_HEAD_BYTES}, so that requests fit")]
    HeadTooSmall(usize),
    /// Every request would time out.
    #[error("request_timeout is zero; it must be longer than zero, or none at all")]
    NoTime,
}

/// Minimum of [`HttpLimits::head_bytes`].
const LEAST_HEAD_BYTES: usize = 256;

impl HttpLimits {
    /// Checks the limits, also against the policy of the service.
    ///
    /// # Errors
    /// The first contradiction found, with its remedy.
    pub fn check(&self, policy: &Policy) -> Result<(), HttpLimitsError> {
        let (head_bytes, input_bytes) = (self.head_bytes, policy.input_bytes);
        if head_bytes < LEAST_HEAD_BYTES {
            return Err(HttpLimitsError::HeadTooSmall(head_bytes));
        }
        if head_bytes > input_bytes {
            return Err(HttpLimitsError::HeadAboveInput { head_bytes, input_bytes });
        }
        if self.request_timeout.is_some_and(|limit| limit.is_zero()) {
            return Err(HttpLimitsError::NoTime);
        }
        Ok(())
    }
}

/// Maximum header fields of a request; more are answered with 431.
pub const MOST_FIELDS: usize = scan::MOST_FIELDS;

/// A service that responds to every request with the same page.
#[derive(Debug)]
pub struct Http {
    /// One for each processor, so that threads do not contend for reference counts.
    slots: Vec<Arc<SharedPage>>,
}

impl Http {
    /// Serves `page` within `limits`.
    #[must_use]
    pub fn new(page: Page, limits: HttpLimits) -> Self {
        let page = Arc::new(page);
        let now = Instant::now();
        let processors = std::thread::available_parallelism().map_or(1, usize::from).min(64);
        let slots =
            (0..processors).map(|_| Arc::new(SharedPage::new(Arc::clone(&page), limits, now))).collect();
        Self { slots }
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
        let slot = self.slots.get(peer.thread % self.slots.len().max(1)).ok_or(Refusal)?;
        Ok(HttpSession::new(Arc::clone(slot)))
    }
}
