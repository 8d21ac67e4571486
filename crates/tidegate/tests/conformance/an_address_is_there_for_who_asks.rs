//! The address of an accepted peer is there if the service asks for it, and else it is not: the same on every model,
//! so that a service that forgets to ask finds out on the first one.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tidegate::{Consumed, Model, Outbox, Peer, Refusal, Service, ServiceOptions, Session};

use crate::kit;

on_every_model!(case);

struct Doorman {
    asks: bool,
    seen: Arc<Mutex<Vec<Option<SocketAddr>>>>,
}

struct Guest;

impl Service for Doorman {
    type Session = Guest;

    fn open(&self, peer: &Peer) -> Result<Guest, Refusal> {
        self.seen.lock().expect("seen").push(peer.addr);
        Ok(Guest)
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().peer_addr(self.asks)
    }
}

impl Session for Guest {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

fn case(model: Model) {
    for asks in [false, true] {
        let seen = Arc::default();
        let service = Doorman { asks, seen: Arc::clone(&seen) };
        let server = kit::serve(model, kit::policy(model), service);
        let mut streams: Vec<_> = (0..4).map(|_| kit::connect(server.local_addr())).collect();
        streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
        let mut expected: Vec<_> = streams.iter().map(|stream| asks.then(|| kit::caller(stream))).collect();
        expected.sort_unstable();
        let mut seen = seen.lock().expect("seen").clone();
        seen.sort_unstable();
        assert_eq!(seen, expected, "asked for: {asks}");
        drop(streams);
        kit::finish(server);
    }
}
