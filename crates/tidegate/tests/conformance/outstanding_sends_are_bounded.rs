//! [`Policy::outstanding_sends`]: a reader that takes nothing keeps its place until `send_timeout`; others wait, and
//! are served.

use std::io::Write;
use std::num::NonZeroU32;
use std::time::Duration;

use tidegate::{CloseReason, Model};

use crate::kit::{self, Ending, Producer, Tape};

on_every_model!(case);

const TOTAL: usize = 4 << 20;

fn case(model: Model) {
    let tape = Tape::new(9);
    let (service, witness) = Producer::service(&tape, TOTAL as u64);
    let policy = kit::policy(model)
        .outstanding_sends(NonZeroU32::new(1))
        .send_timeout(Some(kit::slow(Duration::from_secs(2))))
        .socket_send_buffer(Some(16 * 1024))
        // The bound is one of the whole server, however many threads the model would start by default.
        .threads(None);
    let Some(policy) = kit::kept_by(model, policy, "outstanding_sends") else { return };
    let server = kit::serve(model, policy.clone(), service);
    let mut stuck = kit::connect_narrow(server.local_addr());
    stuck.write_all(b"go").expect("send");
    kit::hear(&mut stuck, 1); // it has its place, and takes no more
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (addr, tape) = (server.local_addr().clone(), tape.clone());
            std::thread::spawn(move || {
                let mut stream = kit::connect(addr);
                stream.write_all(b"go").expect("send");
                let (heard, ending) = kit::hear_all(&mut stream);
                assert_eq!((heard.len(), ending), (TOTAL, Ending::EndOfStream));
                tape.check(0, &heard);
            })
        })
        .collect();
    kit::until("the one that takes nothing is cut off", || !witness.closings().is_empty());
    // A crowded machine may leave readers without a processor for a while.
    server.set_policy(policy.send_timeout(Some(kit::timeout()))).expect("a longer limit");
    others.into_iter().for_each(|other| other.join().expect("a reader"));
    kit::finish(server);
    // The others have had everything, so it is the stuck one that was cut off; and first, because they waited for it.
    let [first, rest @ ..] = &witness.closings()[..] else { panic!("nobody was served") };
    assert_eq!((*first, rest), (CloseReason::SendTimeout, &[CloseReason::Finished; 3][..]));
}
