//! The page by hyper on every model, asked by hyper's client and by peers that break the rules: HTTP/2 with many
//! streams, and HTTP/1.1.

use std::convert::Infallible;
use std::future::Future;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::testing::{TestConnection, TestState};
use tidegate::{CloseReason, Model, Running, Server, Stats};
use tidegate_services::http::http2 as service;
use tidegate_services::{HttpLimits, Page};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

const BODY_BYTES: u64 = 100_000;

/// Nothing here takes a second; a machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Runs a test on each model, which ends the server, and checks that nothing else has ended a connection.
fn on_every_model(limits: HttpLimits, test: impl AsyncFn(SocketAddr, &Running)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for model in Model::available() {
        eprintln!("on {model}");
        let limits = limits.body_bytes(BODY_BYTES);
        let server = Server::new(service(Page::new(vec![b'x'; 70_000], "text/plain"), limits).unwrap());
        let running = server.model(model).bind("127.0.0.1:0").unwrap().start().unwrap();
        let at = running.local_addr().addr().unwrap();
        let stats = runtime.block_on(async {
            tokio::time::timeout(DEADLINE, test(at, &running)).await.expect("the test ends");
            running.stop();
            // The clients of this thread say farewell meanwhile.
            tokio::task::spawn_blocking(move || running.join()).await.unwrap()
        });
        assert_all_ended(&stats, model);
    }
}

/// A connection is finished, or reset: the client may be gone before the last frame of the farewell.
fn assert_all_ended(stats: &Stats, model: Model) {
    let ends = [CloseReason::Finished, CloseReason::Reset].map(|why| stats.closed_by(why));
    assert!(stats.accepted > 0, "on {model}");
    assert_eq!(ends.iter().sum::<u64>(), stats.accepted, "on {model}: {stats:?}");
}

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
    on_every_model(HttpLimits::default(), async |at, running| {
        let all = Some("70000".to_owned());
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
            assert_eq!(one.await.unwrap(), (StatusCode::OK, all.clone(), 70_000));
        }
        assert_eq!(ask(Method::HEAD, 0).await, (StatusCode::OK, all.clone(), 0));
        assert_eq!(ask(Method::POST, BODY_BYTES as usize).await.0, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(ask(Method::from_bytes(b"BREW").unwrap(), 0).await.0, StatusCode::NOT_IMPLEMENTED);
        assert_eq!(ask(Method::GET, BODY_BYTES as usize + 1).await.0, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(ask(Method::GET, 0).await.2, 70_000, "the connection goes on");

        let stream = TcpStream::connect(at).await.unwrap();
        let (mut sender, old) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let old = tokio::spawn(old);
        let mut answers = Vec::new();
        for method in [Method::GET, Method::HEAD] {
            answers.push(taken(sender.send_request(request(method, 0)).await.unwrap()).await);
        }
        assert_eq!(answers, [(StatusCode::OK, all.clone(), 70_000), (StatusCode::OK, all, 0)]);

        // A drain ends both without an error.
        running.stop();
        connection.await.unwrap().unwrap();
        old.await.unwrap().unwrap();
    });
}

/// A body without a length: so many pieces, and then its end, or nothing more until that is sent.
struct Pieces {
    left: usize,
    end: Option<oneshot::Receiver<()>>,
}

impl Pieces {
    const BYTES: usize = 1_000;

    fn whole(left: usize) -> Self {
        Self { left, end: None }
    }

