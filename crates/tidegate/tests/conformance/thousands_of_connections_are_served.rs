//! More connections than `FD_SETSIZE` are open at once, and every byte of each comes back.

use std::io::Write;

use tidegate::{CloseReason, Model, system};

use crate::kit::{self, Echo, Tape};

on_every_model!(case, alone, and over Unix sockets);

/// Both ends are in this process, so descriptors pass 1,024 long before the last connection.
const CONNECTIONS: usize = 1_200;

fn case(model: Model) {
    let descriptors = system::raise_descriptor_limit().expect("descriptor limit");
    let needed = 2 * CONNECTIONS as u64 + 400;
    assert!(
        descriptors >= needed,
        "raise the hard RLIMIT_NOFILE from {descriptors} to {needed} for this case"
    );
    let (service, witness) = Echo::service();
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| kit::connect(server.local_addr())).collect();
    let tape = Tape::new(12);
    let mut total = 0;
    for round in 0..3 {
        for (i, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&tape.piece((round * i) as u64, 1 + i)).expect("send");
            total += 1 + i as u64;
        }
        for (i, stream) in streams.iter_mut().enumerate() {
            let back = kit::hear(stream, 1 + i);
            tape.check((round * i) as u64, &back);
        }
        assert_eq!(server.stats().open(), CONNECTIONS as u64);
    }
    drop(streams);
    kit::until("all are closed", || server.stats().open() == 0);
    let stats = kit::finish(server);
    assert_eq!((stats.bytes_in, stats.bytes_out), (total, total));
    assert_eq!(stats.accepted, CONNECTIONS as u64);
    assert_eq!(stats.closed_by(CloseReason::Finished), CONNECTIONS as u64);
    assert_eq!(witness.closings().len(), CONNECTIONS);
}
