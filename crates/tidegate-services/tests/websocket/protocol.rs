//! What RFC 6455 asks of a server.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::policy::OutboxMarks;
use tidegate::{CloseReason, Policy};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use crate::frames::{BINARY, CLOSE, FIN, PING, PONG, TEXT, UPGRADE, frame, head, server_frames, text};
use crate::wire::{TestConnection, WireState};

fn limits() -> WebSocketLimits {
    WebSocketLimits::default().message_bytes(1000).request_timeout(Some(Duration::from_secs(10)))
}

fn asked() -> TestConnection {
    TestConnection::to(&WebSocket::new(EchoMessages, limits()), Policy::default().input_bytes(8192))
}

fn open() -> TestConnection {
    let mut wire = asked();
    wire.send(UPGRADE);
    wire
}

/// What comes back for these frames, and the state of the connection then.
fn answers(frames: &[Vec<u8>]) -> (Vec<(u8, Vec<u8>)>, WireState) {
    let mut wire = open();
    wire.send(frames.concat());
    (server_frames(&wire.output), wire.state)
}

/// The code that these frames are closed with.
#[track_caller]
fn code(frames: &[Vec<u8>]) -> u16 {
    let (answers, _) = answers(frames);
    let (first, payload) = answers.last().expect("an answer");
    assert_eq!(*first, FIN | CLOSE);
    u16::from_be_bytes([payload[0], payload[1]])
}

#[test]
fn messages_come_back_as_they_were() {
    let long = "x".repeat(1000);
    let frames = [text("hello"), frame(FIN | BINARY, [0, 255]), text(""), text(&long)];
    let (answers, state) = answers(&frames);
    let expected = [
        (FIN | TEXT, b"hello".to_vec()),
        (FIN | BINARY, vec![0, 255]),
        (FIN | TEXT, vec![]),
        (FIN | TEXT, long.into_bytes()),
    ];
    assert_eq!((answers, state), (expected.to_vec(), WireState::Open));
}

#[test]
fn fragments_become_one_message_and_control_frames_may_stand_between_them() {
    let umlaut = "ü".as_bytes();
    let frames =
        [frame(TEXT, &umlaut[..1]), frame(FIN | PING, "now"), frame(0, &umlaut[1..]), frame(FIN, " there")];
    let expected = [(FIN | PONG, b"now".to_vec()), (FIN | TEXT, "ü there".into())];
    assert_eq!(answers(&frames).0, expected);
}

#[test]
fn fragments_without_a_byte_are_no_message_until_the_last_and_are_not_kept() {
    let mut wire = open();
    for part in [frame(TEXT, ""), frame(0, "")] {
        wire.send(part.repeat(if part[0] == TEXT { 1 } else { 10_000 }));
        assert!(wire.output[..].ends_with(b"\r\n\r\n"), "nothing is answered");
    }
    wire.send([frame(FIN | PING, ""), frame(0, "a"), frame(0, "").repeat(10_000), frame(FIN, "")].concat());
    wire.send(text("").repeat(1_000));
    let mut answers = server_frames(&wire.output).into_iter();
    assert_eq!(answers.next(), Some((FIN | PONG, vec![])));
    assert_eq!(answers.next(), Some((FIN | TEXT, b"a".to_vec())));
    assert_eq!(answers.filter(|answer| *answer == (FIN | TEXT, vec![])).count(), 1_000);
    assert_eq!(wire.state, WireState::Open);
    assert_eq!(code(&[frame(0, "")]), 1002, "nothing to continue");
}

#[test]
fn what_the_rfc_forbids_is_closed_with_its_code() {
    for (frames, expected) in [
        (vec![[head(FIN | TEXT, 2, 0), b"ab".to_vec()].concat()], 1002), // not masked
        (vec![frame(FIN | 0x40 | TEXT, "a")], 1002),                     // a reserved bit
        (vec![frame(FIN | 3, "a")], 1002),                               // a reserved opcode
        (vec![frame(PING, "a")], 1002),                                  // a fragmented control frame
        (vec![frame(FIN | PING, [0; 126])], 1002),                       // a long one
        (vec![frame(FIN, "a")], 1002),                                   // nothing to continue
        (vec![frame(TEXT, "a"), text("b")], 1002),                       // a message inside a message
        (vec![frame(FIN | TEXT, [0xff])], 1007),
        (vec![frame(TEXT, [0xc3]), frame(FIN, "x")], 1007),
        (vec![frame(FIN | CLOSE, [3])], 1002),
        (vec![frame(FIN | CLOSE, [3, 237])], 1002), // 1005 must not be sent
        (vec![text(&"x".repeat(1001))], 1009),
        (vec![frame(TEXT, [b'x'; 600]), frame(FIN, [b'x'; 401])], 1009),
    ] {
        assert_eq!(code(&frames), expected, "{frames:02x?}");
    }
}

