//! What is kept is bounded, in both directions, by the limits that hold without the layer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustls::version::TLS13;
use tidegate::{CloseReason, Consumed, Flow, Outbox, Peer, Policy, Refusal, Service, Session};
use tidegate_services::Echo;
use tidegate_tls::{TlsLimits, TlsServer};

use crate::far::Far;
use crate::papers::Papers;
use crate::wire::{Stands, Wire};

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
    let service =
        TlsServer::new(producer.clone(), papers.identity(&[]), TlsLimits::default(), Arc::default());
    let policy = Policy::default();
    let (low, high) = (policy.outbox.low, policy.outbox.high);
    let mut wire = Wire::to(&service, policy);
    let mut far = Far::new(&Arc::new(papers.trusting(&[&TLS13])));
    let hello = far.says();
    wire.send(hello);
    far.talk_once(&mut wire);
    wire.reads = false; // before the session inside begins
    let finished = far.says();
    wire.send(finished);
    // The tickets of the handshake, one piece more than fits, and 22 bytes for each record.
    let most = high + PIECE + PIECE / 10;
    assert!(wire.queued() >= high && wire.queued() <= most, "{} of {high}", wire.queued());
    assert!(producer.0.load(SeqCst) <= high / PIECE + 1);
    assert!(!wire.wants_input());
    assert!(low < high);
    wire.read();
    far.talk(&mut wire).unwrap();
    let expected: Vec<u8> = (0..PIECES).flat_map(|piece| [piece as u8; PIECE]).collect();
    assert!(far.heard == expected && far.clean_end);
    assert_eq!(wire.stands, Stands::Closed);
}

#[test]
fn a_peer_that_floods_and_does_not_read_is_not_read_from() {
    let papers = Papers::of("localhost");
    let service = TlsServer::new(Echo, papers.identity(&[]), TlsLimits::default(), Arc::default());
    let policy = Policy::default();
    let high = policy.outbox.high;
    let mut wire = Wire::to(&service, policy);
    let mut far = Far::new(&Arc::new(papers.trusting(&[&TLS13])));
    assert_eq!(far.exchange(b"x", &mut wire), b"x");
    wire.reads = false;
    let said: Vec<u8> = (0..4_000_000).map(|at: u32| (at / 7) as u8).collect();
    far.say(&said);
    let cipher = far.says();
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
    assert_eq!(wire.stands, Stands::Open);
    assert!(wire.queued() <= high + 2 * 64 * 1024, "it waits");
    wire.read();
    for piece in pieces {
        wire.send(piece);
    }
    far.talk(&mut wire).unwrap();
    assert!(far.heard == said, "nothing was lost by waiting");
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
    let service = TlsServer::new(Patient, papers.identity(&[]), TlsLimits::default(), Arc::default());
    let policy = Policy::default();
    let most = policy.input_bytes;
    let mut wire = Wire::to(&service, policy);
    let mut far = Far::new(&Arc::new(papers.trusting(&[&TLS13])));
    far.say(&vec![0; most]);
    far.talk(&mut wire).unwrap();
    assert_eq!(wire.stands, Stands::Open, "so much may be left");
    far.say(&[0]);
    far.talk(&mut wire).unwrap();
    assert_eq!(wire.stands, Stands::Reset);
    assert_eq!(wire.counters.closed[CloseReason::InputLimit as usize].get(), 1);
}
