//! `serve files`: what its options come to, over TCP and over TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;
use tidegate::Model;

use crate::kit::{DEADLINE, Server, tidegate};

/// A folder of files, and the papers of a server beside it.
struct Site {
    folder: TempDir,
    authority: CertificateDer<'static>,
}

/// Bytes that differ from place to place.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

const LARGE: usize = 3_000_000;

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let site = Self { folder, authority: pair.cert.der().clone() };
        std::fs::write(site.path("cert.pem"), pair.cert.pem()).unwrap();
        std::fs::write(site.path("key.pem"), pair.signing_key.serialize_pem()).unwrap();
        std::fs::create_dir_all(site.path("www/sub")).unwrap();
        site.write("home.html", b"home");
        site.write("sub/file.txt", b"file");
        site.write("sub/.hidden", b"hidden");
        site.write("small.css", b"h1 { color: red }");
        for (end, content) in [("gz", &b"as gzip"[..]), ("br", b"as brotli"), ("zst", b"as zstd, longer")] {
            site.write(&format!("small.css.{end}"), content);
        }
        site.write("large.bin", &pattern(LARGE));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path("www").join(name), content).unwrap();
    }

    /// In one step, as a file that is served is replaced.
    fn replace(&self, name: &str, content: &[u8]) {
        self.write("new", content);
        std::fs::rename(self.path("www/new"), self.path("www").join(name)).unwrap();
    }

    fn serve(&self, more: &[&str]) -> Server {
        let mut command = tidegate(&["serve", "files"]);
        command.arg(self.path("www")).args(["--listen", "127.0.0.1:0"]).args(more);
        Server::of(&mut command)
    }

    fn serve_encrypted(&self, more: &[&str]) -> Server {
        let (cert, key) = (self.path("cert.pem"), self.path("key.pem"));
        let papers = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        self.serve(&[&papers, more].concat())
    }

    fn encrypted(&self, server: &Server) -> Client<StreamOwned<ClientConnection, TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Client(StreamOwned::new(connection, server.connect()))
    }
}

/// One connection.
struct Client<S>(S);

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl<S: Read + Write> Client<S> {
    /// Asks for a target with further fields, each with its line end.
    fn get(&mut self, target: &str, fields: &str) -> Answer {
        self.say(target, fields);
        self.hear()
    }

    fn say(&mut self, target: &str, fields: &str) {
        self.0
            .write_all(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").as_bytes())
            .unwrap();
    }

    /// The next answer to a GET.
    fn hear(&mut self) -> Answer {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let head = String::from_utf8(head).unwrap();
        let mut answer = Answer { status: head[9..12].parse().unwrap(), head, body: Vec::new() };
        if answer.status != 304 {
            answer.body = vec![0; answer.field("Content-Length").unwrap().parse().unwrap()];
            self.0.read_exact(&mut answer.body).unwrap();
        }
        answer
    }
}

fn plain(server: &Server) -> Client<TcpStream> {
    Client(server.connect())
}

#[test]
fn a_folder_is_served_over_tls_on_every_model() {
    let site = Site::new();
    for model in Model::available() {
        let server = site.serve_encrypted(&["--model", model.name()]);
        assert!(server.url.starts_with("https://"), "{}", server.url);
        let mut client = site.encrypted(&server);
        assert_eq!(client.get("/sub/file.txt", "").body, b"file", "{model}");
        let whole = client.get("/large.bin", "");
        assert!(whole.body == pattern(LARGE), "{model}");
        let part = client.get("/large.bin", "Range: bytes=1000000-2500000\r\n");
        assert_eq!((part.status, part.field("Content-Range")), (206, Some("bytes 1000000-2500000/3000000")));
        assert!(part.body == pattern(LARGE)[1_000_000..=2_500_000], "{model}");
        // Asked for before the answers are read: they come in order, and whole.
        for target in ["/large.bin", "/small.css", "/none", "/large.bin"] {
            client.say(target, "");
        }
        let answers = [(); 4].map(|()| client.hear());
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 404, 200], "{model}");
        assert!(answers[0].body == whole.body && answers[3].body == whole.body, "{model}");
        assert_eq!(answers[1].body, b"h1 { color: red }", "{model}");
    }
}

