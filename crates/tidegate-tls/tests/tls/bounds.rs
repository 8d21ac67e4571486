//! What is kept is bounded, in both directions, by the limits that hold without the layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustls::version::TLS13;
use tidegate::{CloseReason, Consumed, Flow, Outbox, Peer, Policy, Refusal, Service, Session};
use tidegate_services::Echo;
use tidegate_tls::{Fault, TlsCounters, TlsServer};

use crate::papers::Papers;
use crate::test_client::TestClient;
use crate::wire::{TestConnection, WireState};

const PIECE: usize = 10_000;
const PIECES: usize = 1_000;

/// Says ten megabytes, as fast as it may.
#[derive(Clone, Default)]
struct Producer(Arc<AtomicUsize>);

impl Service for Producer {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }
}

impl Producer {
    fn produce(&self, out: &mut Outbox<'_>) -> Flow {
        while !out.is_full() {
            if self.0.load(SeqCst) == PIECES {
                return Flow::Close;
            }
            out.write(&[self.0.fetch_add(1, SeqCst) as u8; PIECE]);
        }
        Flow::Continue
    }
}

impl Session for Producer {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.produce(out)
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_drained(&mut self, out: &mut Outbox<'_>) -> Flow {
        self.produce(out)
    }
}

#[test]
fn a_peer_that_does_not_read_holds_the_session_back() {
    let papers = Papers::of("localhost");
    let producer = Producer::default();
    let service = TlsServer::new(producer.clone(), papers.identity(&[]));
    let policy = Policy::default();
    let (low, high) = (policy.outbox.low, policy.outbox.high);
    let mut wire = TestConnection::to(&service, policy);
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    let hello = test_client.says();
    wire.send(hello);
    test_client.talk_once(&mut wire);
    wire.reads = false; // before the session inside begins
    let finished = test_client.says();
    wire.send(finished);
    // The tickets of the handshake, one piece more than fits, and 22 bytes for each record.
    let most = high + PIECE + PIECE / 10;
    assert!(wire.queued() >= high && wire.queued() <= most, "{} of {high}", wire.queued());
    assert!(producer.0.load(SeqCst) <= high / PIECE + 1);
    assert!(!wire.wants_input());
    assert!(low < high);
    wire.read();
    test_client.talk(&mut wire).unwrap();
    let expected: Vec<u8> = (0..PIECES).flat_map(|piece| [piece as u8; PIECE]).collect();
    assert!(test_client.heard == expected && test_client.clean_end);
    assert_eq!(wire.state, WireState::Closed);
}

#[test]
fn a_peer_that_floods_and_does_not_read_is_not_read_from() {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(Echo, papers.identity(&[]));
    let policy = Policy::default();
    let high = policy.outbox.high;
    let mut wire = TestConnection::to(&service, policy);
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    assert_eq!(test_client.exchange(b"x", &mut wire), b"x");
    wire.reads = false;
    let said: Vec<u8> = (0..4_000_000).map(|at: u32| (at / 7) as u8).collect();
    test_client.say(&said);
    let cipher = test_client.says();
    let mut pieces = cipher.chunks(64 * 1024);
    let mut sent = 0;
    while wire.wants_input() {
        let piece = pieces.next().expect("it is full before everything was sent");
        wire.send(piece);
        sent += piece.len();
    }
    assert!(wire.queued() >= high && wire.queued() <= high + 2 * 64 * 1024, "{}", wire.queued());
    assert!(sent <= high + 2 * 64 * 1024, "{sent}");
    // More than `input_bytes` was under way already, as it may be with completions.
    pieces.by_ref().take(3).for_each(|piece| wire.send(piece));
    assert_eq!(wire.state, WireState::Open);
    assert!(wire.queued() <= high + 2 * 64 * 1024, "it waits");
    wire.read();
    for piece in pieces {
        wire.send(piece);
    }
    test_client.talk(&mut wire).unwrap();
    assert!(test_client.heard == said, "nothing was lost by waiting");
}

/// Says as much as it may, and takes what it receives whether that was read or not, as one half of a link does.
#[derive(Clone, Default)]
struct HalfOfALink(Arc<AtomicUsize>);

impl Service for HalfOfALink {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(self.clone())
    }
}

