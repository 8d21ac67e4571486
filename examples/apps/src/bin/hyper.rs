//! hyper alone on any I/O model, over HTTP/1.1: a text, and bodies that are sent back while they arrive.
//!
//! `cargo run --release --bin hyper -- --model uring`, then `curl -d 'there and back' http://127.0.0.1:8080/echo`.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};

async fn answer(request: Request<Incoming>) -> Result<Response<Either<Full<Bytes>, Incoming>>, Infallible> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => (StatusCode::OK, "POST something to /echo\n"),
        (&Method::POST, "/echo") => return Ok(Response::new(Either::Right(request.into_body()))),
        _ => (StatusCode::NOT_FOUND, "there is / and /echo\n"),
    };
    let mut response = Response::new(Either::Left(Full::from(text)));
    *response.status_mut() = status;
    Ok(response)
}

fn main() -> anyhow::Result<()> {
    tidegate_apps::serve(tidegate_async::service(async |conn| {
        let handle = conn.handle();
        let mut http = http1::Builder::new();
        let served = http.timer(conn.timer()).serve_connection(conn, service_fn(answer));
        handle.with_graceful_shutdown(served, |served| served.graceful_shutdown()).await
    }))
}
