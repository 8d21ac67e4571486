//! Fields of a request that contradict themselves, on every model.

use tidegate_services::FilesOptions;

use crate::client::{Client, folder, models, serve};

#[test]
fn a_refused_coding_is_never_sent() {
    let outer = folder();
    for (extension, content) in [("gz", "gz"), ("br", "b")] {
        std::fs::write(outer.path().join(format!("root/sub/file.txt.{extension}")), content).expect("write");
    }
    for model in models() {
        let server = serve(model, outer.path(), FilesOptions::default());
        let mut client = Client::of(&server);
        for (fields, coding, body) in [
            ("Accept-Encoding: *;q=0\r\n", None, "file"),
            ("Accept-Encoding: br;q=0, *;q=0\r\n", None, "file"),
            ("Accept-Encoding: gzip;q=0, br;q=0, identity;q=0\r\n", None, "file"),
            ("Accept-Encoding: identity;q=0\r\n", None, "file"), // nothing else is listed
            ("Accept-Encoding: identity;q=0.000, *;q=0.0\r\n", None, "file"),
            ("Accept-Encoding: zstd, *;q=0\r\n", None, "file"),
            ("Accept-Encoding: br;q=0, *\r\n", Some("gzip"), "gz"),
            ("Accept-Encoding: gzip;q=0.001, *;q=0\r\n", Some("gzip"), "gz"),
            ("Accept-Encoding: gzip, *;q=0\r\n", Some("gzip"), "gz"),
            // One list, in any number of fields.
            ("Accept-Encoding: br;q=0\r\nAccept-Encoding: *;q=0\r\n", None, "file"),
            ("Accept-Encoding: *;q=0\r\nAccept-Encoding: gzip\r\n", Some("gzip"), "gz"),
        ] {
            let answer = client.get("/sub/file.txt", fields);
            let heard = (answer.status, answer.field("Content-Encoding"), answer.body.as_slice());
            assert_eq!(heard, (200, coding, body.as_bytes()), "{model}: {fields}");
            assert_eq!(answer.field("Vary"), Some("Accept-Encoding"), "{model}: {fields}");
        }
        server.stop();
        server.join();
    }
}

#[test]
fn a_repeated_single_field_is_ignored_and_a_repeated_list_is_joined() {
    let outer = folder();
    for model in models() {
        let server = serve(model, outer.path(), FilesOptions::default());
        let mut client = Client::of(&server);
        let first = client.get("/sub/file.txt", "");
        let (tag, date) =
            (first.field("ETag").expect("a tag"), first.field("Last-Modified").expect("a date"));
        let old = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (fields, status, body) in [
            ("Range: bytes=0-1\r\nRange: bytes=3-3\r\n".to_owned(), 200, "file"),
            ("Range: bytes=0-1\r\nrange: bytes=0-1\r\n".to_owned(), 200, "file"),
            ("Range: bytes=0-1\r\nRange: bytes=9-\r\n".to_owned(), 200, "file"),
            (format!("Range: bytes=0-1\r\nIf-Range: {tag}\r\n"), 206, "fi"),
            (format!("Range: bytes=0-1\r\nIf-Range: {tag}\r\nIf-Range: \"x\"\r\n"), 200, "file"),
            (format!("Range: bytes=0-1\r\nIf-Range: \"x\"\r\nIf-Range: {tag}\r\n"), 200, "file"),
            (format!("If-Modified-Since: {date}\r\nIf-Modified-Since: {old}\r\n"), 200, "file"),
            (format!("If-Unmodified-Since: {old}\r\nIf-Unmodified-Since: {date}\r\n"), 200, "file"),
            (format!("If-None-Match: \"x\"\r\nIf-None-Match: {tag}\r\n"), 304, ""),
            (format!("If-Match: \"x\"\r\nIf-Match: {tag}\r\n"), 200, "file"),
            ("If-None-Match: \"a,*,b\"\r\n".to_owned(), 200, "file"), // a tag, not any
        ] {
            let answer = client.get("/sub/file.txt", &fields);
            let heard = (answer.status, String::from_utf8_lossy(&answer.body));
            assert_eq!(heard, (status, body.into()), "{model}: {fields}");
        }
        server.stop();
        server.join();
    }
}
