//! The bytes of ranges and of pipelined answers are those of the file, on every model.

use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::{Model, Policy, Server};
use tidegate_services::{Files, FilesLimits, FilesOptions, HttpLimits};

use crate::client::{Body, Client, folder, limited, models, pattern, serve};

#[test]
fn ranges_are_cut_out_exactly_on_every_model() {
    for model in models() {
        // Looked for each time, by a job or not; and kept.
        ranges(model, limited(FilesLimits::default().valid(Duration::ZERO)));
        ranges(model, FilesOptions::default());
    }
}

fn ranges(model: Model, options: FilesOptions) {
    let outer = folder();
    let server = serve(model, outer.path(), options);
    let mut client = Client::of(&server);
    for (name, content) in [("small", pattern(4096)), ("large", pattern(3_000_000))] {
        let length = content.len();
        let whole = client.get(&format!("/{name}"), "");
        assert_eq!((whole.status, whole.body == content), (200, true), "{model} {name}");
        for (range, from, to) in [
            ("0-0".to_owned(), 0, 1),
            ("1-4000".to_owned(), 1, 4001),
            (format!("{}-", length - 7), length - 7, length),
            ("-100".to_owned(), length - 100, length),
            (format!("17-{}", length - 18), 17, length - 17),
        ] {
            let answer = client.get(&format!("/{name}"), &format!("Range: bytes={range}\r\n"));
            let said = format!("bytes {from}-{}/{length}", to - 1);
            assert_eq!(
                (answer.status, answer.field("Content-Range")),
                (206, Some(&*said)),
                "{model} {name} {range}"
            );
            assert!(answer.body == content[from..to], "{model} {name} {range}");
        }
        multipart(&mut client, name, &content);
        let behind = client.get(&format!("/{name}"), &format!("Range: bytes={length}-\r\n"));
        assert_eq!(
            (behind.status, behind.field("Content-Range")),
            (416, Some(&*format!("bytes */{length}")))
        );
    }
    server.stop();
    server.join();
}

fn multipart(client: &mut Client, name: &str, content: &[u8]) {
    let answer = client.get(&format!("/{name}"), "Range: bytes=0-9,100-1999,-5\r\n");
    let kind = answer.field("Content-Type").expect("a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("parts");
    let mut expected = Vec::new();
    for (from, to) in [(0, 10), (100, 2000), (content.len() - 5, content.len())] {
        let line = if expected.is_empty() { "" } else { "\r\n" };
        let range = format!("bytes {from}-{}/{}", to - 1, content.len());
        let head = format!(
            "{line}--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: {range}\r\n\r\n"
        );
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&content[from..to]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert_eq!(answer.status, 206);
    assert!(answer.body == expected, "{}", String::from_utf8_lossy(&answer.body));
}

#[test]
fn pipelined_answers_come_in_order_on_every_model() {
    for model in models() {
        for valid in [Duration::ZERO, Duration::from_secs(1)] {
            let outer = folder();
            let server = serve(model, outer.path(), limited(FilesLimits::default().valid(valid)));
            let mut client = Client::of(&server);
            let targets = ["/small", "/large", "/", "/none", "/sub", "/small", "/large", "/a%20b.txt"];
            let asked: String =
                targets.iter().map(|target| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
            client.say(asked.repeat(5).as_bytes());
            for round in 0..5 {
                let answers = targets.map(|_| client.hear(Body::Comes));
                let statuses = answers.each_ref().map(|answer| answer.status);
                assert_eq!(statuses, [200, 200, 200, 404, 301, 200, 200, 200], "{model} {round}");
                assert!(answers[0].body == pattern(4096) && answers[5].body == pattern(4096), "{model}");
                assert!(
                    answers[1].body == pattern(3_000_000) && answers[6].body == pattern(3_000_000),
                    "{model}"
                );
                assert_eq!((&*answers[2].body, &*answers[7].body), (&b"<h1>index</h1>"[..], &b"a b"[..]));
            }
            server.stop();
            server.join();
        }
    }
}

#[test]
fn one_thread_has_the_whole_cache_on_every_model() {
    // More than half of what may be cached: more than a share of two threads, or more.
    let limits = FilesLimits::default().cache_bytes(100_000).open_files(1).valid(Duration::from_secs(3600));
    for model in models() {
        let outer = folder();
        let write = |name: &str, content: &[u8]| {
            let path = |name: &str| outer.path().join("root").join(name);
            std::fs::write(path("new"), content).expect("write");
            std::fs::rename(path("new"), path(name)).expect("rename");
        };
        let files = Files::new(&outer.path().join("root"), limited(limits), HttpLimits::default());
        let policy = Policy::default().threads(NonZeroUsize::new(1));
        let server = Server::new(files.expect("a folder")).model(model).policy(policy);
        let server = server.bind("127.0.0.1:0").expect("bind").start().expect("start");
        for (name, old) in [("half", pattern(60_000)), ("large", pattern(200_000))] {
            write(name, &old);
            let first = Client::of(&server).get(&format!("/{name}"), "").body;
            write(name, b"new");
            let second = Client::of(&server).get(&format!("/{name}"), "").body;
            assert!(first == old && second == old, "{model}: {name} was not kept");
        }
        server.stop();
        server.join();
    }
}
