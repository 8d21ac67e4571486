//! What is answered, status by status, and what becomes of the connection.

use std::time::Duration;

use tidegate_services::{Http, HttpLimits, Page};

use crate::wire::{PAGE, TestConnection, WireState, answers};

#[test]
fn get_is_answered_with_the_page_in_one_piece() {
    let mut wire = TestConnection::of(&Http::default());
    wire.send("GET /any/path?x=y HTTP/1.1\r\nHost: a\r\n\r\n");
    let answers = answers(&wire.output);
    assert_eq!(answers[0].status, 200);
    assert_eq!(answers[0].body.len(), 4096);
    assert_eq!(answers[0].field("server"), Some("tidegate"));
    assert_eq!(answers[0].field("content-type"), Some("text/html; charset=utf-8"));
    assert!(httpdate::parse_http_date(answers[0].field("date").unwrap()).is_ok());
    assert_eq!(answers[0].field("connection"), None);
    assert_eq!((wire.pieces.as_slice(), wire.state), ([1].as_slice(), WireState::Open));
}

#[test]
fn a_large_page_is_not_copied_for_each_head_and_leaves_whole() {
    let page = "x".repeat(100_000);
    let mut wire =
        TestConnection::of(&Http::new(Page::new(page.clone(), "text/plain"), HttpLimits::default()));
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answers = answers(&wire.output);
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer.body == page));
    assert_eq!(wire.state, WireState::Closed);
}

#[test]
fn head_is_answered_like_get_without_the_page() {
    let (mut get, mut head) = (TestConnection::new(), TestConnection::new());
    get.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    head.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(get.text(), head.text() + PAGE);
}

#[test]
fn the_connection_lives_on_or_ends_as_the_client_has_it() {
    for (request, said, state) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", None, WireState::Open),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", Some("close"), WireState::Closed),
        ("GET / HTTP/1.0\r\n\r\n", Some("close"), WireState::Closed),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Some("keep-alive"), WireState::Open),
        ("HEAD / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Some("keep-alive"), WireState::Open),
        ("POST / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", Some("keep-alive"), WireState::Open),
        ("POST / HTTP/1.0\r\n\r\n", Some("close"), WireState::Closed),
    ] {
        let mut wire = TestConnection::new();
        wire.send(request);
        assert_eq!(answers(&wire.output)[0].field("connection"), said, "{request:?}");
        assert_eq!(wire.state, state, "{request:?}");
    }
}

#[test]
fn what_follows_the_last_request_is_not_answered() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.statuses(), [200]);
    // Closing with input unread would be a reset: the core lingers.
    assert_eq!(wire.state, WireState::Lingers);
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.statuses(), [200]);
}

#[test]
fn other_methods_are_refused_and_the_connection_lives_on() {
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"] {
        let mut wire = TestConnection::new();
        wire.send(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"));
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.statuses(), [405, 200], "{method}");
        let refusal = &answers(&wire.output)[0];
        assert_eq!(refusal.field("allow"), Some("GET, HEAD"));
        assert!(refusal.body.contains("answers GET and HEAD"), "{}", refusal.body);
    }
    for method in ["BREW", "get", "G"] {
        let mut wire = TestConnection::new();
        wire.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(wire.statuses(), [501, 200], "{method}");
        assert_eq!(answers(&wire.output)[0].field("allow"), None);
    }
}

