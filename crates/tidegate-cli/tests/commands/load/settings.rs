//! Settings of when load begins, where it comes from and what it asks for, seen from the server's side.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::{bad_server, load, mirror, report};

/// How long a run is tried again that a machine spoils by a stall.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a server sees of a connection: where it came from, when, and how many requests it brought.
struct Seen {
    from: SocketAddr,
    at: Instant,
    requests: u64,
}

/// Answers each request, and tells of each connection when it has ended.
fn witness() -> (String, Receiver<Seen>) {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let url = format!("127.0.0.1:{}", listener.local_addr().unwrap().port());
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        while let Ok((stream, from)) = listener.accept() {
            let sender: Sender<Seen> = sender.clone();
            std::thread::spawn(move || {
                let seen = Seen { from, at: Instant::now(), requests: 0 };
                let requests = answer(stream);
                // The test may have seen enough.
                let _ = sender.send(Seen { requests, ..seen });
            });
        }
    });
    (url, requests)
}

/// Answers requests without pipelining until the connection ends; how many there were.
fn answer(mut stream: std::net::TcpStream) -> u64 {
    let mut requests = 0;
    while let Ok(1..) = stream.read(&mut [0; 4096]) {
        requests += 1;
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
            break;
        }
    }
    requests
}

/// What became of so many connections.
fn seen(requests: &Receiver<Seen>, connections: usize) -> Vec<Seen> {
    (0..connections).map(|_| requests.recv_timeout(Duration::from_secs(20)).unwrap()).collect()
}

#[test]
fn a_warm_up_is_load_that_does_not_count() {
    let begun = Instant::now();
    // A machine that stalls at the end of a run has none of what is due then begun: try again.
    let served: u64 = loop {
        let (url, requests) = witness();
        let args = ["http", &url, "-c", "2", "--rate", "200", "--warm-up", "0.5", "-d", "0.5", "--json", "-"];
        let report = report(&load(&args));
        let open = report.open_loop.unwrap();
        // The schedule runs through the warm-up; half of it is in the window.
        assert_eq!((open.scheduled, report.requests), (100, open.started));
        assert_eq!(open.started + open.not_started, 100);
        if open.not_started == 0 {
            break seen(&requests, 2).iter().map(|seen| seen.requests).sum();
        }
        assert!(begun.elapsed() < TIMEOUT, "not once was all of it begun: {open:?}");
    };
    assert!((199..=201).contains(&served), "{served} requests came in the second that both last");
}

#[test]
fn a_rate_that_rises_evenly_is_half_of_it_on_average() {
    let (url, _requests) = witness();
    let args = ["http", &url, "-c", "4", "--rate", "400", "--ramp-rate", "0:1", "-d", "1", "--json", "-"];
    let report = report(&load(&args));
    let open = report.open_loop.unwrap();
    assert!((199..=201).contains(&open.scheduled), "{open:?}");
    assert_eq!(open.started + open.not_started, open.scheduled);
}

#[test]
fn connections_are_opened_evenly_over_their_ramp() {
    let start = Instant::now();
    loop {
        let (url, requests) = witness();
        let args = ["http", &url, "-c", "5", "-n", "5", "--ramp-connections", "0.5", "--json", "-"];
        let begun = Instant::now();
        let report = report(&load(&args));
        assert_eq!((report.connected, report.requests), (5, 5));
        let mut at: Vec<Instant> = seen(&requests, 5).iter().map(|seen| seen.at).collect();
        at.sort();
        // Never earlier than asked for; how much later is the machine's affair.
        for (at, due_ms) in at.iter().zip([0, 100, 200, 300, 400]) {
            let passed = at.duration_since(begun);
            assert!(passed >= Duration::from_millis(due_ms), "one that is due at {due_ms} ms: {passed:?}");
        }
        // A machine that stalls sees the first of them late: try again.
        let passed = at[4].duration_since(at[0]);
        if passed >= Duration::from_millis(350) {
            return;
        }
        assert!(start.elapsed() < TIMEOUT, "all five were established after {passed:?}");
    }
}

#[test]
fn connections_come_from_the_addresses_that_are_named() {
    let (url, requests) = witness();
    let args = ["http", &url, "-c", "6", "-n", "12", "--source", "127.0.0.21-127.0.0.23", "--json", "-"];
    assert_eq!(report(&load(&args)).requests, 12);
    let mut from: Vec<String> = seen(&requests, 6).iter().map(|seen| seen.from.ip().to_string()).collect();
    from.sort();
    let two_each = ["127.0.0.21", "127.0.0.21", "127.0.0.22", "127.0.0.22", "127.0.0.23", "127.0.0.23"];
    assert_eq!(from, two_each);
}

#[test]
fn paths_take_turns_with_a_connection_for_each_request_too() {
    let url = bad_server(mirror).to_string();
    let shape = ["http", &url, "-c", "1", "-n", "40", "--no-keepalive", "--body", "[end]", "--json", "-"];
    let paths = ["--path", "/a", "--path", "/b", "--check-body-contains", "/b HTTP"];
    let report = report(&load(&[&shape[..], &paths].concat()));
    assert_eq!((report.requests, report.wrong), (20, 20), "{report:?}");
}
