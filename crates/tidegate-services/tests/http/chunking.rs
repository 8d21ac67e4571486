//! However the network cuts a script of requests, the answers are the same to the byte.

use proptest::prelude::*;

use crate::wire::{TestConnection, WireState};

/// Requests after which the connection lives on.
const LIVELY: [&str; 12] = [
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\nGET /x HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET /a HTTP/1.7\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nGET / HTTP/",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0A;x=\"y\"\r\n0123456789\r\n0\r\nT: x\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n\r\n\r",
    "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "BREW /pot HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
];

/// Requests after which it does not.
const LAST: [&str; 13] = [
    "GET / HTTP/1.1\nHost: a\n\n",
    "GET / HTTP/1.1\r\nHost: a\rX",
    "GET / HTTP/1.1\r\nHost: a\r\n\rX",
    "GET / HTTP/1.1\rX",
    "\rX",
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/2.0\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n",
    "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
];

fn play<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (String, WireState) {
    let mut wire = TestConnection::new();
    for piece in pieces {
        wire.send(piece);
    }
    // What follows a last request may have been cut off it or not: closed in order, or lingering until the peer is
    // done.
    if wire.state == WireState::Lingers {
        wire.end();
    }
    (wire.text(), wire.state)
}

#[test]
fn every_single_cut_and_every_byte_alone() {
    for last in LAST {
        let script = LIVELY.concat() + last + LIVELY[0];
        let script = script.as_bytes();
        let whole = play([script]);
        assert!(whole.0.matches("HTTP/1.1 ").count() > LIVELY.len());
        for cut in 0..=script.len() {
            let (a, b) = script.split_at(cut);
            assert_eq!(play([a, b]), whole, "cut at {cut}: {:?}", String::from_utf8_lossy(b));
        }
        assert_eq!(play(script.chunks(1)), whole);
    }
}

proptest! {
    #[test]
    fn any_cuts_of_any_script(
        lively in prop::collection::vec(prop::sample::select(&LIVELY[..]), 0..40),
        last in prop::sample::select(&LAST[..]),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..30),
    ) {
        let script = lively.concat() + last;
        let script = script.as_bytes();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(script.len() + 1)).collect();
        cuts.extend([0, script.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|ends| &script[ends[0]..ends[1]]);
        prop_assert_eq!(play(pieces), play([script]));
    }
}
