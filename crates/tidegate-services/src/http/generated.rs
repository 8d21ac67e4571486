//! Serves pages generated for each request: for small, rarely requested, changing content such as counters and probes.

use std::sync::Arc;

use tidegate::{Outbox, Peer, Policy, PolicyError, Refusal, Service};

use super::HttpLimits;
use super::access::Access;
use super::answer::{date_now, refusal};
use super::fault::RequestError;
use super::head::ResponseForm;
use super::session::{Answered, Conversation, Request, Responder};

/// Generates pages.
pub trait Generates: Send + Sync + 'static {
    /// The page at this path (without its query). Called on an I/O thread: it must not block.
    fn page(&self, path: &str) -> Made;
}

/// A generated page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Code and reason phrase, such as `200 OK`.
    pub status: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its body.
    pub body: String,
}

impl Made {
    /// A line of text.
    #[must_use]
    pub fn line(status: &'static str, text: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }
}

/// The service for generated pages. A connection closes after its first page.
#[derive(Debug)]
pub struct Generated<G>(Arc<GeneratedShared<G>>);

#[derive(Debug)]
struct GeneratedShared<G> {
    pages: G,
    limits: HttpLimits,
    access: Access,
}

impl<G: Generates> Generated<G> {
    /// Serves `pages` within `limits`, for host names that `access` allows.
    #[must_use]
    pub fn new(pages: G, limits: HttpLimits, access: Access) -> Self {
        Self(Arc::new(GeneratedShared { pages, limits, access }))
    }
}

/// One connection of [`Generated`].
pub type GeneratedSession<G> = Conversation<Maker<G>>;

/// Handles one connection.
#[derive(Debug)]
pub struct Maker<G>(Arc<GeneratedShared<G>>);

impl<G: Generates> Service for Generated<G> {
    type Session = GeneratedSession<G>;

    fn open(&self, _: &Peer) -> Result<GeneratedSession<G>, Refusal> {
        Ok(Conversation::new(Maker(self.0.clone())))
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        self.0.limits.check(policy)
    }
}

impl<G: Generates> Responder for Maker<G> {
    fn limits(&self) -> &HttpLimits {
        &self.0.limits
    }

    fn answer(&mut self, request: &Request<'_>, out: &mut Outbox<'_>) -> Answered {
        if let Err(fault) = self.0.access.check_host(request.spoken.authority) {
            self.refuse(&fault, request.form.closing(), out);
            return Answered::Final;
        }
        let target = request.spoken.target;
        let Made { status, content_type, body } =
            self.0.pages.page(target.split_once('?').map_or(target, |(path, _)| path));
        let (date, length) = (date_now(), body.len());
        let head = format!(
            "HTTP/1.1 {status}\r\nServer: tidegate\r\nDate: {date}\r\nContent-Type: {content_type}\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        out.share(if request.form.head_only { head.into() } else { (head + &body).into() });
        Answered::Final
    }

    fn refuse(&mut self, fault: &RequestError, form: ResponseForm, out: &mut Outbox<'_>) {
        out.share(refusal(fault, &date_now(), form));
    }
}
