//! Fewer I/O threads than connections, and a turn that is over after one operation: everybody is served to the
//! end, and nobody is forgotten in the middle of a large answer.

use std::io::Write;
use std::num::NonZeroUsize;
use std::thread;

use tidegate::{CloseReason, Model, Policy};

use crate::kit::{self, Echo, Ending, Producer, Tape};

on_every_model!(case);

const CONNECTIONS: usize = 12;
const TOTAL: usize = 2 << 20;

fn case(model: Model) {
    // `blocking` has its threads by connection and takes no number of them.
    let threads = if model == Model::Blocking { None } else { NonZeroUsize::new(2) };
    large_answers(model, kit::tight(model).threads(threads));
    short_exchanges(model, kit::tight(model).threads(threads));
}

fn large_answers(model: Model, policy: Policy) {
    let tape = Tape::new(4);
    let (service, witness) = Producer::service(&tape, TOTAL as u64);
    let policy = policy.socket_send_buffer(None);
    let server = kit::serve(model, policy, service);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| kit::connect(server.local_addr())).collect();
    streams.iter_mut().for_each(|stream| stream.write_all(b"go").expect("send"));
    thread::scope(|scope| {
        for mut stream in streams {
            let tape = &tape;
            scope.spawn(move || {
                let (heard, ending) = kit::hear_all(&mut stream);
                assert_eq!((heard.len(), ending), (TOTAL, Ending::EndOfStream));
                tape.check(0, &heard);
            });
        }
    });
    kit::until("all are closed", || witness.closings().len() == CONNECTIONS);
    kit::finish(server);
    assert_eq!(witness.closings(), [CloseReason::Finished; CONNECTIONS]);
}

/// All stay open while each of them speaks in turn.
fn short_exchanges(model: Model, policy: Policy) {
    let (service, _) = Echo::service();
    let server = kit::serve(model, policy, service);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| kit::connect(server.local_addr())).collect();
    for round in 0..5 {
        streams.iter_mut().for_each(|stream| kit::exchange(stream, format!("round {round}").as_bytes()));
    }
    assert_eq!(server.stats().open(), CONNECTIONS as u64);
    drop(streams);
    kit::finish(server);
}
