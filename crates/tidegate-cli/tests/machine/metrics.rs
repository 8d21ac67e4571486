//! `--metrics`, read by Prometheus's own checker. The suite of `serve` checks the same rules everywhere.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use crate::kit::Server;
use crate::{harness, has};

pub fn trials() -> Vec<Trial> {
    harness::needs(has("promtool"), "promtool", tests![promtool_has_nothing_to_say])
}

fn promtool_has_nothing_to_say() {
    let args = ["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--metrics", "127.0.0.1:0"];
    let server = Server::start(&args);
    let line = server.wait_for("metrics on http://");
    let addr = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics");
    let page = page_at(addr);
    let mut checker = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    checker.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let said = checker.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout) + String::from_utf8_lossy(&said.stderr), "");
}

/// The page of metrics at this address.
fn page_at(addr: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(crate::kit::DEADLINE)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, page) = answer.split_once("\r\n\r\n").expect("an answer");
    assert!(head.starts_with("HTTP/1.1 200 ") && page.contains("# TYPE "), "{head}");
    page.to_owned()
}