#[test]
fn each_coding_has_its_own_tag_and_ranges() {
    let site = Site::new();
    let server = site.serve(&[]);
    let mut client = plain(&server);
    let mut tags = Vec::new();
    for (accepts, coding, body) in [
        ("zstd", Some("zstd"), &b"as zstd, longer"[..]),
        ("br", Some("br"), b"as brotli"),
        ("gzip", Some("gzip"), b"as gzip"),
        ("deflate", None, b"h1 { color: red }"),
        ("gzip;q=0.5, zstd", Some("zstd"), b"as zstd, longer"),
        ("gzip, br, zstd", Some("gzip"), b"as gzip"), // the smallest of those wanted alike
    ] {
        let accepts = format!("Accept-Encoding: {accepts}\r\n");
        let answer = client.get("/small.css", &accepts);
        assert_eq!((answer.field("Content-Encoding"), &*answer.body), (coding, body), "{accepts}");
        assert_eq!(answer.field("Content-Type"), Some("text/css; charset=utf-8"));
        let tag = answer.field("ETag").unwrap().to_owned();
        let known = client.get("/small.css", &format!("{accepts}If-None-Match: {tag}\r\n"));
        assert_eq!(known.status, 304, "{accepts}");
        let end = client.get("/small.css", &format!("{accepts}If-Range: {tag}\r\nRange: bytes=3-\r\n"));
        assert_eq!((end.status, &*end.body), (206, &body[3..]), "{accepts}");
        tags.push(tag);
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 4, "{tags:?}");
    // A part of one coding does not go on with another one.
    let parts =
        |tag: &String| client.get("/small.css", &format!("If-Range: {tag}\r\nRange: bytes=3-\r\n")).status;
    let mut statuses: Vec<_> = tags.iter().map(parts).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 206]);

    let bare = site.serve(&["--precompressed", "none"]);
    assert_eq!(
        plain(&bare).get("/small.css", "Accept-Encoding: gzip, br, zstd\r\n").field("Content-Encoding"),
        None
    );
}

#[test]
fn options_say_what_a_folder_is_answered_with() {
    let site = Site::new();
    let server = site.serve(&["--index", "none.html,home.html", "--listing", "on"]);
    let mut client = plain(&server);
    assert_eq!(client.get("/", "").body, b"home");
    let list = String::from_utf8(client.get("/sub/", "").body).unwrap();
    assert!(list.contains("file.txt") && !list.contains("hidden"), "{list}");
    assert_eq!(client.get("/sub/.hidden", "").status, 404);
    let strict = site.serve(&[]);
    assert_eq!(plain(&strict).get("/sub/", "").status, 403);
}

