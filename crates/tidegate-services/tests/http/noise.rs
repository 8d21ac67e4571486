//! Whatever a peer sends: no panic, no answer that is not HTTP, no more memory than the limits say.

use proptest::prelude::*;
use tidegate_services::HttpLimits;

use crate::wire::{TestConnection, WireState, answers};

/// Pieces that lead deeper into the parsers than random bytes do.
const WORDS: [&str; 24] = [
    "GET ",
    "HEAD ",
    "POST ",
    "/ ",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "\r\n",
    "\n",
    "\r",
    "Host: a\r\n",
    "Content-Length: 3\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "Expect: 100-continue\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    "3\r\nabc\r\n",
    "0\r\n\r\n",
    "0\r\n",
    ";x",
    "FFFFFFFFFFFFFFFF\r\n",
    ": ",
];

fn noise() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(&WORDS[..]).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn survives(inputs: &[Vec<u8>]) {
    let limits = HttpLimits::default().head_bytes(256).body_bytes(64);
    let mut wire = TestConnection::with(limits);
    for input in inputs {
        wire.send(input);
    }
    let open = wire.state == WireState::Open;
    for answer in answers(&wire.output) {
        assert!([100, 200, 400, 405, 413, 414, 431, 501, 505].contains(&answer.status), "{}", answer.status);
    }
    if open {
        wire.wait(std::time::Duration::from_secs(31));
        wire.end();
        assert_eq!(wire.state, WireState::Closed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn noise_is_survived(inputs in prop::collection::vec(noise(), 1..5)) {
        survives(&inputs);
    }

    #[test]
    fn random_bytes_are_survived(inputs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 1..4)) {
        survives(&inputs);
    }
}