impl Session for HalfOfALink {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.takes_input_while_full();
        while !out.is_full() {
            out.write(&[7; PIECE]);
        }
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        self.0.fetch_add(input.len(), SeqCst);
        Consumed::all(input)
    }
}

#[test]
fn who_takes_input_while_its_peer_does_not_read_is_shown_it() {
    let papers = Papers::of("localhost");
    let half = HalfOfALink::default();
    let service = TlsServer::new(half.clone(), papers.identity(&[]));
    let mut wire = TestConnection::to(&service, Policy::default());
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    let hello = test_client.says();
    wire.send(hello);
    test_client.talk_once(&mut wire);
    wire.reads = false; // before the session inside begins
    let finished = test_client.says();
    wire.send(finished);
    test_client.say(&[1; 1_000_000]);
    test_client.says().chunks(64 * 1024).for_each(|piece| wire.send(piece));
    assert_eq!((wire.state, half.0.load(SeqCst)), (WireState::Open, 1_000_000));
    assert!(wire.wants_input());
}

/// Waits for a message that never ends.
struct Patient;

impl Service for Patient {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self)
    }
}

impl Session for Patient {
    fn on_bytes(&mut self, _: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::bytes(0)
    }
}

#[test]
fn a_message_without_end_meets_the_limit_of_the_input() {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(Patient, papers.identity(&[]));
    let policy = Policy::default();
    let most = policy.input_bytes;
    let mut wire = TestConnection::to(&service, policy);
    let mut test_client = TestClient::new(&Arc::new(papers.trusting(&[&TLS13])));
    test_client.say(&vec![0; most]);
    test_client.talk(&mut wire).unwrap();
    assert_eq!(wire.state, WireState::Open, "so much may be left");
    test_client.say(&[0]);
    test_client.talk(&mut wire).unwrap();
    assert_eq!(wire.state, WireState::Reset);
    assert_eq!(wire.counters.closed[CloseReason::InputLimit as usize].get(), 1);
}

/// A record of the handshake, in the clear.
fn record(bytes: &[u8]) -> Vec<u8> {
    [&[22, 3, 1][..], &(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// The hello of a client that says it is so long.
fn long_hello(length: u32) -> Vec<u8> {
    let [_, length @ ..] = length.to_be_bytes();
    [&[1][..], &length].concat()
}

/// TLS lets a message of a handshake have 16 MiB, and rustls 64 KiB.
#[test]
fn a_handshake_that_says_it_is_large_is_refused_by_its_head() {
    let papers = Papers::of("localhost");
    let counters = Arc::<TlsCounters>::default();
    let service = TlsServer::new(Echo, papers.identity(&[])).count_in(counters.clone());
    let lax = Policy::default().input_bytes(1 << 30);
    for length in [(1 << 24) - 1, 1 << 16] {
        let head = long_hello(length);
        for pieces in [vec![head.clone()], head.iter().map(|&byte| vec![byte]).collect()] {
            let mut wire = TestConnection::to(&service, lax.clone());
            pieces.iter().for_each(|piece| wire.send(record(piece)));
            assert!(wire.finished, "{length}");
        }
    }
    assert_eq!(counters.of(Fault::Handshake), 4);
}

#[test]
fn what_a_handshake_has_a_server_keep_is_bounded() {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(Echo, papers.identity(&[]));
    let largest = (1 << 16) - 1;
    for (input_bytes, piece) in [
        (Policy::default().input_bytes, 1),
        (Policy::default().input_bytes, 1 << 14),
        (1 << 30, 1),
        (1 << 30, 1 << 14),
    ] {
        let mut wire = TestConnection::to(&service, Policy::default().input_bytes(input_bytes));
        let message = [long_hello(largest), vec![0; largest as usize]].concat();
        let mut sent = 0;
        for piece in message.chunks(piece) {
            if wire.state != WireState::Open || wire.finished {
                break;
            }
            let record = record(piece);
            sent += record.len();
            wire.send(record);
        }
        // Each record has five bytes of its own.
        let most = (input_bytes + piece + 5).min(message.len().div_ceil(piece) * 5 + message.len());
        assert!(sent <= most, "{sent} of {most}");
        let by_limit = wire.counters.closed[CloseReason::InputLimit as usize].get() == 1;
        let by_rustls = wire.output.first() == Some(&21);
        assert_eq!((by_limit, by_rustls), if input_bytes == 1 << 30 { (false, true) } else { (true, false) });
    }
}
