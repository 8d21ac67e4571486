//! What is answered.

use std::time::Duration;

use tidegate::{Model, PolicyError};
use tidegate_services::{Files, FilesError, FilesLimits, FilesOptions, HttpLimits, Listing};

use crate::client::{Client, folder, limited, models, serve};

#[test]
fn each_target_has_its_answer() {
    let outer = folder();
    let server = serve(Model::Poll, outer.path(), FilesOptions::default());
    let mut client = Client::of(&server);
    for (target, status, body) in [
        ("/", 200, "<h1>index</h1>"),
        ("/index.html", 200, "<h1>index</h1>"),
        ("/a%20b.txt?x=y", 200, "a b"),
        ("/sub/../a%20b.txt", 200, "a b"),
        ("/sub/file.txt", 200, "file"),
        ("/sub/file.txt/", 404, ""),
        ("/sub/file.txt/x", 404, ""),
        ("/sub/", 403, ""),
        ("/none", 404, ""),
        ("/.hidden", 404, ""),
        ("/../secret", 400, ""),
        ("/%00", 400, ""),
    ] {
        let answer = client.get(target, "");
        assert_eq!(answer.status, status, "{target}: {}", answer.head);
        assert!(status != 200 || answer.body == body.as_bytes(), "{target}");
    }
    let moved = client.get("/sub?a=b", "");
    assert_eq!((moved.status, moved.field("Location")), (301, Some("/sub/?a=b")));
    assert_eq!(client.get("//sub", "").field("Location"), Some("/sub/"), "not to a host of that name");
    let long = client.get(&format!("/{}", "a".repeat(5000)), "");
    assert_eq!(long.status, 414);
    client.say(b"POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(client.hear(crate::client::Body::Comes).status, 405);
    client.say(b"GET /sub/file.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
    assert_eq!(client.hear(crate::client::Body::Comes).body, b"file", "a body means nothing");
    server.stop();
    server.join();
}

#[test]
fn a_file_of_any_date_is_served() {
    use std::time::SystemTime;
    let outer = folder();
    let day = Duration::from_secs(24 * 3600);
    let times = [
        ("old", SystemTime::UNIX_EPOCH - 3653 * day),
        ("a moment before", SystemTime::UNIX_EPOCH - Duration::from_millis(1)),
        ("first", SystemTime::UNIX_EPOCH),
        ("far", SystemTime::now() + 3653 * day),
    ];
    for (name, time) in times {
        for (end, bytes) in [("small", 10), ("large", 100_000)] {
            let path = outer.path().join(format!("root/{name}.{end}"));
            std::fs::write(&path, crate::client::pattern(bytes)).expect("write");
            let file = std::fs::File::options().write(true).open(&path).expect("open");
            file.set_modified(time).expect("a file system that keeps such times");
        }
    }
    for model in models() {
        let server = serve(model, outer.path(), FilesOptions::default());
        let mut client = Client::of(&server);
        for (name, time) in times {
            for (end, bytes) in [("small", 10), ("large", 100_000)] {
                let target = format!("/{name}.{end}").replace(' ', "%20");
                let answer = client.get(&target, "");
                assert_eq!((answer.status, answer.body.len()), (200, bytes), "{target} {model}");
                let date = answer.field("Last-Modified");
                assert_eq!(date.is_some(), time >= SystemTime::UNIX_EPOCH, "{target} {model}: {date:?}");
                let tag = answer.field("ETag").expect("a tag");
                let same = client.get(&target, &format!("If-None-Match: {tag}\r\n"));
                assert_eq!(same.status, 304, "{target} {model}");
                let range = format!("Range: bytes=0-1\r\nIf-Range: {tag}\r\n");
                assert_eq!(client.get(&target, &range).status, 206, "{target} {model}");
            }
        }
        // It had no date that a client could know.
        let range = "Range: bytes=0-1\r\nIf-Range: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
        assert_eq!(client.get("/old.small", range).status, 200, "{model}");
        server.stop();
        server.join();
    }
}

#[test]
fn validators_and_kinds_are_said() {
    let outer = folder();
    let server = serve(Model::Poll, outer.path(), FilesOptions::default());
    let mut client = Client::of(&server);
    for target in ["/small", "/large", "/sub/file.txt"] {
        let answer = client.get(target, "");
        let head = client.head(target, "");
        let fields =
            |head: &str| head.lines().filter(|line| !line.starts_with("Date")).collect::<Vec<_>>().join("\n");
        assert_eq!(fields(&head.head), fields(&answer.head), "HEAD says what GET does");
        let etag = answer.field("ETag").expect("a tag").to_owned();
        let modified = answer.field("Last-Modified").expect("a date").to_owned();
        for (fields, status) in [
            (format!("If-None-Match: {etag}\r\n"), 304),
            (format!("If-Modified-Since: {modified}\r\n"), 304),
            ("If-None-Match: \"other\"\r\n".to_owned(), 200),
            (format!("If-Match: {etag}\r\n"), 200),
            ("If-Match: \"other\"\r\n".to_owned(), 412),
            (format!("If-Range: {etag}\r\nRange: bytes=0-1\r\n"), 206),
            ("If-Range: \"other\"\r\nRange: bytes=0-1\r\n".to_owned(), 200),
            // The file may have changed twice within this second.
            (format!("If-Range: {modified}\r\nRange: bytes=0-1\r\n"), 200),
        ] {
            let answer = client.get(target, &fields);
            assert_eq!(answer.status, status, "{target} {fields}");
            if status == 304 {
                assert_eq!((answer.field("ETag"), answer.field("Content-Length")), (Some(&*etag), None));
            }
        }
    }
    assert_eq!(client.get("/sub/file.txt", "").field("Content-Type"), Some("text/plain; charset=utf-8"));
    server.stop();
    server.join();
}

#[test]
fn what_lies_beside_a_file_compressed_is_used_when_it_is_wanted() {
    let outer = folder();
    for (extension, content) in [("gz", "as gzip, longer"), ("br", "as br")] {
        std::fs::write(outer.path().join(format!("root/sub/file.txt.{extension}")), content).expect("write");
    }
    let server = serve(Model::Poll, outer.path(), FilesOptions::default());
    let mut client = Client::of(&server);
    for (accepts, coding, body) in [
        ("gzip", Some("gzip"), "as gzip, longer"),
        ("gzip, br", Some("br"), "as br"),
        ("gzip, br;q=0.5", Some("gzip"), "as gzip, longer"),
        ("zstd", None, "file"),
        ("gzip;q=0", None, "file"),
    ] {
        let answer = client.get("/sub/file.txt", &format!("Accept-Encoding: {accepts}\r\n"));
        assert_eq!((answer.field("Content-Encoding"), &*answer.body), (coding, body.as_bytes()), "{accepts}");
        assert_eq!(answer.field("Vary"), Some("Accept-Encoding"));
        assert_eq!(answer.field("Content-Type"), Some("text/plain; charset=utf-8"));
    }
    server.stop();
    server.join();
}

#[test]
fn a_file_that_has_changed_is_served_anew() {
    let outer = folder();
    let server = serve(Model::Poll, outer.path(), limited(FilesLimits::default().valid(Duration::ZERO)));
    let mut client = Client::of(&server);
    let before = client.get("/sub/file.txt", "");
    std::fs::write(outer.path().join("root/sub/new"), "another one").expect("write");
    std::fs::rename(outer.path().join("root/sub/new"), outer.path().join("root/sub/file.txt"))
        .expect("rename");
    let after = client.get("/sub/file.txt", "");
    assert_eq!(after.body, b"another one");
    assert_ne!(before.field("ETag"), after.field("ETag"));
    std::fs::remove_file(outer.path().join("root/sub/file.txt")).expect("remove");
    assert_eq!(client.get("/sub/file.txt", "").status, 404);
    server.stop();
    server.join();
}

#[test]
fn a_folder_may_be_listed() {
    let outer = folder();
    let server =
        serve(Model::Poll, outer.path(), FilesOptions { listing: Listing::On, ..FilesOptions::default() });
    let mut client = Client::of(&server);
    let page = String::from_utf8(client.get("/sub/", "").body).expect("a page");
    assert!(page.contains("<a href=\"./file.txt\">") && page.contains("<a href=\"./dir/\">"), "{page}");
    server.stop();
    server.join();
}

#[test]
fn a_busy_server_says_so_and_when_to_come_again() {
    let outer = folder();
    let server = serve(Model::Poll, outer.path(), limited(FilesLimits::default().busy_above(Some(1))));
    let mut first = Client::of(&server);
    assert_eq!(first.get("/small", "").status, 200);
    let mut second = Client::of(&server);
    let answer = second.get("/small", "");
    assert_eq!(
        (answer.status, answer.field("Retry-After"), answer.field("Connection")),
        (503, Some("1"), Some("close"))
    );
    assert!(second.is_ended());
    assert_eq!(first.get("/small", "").status, 200);
    server.stop();
    server.join();
}

#[test]
fn what_cannot_be_served_is_named_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |path: &std::path::Path, options| {
        Files::new(path, options, HttpLimits::default()).expect_err("cannot be served")
    };
    let missing = refused(&folder.path().join("none"), FilesOptions::default());
    assert!(missing.to_string().contains("give a directory that exists"), "{missing}");
    let index = FilesOptions { index: vec!["../secret".into()], ..FilesOptions::default() };
    assert!(matches!(refused(folder.path(), index), FilesError::Index(_)));
    let small = limited(FilesLimits::default().cache_bytes(1));
    assert!(matches!(refused(folder.path(), small), FilesError::Limits(PolicyError::Conflict { .. })));
}
