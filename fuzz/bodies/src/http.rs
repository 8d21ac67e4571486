//! Requests of a client.

use std::sync::LazyLock;
use std::time::Duration;

use tidegate::{CloseReason, Policy};
use tidegate_services::{Http, HttpLimits, Page};

use crate::cuts::Cuts;
use crate::wire::{TestConnection, WireState};

/// Small, so that the bounds are met.
fn limits() -> HttpLimits {
    HttpLimits::default().head_bytes(256).body_bytes(64).request_timeout(Some(Duration::from_secs(30)))
}

static SERVICE: LazyLock<Http> =
    LazyLock::new(|| Http::new(Page::new("<page>\n", "text/html; charset=utf-8"), limits()));

/// Requests in pieces: the answers do not depend on the pieces, are HTTP, and nothing but an unfinished head is kept.
pub fn http(data: &[u8]) {
    let Some(cuts) = Cuts::of(data) else { return };
    let whole = play(&[cuts.stream]);
    assert_eq!(play(&cuts.pieces()), whole, "the pieces make a difference");
    check(whole.0.as_bytes());
}

/// Everything answered, without dates, and whether the server wanted more when the client had ended.
fn play(pieces: &[&[u8]]) -> (String, WireState) {
    let policy = Policy::default().input_bytes(limits().head_bytes);
    let mut wire = TestConnection::to(&*SERVICE, policy);
    for piece in pieces {
        wire.send(piece);
    }
    wire.end();
    assert_ne!(wire.state, WireState::Open, "both have ended");
    let cut_off = wire.counters.closed[CloseReason::InputLimit as usize].get();
    assert_eq!(cut_off, 0, "the session kept more than its limit");
    (without_dates(&wire.text()), wire.state)
}

fn without_dates(text: &str) -> String {
    let lines = text.split_inclusive("\r\n");
    lines.map(|line| if line.starts_with("Date: ") { "Date: now\r\n" } else { line }).collect()
}

/// A stream of answers is HTTP to its end.
fn check(mut stream: &[u8]) {
    while !stream.is_empty() {
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut fields);
        let head = response.parse(stream).expect("a valid head").unwrap();
        let status = response.code.unwrap_or_default();
        assert!([100, 200, 400, 405, 408, 413, 414, 431, 501, 505].contains(&status), "{status}");
        let length = response.headers.iter().find(|field| field.name == "Content-Length");
        let length =
            length.map_or(0, |field| String::from_utf8_lossy(field.value).parse().expect("a length"));
        stream = &stream[head..];
        // An answer to HEAD shows itself by what follows its head.
        if !stream.starts_with(b"HTTP/1.1 ") && !stream.is_empty() {
            stream = &stream[length..];
        }
    }
}
