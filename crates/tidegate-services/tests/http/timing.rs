//! A request that was begun has to be completed in time; a connection between requests has all the time there is.

use std::time::Duration;

use tidegate_services::HttpLimits;

use crate::wire::{TestConnection, WireState};

const LIMIT: Duration = Duration::from_secs(30);
const ALMOST: Duration = Duration::from_millis(29_999);

#[test]
fn a_request_that_is_not_completed_in_time_is_answered_with_408() {
    for begun in [
        "G",
        "GET / HTTP/1.1\r\nHost: a\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbod",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell",
    ] {
        let mut wire = TestConnection::new();
        wire.send(begun);
        wire.wait(ALMOST);
        assert_eq!(wire.state, WireState::Open);
        wire.wait(LIMIT - ALMOST);
        assert_eq!((wire.statuses(), wire.state), (vec![408], WireState::Lingers), "{begun:?}");
    }
}

#[test]
fn a_trickle_does_not_prolong_it() {
    let mut wire = TestConnection::new();
    let slow = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}", "y".repeat(100));
    for byte in slow.bytes() {
        wire.send([byte]);
        wire.wait(Duration::from_secs(1));
    }
    // It went on trickling while the connection lingered, and that is over too.
    assert_eq!((wire.statuses(), wire.state), (vec![408], WireState::Closed));
}

#[test]
fn a_request_that_is_completed_in_time_stops_the_clock() {
    for rest in ["\r\n", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n"] {
        let mut wire = TestConnection::new();
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n");
        wire.wait(ALMOST);
        wire.send(rest);
        assert_eq!(wire.deadline(), None, "{rest:?}");
        wire.wait(LIMIT * 10);
        assert!(wire.statuses().iter().all(|&status| status == 200), "{rest:?}");
        assert_eq!(wire.state, WireState::Open);
    }
}

#[test]
fn each_request_has_its_own_time() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n");
    wire.wait(ALMOST);
    wire.send("\r\nGET /next");
    wire.wait(ALMOST);
    assert_eq!((wire.statuses(), wire.state), (vec![200], WireState::Open));
    wire.wait(LIMIT - ALMOST);
    assert_eq!((wire.statuses(), wire.state), (vec![200, 408], WireState::Lingers));
}

#[test]
fn between_requests_nothing_is_timed() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.deadline(), None);
    // Some clients send an empty line after a body. That begins no request, not even cut in two.
    wire.send("\r");
    wire.send("\n");
    assert_eq!(wire.deadline(), None);
}

#[test]
fn without_a_limit_nothing_is_timed() {
    let mut wire = TestConnection::with(HttpLimits::default().request_timeout(None));
    wire.send("GET / HT");
    assert_eq!(wire.deadline(), None);
}
