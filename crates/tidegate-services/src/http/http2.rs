//! HTTP/2 by hyper, and HTTP/1.1 for who speaks that: the page, and what other services share with it.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, ready};
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::rt::Timer;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::server::conn::auto::Builder;
use tidegate::{Dial, Peer, Policy, PolicyError, Refusal, Service, ServiceOptions};
use tidegate_async::Connection;

use super::answer::TEXT;
use super::fault::RequestError;
use super::head_timer::with_head_timer;
use super::{HttpLimits, Page};

/// The least that hyper takes for a head.
const LEAST_HEAD_BYTES: usize = 8 << 10;

/// Responds to the requests of one connection.
pub(crate) trait AsyncResponder: Send + Sync + 'static {
    /// The content of a response.
    type Content: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + From<Bytes> + Send + 'static;

    /// Responds to GET or HEAD.
    fn answer(&self, request: &Parts) -> impl Future<Output = Response<Self::Content>> + Send;
}

/// A service that checks limits; async code has none of its own.
struct Checked<S, C> {
    service: S,
    check: C,
}

impl<S, C> Service for Checked<S, C>
where
    S: Service,
    C: Fn(&Policy) -> Result<(), PolicyError> + Send + Sync + 'static,
{
    type Session = S::Session;

    fn open(&self, peer: &Peer) -> Result<S::Session, Refusal> {
        self.service.open(peer)
    }

    fn options(&self) -> ServiceOptions {
        self.service.options()
    }

    fn check_limits(&self, policy: &Policy) -> Result<(), PolicyError> {
        (self.check)(policy)
    }

    fn dial_failed(&self, dial: &Dial, error: &io::Error) {
        self.service.dial_failed(dial, error);
    }
}

/// A service for requests within `limits`, where `check` finds no fault with the policy. `open` makes the responder of
/// a connection.
pub(crate) fn service<R: AsyncResponder>(
    limits: HttpLimits,
    check: impl Fn(&Policy) -> Result<(), PolicyError> + Send + Sync + 'static,
    open: impl Fn(&Connection) -> R + Send + Sync + 'static,
) -> impl Service {
    let service = tidegate_async::service(move |conn: Connection| {
        let responder = Arc::new(open(&conn));
        async move {
            let head_bytes = limits.head_bytes.max(LEAST_HEAD_BYTES);
            let mut http = Builder::new(conn.executor());
            let (handle, timer) = (conn.handle(), conn.timer());
            let (conn, head_timer) = with_head_timer(conn, timer.clone());
            let mut http1 = http.http1();
            http1.timer(head_timer).header_read_timeout(limits.request_timeout).max_buf_size(head_bytes);
            let list_bytes = u32::try_from(head_bytes).unwrap_or(u32::MAX);
            http.http2().timer(timer.clone()).max_header_list_size(list_bytes);
            let answers =
                service_fn(move |request| answer(request, responder.clone(), limits, timer.clone()));
            let served = http.serve_connection(conn, answers);
            let _ = handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await;
        }
    });
    Checked { service, check }
}

/// Answers one request when its body was skipped.
async fn answer<R: AsyncResponder>(
    request: Request<Incoming>,
    responder: Arc<R>,
    limits: HttpLimits,
    timer: impl Timer,
) -> Result<Response<R::Content>, Infallible> {
    let (head, mut body) = request.into_parts();
    if !body.is_end_stream() {
        let skipped = pin!(skip(&mut body, limits.body_bytes));
        let outcome = match limits.request_timeout {
            None => skipped.await,
            Some(limit) => match select(skipped, timer.sleep(limit)).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right(_) => Err(RequestError::too_slow()),
            },
        };
        if let Err(fault) = outcome {
            return Ok(refusal(&fault));
        }
    }
    Ok(match head.method {
        Method::GET | Method::HEAD => responder.answer(&head).await,
        Method::POST | Method::PUT | Method::DELETE | Method::PATCH => {
            refusal(&RequestError::method_not_allowed())
        }
        Method::OPTIONS | Method::TRACE | Method::CONNECT => refusal(&RequestError::method_not_allowed()),
        _ => refusal(&RequestError::method_unknown()),
    })
}

/// Reads the body to its end, if it has no more than so many bytes.
async fn skip(body: &mut Incoming, most: u64) -> Result<(), RequestError> {
    let mut left = most;
    if body.size_hint().lower() > most {
        return Err(RequestError::body_too_large(most));
    }
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(RequestError::bad("the body ends before its end")) };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        left = left.checked_sub(bytes).ok_or_else(|| RequestError::body_too_large(most))?;
    }
    Ok(())
}

/// An error response. Its body states the reason.
fn refusal<B: From<Bytes>>(fault: &RequestError) -> Response<B> {
    let fields = [("Content-Type", TEXT)].into_iter().chain(fault.status.fields().iter().copied());
    response(fault.status.line(), fields, B::from(fault.body().into()))
}

/// A response with the status of this line, and with these fields.
pub(crate) fn response<'a, B>(
    line: &str,
    fields: impl Iterator<Item = (&'a str, &'a str)>,
    body: B,
) -> Response<B> {
    let mut response = Response::new(body);
    let code = line.as_bytes().get(..3).unwrap_or_default();
    *response.status_mut() = StatusCode::from_bytes(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in fields {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// See [`http2`](super::http2()).
pub(super) fn page(page: Page, limits: HttpLimits) -> impl Service {
    service(limits, move |policy| limits.check(policy), move |_| page.counted_apart())
}

impl AsyncResponder for Page {
    type Content = Full<Bytes>;

    fn answer(&self, request: &Parts) -> impl Future<Output = Response<Full<Bytes>>> + Send {
        let body = if request.method == Method::HEAD { Bytes::new() } else { self.body.clone() };
        let mut response = Response::new(Full::new(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        ready(response)
    }
}