#[test]
fn parts_are_cut_out_together_and_only_of_the_file_that_is_meant() {
    let site = Site::new();
    let server = site.serve(&[]);
    let mut client = plain(&server);
    let whole = client.get("/large.bin", "");
    let (tag, date) = (whole.field("ETag").unwrap(), whole.field("Last-Modified").unwrap());
    for (condition, status) in [
        (tag, 206),
        (date, 200), // the file may have changed twice within this second
        ("\"another\"", 200),
        (&*format!("W/{tag}"), 200), // a weak tag never goes with a range (RFC 9110, section 13.1.5)
        ("Sat, 01 Jan 2000 00:00:00 GMT", 200),
    ] {
        let answer = client.get("/large.bin", &format!("If-Range: {condition}\r\nRange: bytes=1-2\r\n"));
        assert_eq!(answer.status, status, "{condition}");
    }
    let parts = client.get("/large.bin", "Range: bytes=0-9, 1000000-1999999, -5\r\n");
    let kind = parts.field("Content-Type").unwrap();
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let mut expected = Vec::new();
    for (from, to) in [(0, 10), (1_000_000, 2_000_000), (LARGE - 5, LARGE)] {
        let range = format!("bytes {from}-{}/{LARGE}", to - 1);
        let start = if from == 0 { "" } else { "\r\n" };
        let head = format!(
            "{start}--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: {range}\r\n\r\n"
        );
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&whole.body[from..to]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(parts.status == 206 && parts.body == expected, "{}", parts.head);
}

#[test]
fn a_file_that_is_replaced_is_served_anew() {
    let site = Site::new();
    // Kept in memory, and kept open: for as long as --valid says, and not at all.
    for (valid, name, length) in [
        ("50ms", "small.css", 5000),
        ("50ms", "large.bin", 100_000),
        ("0s", "small.css", 5000),
        ("0s", "large.bin", 100_000),
    ] {
        let first = pattern(length);
        site.replace(name, &first);
        let server = site.serve(&["--valid", valid]);
        let mut client = plain(&server);
        let before = client.get(&format!("/{name}"), "");
        assert!(before.body == first);
        let content = [name.as_bytes(), &first].concat();
        site.replace(name, &content);
        let begun = Instant::now();
        let after = loop {
            let answer = client.get(&format!("/{name}"), "");
            if answer.body == content || valid == "0s" || begun.elapsed() > DEADLINE {
                break answer;
            }
            assert!(answer.body == before.body, "half of one and half of the other");
        };
        assert!(after.body == content, "{name}, --valid {valid}");
        assert_ne!(after.field("ETag"), before.field("ETag"));
    }
}

#[test]
fn a_full_server_says_when_to_come_again() {
    let site = Site::new();
    let server = site.serve(&["--strategy", "throughput", "--max-connections", "32", "--threads", "1"]);
    // The last sixteenth is reported.
    let mut served: Vec<_> = (0..30).map(|_| plain(&server)).collect();
    for client in &mut served {
        assert_eq!(client.get("/sub/file.txt", "").status, 200);
    }
    let refused = plain(&server).get("/sub/file.txt", "");
    assert_eq!(
        (refused.status, refused.field("Retry-After"), refused.field("Connection")),
        (503, Some("1"), Some("close"))
    );
    assert_eq!(served[29].get("/large.bin", "").body.len(), LARGE, "who is in is served");
    // Who comes again is served once somebody has gone.
    served.clear();
    let begun = Instant::now();
    while plain(&server).get("/sub/file.txt", "").status != 200 {
        assert!(begun.elapsed() < DEADLINE, "nobody is served any more");
    }
}

#[test]
fn each_address_of_a_server_has_its_own_limit_of_connections() {
    let site = Site::new();
    for http2 in [&[][..], &["--http2"]] {
        let two = ["--listen", "127.0.0.1:0", "--strategy", "throughput", "--max-connections", "16"];
        let mut server = site.serve(&[&two[..], &["--threads", "1"], http2].concat());
        let mut served: Vec<_> = (0..15).map(|_| plain(&server)).collect();
        let url = server.next_url();
        server.addr = url.split('/').nth(2).unwrap().parse().unwrap();
        served.extend((0..15).map(|_| plain(&server)));
        for client in &mut served {
            assert_eq!(client.get("/sub/file.txt", "").status, 200, "{http2:?}");
        }
        assert_eq!(plain(&server).get("/sub/file.txt", "").status, 503, "{http2:?}");
    }
}

#[test]
fn more_files_than_descriptors_are_all_served() {
    let site = Site::new();
    for n in 0..300 {
        site.write(&format!("f{n}"), &pattern(2_000 + n));
    }
    let www = site.path("www");
    for model in Model::available() {
        let mut args =
            vec!["serve", "files", www.to_str().unwrap(), "--listen", "127.0.0.1:0", "--small-bytes", "1KiB"];
        args.extend(["--valid", "1h", "--model", model.name()]);
        if model == Model::Pool {
            args.extend(["--threads", "16"]); // each has a descriptor
        }
        let server = Server::of(&mut crate::kit::with_descriptors(256, &args));
        // Several at a time, so that every thread keeps files open.
        let mut clients: Vec<_> = (0..8).map(|_| plain(&server)).collect();
        for round in 0..2 {
            for n in 0..300 {
                let answer = clients[n % 8].get(&format!("/f{n}"), "");
                assert_eq!(answer.status, 200, "file {n}, round {round}, {model}");
                assert!(answer.body == pattern(2_000 + n), "file {n}, {model}");
            }
        }
        // Each connection of so many has a descriptor beside them.
        let more: Vec<_> = (0..60).map(|_| plain(&server)).collect();
        for (n, mut client) in more.into_iter().enumerate() {
            assert_eq!(client.get(&format!("/f{n}"), "").status, 200, "connection {n}, {model}");
        }
    }
}

#[test]
fn files_that_leave_no_descriptor_for_a_connection_are_refused_at_the_start() {
    let site = Site::new();
    let www = site.path("www");
    let args = [
        "serve",
        "files",
        www.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--open-files",
        "256",
        "--model",
        "poll",
    ];
    let outcome = crate::kit::run(&mut crate::kit::with_descriptors(256, &args));
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("lower --open-files"), "{}", outcome.stderr);
}

#[test]
fn open_files_take_their_descriptors_once_whatever_the_number_of_addresses() {
    let site = Site::new();
    let www = site.path("www");
    let mut args = vec!["serve", "files", www.to_str().unwrap(), "--model", "poll", "--threads", "1"];
    args.extend(["--listen", "127.0.0.1:0"].repeat(4));
    // A quarter of them is for open files.
    let server = Server::of(&mut crate::kit::with_descriptors(512, &args));
    assert_eq!(plain(&server).get("/sub/file.txt", "").status, 200);
}