    fn held() -> (Self, oneshot::Sender<()>) {
        let (sender, end) = oneshot::channel();
        (Self { left: 1, end: Some(end) }, sender)
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left > 0 {
            self.left -= 1;
            return Poll::Ready(Some(Ok(Frame::data(vec![7; Self::BYTES].into()))));
        }
        if let Some(end) = &mut self.end {
            let _ = ready!(Pin::new(end).poll(task));
            self.end = None;
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0 && self.end.is_none()
    }
}

async fn connect_http2(at: SocketAddr) -> http2::SendRequest<Pieces> {
    let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn connect_http1(at: SocketAddr) -> http1::SendRequest<Pieces> {
    let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
    let (sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(body: Pieces) -> Request<Pieces> {
    Request::post("http://localhost/any").body(body).unwrap()
}

fn get(header_bytes: usize) -> Request<Pieces> {
    let request = Request::get("http://localhost/any").header("filler", "x".repeat(header_bytes));
    request.body(Pieces::whole(0)).unwrap()
}

#[test]
fn a_body_of_unknown_length_is_counted() {
    const MOST: usize = BODY_BYTES as usize / Pieces::BYTES;
    on_every_model(HttpLimits::default(), async |at, _| {
        let mut http2 = connect_http2(at).await;
        let mut statuses = Vec::new();
        for pieces in [MOST, MOST + 1, MOST] {
            statuses.push(http2.send_request(post(Pieces::whole(pieces))).await.unwrap().status().as_u16());
        }
        assert_eq!(statuses, [405, 413, 405], "HTTP/2: only the request is refused");
        let mut http1 = connect_http1(at).await;
        let whole = http1.send_request(post(Pieces::whole(MOST))).await.unwrap();
        assert_eq!(taken(whole).await.0, 405);
        let more = http1.send_request(post(Pieces::whole(MOST + 1))).await.unwrap();
        assert_eq!(taken(more).await.0, 413);
    });
}

#[test]
fn a_request_that_does_not_end_is_answered_with_408() {
    let limits = HttpLimits::default().request_timeout(Some(Duration::from_millis(50)));
    on_every_model(limits, async |at, _| {
        let mut http2 = connect_http2(at).await;
        let (body, _end) = Pieces::held();
        assert_eq!(http2.send_request(post(body)).await.unwrap().status(), 408);
        assert_eq!(http2.send_request(get(0)).await.unwrap().status(), 200, "the connection goes on");
        let (body, _end) = Pieces::held();
        assert_eq!(connect_http1(at).await.send_request(post(body)).await.unwrap().status(), 408);
    });
}

/// 8 KiB are the least, whatever is asked for.
#[test]
fn a_head_that_is_too_large_is_answered_with_431() {
    let limits = HttpLimits::default().head_bytes(1_000);
    on_every_model(limits, async |at, _| {
        let mut http2 = connect_http2(at).await;
        for (header_bytes, status) in [(6_000, 200), (12_000, 431), (0, 200)] {
            let response = http2.send_request(get(header_bytes)).await.unwrap();
            assert_eq!(response.status(), status, "HTTP/2, {header_bytes} bytes");
        }
        for (header_bytes, status) in [(6_000, 200), (12_000, 431)] {
            let response = connect_http1(at).await.send_request(get(header_bytes)).await.unwrap();
            assert_eq!(response.status(), status, "HTTP/1.1, {header_bytes} bytes");
        }
    });
}

/// What a peer without manners hears until the server closes.
fn answer(at: SocketAddr, said: &[u8]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(said).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    heard
}

/// Type and payload of each frame (RFC 9113, section 4.1).
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, rest) = rest.split_at(length);
        all.push((head[3], payload));
        bytes = rest;
    }
    all
}

#[test]
fn what_is_not_http_ends_its_connection_and_no_other() {
    const GOAWAY: u8 = 7;
    const FRAME_SIZE_ERROR: u8 = 6;
    on_every_model(HttpLimits::default(), async |at, _| {
        let mut other = connect_http2(at).await;
        assert_eq!(other.send_request(get(0)).await.unwrap().status(), 200);

        for garbage in [&b"\0\x01 garbage\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"] {
            let heard = answer(at, garbage);
            assert!(heard.starts_with(b"HTTP/1.1 400 "), "{}", heard.escape_ascii());
        }
        let heard = answer(at, &[PREFACE, &[0xff; 3], &[0; 6]].concat());
        let farewells = frames(&heard).into_iter().filter(|(kind, _)| *kind == GOAWAY);
        let codes: Vec<_> = farewells.map(|(_, payload)| payload[7]).collect();
        assert_eq!(codes, [FRAME_SIZE_ERROR], "{}", heard.escape_ascii());
        // A client that leaves in the middle of its request.
        let mut gone = std::net::TcpStream::connect(at).unwrap();
        gone.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345").unwrap();
        drop(gone);

        assert_eq!(other.send_request(get(0)).await.unwrap().status(), 200, "the others go on");
    });
}

#[test]
fn a_stop_waits_for_requests_in_their_middle() {
    on_every_model(HttpLimits::default(), async |at, running| {
        let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
        let (mut http2, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let (body, end) = Pieces::held();
        let begun = tokio::spawn(http2.send_request(post(body)));
        // The answer to a later one on the same connection: the server has the first.
        assert_eq!(http2.send_request(get(0)).await.unwrap().status(), 200);
        let mut http1 = std::net::TcpStream::connect(at).unwrap();
        http1.set_read_timeout(Some(DEADLINE)).unwrap();
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        http1.write_all(head).unwrap();
        let mut goes_on = [0; 25];
        http1.read_exact(&mut goes_on).unwrap();
        assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");

        running.stop();
        while http2.send_request(get(0)).await.is_ok() {} // until the farewell is here

        end.send(()).unwrap();
        assert_eq!(begun.await.unwrap().unwrap().status(), 405);
        connection.await.unwrap().unwrap();
        http1.write_all(b"12345").unwrap();
        let mut heard = String::new();
        http1.read_to_string(&mut heard).unwrap();
        assert!(heard.starts_with("HTTP/1.1 405 "), "{heard}");
    });
}

/// Without a network, in virtual time.
#[test]
fn a_connection_of_http1_rests_as_long_as_the_policy_allows_and_a_head_has_its_own_limit() {
    const LIMIT: Duration = Duration::from_secs(30);
    const ALMOST: Duration = Duration::from_millis(29_999);
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let limits = HttpLimits::default().request_timeout(Some(LIMIT));
    let service = service(Page::new("page", "text/plain"), limits).unwrap();
    let mut rests = TestConnection::open(&service).unwrap();
    for request in [GET, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", GET] {
        rests.receive(request);
        assert!(rests.take_output().starts_with(b"HTTP/1.1 "));
        rests.advance(LIMIT * 10);
        assert_eq!(rests.state(), TestState::Open, "after {}", request.escape_ascii());
    }
    rests.receive(b"GET / HTTP/1.1\r\n");
    rests.advance(ALMOST);
    rests.receive(b"Host: a\r\n\r\n");
    rests.advance(ALMOST);
    assert!(rests.take_output().starts_with(b"HTTP/1.1 200 "), "it was complete in time");

    for before in [&b""[..], GET] {
        let mut slow = TestConnection::open(&service).unwrap();
        slow.receive(before);
        slow.advance(LIMIT / 2);
        for byte in &GET[..20] {
            slow.receive(std::slice::from_ref(byte));
            slow.advance(Duration::from_secs(1));
        }
        assert!(!slow.has_finished_sending(), "after {}", before.escape_ascii());
        slow.advance(LIMIT - Duration::from_secs(20));
        assert!(slow.has_finished_sending(), "after {}", before.escape_ascii());
    }
}