#[test]
fn a_client_that_talks_through_the_tunnel_already_is_not_taken_at_its_word() {
    let mut wire = TestConnection::new();
    wire.send("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((wire.statuses(), wire.state), (vec![405], WireState::Lingers));
}

#[test]
fn what_ends_the_connection_says_why_and_lingers() {
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(100));
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}", "y".repeat(16 * 1024));
    let long = format!("GET /{}", "a".repeat(16 * 1024));
    for (request, status, why) in [
        ("GET / HTTP/1.1\r\n\r\n", 400, "Host"),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, "invalid name"),
        ("\u{16}\u{3}\u{1}\u{2}", 400, "not an HTTP request"),
        ("GET /\r\n", 400, ""),
        ("\rGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400, "CR LF"),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", 400, "CR LF"),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
        ("GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "target"),
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n", 400, "fragment"),
        ("GET / HTTP/1.1\r\nHost: x:80:90\r\n\r\n", 400, "not a valid host"),
        (&long, 414, "16384"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400, "Content-Length"),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx", 400, "chunk"),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n", 413, "1048576"),
        (&many, 431, "100"),
        (&large, 431, "16384"),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: br, chunked\r\n\r\n", 501, "transfer coding"),
        ("GET / HTTP/2.0\r\n\r\n", 505, "HTTP/1.1 and HTTP/1.0"),
    ] {
        let mut wire = TestConnection::new();
        wire.send(request);
        assert_eq!((wire.statuses(), wire.state), (vec![status], WireState::Lingers), "{request:?}");
        let answer = &answers(&wire.output)[0];
        assert!(answer.body.starts_with(&status.to_string()), "{}", answer.body);
        assert!(answer.body.contains(why), "{why:?} in {:?}", answer.body);
        assert_eq!(answer.field("connection"), Some("close"));
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.statuses(), [status], "nothing is answered after {request:?}");
        wire.end();
        assert_eq!(wire.state, WireState::Closed);
    }
}

#[test]
fn no_answer_to_head_has_a_body() {
    for request in [
        "HEAD / HTTP/1.1\r\n\r\n",
        "HEAD / HTTP/2.0\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx",
    ] {
        let mut wire = TestConnection::new();
        wire.send(request);
        assert!(wire.output.ends_with(b"\r\n\r\n"), "{request:?}: {}", wire.text());
    }
}

#[test]
fn answers_before_a_fault_are_sent_first() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\nHEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    assert_eq!((wire.statuses(), wire.state), (vec![200, 200, 400], WireState::Lingers));
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let mut wire = TestConnection::new();
    wire.send("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\n");
    wire.send("\r");
    wire.send("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n");
    assert_eq!((wire.statuses(), wire.state), (vec![200, 200], WireState::Open));
}

#[test]
fn requests_that_repeat_the_one_before_are_answered_as_if_each_came_alone() {
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (head, delete) = (get.replace("GET", "HEAD"), get.replace("GET", "DELETE"));
    let last = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let script = [get, get, get, &head, &head, get, &delete, &delete];
    for end in [last, "GET / HTTP/1.0\r\n\r\n", "/ GET\r\n\r\n"] {
        let script = [&script[..], &[end, end]].concat();
        let (mut alone, mut together) = (TestConnection::new(), TestConnection::new());
        script.iter().for_each(|request| alone.send(request));
        together.send(script.concat());
        assert_eq!(together.text(), alone.text(), "{end:?}");
        assert!(together.state != WireState::Open && alone.state != WireState::Open);
    }
}

#[test]
fn a_client_that_has_finished_sending_gets_its_answers() {
    let mut wire = TestConnection::new();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2));
    wire.end();
    assert_eq!((wire.statuses(), wire.state), (vec![200, 200], WireState::Closed));
}

#[test]
fn a_flood_of_requests_whose_answers_are_not_read_stays_bounded() {
    let mut wire = TestConnection::of(&Http::default());
    wire.reads = false;
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(500));
    assert!(wire.queued() < 64 * 1024 + 8192, "{} bytes queued", wire.queued());
    assert!(!wire.wants_input());
    wire.reads = true;
    wire.send("");
    assert_eq!(wire.statuses(), vec![200; 500]);
}

#[test]
fn the_date_moves_on_with_the_seconds_and_not_between() {
    let service = Http::default();
    let mut wire = TestConnection::of(&service);
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let date_after = |wire: &mut TestConnection, time| {
        wire.wait(time);
        wire.output.clear();
        wire.send(request);
        let date = answers(&wire.output)[0].field("date").unwrap().to_owned();
        httpdate::parse_http_date(&date).unwrap()
    };
    let first = date_after(&mut wire, Duration::ZERO);
    let later = date_after(&mut wire, Duration::from_secs(2));
    assert!(later >= first);
    let age = std::time::SystemTime::now().duration_since(later).unwrap_or_default();
    assert!(age < Duration::from_secs(60), "built anew, not kept: {age:?}");
}
