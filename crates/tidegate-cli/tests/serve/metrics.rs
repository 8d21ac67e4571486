//! `--metrics`: what is published, and the probes.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::process::Signal;
use tidegate::Model;

use crate::kit::{DEADLINE, Server, run, tidegate};

const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn start(model: &str, more: &[&str]) -> (Server, SocketAddr) {
    let args = ["serve", "http", "--listen", "127.0.0.1:0", "--model", model, "--metrics", "127.0.0.1:0"];
    let server = Server::start(&[&args, more].concat());
    let line = server.wait_for("metrics on http://");
    let addr = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").parse().unwrap();
    (server, addr)
}

pub fn raw(addr: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&addr, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn get(addr: SocketAddr, path: &str) -> (String, String) {
    let answer = raw(addr, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.lines().next().unwrap().into(), body.into())
}

/// Name with labels to value; fails unless every family has a HELP and a TYPE of its own.
pub fn samples(page: &str) -> HashMap<String, u64> {
    let mut kinds = HashMap::new();
    let mut samples = HashMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(page.contains(&format!("# HELP {name} ")), "{name} has no help");
            assert_eq!(kinds.insert(name.to_owned(), kind), None, "{name} twice");
        } else if !line.starts_with('#') {
            let (key, value) = line.rsplit_once(' ').unwrap();
            assert!(kinds.contains_key(key.split('{').next().unwrap()), "{key} has no type");
            assert_eq!(samples.insert(key.to_owned(), value.parse().unwrap()), None, "{key} twice");
        }
    }
    samples
}

fn scrape_until(addr: SocketAddr, holds: impl Fn(&str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let (status, page) = get(addr, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        if holds(&page) {
            return page;
        }
        assert!(start.elapsed() < DEADLINE, "{page}");
    }
}

#[test]
fn counters_of_every_model_are_published_while_it_runs() {
    for model in Model::available() {
        let (server, addr) = start(model.name(), &[]);
        let sent = server.talk(LAST).len() as u64;
        // A completion model counts a send when its completion is back, which may be after the client has it.
        let counted = |page: &str| samples(page)[r#"tidegate_sent_bytes_total{server="http"}"#] == sent;
        let page = scrape_until(addr, counted);
        let samples = samples(&page);
        assert_eq!(samples[r#"tidegate_connections_accepted_total{server="http"}"#], 1, "{model}");
        assert_eq!(samples[r#"tidegate_received_bytes_total{server="http"}"#], LAST.len() as u64, "{model}");
        assert_eq!(samples[r#"tidegate_accepting{server="http"}"#], 1);
        assert!(samples["process_max_fds"] > 0);
        let version = env!("CARGO_PKG_VERSION");
        let info = format!(
            r#"tidegate_server_info{{model="{model}",server="http",service="http",version="{version}"}}"#
        );
        assert_eq!(samples.get(&info), Some(&1), "{page}");
    }
}

#[test]
fn readiness_ends_with_the_drain_and_liveness_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    std::fs::File::create(&page).unwrap().set_len(32 << 20).unwrap(); // more than the kernel takes
    let slow = ["--drain-timeout", "10m", "--send-timeout", "none", "--page", page.to_str().unwrap()];
    let (server, addr) = start("poll", &slow);
    assert_eq!(get(addr, "/readyz"), ("HTTP/1.1 200 OK".into(), "accepting\n".into()));
    let mut reader = server.connect();
    reader.write_all(LAST.as_bytes()).unwrap();
    reader.read_exact(&mut [0]).unwrap();
    server.signal(Signal::TERM);
    server.wait_for("stopping: 1 connections");
    assert_eq!(get(addr, "/readyz"), ("HTTP/1.1 503 Service Unavailable".into(), "draining\n".into()));
    assert_eq!(get(addr, "/healthz").0, "HTTP/1.1 200 OK");
    assert_eq!(samples(&get(addr, "/metrics").1)[r#"tidegate_accepting{server="http"}"#], 0);
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn with_a_drain_delay_readiness_fails_first_and_connections_are_still_taken() {
    let (server, addr) = start("poll", &["--drain-delay", "10m"]);
    server.signal(Signal::TERM);
    server.wait_for("/readyz says 503");
    assert_eq!(get(addr, "/readyz").0, "HTTP/1.1 503 Service Unavailable");
    assert!(server.talk(LAST).starts_with("HTTP/1.1 200 OK"));
    // A second signal ends the wait.
    server.signal(Signal::TERM);
    assert_eq!(server.ended().0.code(), Some(1));
}

#[test]
fn strange_requests_are_answered_and_do_no_harm() {
    let (_server, addr) = start("poll", &[]);
    for (request, status) in [
        ("GET /elsewhere HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.1\r\nHost: x:80:90\r\n\r\n", "400"),
        ("GET /metrics HTTP/1.0\r\n\r\n", "200"),
        (
            "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "405",
        ),
        ("\0\0\0\0", "400"),
        (&format!("GET /metrics HTTP/1.1\r\nx: {}", "y".repeat(8 * 1024)), "431"),
    ] {
        let answer = raw(addr, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.40}: {answer}");
    }
    for (target, status) in [("/metrics", "200"), ("/elsewhere", "404")] {
        let head = raw(addr, &format!("HEAD {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && head.ends_with("\r\n\r\n"), "{head}");
        assert!(head.contains("\r\nDate: "), "{head}");
    }
}

/// A page in a browser that has its name pointed at this address (DNS rebinding) asks by that name.
#[test]
fn counters_have_known_names_only() {
    let asked = |addr: SocketAddr, host: &str| {
        let answer = raw(addr, &format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        answer.get(9..12).unwrap_or_default().to_owned()
    };
    let (_server, addr) = start("poll", &["--metrics-host", "node1.example"]);
    for host in ["localhost:9100", "127.0.0.1", "[::1]:9100", "192.0.2.7", "node1.example:9100"] {
        assert_eq!(asked(addr, host), "200", "{host}");
    }
    for host in ["evil.example", "node2.example", "localhost.evil.example"] {
        assert_eq!(asked(addr, host), "421", "{host}");
    }
    let (_server, addr) = start("poll", &["--metrics-host", "*"]);
    assert_eq!(asked(addr, "evil.example"), "200");
}

#[test]
fn an_address_that_is_taken_is_an_error_and_nothing_is_served() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let outcome = run(&mut tidegate(&["serve", "http", "--listen", "127.0.0.1:0", "--metrics", &addr]));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains(&addr) && outcome.stderr.contains("another program uses port"));
}
