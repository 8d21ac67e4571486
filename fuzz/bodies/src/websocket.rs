//! A client of WebSocket.

use tidegate::{CloseReason, Policy};
use tidegate_services::websocket::{EchoMessages, WebSocket, WebSocketLimits};

use crate::cuts::{Cuts, without_date};
use crate::frames::{UPGRADE, server_frames};
use crate::wire::{TestConnection, WireState};

/// Small, so that the bound is met.
const MESSAGE_BYTES: usize = 300;

/// Frames behind a handshake, in pieces: the answers do not depend on the pieces, are whole frames, and end with one
/// close.
pub fn websocket(data: &[u8]) {
    let Some(cuts) = Cuts::of(data) else { return };
    let whole = play(&[cuts.stream]);
    assert_eq!(play(&cuts.pieces()), whole, "the pieces make a difference");
    let frames = server_frames(&whole);
    for (at, (first, payload)) in frames.iter().enumerate() {
        assert!([0x81, 0x82, 0x88, 0x8a].contains(first), "{first:#x}");
        assert!(payload.len() <= MESSAGE_BYTES);
        assert!(*first != 0x81 || std::str::from_utf8(payload).is_ok());
        assert!(*first != 0x88 || at + 1 == frames.len(), "a close is the last");
    }
}

fn play(pieces: &[&[u8]]) -> Vec<u8> {
    let limits = WebSocketLimits::default().message_bytes(MESSAGE_BYTES);
    let policy = Policy::default().input_bytes(limits.input_bytes());
    let mut wire = TestConnection::to(&WebSocket::new(EchoMessages, limits), policy);
    wire.send(UPGRADE);
    pieces.iter().for_each(|piece| wire.send(piece));
    wire.end();
    assert_ne!(wire.state, WireState::Open, "both have ended");
    let cut_off = wire.counters.closed[CloseReason::InputLimit as usize].get();
    assert_eq!(cut_off, 0, "the session kept more than its limit");
    without_date(wire.output)
}
