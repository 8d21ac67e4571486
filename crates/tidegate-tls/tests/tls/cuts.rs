//! Records that are cut, or are none, through real sockets: every model gives the same verdict.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use tidegate::{Endpoint, Model, Policy, Server};
use tidegate_services::Echo;
use tidegate_tls::{Fault, TlsCounters, TlsServer};

use crate::models::{DEADLINE, until};
use crate::papers::Papers;
use crate::test_client::TestClient;

/// Types of records (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// What is no record, or none of a handshake; it is answered with an alert.
const NO_HELLO: &[(&str, &[u8])] = &[
    ("a request", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a command", b"/join tide ann\n"),
    ("zeros", &[0; 64]),
    ("all bits", &[255; 64]),
    ("a hello of SSL 2", &[0x80, 0x2e, 1, 3, 1, 0, 0x15, 0, 0, 0, 0x10]),
    ("an unknown type of record", &[99, 3, 3, 0, 1, 0]),
    ("an unknown version", &[22, 9, 9, 0, 1, 0]),
    ("data before a handshake", &[23, 3, 3, 0, 1, 0]),
    ("a change of ciphers before a handshake", &[20, 3, 3, 0, 1, 2]),
    ("a record of a handshake without a byte", &[22, 3, 1, 0, 0]),
    ("a record that is too long", &[22, 3, 1, 255, 255, 1]),
    ("an unknown message", &[22, 3, 1, 0, 4, 99, 0, 0, 0]),
    ("a hello of nothing", &[22, 3, 1, 0, 4, 1, 0, 0, 0]),
    ("a finished before a hello", &[22, 3, 1, 0, 4, 20, 0, 0, 0]),
    ("a hello of a server", &[22, 3, 1, 0, 4, 2, 0, 0, 0]),
];

/// What comes back for these pieces, and then perhaps the end of this side: its first byte, the type of a record.
fn answer(to: &Endpoint, pieces: &[&[u8]], ends: bool) -> Option<u8> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        if stream.write_all(piece).is_err() {
            break; // it was turned away before
        }
    }
    if ends {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut first = [0];
    loop {
        match stream.read(&mut first) {
            Ok(0) => return None,
            Ok(_) => return Some(first[0]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn every_model_gives_every_verdict() {
    let mut wrong = Vec::new();
    for model in Model::available() {
        let (papers, counters) = (Papers::of("localhost"), Arc::<TlsCounters>::default());
        let service = TlsServer::new(Echo, papers.identity(&[])).count_in(counters.clone());
        let server = Server::new(service).model(model).policy(Policy::default());
        let server = server.bind("127.0.0.1:0").unwrap().start().unwrap();
        let at = server.local_addr();
        for (number, (what, bytes)) in NO_HELLO.iter().enumerate() {
            let singly: Vec<&[u8]> = bytes.chunks(1).collect();
            for pieces in [&[*bytes][..], &singly] {
                let got = answer(at, pieces, false);
                if got != Some(ALERT) {
                    wrong.push(format!("{model}: {what} in {} pieces: {got:?}", pieces.len()));
                }
            }
            until("they are counted", || counters.of(Fault::Handshake) == 2 * (number as u64 + 1));
        }
        let mut left = 0;
        for version in [&TLS12, &TLS13] {
            let hello = TestClient::new(&Arc::new(papers.trusting(&[version]))).says();
            // The type, the version, the length, the message's head, its version, its random, a session, and what
            // follows.
            for cut in [1, 2, 3, 4, 5, 6, 8, 9, 11, 20, 43, 44, hello.len() / 2, hello.len() - 1] {
                let (a, b) = hello.split_at(cut);
                let got = (answer(at, &[a, b], false), answer(at, &[a], true));
                if got != (Some(HANDSHAKE), None) {
                    wrong.push(format!("{model}: a hello cut at {cut}, and one that ends there: {got:?}"));
                }
                left += 1;
            }
        }
        until("those who left are counted", || counters.of(Fault::Unfinished) >= left);
        server.stop();
        server.join();
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
