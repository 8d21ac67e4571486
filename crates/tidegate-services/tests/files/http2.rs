//! Files over HTTP/2 on every model, asked for by hyper's client.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::{Model, Running, Server};
use tidegate_services::{Files, FilesLimits, FilesOptions, HttpLimits, Listing};
use tokio::net::TcpStream;

use super::client::{Client, folder, limited, models, pattern, serve};

/// Nothing here takes a second; a machine under load may take long.
const DEADLINE: Duration = Duration::from_secs(60);

type Sender = http2::SendRequest<Empty<Bytes>>;

fn serve_http2(model: Model, outer: &Path, options: FilesOptions) -> Running {
    let files = Files::new(&outer.join("root"), options, HttpLimits::default()).expect("a folder");
    let server = Server::new(files.http2().expect("a build with HTTP/2")).model(model);
    server.bind("127.0.0.1:0").expect("bind").start().expect("start")
}

/// Runs a test with a client's connection to a server on each model.
fn on_every_model(options: &FilesOptions, test: impl AsyncFn(&Path, &Running, Sender)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for model in models() {
        eprintln!("on {model}");
        let outer = folder();
        let running = serve_http2(model, outer.path(), options.clone());
        runtime.block_on(async {
            let test = async { test(outer.path(), &running, connect(&running).await).await };
            tokio::time::timeout(DEADLINE, test).await.expect("the test ends");
        });
        running.stop();
        let runs = tokio::task::spawn_blocking;
        runtime.block_on(async { runs(move || running.join()).await.unwrap() });
    }
}

async fn connect(running: &Running) -> Sender {
    let at = running.local_addr().addr().expect("an address");
    let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> Request<Empty<Bytes>> {
    let mut request = Request::builder().method(method).uri(format!("http://a{target}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Empty::new()).unwrap()
}

async fn get(sender: &Sender, target: &str) -> Response<Incoming> {
    sender.clone().send_request(request("GET", target, &[])).await.unwrap()
}

async fn bytes(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Status, fields and body, without what is of the version and of the moment.
fn essence(status: u16, fields: impl Iterator<Item = (String, String)>, body: &[u8]) -> String {
    let mut fields: Vec<_> =
        fields.map(|(name, value)| format!("{}: {value}", name.to_lowercase())).collect();
    fields.retain(|field| !["date:", "server:", "connection:"].iter().any(|name| field.starts_with(name)));
    fields.sort();
    let mut text = format!("{status} {fields:?} {}", body.escape_ascii());
    // Boundaries of parts are different each time.
    while let Some(at) = text.find("tidegate-") {
        text.replace_range(at..at + "tidegate-".len() + 32, "BOUNDARY");
    }
    text
}

/// One place makes the answers of both: each request has the same one over HTTP/1.1 and over HTTP/2.
#[test]
fn answers_are_those_of_http_1() {
    let options = FilesOptions { listing: Listing::On, ..FilesOptions::default() };
    on_every_model(&options, async |outer, running, sender| {
        std::fs::write(outer.join("root/styled.css"), "a {}").unwrap();
        std::fs::write(outer.join("root/styled.css.gz"), "packed").unwrap();
        std::fs::write(outer.join("root/empty"), "").unwrap();
        let plain = serve(running.model(), outer, options.clone());
        let mut client = Client::of(&plain);
        let tag = client.get("/small", "").field("ETag").unwrap().to_owned();
        let modified = client.get("/small", "").field("Last-Modified").unwrap().to_owned();
        for (target, fields) in [
            ("/", vec![]),
            ("/small", vec![]),
            ("/large", vec![]),
            ("/empty", vec![]),
            ("/a%20b.txt?query", vec![]),
            ("/sub", vec![]),
            ("/sub/", vec![]),
            ("/absent", vec![]),
            ("/.hidden", vec![]),
            ("/../secret", vec![]),
            ("/%2e%2e/secret", vec![]),
            ("/%zz", vec![]),
            ("/styled.css", vec![("Accept-Encoding", "gzip")]),
            ("/styled.css", vec![("Accept-Encoding", "br;q=0.5")]),
            ("/small", vec![("If-None-Match", &*tag)]),
            ("/small", vec![("If-Match", "\"other\"")]),
            ("/small", vec![("If-Modified-Since", &*modified)]),
            ("/small", vec![("Range", "bytes=10-19")]),
            ("/large", vec![("Range", "bytes=-70000")]),
            ("/large", vec![("Range", "bytes=0-9,2000000-2000009")]),
            ("/small", vec![("Range", "bytes=5000-")]),
            ("/small", vec![("Range", "bytes=0-0"), ("If-Range", &*tag)]),
            ("/small", vec![("Range", "bytes=0-0"), ("If-Range", "\"other\"")]),
        ] {
            for method in ["GET", "HEAD"] {
                let lines: String =
                    fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let mut client = Client::of(&plain); // a fault may end its connection
                let old = match method {
                    "GET" => client.get(target, &lines),
                    _ => client.head(target, &lines),
                };
                let old_fields = old.head.lines().filter_map(|line| line.split_once(": "));
                let old_fields = old_fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
                let expected = essence(old.status, old_fields, &old.body);

                let answer = sender.clone().send_request(request(method, target, &fields)).await.unwrap();
                let status = answer.status().as_u16();
                let named = answer.headers().iter();
                let named: Vec<_> = named
                    .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                    .collect();
                let body = bytes(answer).await;
                assert_eq!(
                    essence(status, named.into_iter(), &body),
                    expected,
                    "{method} {target} {fields:?}"
                );
            }
        }
        plain.stop();
        plain.join();
    });
}

#[test]
fn many_streams_have_large_files_at_once_and_http_1_beside_them() {
    // Nothing is kept: each request opens and reads.
    for limits in [FilesLimits::default(), FilesLimits::default().cache_bytes(0).valid(Duration::ZERO)] {
        on_every_model(&limited(limits), async |_, running, sender| {
            let large = Bytes::from(pattern(3_000_000));
            let asked = (0..20).map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { bytes(get(&sender, "/large").await).await })
            });
            for answer in asked.collect::<Vec<_>>() {
                assert_eq!(answer.await.unwrap(), large);
            }
            let at = running.local_addr().addr().unwrap();
            let stream = TokioIo::new(TcpStream::connect(at).await.unwrap());
            let (mut old, connection) = http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            assert_eq!(bytes(old.send_request(request("GET", "/large", &[])).await.unwrap()).await, large);
        });
    }
}

/// The stream ends with an error instead of a wrong or endless body, and the others go on.
#[test]
fn a_file_that_shrinks_on_its_way_costs_its_stream_only() {
    on_every_model(&FilesOptions::default(), async |outer, _, sender| {
        let path = outer.join("root/shrinks");
        std::fs::write(&path, pattern(8_000_000)).unwrap();
        let begun = get(&sender, "/shrinks").await;
        // The peer's windows are smaller than the file, so not all of it is on its way.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(begun.into_body().collect().await.is_err());
        assert_eq!(get(&sender, "/small").await.status(), 200);
    });
}

#[test]
fn a_busy_server_says_so_to_connections_above_its_limit() {
    let limits = FilesLimits::default().busy_above(Some(1));
    on_every_model(&limited(limits), async |_, running, sender| {
        assert_eq!(get(&sender, "/small").await.status(), 200);
        let second = connect(running).await;
        let refused = get(&second, "/small").await;
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert_eq!(get(&sender, "/small").await.status(), 200);
        // When the first one has left, the second one is served, as it was asked to retry.
        drop(sender);
        while get(&second, "/small").await.status() == 503 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}
