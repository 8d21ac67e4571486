//! `--tls-cert` and `--tls-key`, and loads that are encrypted.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;
use tidegate::Model;

use crate::kit::{Outcome, Server, run, tidegate};
use crate::metrics;

struct Papers(TempDir);

impl Papers {
    fn new() -> Self {
        let papers = Self(tempfile::tempdir().unwrap());
        papers.write(&["cert.pem", "key.pem"]);
        papers
    }

    /// A new pair into these files.
    fn write(&self, [cert, key]: &[&str; 2]) {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        std::fs::write(self.path(cert), pair.cert.pem()).unwrap();
        std::fs::write(self.path(key), pair.signing_key.serialize_pem()).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self, what: &str, at: &str, more: &[&str]) -> std::process::Command {
        let mut command = tidegate(&["serve", what, "--listen", at, "--threads", "2"]);
        command.args(more).arg("--tls-cert").arg(self.path("cert.pem"));
        command.arg("--tls-key").arg(self.path("key.pem"));
        command
    }
}

fn load(what: &str, url: &str, more: &[&str]) -> Outcome {
    let fixed = ["load", what, url, "-c", "6", "--timeout", "20", "--json", "-"];
    run(&mut tidegate(&[&fixed[..], more].concat()))
}

fn trusting<'a>(ca: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    [&["--tls-ca", ca.to_str().unwrap()][..], more].concat()
}

fn tls(outcome: &Outcome) -> (u64, u64) {
    let report: serde_json::Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {}", outcome.stderr));
    let count = |name: &str| report["tls"][name].as_u64().unwrap();
    (count("handshakes"), count("resumed"))
}

