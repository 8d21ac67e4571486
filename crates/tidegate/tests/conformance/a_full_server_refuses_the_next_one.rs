//! With [`WhenFull::Refuse`] a connection beyond [`Policy::max_connections`] sees the end of its stream, and is
//! counted.

use std::io::{Read, Write};
use std::sync::atomic::Ordering::SeqCst;

use tidegate::policy::WhenFull;
use tidegate::{Model, Running};

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

const MOST: usize = 3;

fn case(model: Model) {
    let (service, witness) = Echo::service();
    // One thread: each has a share of the limit of its own.
    let mut policy = kit::with_threads(model, 1).max_connections(MOST).when_full(WhenFull::Refuse);
    policy.accept.defer = None; // the refused ones say nothing, so as to see an end rather than a reset
    let server = kit::serve(model, policy, service);
    let mut inside: Vec<_> = (0..MOST).map(|_| kit::connect(server.local_addr())).collect();
    inside.iter_mut().for_each(|stream| kit::exchange(stream, b"inside"));
    for refused in 1..=5 {
        let mut stream = kit::connect(server.local_addr());
        assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
        kit::until("it is counted", || server.stats().refused == refused);
    }
    inside.iter_mut().for_each(|stream| kit::exchange(stream, b"still inside"));

    inside.pop();
    kit::until("there is room", || server.stats().open() == MOST as u64 - 1);
    kit::until("a new one is served", || served(&server));
    drop(inside);
    let stats = kit::finish(server);
    assert_eq!(stats.attempted, stats.accepted + stats.refused);
    assert_eq!(stats.accepted, MOST as u64 + 1);
    assert!(stats.refused >= 5);
    assert!(witness.peak.load(SeqCst) <= MOST, "the limit held");
}

/// The session may be gone a moment before its place is free, so a first attempt may still be refused.
fn served(server: &Running) -> bool {
    let mut stream = kit::connect(server.local_addr());
    stream.write_all(b"new").is_ok() && stream.read_exact(&mut [0; 3]).is_ok()
}
