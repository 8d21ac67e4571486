//! A server that stops finishes what was begun, and says with its last answer that it leaves.

use std::time::Duration;

use crate::wire::{TestConnection, WireState, answers};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn last_says_close(wire: &TestConnection, count: usize) {
    let answers = answers(&wire.output);
    assert_eq!(answers.len(), count);
    for (i, answer) in answers.iter().enumerate() {
        let said = (i + 1 == count).then_some("close");
        assert_eq!((answer.status, answer.field("connection")), (200, said), "answer {i}");
    }
}

/// How long a connection that was busy a moment ago may take for one more request.
const LAST_WORD: Duration = tidegate::policy::timeouts::LAST_WORD;

#[test]
fn a_connection_between_requests_may_ask_once_more_and_learns_that_it_is_the_last() {
    let mut wire = TestConnection::new();
    wire.send(GET);
    wire.drain();
    assert_eq!((wire.statuses(), wire.state), (vec![200], WireState::Open));
    wire.send(GET);
    last_says_close(&wire, 2);
    assert_eq!(wire.state, WireState::Lingers);
}

#[test]
fn a_connection_between_requests_that_asks_no_more_is_closed() {
    let mut wire = TestConnection::new();
    wire.send(GET);
    wire.drain();
    wire.wait(LAST_WORD);
    assert_eq!((wire.statuses(), wire.state), (vec![200], WireState::Closed));
}

#[test]
fn one_that_has_rested_for_a_while_is_closed_at_once() {
    let mut wire = TestConnection::new();
    wire.send(GET);
    wire.wait(LAST_WORD);
    wire.drain();
    assert_eq!((wire.statuses(), wire.state), (vec![200], WireState::Closed));
}

#[test]
fn a_request_that_was_begun_is_answered_and_the_answer_says_close() {
    let with_body = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    for request in [GET, with_body] {
        for cut in 1..request.len() {
            let mut wire = TestConnection::new();
            wire.send(&request[..cut]);
            wire.drain();
            assert_eq!(wire.state, WireState::Open, "cut at {cut}");
            wire.send(&request[cut..]);
            last_says_close(&wire, 1);
            // The client did not ask for the end and may be sending: it must still be able to read the answer.
            assert_eq!(wire.state, WireState::Lingers);
        }
    }
}

#[test]
fn of_several_requests_that_have_come_the_last_answer_says_it() {
    let mut wire = TestConnection::new();
    wire.send(&GET[..5]);
    wire.drain();
    wire.send([&GET[5..], GET, GET].concat());
    last_says_close(&wire, 3);
    assert_eq!(wire.state, WireState::Lingers);
}

#[test]
fn a_client_that_asked_for_the_end_is_not_waited_for() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n");
    wire.drain();
    wire.send("Connection: close\r\n\r\n");
    last_says_close(&wire, 1);
    assert_eq!(wire.state, WireState::Closed);
}
