//! The address of this end is there if the service asks for it, and else it is not, on every model: of a server that
//! listens on all addresses, the one that the peer has connected to; of a dialled connection, the one it comes from.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use tidegate::service::Origin;
use tidegate::{Client, Dial, Endpoint, Model, Peer, Refusal, Server, Service, ServiceOptions};

use crate::kit::{self, Echo};

on_every_model!(case);

/// The addresses of both ends of a connection: this one, the peer's.
type Ends = (Option<SocketAddr>, Option<SocketAddr>);

#[derive(Clone, Default)]
struct Doorman {
    asks: bool,
    accepted: Arc<Mutex<Vec<Ends>>>,
    dialled: Arc<Mutex<Vec<Ends>>>,
}

impl Service for Doorman {
    type Session = Echo;

    fn open(&self, peer: &Peer) -> Result<Echo, Refusal> {
        let seen = if peer.origin == Origin::Accepted { &self.accepted } else { &self.dialled };
        seen.lock().expect("seen").push((peer.local_addr, peer.addr));
        Ok(Echo::default())
    }

    fn options(&self) -> ServiceOptions {
        ServiceOptions::default().peer_addr(true).local_addr(self.asks)
    }
}

/// What was seen, in an order that does not depend on which thread was first.
fn sorted(seen: &Mutex<Vec<Ends>>) -> Vec<Ends> {
    let mut seen = seen.lock().expect("seen").clone();
    seen.sort_unstable();
    seen
}

fn case(model: Model) {
    for asks in [false, true] {
        let service = Doorman { asks, ..Doorman::default() };
        let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut policy = kit::policy(model);
        policy.accept.defer = None; // those that dial below send nothing
        let server = Server::new(service.clone()).model(model).policy(policy);
        let server = server.bind(all).expect("bind").start().expect("start");
        let port = server.local_addr().addr().expect("an address").port();
        let to = |last: u8| SocketAddr::from(([127, 0, 0, last], port));
        let mut streams: Vec<_> =
            [1, 2, 2, 3].map(|last| TcpStream::connect(to(last)).expect("connect")).into();
        streams.iter_mut().for_each(|stream| kit::exchange(stream, b"hello"));
        let ends = |stream: &TcpStream| {
            let (near, far) = (stream.local_addr().expect("near"), stream.peer_addr().expect("far"));
            (asks.then_some(far), Some(near))
        };
        let mut expected: Vec<_> = streams.iter().map(ends).collect();
        expected.sort_unstable();
        assert_eq!(sorted(&service.accepted), expected, "asked for: {asks}");
        drop(streams);

        let mut policy = kit::policy(model);
        policy.fast_path = None;
        let client = Client::new(service.clone()).model(model).policy(policy).start().expect("a client");
        for last in [2, 3] {
            client.dialler().dial(Dial::to(Endpoint::from(to(last)))).expect("dial");
        }
        kit::until("both are established at both ends", || {
            sorted(&service.dialled).len() == 2 && sorted(&service.accepted).len() == 6
        });
        for (local, peer) in sorted(&service.dialled) {
            let peer = peer.expect("always there for a dialled connection");
            let other = sorted(&service.accepted).into_iter().find(|&(near, far)| {
                if asks { far == local && near == Some(peer) } else { near.is_none() && local.is_none() }
            });
            assert!(other.is_some(), "asked for: {asks}; {local:?} to {peer}");
        }
        client.stop();
        kit::check(&client.join());
        kit::finish(server);
    }
}
