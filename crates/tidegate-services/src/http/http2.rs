//! The page by hyper: HTTP/2, and HTTP/1.1 for who speaks that.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::rt::Timer;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::server::conn::auto::Builder;
use tidegate::Service;

use super::{HttpLimits, Page};

/// The least that hyper takes for a head.
const LEAST_HEAD_BYTES: usize = 8 << 10;

/// See [`http2`](super::http2()).
pub(super) fn service(page: Page, limits: HttpLimits) -> impl Service {
    let page = Arc::new(page);
    tidegate_async::service(move |conn| {
        let page = page.clone();
        async move {
            let head_bytes = limits.head_bytes.max(LEAST_HEAD_BYTES);
            let mut http = Builder::new(conn.executor());
            let mut http1 = http.http1();
            http1.timer(conn.timer()).header_read_timeout(limits.request_timeout).max_buf_size(head_bytes);
            let list_bytes = u32::try_from(head_bytes).unwrap_or(u32::MAX);
            http.http2().timer(conn.timer()).max_header_list_size(list_bytes);
            let (timer, draining) = (conn.timer(), conn.draining());
            let answers = service_fn(move |request| answer(request, page.clone(), limits, timer.clone()));
            let mut connection = pin!(http.serve_connection(conn, answers));
            if let Either::Right(_) = select(connection.as_mut(), pin!(draining)).await {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await; // its peer went away
            }
        }
    })
}

/// Answers one request when its body was skipped.
async fn answer(
    request: Request<Incoming>,
    page: Arc<Page>,
    limits: HttpLimits,
    timer: impl Timer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, mut body) = request.into_parts();
    if !body.is_end_stream() {
        let skipped = pin!(skip(&mut body, limits.body_bytes));
        let outcome = match limits.request_timeout {
            None => skipped.await,
            Some(limit) => match select(skipped, timer.sleep(limit)).await {
                Either::Left((outcome, _)) => outcome,
                Either::Right(_) => Err(StatusCode::REQUEST_TIMEOUT),
            },
        };
        if let Err(status) = outcome {
            return Ok(fault(status));
        }
    }
    Ok(match head.method {
        Method::GET => whole(&page, page.body.clone()),
        Method::HEAD => whole(&page, Bytes::new()),
        Method::POST | Method::PUT | Method::DELETE | Method::PATCH => not_allowed(),
        Method::OPTIONS | Method::TRACE | Method::CONNECT => not_allowed(),
        _ => fault(StatusCode::NOT_IMPLEMENTED),
    })
}

/// Reads the body to its end, if it has no more than so many bytes.
async fn skip(body: &mut Incoming, most: u64) -> Result<(), StatusCode> {
    let mut left = most;
    if body.size_hint().lower() > most {
        return Err(StatusCode::PAYLOAD_TOO_LARGE);
    }
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(StatusCode::BAD_REQUEST) };
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        left = left.checked_sub(bytes).ok_or(StatusCode::PAYLOAD_TOO_LARGE)?;
    }
    Ok(())
}

fn whole(page: &Page, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(page.body.len()));
    response
}

fn not_allowed() -> Response<Full<Bytes>> {
    let mut response = fault(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

fn fault(status: StatusCode) -> Response<Full<Bytes>> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(format!("{} {reason}\n", status.as_u16()))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    *response.status_mut() = status;
    response
}
