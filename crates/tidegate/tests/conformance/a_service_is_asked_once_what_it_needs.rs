//! What a service needs is asked for before it serves, and not on I/O threads: limits are derived from the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use tidegate::{Model, Peer, Refusal, Service, ServiceOptions};

use crate::kit::{self, Echo};

on_every_model!(case);

#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Service for Counting {
    type Session = Echo;

    fn open(&self, peer: &Peer) -> Result<Echo, Refusal> {
        assert!(peer.addr.is_some() && peer.local_addr.is_some());
        Ok(Echo::default())
    }

    fn options(&self) -> ServiceOptions {
        self.0.fetch_add(1, SeqCst);
        ServiceOptions::default().peer_addr(true).local_addr(true)
    }
}

fn case(model: Model) {
    let service = Counting::default();
    let server = kit::serve(model, kit::policy(model), service.clone());
    let mut streams = vec![kit::connect(server.local_addr())];
    kit::exchange(&mut streams[0], b"it serves");
    let asked = service.0.load(SeqCst);
    for _ in 0..10 {
        streams.push(kit::connect(server.local_addr()));
    }
    streams.iter_mut().for_each(|stream| kit::exchange(stream, b"and again"));
    server.set_policy(kit::policy(model).max_connections(100)).expect("a policy that may change");
    drop(streams);
    let stats = kit::finish(server);
    assert_eq!(stats.accepted, 11);
    assert_eq!(service.0.load(SeqCst), asked, "{asked} times before the first connection was served");
}
