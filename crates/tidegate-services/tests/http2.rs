//! The page by hyper on every model, asked by hyper's client: HTTP/2 with many streams, and HTTP/1.1.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::{CloseReason, Model, Policy, Server};
use tidegate_services::http::http2 as service;
use tidegate_services::{HttpLimits, Page};
use tokio::net::TcpStream;

const BODY_BYTES: u64 = 100_000;

fn request(method: Method, body: usize) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from(vec![7; body]));
    Request::builder().method(method).uri("http://localhost/any").body(body).unwrap()
}

async fn taken(response: Response<Incoming>) -> (StatusCode, Option<String>, usize) {
    let length = response.headers().get("content-length").map(|text| text.to_str().unwrap().to_owned());
    let status = response.status();
    (status, length, response.into_body().collect().await.unwrap().to_bytes().len())
}

#[test]
fn a_client_of_hyper_gets_the_page_on_every_model() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let page = || Page::new(vec![b'x'; 70_000], "text/plain");
    for model in Model::available() {
        eprintln!("on {model}");
        let limits = HttpLimits { body_bytes: BODY_BYTES, ..HttpLimits::default() };
        let server = Server::new(service(page(), limits).unwrap()).model(model);
        // hyper without optimisation needs more than the 128 KiB that threads of two models have.
        let server = server.policy(Policy::default().thread_stack_bytes(1 << 20));
        let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let at = running.local_addr().addr().unwrap();
        let all = Some("70000".to_owned());
        runtime.block_on(async {
            let stream = TcpStream::connect(at).await.unwrap();
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            let connection = tokio::spawn(connection);
            let ask = |method, body| {
                let mut sender = sender.clone();
                async move { taken(sender.send_request(request(method, body)).await.unwrap()).await }
            };
            let together = (0..40).map(|_| tokio::spawn(ask(Method::GET, 10)));
            for one in together.collect::<Vec<_>>() {
                assert_eq!(one.await.unwrap(), (StatusCode::OK, all.clone(), 70_000), "on {model}");
            }
            assert_eq!(ask(Method::HEAD, 0).await, (StatusCode::OK, all.clone(), 0), "on {model}");
            assert_eq!(ask(Method::POST, BODY_BYTES as usize).await.0, StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(ask(Method::from_bytes(b"BREW").unwrap(), 0).await.0, StatusCode::NOT_IMPLEMENTED);
            assert_eq!(ask(Method::GET, BODY_BYTES as usize + 1).await.0, StatusCode::PAYLOAD_TOO_LARGE);
            assert_eq!(ask(Method::GET, 0).await.2, 70_000, "on {model}: the connection goes on");

            let stream = TcpStream::connect(at).await.unwrap();
            let (mut sender, old) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            let old = tokio::spawn(old);
            let mut answers = Vec::new();
            for method in [Method::GET, Method::HEAD] {
                answers.push(taken(sender.send_request(request(method, 0)).await.unwrap()).await);
            }
            let expected = [(StatusCode::OK, all.clone(), 70_000), (StatusCode::OK, all, 0)];
            assert_eq!(answers, expected, "on {model}");

            // A drain ends both without an error.
            running.stop();
            connection.await.unwrap().unwrap();
            old.await.unwrap().unwrap();
        });
        let stats = running.join();
        // The client may be gone before the last frame of the farewell.
        let ends = [CloseReason::Finished, CloseReason::Reset].map(|why| stats.closed_by(why));
        assert_eq!(ends.iter().sum::<u64>(), 2, "on {model}: {stats:?}");
    }
}
