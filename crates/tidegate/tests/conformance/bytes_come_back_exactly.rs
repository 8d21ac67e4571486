//! Whatever the sizes in which bytes are sent and received, each comes back once and in order.

use std::net::Shutdown;
use std::thread;

use tidegate::policy::OutboxMarks;
use tidegate::{CloseReason, Endpoint, Model, Policy};

use crate::kit::{self, Echo, Random, Tape};

on_every_model!(case, and over Unix sockets);

const CONNECTIONS: u64 = 6;

fn case(model: Model) {
    round(model, kit::policy(model), 21);
    round(model, kit::tight(model), 19);
    // Much to send at once into a kernel that takes little: nearly every send is cut short.
    let narrow = kit::policy(model)
        .buffer_bytes(64 * 1024)
        .outbox(OutboxMarks::default().low(16 * 1024).high(256 * 1024))
        .socket_send_buffer(Some(8 * 1024));
    round(model, narrow, 20);
}

/// Several connections at once, each with messages from 1 byte to `1 << bits`.
fn round(model: Model, policy: Policy, bits: u64) {
    let (service, witness) = Echo::service();
    let server = kit::serve(model, policy, service);
    let addr = server.local_addr();
    let totals: Vec<u64> = thread::scope(|scope| {
        let callers: Vec<_> =
            (0..CONNECTIONS).map(|seed| scope.spawn(move || call(addr, seed, bits))).collect();
        callers.into_iter().map(|caller| caller.join().expect("caller")).collect()
    });
    let stats = kit::finish(server);
    let total: u64 = totals.iter().sum();
    assert_eq!((stats.bytes_in, stats.bytes_out), (total, total));
    assert_eq!(witness.closings(), [CloseReason::Finished; CONNECTIONS as usize]);
}

/// Sends from one thread while another one compares what comes back; returns how many bytes that were.
fn call(addr: &Endpoint, seed: u64, bits: u64) -> u64 {
    let tape = Tape::new(seed);
    let mut random = Random::new(seed);
    // The first connection sends a single byte, the last one the most.
    let total = match seed {
        0 => 1,
        _ => (1 << bits) * seed / CONNECTIONS,
    };
    let mut stream = kit::connect_narrow(addr);
    let mut back = stream.try_clone().expect("clone");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(!seed);
            let mut at = 0;
            while at < total {
                let piece = tape.piece(at, random.size(16).min((total - at) as usize));
                kit::send_all(&mut stream, &piece).expect("send");
                at += piece.len() as u64;
            }
            stream.shutdown(Shutdown::Write).expect("finish");
        });
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0;
        loop {
            let size = random.size(16);
            let n = kit::hear_some(&mut back, &mut buffer[..size]).expect("receive");
            if n == 0 {
                break;
            }
            tape.check(at, &buffer[..n]);
            at += n as u64;
        }
        assert_eq!(at, total, "everything came back");
        total
    })
}
