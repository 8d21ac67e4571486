//! `accept.reuse`: who comes after somebody has left is served, on whatever socket; models that cannot keep sockets
//! refuse it by name.

use std::io::Write;
use std::net::Shutdown;
use std::num::NonZeroU32;

use tidegate::{Model, PolicyError, Server, StartError};

use crate::kit::{self, Echo, Ending, Tape};

on_every_model!(case);

/// Connections, one after the other.
const TIMES: u64 = 12;

fn case(model: Model) {
    let plain = kit::policy(model);
    let policy = plain.clone().accept(plain.accept.reuse(NonZeroU32::new(4)));
    if model != Model::Iocp {
        let refused = Server::new(kit::sessions(Echo::default)).model(model).policy(policy);
        let refused = refused.bind(kit::somewhere()).err();
        let is_named = matches!(&refused, Some(StartError::Policy(PolicyError::NotOnModel { name, .. })) if *name == "accept.reuse");
        return assert!(is_named, "{refused:?}");
    }
    let server = kit::serve(model, policy, kit::sessions(Echo::default));
    for nth in 0..TIMES {
        let said = Tape::new(nth).first(3000);
        let mut stream = kit::connect(server.local_addr());
        stream.write_all(&said).expect("send");
        stream.shutdown(Shutdown::Write).expect("shutdown");
        let (heard, ending) = kit::hear_all(&mut stream);
        assert!(heard == said && ending == Ending::EndOfStream, "connection {nth}: {ending:?}");
    }
    let stats = kit::finish(server);
    assert_eq!((stats.attempted, stats.accepted), (TIMES, TIMES));
    assert!(stats.sockets_reused < TIMES);
}
