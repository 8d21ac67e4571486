//! Bytes behind an urgent one arrive, though a receive ends in front of it (`tcp(7)`, *Out-of-band data*): also if all
//! of them were there before the first receive.

use std::io::Write;
use std::sync::{Arc, Barrier};

use tidegate::{Consumed, Flow, Model, Outbox, Peer, Refusal, Service, Session};

use crate::kit;

on_every_model!(case);

/// Echoes; holds its I/O thread up at the first bytes, from the first barrier to the second.
struct Blocked([Arc<Barrier>; 2]);

struct BlockedSession(Option<[Arc<Barrier>; 2]>);

impl Service for Blocked {
    type Session = BlockedSession;

    fn open(&self, _: &Peer) -> Result<BlockedSession, Refusal> {
        Ok(BlockedSession(Some(self.0.clone())))
    }
}

impl Session for BlockedSession {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        if let Some(barriers) = self.0.take() {
            barriers.iter().for_each(|barrier| _ = barrier.wait());
        }
        out.write(input);
        Consumed::all(input)
    }

    fn on_end(&mut self, _: &mut Outbox<'_>) -> Flow {
        Flow::Close
    }
}

fn case(model: Model) {
    // tokio takes a short read for the last one; shared memory has no urgent bytes.
    if model == Model::Tokio || kit::is_fast() {
        return;
    }
    let barriers = [(); 2].map(|()| Arc::new(Barrier::new(2)));
    let server = kit::serve(model, kit::policy(model), Blocked(barriers.clone()));
    let mut caller = kit::connect(server.local_addr().clone());
    caller.write_all(b"a").expect("send");
    barriers[0].wait();
    caller.write_all(b"b").expect("send");
    assert_eq!(socket2::SockRef::from(&caller).send_out_of_band(b"!").expect("send"), 1);
    caller.write_all(b"c").expect("send");
    barriers[1].wait();
    assert_eq!(kit::hear(&mut caller, 3), b"abc");
    drop(caller);
    kit::finish(server);
}
