//! A service that refuses a connection leaves no session behind; the peer sees the end, the counters say so. A
//! service can ask who calls.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tidegate::service::Origin;
use tidegate::{Model, Peer, Refusal, Service, ServiceOptions};

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

/// Takes every second caller.
#[derive(Clone, Default)]
struct Picky {
    callers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service for Picky {
    type Session = Echo;

    fn open(&self, peer: &Peer) -> Result<Echo, Refusal> {
        assert_eq!(peer.origin, Origin::Accepted);
        let mut callers = self.callers.lock().map_err(|_| Refusal)?;
        callers.extend(peer.addr);
        if callers.len().is_multiple_of(2) { Ok(Echo::default()) } else { Err(Refusal) }
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().peer_addr(true)
    }
}

fn case(model: Model) {
    let service = Picky::default();
    let mut policy = kit::policy(model);
    policy.accept.defer = None; // the refused ones say nothing
    let server = kit::serve(model, policy, service.clone());
    let mut expected = Vec::new();
    let mut taken = Vec::new();
    for i in 1..=20 {
        let mut stream = kit::connect(server.local_addr());
        expected.push(kit::caller(&stream));
        if i % 2 == 0 {
            kit::exchange(&mut stream, b"let in");
            taken.push(stream);
        } else {
            assert_eq!(kit::hear_all(&mut stream), (Vec::new(), Ending::EndOfStream));
            kit::until("it is counted", || server.stats().refused == i / 2 + 1);
        }
    }
    taken.iter_mut().for_each(|stream| kit::exchange(stream, b"still in"));
    drop(taken);
    assert_eq!(*service.callers.lock().expect("callers"), expected);
    let stats = kit::finish(server);
    assert_eq!((stats.attempted, stats.accepted, stats.refused), (20, 10, 10));
}