/// Over TLS a client of HTTP/1.1 gets the page from the same server, and one that offers both HTTP/2.
#[test]
fn http2_is_served_by_prior_knowledge_and_agreed_on_over_tls() {
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let server = Server::start(&["serve", "http", "--http2", "--listen", "127.0.0.1:0"]);
    let mut stream = server.connect();
    stream.write_all(preface.as_bytes()).unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!(frame[3..9], [4, 0, 0, 0, 0, 0], "SETTINGS of the connection (RFC 9113, section 6.5)");
    let page = server.talk("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.len() > 4096, "{page}");

    let papers = Papers::new();
    let ca = papers.path("cert.pem");
    let server = Server::of(&mut papers.serve("http", "127.0.0.1:0", &["--http2"]));
    let outcome = load("http", &server.url, &trusting(&ca, &["-n", "60"]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let asked = std::process::Command::new("curl")
        .args(["-sS", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{size_download}", "--cacert"])
        .arg(&ca)
        .arg(&server.url)
        .output();
    match asked {
        Ok(out) => assert_eq!(String::from_utf8_lossy(&out.stdout), "2 4096"),
        Err(e) => eprintln!("left out: HTTP/2 over TLS: curl: {e}"),
    }
}

/// A file is the same over both versions.
#[test]
fn files_are_served_over_http2() {
    let papers = Papers::new();
    let ca = papers.path("cert.pem");
    let server = Server::of(&mut papers.serve(
        "files",
        "127.0.0.1:0",
        &[papers.0.path().to_str().unwrap(), "--http2"],
    ));
    let url = format!("{}cert.pem", server.url);
    let outcome = load("http", &url, &trusting(&ca, &["-n", "60"]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let length = std::fs::metadata(&ca).unwrap().len();
    for (version, said) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let asked = std::process::Command::new("curl")
            .args([
                "-sS",
                version,
                "-o",
                "/dev/null",
                "-w",
                "%{http_version} %{http_code} %{size_download}",
                "--cacert",
            ])
            .arg(&ca)
            .arg(&url)
            .output();
        match asked {
            Ok(out) => assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{said} 200 {length}")),
            Err(e) => eprintln!("left out: HTTP/2 over TLS: curl: {e}"),
        }
    }
}

/// The options of requests hold for hyper, too, and whatever a peer sends its connection is counted.
#[test]
fn http2_keeps_the_limits_of_requests_and_counts_its_connections() {
    let fixed = ["serve", "http", "--http2", "--listen", "127.0.0.1:0", "--stats"];
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nFiller: {}\r\n\r\n", "x".repeat(10_000));
    let sized = ["--body-bytes", "10", "--head-bytes", "8KiB"];
    let short = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n012345678";
    let long = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 11\r\n\r\n01234567890";
    for (limits, requests) in [
        (&sized[..], &[(long, 413), (large.as_str(), 431), ("no request at all\r\n\r\n", 400)][..]),
        (&["--request-timeout", "100ms"], &[(short, 408)]),
    ] {
        let server = Server::start(&[&fixed[..], limits].concat());
        for (request, status) in requests {
            let answer = server.talk(request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        }
        server.signal(Signal::TERM);
        let (status, _, stderr) = server.ended();
        assert_eq!(status.code(), Some(0));
        let stats: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
        let ends = ["finished", "reset"].map(|why| stats["closed"][why].as_u64().unwrap());
        assert_eq!(stats["accepted"], requests.len(), "{stats}");
        assert_eq!(ends.iter().sum::<u64>(), requests.len() as u64, "{stats}");
    }
}

#[test]
fn both_services_are_encrypted_on_every_model() {
    let papers = Papers::new();
    let ca = papers.path("cert.pem");
    for model in Model::available() {
        for (what, scheme) in [("http", "https"), ("echo", "tls")] {
            let server =
                Server::of(&mut papers.serve(what, "127.0.0.1:0", &["--model", model.name(), "--stats"]));
            assert!(server.url.starts_with(&format!("{scheme}://127.0.0.1:")), "{}", server.url);
            let outcome = load(what, &server.url, &trusting(&ca, &["-n", "300", "--model", model.name()]));
            assert_eq!(outcome.code, Some(0), "{model}: {}{}", outcome.stdout, outcome.stderr);
            assert_eq!(tls(&outcome).0, 6, "{model}");
            server.signal(Signal::TERM);
            let (status, _, stderr) = server.ended();
            assert_eq!(status.code(), Some(0));
            let stats: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
            assert_eq!(stats["tls"]["handshakes"], 6, "{model}");
        }
    }
}

#[test]
fn sessions_are_taken_up_unless_that_is_not_wanted() {
    let papers = Papers::new();
    let ca = papers.path("cert.pem");
    let server = Server::of(&mut papers.serve("http", "127.0.0.1:0", &[]));
    let often = ["-n", "60", "--no-keepalive"];
    let (handshakes, resumed) = tls(&load("http", &server.url, &trusting(&ca, &often)));
    assert!(handshakes >= 60 && resumed > 0 && resumed < handshakes, "{resumed} of {handshakes}");
    let full = load("http", &server.url, &trusting(&ca, &[&often[..], &["--tls-no-resumption"]].concat()));
    assert_eq!(tls(&full).1, 0);
}

#[test]
fn handshakes_and_what_went_wrong_are_published() {
    let papers = Papers::new();
    let server = Server::of(&mut papers.serve("http", "127.0.0.1:0", &["--metrics", "127.0.0.1:0"]));
    let page = server.wait_for("metrics on http://");
    let page = page.split("http://").nth(1).unwrap().trim_end_matches("/metrics").parse().unwrap();
    assert_eq!(load("http", &server.url, &trusting(&papers.path("cert.pem"), &["-n", "60"])).code, Some(0));
    // What is no TLS is answered with an alert, and then the end: by then it is counted.
    server.talk("GET / HTTP/1.1\r\n\r\n");
    let samples = metrics::samples(&metrics::get(page, "/metrics").1);
    assert_eq!(samples[r#"tidegate_tls_handshakes_total{server="http"}"#], 6);
    assert_eq!(samples[r#"tidegate_tls_faults_total{fault="handshake",server="http"}"#], 1);
    assert!(samples.contains_key(r#"tidegate_tls_resumed_total{server="http"}"#));
}

#[test]
fn a_unix_socket_may_be_encrypted_too() {
    let papers = Papers::new();
    let at = format!("unix:{}", papers.path("socket").display());
    let server = Server::of(&mut papers.serve("http", &at, &["--strategy", "connections"]));
    assert_eq!(server.url, format!("https://{at}"));
    let outcome = load("http", &server.url, &trusting(&papers.path("cert.pem"), &["-n", "60"]));
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.stdout, outcome.stderr);
}

#[test]
fn whom_nobody_vouches_for_is_not_spoken_to() {
    let papers = Papers::new();
    papers.write(&["other.pem", "other.key"]);
    let server = Server::of(&mut papers.serve("echo", "127.0.0.1:0", &[]));
    let (ca, other) = (papers.path("cert.pem"), papers.path("other.pem"));
    for more in [trusting(&other, &["-n", "60"]), trusting(&ca, &["-n", "60", "--tls-name", "example.org"])] {
        let outcome = load("echo", &server.url, &more);
        assert_eq!(outcome.code, Some(1), "{more:?}");
        assert!(outcome.stderr.contains("certificate"), "{}", outcome.stderr);
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&report["connected"], &report["connect_failed"]), (&0.into(), &6.into()));
    }
    let anything = load("echo", &server.url, &["-n", "60", "--tls-insecure"]);
    assert_eq!(anything.code, Some(0), "{}", anything.stderr);
}

#[test]
fn a_hang_up_reads_the_certificate_again() {
    let papers = Papers::new();
    let server = Server::of(&mut papers.serve("http", "127.0.0.1:0", &[]));
    let first = papers.path("first.pem");
    std::fs::copy(papers.path("cert.pem"), &first).unwrap();
    papers.write(&["cert.pem", "lost.key"]);
    server.signal(Signal::HUP);
    server.wait_for("the certificate is unchanged");
    let works = |ca: &Path| load("http", &server.url, &trusting(ca, &["-n", "6"])).code == Some(0);
    assert!(works(&first) && !works(&papers.path("cert.pem")));
    papers.write(&["cert.pem", "key.pem"]);
    server.signal(Signal::HUP);
    server.wait_for("certificate reloaded for new connections");
    assert!(!works(&first) && works(&papers.path("cert.pem")));
}

#[test]
fn a_certificate_that_is_no_file_does_not_keep_the_server_from_stopping() {
    let papers = Papers::new();
    let server = Server::of(&mut papers.serve("http", "127.0.0.1:0", &[]));
    let cert = papers.path("cert.pem");
    let known = papers.path("known.pem");
    std::fs::rename(&cert, &known).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&cert).status().unwrap();
    assert!(made.success());
    server.signal(Signal::HUP);
    server.wait_for("cert.pem cannot be read: not a regular file");
    assert_eq!(load("http", &server.url, &trusting(&known, &["-n", "6"])).code, Some(0));
    server.signal(Signal::TERM);
    assert_eq!(server.ended().0.code(), Some(0));
    let start = run(&mut papers.serve("http", "127.0.0.1:0", &[]));
    assert_eq!(start.code, Some(2), "{}", start.stderr);
}

#[test]
fn what_cannot_be_is_bad_usage() {
    let papers = Papers::new();
    std::fs::remove_file(papers.path("key.pem")).unwrap();
    let missing = run(&mut papers.serve("http", "127.0.0.1:0", &[]));
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("key.pem cannot be read"), "{}", missing.stderr);
    let alone = run(&mut tidegate(&["serve", "http", "--tls-cert", "x"]));
    assert_eq!(alone.code, Some(2));
    let papers = Papers::new();
    let small = run(&mut papers.serve("http", "127.0.0.1:0", &["--input-bytes", "16k"]));
    assert_eq!(small.code, Some(2));
    let said =
        "--input-bytes is 16384; it must be at least 18437: an incomplete TLS record is unconsumed input";
    assert!(small.stderr.contains(said), "{}", small.stderr);
    let plain = load("http", "http://127.0.0.1:1/", &["--tls-insecure"]);
    assert_eq!(plain.code, Some(2));
    assert!(plain.stderr.contains("the target is not encrypted"), "{}", plain.stderr);
    let name = load("http", "https://127.0.0.1:1/", &["--tls-insecure", "--tls-name", "a b"]);
    assert_eq!(name.code, Some(2));
    assert!(name.stderr.contains("not a valid server name"), "{}", name.stderr);
}
