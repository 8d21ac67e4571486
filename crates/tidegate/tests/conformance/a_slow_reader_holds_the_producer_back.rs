//! Back-pressure: what a slow reader has not taken bounds what a session produces, and nothing is lost.

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;

use tidegate::{CloseReason, Model};

use crate::kit::{self, Producer, Tape};

on_every_model!(case);

const TOTAL: u64 = 64 << 20;

/// What the kernel may hold of one connection with the small buffers set here, generously.
const KERNEL: u64 = 4 << 20;

fn case(model: Model) {
    let tape = Tape::new(7);
    let (service, witness) = Producer::service(&tape, TOTAL);
    let policy = kit::policy(model).socket_send_buffer(Some(64 * 1024));
    let high = policy.outbox.high;
    let server = kit::serve(model, policy, service);
    let mut stream = kit::connect_narrow(server.local_addr());
    stream.write_all(b"go").expect("send");
    kit::until("the outbox is full", || witness.most_queued.load(SeqCst) >= high);

    let mut buffer = vec![0; 48 * 1024];
    let mut at = 0;
    loop {
        let ahead = witness.bytes.load(SeqCst) - at;
        assert!(ahead <= KERNEL, "the producer is {ahead} bytes ahead of its reader");
        let n = kit::hear_some(&mut stream, &mut buffer).expect("receive");
        if n == 0 {
            break;
        }
        tape.check(at, &buffer[..n]);
        at += n as u64;
        std::thread::yield_now(); // never in a hurry
    }
    assert_eq!(at, TOTAL);
    let most = witness.most_queued.load(SeqCst);
    assert!(most < high + Producer::PIECE, "the outbox held {most} bytes");
    kit::until("the session is closed", || !witness.closings().is_empty());
    let stats = kit::finish(server);
    assert_eq!((stats.bytes_out, stats.bytes_in), (TOTAL, 2));
    assert_eq!(witness.closings(), [CloseReason::Finished]);
}
