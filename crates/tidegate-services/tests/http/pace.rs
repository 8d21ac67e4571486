//! The minimum rate of the policy holds for heads and for bodies, of which nothing is kept, and for nothing else.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::policy::MinRate;
use tidegate::{CloseReason, Policy};

use crate::wire::{TestConnection, WireState};

const GRACE: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);

fn wire() -> TestConnection {
    let rate = MinRate::new(NonZeroU32::new(500).unwrap()).grace(GRACE);
    TestConnection::under(Policy::default().min_rate(Some(rate)))
}

const BEGINNINGS: [&str; 4] = [
    "GET /x",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nbod",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2710\r\nx",
];

#[test]
fn one_byte_a_second_saves_nobody() {
    for begun in BEGINNINGS {
        let mut wire = wire();
        wire.send(begun);
        for _ in 0..3 {
            wire.wait(SECOND);
            wire.send("x");
        }
        assert_eq!(wire.state, WireState::Closed, "{begun:?}");
        assert!(wire.closed_by(CloseReason::MinRate), "{begun:?}");
    }
}

#[test]
fn who_is_fast_enough_is_left_alone() {
    for begun in BEGINNINGS {
        let mut wire = wire();
        wire.send(begun);
        for _ in 0..10 {
            wire.wait(SECOND);
            wire.send("x".repeat(600));
        }
        assert_eq!(wire.state, WireState::Open, "{begun:?}");
    }
}

#[test]
fn between_requests_there_is_no_hurry() {
    let mut wire = wire();
    for body in ["", "body"] {
        let length = body.len();
        wire.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        wire.send(body);
        assert_eq!(wire.deadline(), None);
        wire.wait(100 * GRACE);
    }
    assert_eq!((wire.statuses(), wire.state), (vec![405, 405], WireState::Open));
}
