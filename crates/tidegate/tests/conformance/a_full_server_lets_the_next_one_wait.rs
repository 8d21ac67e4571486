//! With [`WhenFull::Wait`] a connection beyond [`Policy::max_connections`] is served once another one closes.

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;

use tidegate::Model;
use tidegate::policy::WhenFull;

use crate::kit::{self, Echo};

on_every_model!(case);

const MOST: usize = 4;

fn case(model: Model) {
    let (service, witness) = Echo::service();
    let policy = kit::policy(model).max_connections(MOST).when_full(WhenFull::Wait);
    let server = kit::serve(model, policy, service);
    let mut inside: Vec<_> = (0..MOST).map(|_| kit::connect(server.local_addr())).collect();
    inside.iter_mut().for_each(|stream| kit::exchange(stream, b"inside"));

    let mut outside: Vec<_> = (0..6).map(|_| kit::connect(server.local_addr())).collect();
    for (i, stream) in outside.iter_mut().enumerate() {
        stream.write_all(format!("outside {i}").as_bytes()).expect("send");
    }
    // The server has every occasion to let them in, and does not.
    for _ in 0..50 {
        inside.iter_mut().for_each(|stream| kit::exchange(stream, b"still only us"));
    }
    assert_eq!(server.stats().accepted, MOST as u64);
    assert_eq!(server.stats().refused, 0);

    // One leaves, one comes: whichever it is, all of them in the end.
    for (left, stream) in inside.into_iter().enumerate() {
        drop(stream);
        kit::until("the next one is let in", || server.stats().accepted == (MOST + left + 1) as u64);
    }
    for (i, mut stream) in outside.into_iter().enumerate() {
        assert_eq!(kit::hear(&mut stream, 9), format!("outside {i}").as_bytes());
    }
    let stats = kit::finish(server);
    assert_eq!(stats.accepted, MOST as u64 + 6);
    assert_eq!(witness.peak.load(SeqCst), MOST, "the limit held");
}
