//! A stream with a PROXY protocol header in front.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ppp::{HeaderResult, v1, v2};
use tidegate::{CloseReason, Consumed, Outbox, Peer, Policy, Refusal, Service, Session};
use tidegate_services::layers::{HeaderFault, ProxyLimits, ProxyProtocol};

use crate::cuts::Cuts;
use crate::wire::{SOCKET, TestConnection, WireState};

/// Echoes, and keeps the address it was given.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<Option<Peer>>>);

struct Echo;

impl Service for Inside {
    type Session = Echo;

    fn open(&self, peer: &Peer) -> Result<Echo, Refusal> {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(peer.clone());
        assert_eq!(before, None, "opened twice");
        Ok(Echo)
    }
}

impl Session for Echo {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        assert!(!input.is_empty(), "a session is never shown nothing");
        out.write(input);
        Consumed::all(input)
    }
}

/// What came of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// What the service inside received, if it was opened.
    client: Option<Option<SocketAddr>>,
    /// What it was shown.
    shown: Vec<u8>,
    state: WireState,
    faults: [u64; HeaderFault::ALL.len()],
}

/// A header and bytes in pieces: the client and its bytes do not depend on the pieces, and are those that `ppp`,
/// another parser, finds.
pub fn proxy(data: &[u8]) {
    let Some(cuts) = Cuts::of(data) else { return };
    let whole = play(&[cuts.stream]);
    assert_eq!(play(&cuts.pieces()), whole, "the pieces make a difference");
    let opened = u64::from(whole.client.is_some());
    let said = u64::from(!cuts.stream.is_empty());
    assert_eq!(opened + whole.faults.iter().sum::<u64>(), said, "a session or one fault: {whole:?}");
    if let Some((client, rest)) = reference(cuts.stream) {
        assert_eq!(whole.client, Some(client));
        assert_eq!(whole.shown, rest);
    }
}

fn play(pieces: &[&[u8]]) -> Outcome {
    let inside = Inside::default();
    let limits = ProxyLimits::default().header_bytes(256);
    let service = ProxyProtocol::new(inside.clone(), limits);
    let policy = Policy::default().input_bytes(limits.header_bytes);
    let mut wire = TestConnection::to(&service, policy);
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        wire.send(piece);
    }
    wire.end();
    assert_ne!(wire.state, WireState::Open, "both have ended");
    let cut_off = wire.counters.closed[CloseReason::InputLimit as usize].get();
    assert_eq!(cut_off, 0, "the layer kept more than its limit");
    let client = inside.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|peer| peer.addr);
    let faults = std::array::from_fn(|at| service.faults().of(HeaderFault::ALL[at]));
    Outcome { client, shown: std::mem::take(&mut wire.output), state: wire.state, faults }
}

/// Whether the words in the place of ports have neither a sign nor a leading zero.
fn has_plain_ports(header: &str) -> bool {
    let is_plain = |word: &str| word == "0" || word.starts_with(|first: char| matches!(first, '1'..='9'));
    header.trim_end().split(' ').skip(4).all(is_plain)
}

/// What the parser makes of the whole stream, where it finds a header within the limits.
fn reference(stream: &[u8]) -> Option<(Option<SocketAddr>, &[u8])> {
    let socket = SOCKET.parse().ok();
    let (client, header) = match HeaderResult::parse(stream) {
        // `ppp` takes a space for the carriage return, and ports like +1 or 01; the specification and the layer do not.
        HeaderResult::V1(Ok(header))
            if header.header.ends_with("\r\n") && has_plain_ports(&header.header) =>
        {
            match header.addresses {
                v1::Addresses::Tcp4(ip) => {
                    (Some((ip.source_address, ip.source_port).into()), header.header.len())
                }
                v1::Addresses::Tcp6(ip) => {
                    (Some((ip.source_address, ip.source_port).into()), header.header.len())
                }
                v1::Addresses::Unknown => (socket, header.header.len()),
            }
        }
        HeaderResult::V2(Ok(header)) if header.len() <= 256 => match (header.command, header.addresses) {
            (v2::Command::Local, _) | (_, v2::Addresses::Unspecified) => (socket, header.len()),
            (_, v2::Addresses::IPv4(ip)) => (Some((ip.source_address, ip.source_port).into()), header.len()),
            (_, v2::Addresses::IPv6(ip)) => (Some((ip.source_address, ip.source_port).into()), header.len()),
            (_, v2::Addresses::Unix(_)) => (None, header.len()),
        },
        _ => return None,
    };
    Some((client, stream.get(header..)?))
}
