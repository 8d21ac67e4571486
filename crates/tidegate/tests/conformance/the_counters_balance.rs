//! What the counters say at the end is what the peers saw: every attempt has one outcome, every byte is counted once.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use tidegate::{CloseReason, Consumed, Endpoint, Flow, Model, Outbox, Peer, Refusal, Service, Session};

use crate::kit::{self, Ending, Random, Tape};

on_every_model!(case);

const CALLERS: u64 = 64;

/// Refuses every eighth connection.
#[derive(Default)]
struct RefusesEighth(AtomicU64);

/// Echoes; aborts on a `!`.
struct Guest;

impl Service for RefusesEighth {
    type Session = Guest;

    fn open(&self, _peer: &Peer) -> Result<Guest, Refusal> {
        if self.0.fetch_add(1, SeqCst) % 8 == 7 { Err(Refusal) } else { Ok(Guest) }
    }
}

impl Session for Guest {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if input == b"!" {
            return Consumed::all(input).then(Flow::Abort);
        }
        out.write(input);
        Consumed::all(input)
    }
}

/// What one caller saw.
#[derive(Default)]
struct Seen {
    sent: u64,
    heard: u64,
    refused: u64,
    finished: u64,
    aborted: u64,
    reset: u64,
}

fn case(model: Model) {
    let server = kit::serve(model, kit::policy(model), RefusesEighth::default());
    let addr = server.local_addr();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|i| scope.spawn(move || call_many(addr, i))).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("caller")).collect()
    });
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    kit::until("all are closed", || {
        let stats = server.stats();
        stats.attempted == CALLERS && stats.closed_total() + stats.refused == CALLERS
    });
    let stats = kit::finish(server);
    assert_eq!(stats.attempted, CALLERS);
    assert_eq!(stats.refused, CALLERS / 8);
    assert_eq!(stats.refused, sum(|s| s.refused));
    assert_eq!(stats.bytes_in, sum(|s| s.sent));
    assert_eq!(stats.bytes_out, sum(|s| s.heard));
    assert_eq!(stats.closed_by(CloseReason::Finished), sum(|s| s.finished));
    assert_eq!(stats.closed_by(CloseReason::Aborted), sum(|s| s.aborted));
    assert_eq!(stats.closed_by(CloseReason::Reset), sum(|s| s.reset));
    assert!(stats.receives > 0 && stats.receives <= stats.bytes_in);
    assert!(stats.sends > 0 && stats.sends <= stats.bytes_out);
    assert!(stats.wake_ups > 0);
}

fn call_many(addr: &Endpoint, caller: u64) -> Vec<Seen> {
    let mut random = Random::new(caller);
    (0..CALLERS / 4).map(|i| call(kit::connect(addr), &mut random, i)).collect()
}

fn call(mut stream: TcpStream, random: &mut Random, i: u64) -> Seen {
    let tape = Tape::new(i);
    // Whether it was let in shows at the first exchange. A server that refused has received none of it.
    let n = random.size(15);
    let bytes = tape.first(n);
    let mut back = vec![0; n];
    let let_in = stream.write_all(&bytes).is_ok() && stream.read_exact(&mut back).is_ok();
    assert!(!let_in || back == bytes, "other bytes came back than were sent");
    if !let_in {
        return Seen { refused: 1, ..Seen::default() };
    }
    let mut seen = Seen { sent: n as u64, heard: n as u64, ..Seen::default() };
    match i % 3 {
        0 => {
            stream.shutdown(Shutdown::Write).expect("finish");
            assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
            seen.finished = 1;
        }
        1 => {
            stream.write_all(b"!").expect("send");
            assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::Reset));
            seen.sent += 1;
            seen.aborted = 1;
        }
        _ => {
            kit::reset(stream);
            seen.reset = 1;
        }
    }
    seen
}
