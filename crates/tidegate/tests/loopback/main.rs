//! [`Policy::fast_path`] on every model of this system: where it is not available, that is reported by name, before
//! anything runs, or once by each end, while every byte arrives over plain TCP.
#![forbid(unsafe_code)]

#[path = "../conformance/kit/deadline.rs"]
mod deadline;
mod ears;

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tidegate::policy::FastPath;
use tidegate::{
    Client, Consumed, Flow, Model, Outbox, Peer, Policy, PolicyError, Refusal, Running, Server, Service,
    Session, StartError, Stats,
};
use tidegate_os::extension;

use deadline::{Deadline, slow};
use ears::Ears;

/// Connections of each client.
const TIMES: usize = 3;

struct Echo;

impl Service for Echo {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self)
    }
}

impl Session for Echo {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

/// Says something long, and passes on what comes back of it.
struct Caller {
    says: Vec<u8>,
    hears: Sender<Vec<u8>>,
}

impl Service for Caller {
    type Session = Call;

    fn open(&self, _: &Peer) -> Result<Call, Refusal> {
        Ok(Call { says: self.says.clone(), heard: Vec::new(), hears: self.hears.clone() })
    }
}

struct Call {
    says: Vec<u8>,
    heard: Vec<u8>,
    hears: Sender<Vec<u8>>,
}

impl Session for Call {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.write(&self.says);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        self.heard.extend_from_slice(input);
        if self.heard.len() < self.says.len() {
            return Consumed::all(input);
        }
        let _ = self.hears.send(std::mem::take(&mut self.heard));
        Consumed::all(input).then(Flow::Close)
    }
}

fn policy(model: Model) -> Policy {
    let owns_threads = matches!(model, Model::Blocking | Model::Pool);
    let threads = if owns_threads { None } else { NonZeroUsize::new(1) };
    let ring_bytes = 64 * 1024; // more than is under way
    Policy::default().threads(threads).fast_path(Some(FastPath::default().ring_bytes(ring_bytes)))
}

/// Talks to the server over `TIMES` connections; returns the counters of both ends.
fn talk(model: Model, server: Running) -> (Stats, Stats) {
    let (hears, heard): (_, Receiver<Vec<u8>>) = channel();
    let says: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
    let caller = Caller { says: says.clone(), hears };
    let client = Client::new(caller).model(model).policy(policy(model)).start().expect("start");
    for _ in 0..TIMES {
        client.dial(server.local_addr().clone()).expect("dial");
    }
    for _ in 0..TIMES {
        let back = heard.recv_timeout(slow(Duration::from_secs(40))).expect("an answer");
        assert!(back == says, "{model}: other bytes came back, {} of {}", back.len(), says.len());
    }
    client.stop();
    let there = client.join();
    server.stop();
    (server.join(), there)
}

/// Messages that a server and a client together have to give, if so many of their connections had it.
fn messages_due(shared: u64) -> usize {
    let option = extension::found().into_iter().find(|extension| extension.name == "loopback fast path");
    let refused = option.is_some_and(|option| option.refused.is_some());
    if shared == 0 && refused { 2 } else { 0 }
}

#[test]
fn a_refusal_is_reported_and_nothing_is_lost() {
    let _deadline = Deadline::new("the fast path on every model".into());
    let ears = Ears::listen();
    for model in Model::available() {
        let server = match Server::new(Echo).model(model).policy(policy(model)).bind(address()) {
            Ok(server) => server.start().expect("start"),
            Err(StartError::Policy(PolicyError::NotOnModel { name, .. })) => {
                assert_eq!((name, ears.take()), ("fast_path", 0), "{model}");
                continue;
            }
            Err(e) => panic!("{model}: {e}"),
        };
        let (here, there) = talk(model, server);
        assert_eq!((here.accepted, there.accepted), (TIMES as u64, TIMES as u64), "{model}");
        assert_eq!(here.fast_paths, there.fast_paths, "{model}");
        assert_eq!(ears.take(), messages_due(here.fast_paths), "{model}");
    }
}

fn address() -> tidegate::Endpoint {
    "127.0.0.1:0".parse().expect("an address")
}