#[test]
fn a_frame_that_is_too_large_is_refused_by_its_head() {
    let mut wire = open();
    wire.send([head(FIN | BINARY, 1 << 40, 0x80), vec![0; 4]].concat());
    let frames = server_frames(&wire.output);
    assert_eq!(frames, [(FIN | CLOSE, 1009_u16.to_be_bytes().to_vec())]);
}

#[test]
fn a_close_is_answered_with_its_code_and_nothing_is_heard_after_it() {
    let bye = [&1000_u16.to_be_bytes()[..], b"bye"].concat();
    let mut wire = open();
    wire.send([text("a"), frame(FIN | CLOSE, &bye), text("b")].concat());
    assert_eq!(server_frames(&wire.output), [(FIN | TEXT, b"a".to_vec()), (FIN | CLOSE, bye)]);
    assert!(wire.finished, "the sending side is finished");
    wire.end();
    assert_eq!(wire.state, WireState::Closed);
    assert_eq!(answers(&[frame(FIN | CLOSE, [])]).0, [(FIN | CLOSE, vec![])]);
}

#[test]
fn a_request_without_upgrade_finds_nothing_here() {
    let mut wire = asked();
    wire.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(wire.text().starts_with("HTTP/1.1 404 "), "{}", wire.text());
    assert!(wire.finished);
}

#[test]
fn a_request_has_its_time() {
    let mut wire = asked();
    wire.send(&UPGRADE[..20]);
    wire.wait(Duration::from_secs(10));
    assert_eq!(wire.state, WireState::Reset);
    let mut wire = open();
    wire.wait(Duration::from_secs(20));
    assert_eq!(wire.state, WireState::Open, "an open WebSocket may be silent");
}

#[test]
fn an_unfinished_message_is_unfinished_input() {
    let mut wire = open();
    let before = wire.deadline();
    wire.send(frame(TEXT, "half"));
    wire.happens(tidegate::proto::Event::Drain);
    wire.wait(Duration::from_secs(5));
    assert_eq!((before, wire.state), (None, WireState::Open), "a stop waits for the rest");
    wire.send(frame(FIN, " whole"));
    let frames = server_frames(&wire.output);
    assert_eq!(frames[0], (FIN | TEXT, b"half whole".to_vec()));
    let (first, payload) = &frames[1];
    assert_eq!((*first, &payload[..2], frames.len()), (FIN | CLOSE, &1001_u16.to_be_bytes()[..], 2));
    wire.wait(Duration::from_secs(5));
    assert_ne!(wire.state, WireState::Open, "and for nothing else");
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let outbox = OutboxMarks::default().low(500).high(2000);
    let policy = Policy::default().input_bytes(8192).outbox(outbox);
    let mut wire = TestConnection::to(&WebSocket::new(EchoMessages, limits()), policy);
    wire.send(UPGRADE);
    wire.reads = false;
    let message = "y".repeat(900);
    wire.send(text(&message).repeat(9));
    assert!(!wire.wants_input() && wire.queued() < 2000 + 1000, "{} bytes wait", wire.queued());
    wire.read();
    assert_eq!(server_frames(&wire.output).len(), 9, "all of it came in the end");
    assert_eq!(wire.counters.closed[CloseReason::InputLimit as usize].get(), 0);
}

proptest! {
    #[test]
    fn the_answers_do_not_depend_on_the_cuts(
        messages in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 1..6),
        fragments in 1..4_usize,
        cut in 1..40_usize,
    ) {
        let mut stream = UPGRADE.as_bytes().to_vec();
        for (ping, payload) in &messages {
            let piece = payload.len().div_ceil(fragments).max(1);
            let count = payload.chunks(piece).count().max(1);
            for at in 0..count {
                let part = payload.chunks(piece).nth(at).unwrap_or_default();
                let last = if at + 1 == count { FIN } else { 0 };
                stream.extend(frame(last | if at == 0 { BINARY } else { 0 }, part));
                if *ping {
                    stream.extend(frame(FIN | PING, [at as u8]));
                }
            }
        }
        let mut wire = asked();
        stream.chunks(cut).for_each(|piece| wire.send(piece));
        let answers = server_frames(&wire.output);
        let came: Vec<_> = answers.iter().filter(|(first, _)| *first == FIN | BINARY).map(|(_, bytes)| bytes.clone()).collect();
        let sent: Vec<_> = messages.iter().map(|(_, payload)| payload.clone()).collect();
        prop_assert_eq!(came, sent);
    }
}
