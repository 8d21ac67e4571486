//! Bodies are read past exactly: what lies in them is never taken for a request.

use tidegate_services::HttpLimits;

use crate::wire::{TestConnection, WireState};

const INNER: &str = "DELETE /inner HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_request_inside_a_body_is_no_request() {
    let length = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{INNER}", INNER.len());
    let chunked = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{:x};q=\"z\"\r\n{INNER}\r\n0\r\nDigest: x\r\n\r\n",
        INNER.len()
    );
    for (request, status) in [(length, 405), (chunked, 200)] {
        let mut wire = TestConnection::new();
        wire.send(request + "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((wire.statuses(), wire.state), (vec![status, 200], WireState::Open));
    }
}

#[test]
fn attempts_to_smuggle_get_one_answer_and_end_the_connection() {
    for fields in [
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
        "Content-Length: 0\r\nContent-Length: 38",
        "Content-Length: 0, 38",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: \u{b}chunked",
        "X: y\r\n\tTransfer-Encoding: chunked",
        "Content-Length: 00x0",
        " Content-Length: 0",
    ] {
        let mut wire = TestConnection::new();
        wire.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n0\r\n\r\n{INNER}"));
        assert_eq!((wire.statuses(), wire.state), (vec![400], WireState::Lingers), "{fields:?}");
    }
}

#[test]
fn an_expectation_is_met_before_the_body_and_once() {
    let mut wire = TestConnection::new();
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    wire.send(head);
    assert_eq!(wire.output, b"HTTP/1.1 100 Continue\r\n\r\n");
    wire.send("bo");
    wire.send("dyGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.statuses(), [100, 405, 200]);
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let limits = HttpLimits::default().body_bytes(10);
    let mut wire = TestConnection::with(limits);
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n");
    assert_eq!((wire.statuses(), wire.state), (vec![413], WireState::Lingers));

    let mut wire = TestConnection::with(limits);
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789");
    assert_eq!((wire.statuses(), wire.state), (vec![405], WireState::Open));

    let mut wire = TestConnection::with(limits);
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n");
    assert_eq!((wire.statuses(), wire.state), (vec![413], WireState::Lingers));
}

#[test]
fn trailers_without_end_are_refused() {
    let mut wire = TestConnection::new();
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
    for _ in 0..2000 {
        wire.send("trailer: x\r\n");
    }
    assert_eq!((wire.statuses(), wire.state), (vec![431], WireState::Lingers));
}

#[test]
fn a_large_body_leaves_no_trace_in_memory() {
    let mut wire = TestConnection::new();
    wire.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
    for _ in 0..1024 {
        wire.send([b'x'; 1024]); // above input_bytes of the policy in sum: keeping it would end the connection
    }
    assert_eq!((wire.statuses(), wire.state), (vec![405], WireState::Open));
}
