//! A peer that breaks off in mid-stream, at whatever moment, ends its session once and as [`CloseReason::Reset`].

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;

use tidegate::{CloseReason, Model};

use crate::kit::{self, Echo, Producer, Tape};

on_every_model!(case);

fn case(model: Model) {
    while_nothing_moves(model);
    while_the_server_sends(model);
    after_the_peer_has_sent_much(model);
}

fn while_nothing_moves(model: Model) {
    let (service, witness) = Echo::service();
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..10).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
    streams.into_iter().for_each(kit::reset);
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 10);
    assert_eq!(server.stats().open(), 0);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 10]);
    assert_eq!(witness.ends.load(SeqCst), 0, "a reset is not an end");
}

/// The outbox is full, and the connection only waits for the peer to take something.
fn while_the_server_sends(model: Model) {
    let (service, witness) = Producer::service(&Tape::new(1), 64 << 20);
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..4).map(|_| kit::connect_narrow(server.local_addr())).collect();
    for stream in &mut streams {
        stream.write_all(b"go").expect("send");
        kit::hear(stream, 1000);
    }
    streams.into_iter().for_each(kit::reset);
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 4);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 4]);
}

/// The server may still find bytes to read in front of the reset.
fn after_the_peer_has_sent_much(model: Model) {
    let (service, witness) = Echo::service();
    let server = kit::serve(model, kit::tight(model), service);
    for _ in 0..10 {
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, b"hello");
        stream.write_all(&[7; 20_000]).expect("send");
        kit::reset(stream);
    }
    kit::until("every reset is counted", || server.stats().closed_by(CloseReason::Reset) == 10);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Reset; 10]);
}
