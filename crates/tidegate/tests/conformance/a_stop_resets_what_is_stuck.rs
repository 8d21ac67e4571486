//! A connection whose peer does not take its answer is reset once [`Policy::drain_timeout`] is over, so a stop ends.

use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Model};

use crate::kit::{self, Ending, Producer, Tape};

on_every_model!(case);

const TIMEOUT: Duration = Duration::from_millis(300);

fn case(model: Model) {
    let tape = Tape::new(6);
    let (service, witness) = Producer::service(&tape, 64 << 20);
    let policy = kit::policy(model).drain_timeout(TIMEOUT);
    let high = policy.outbox.high;
    let server = kit::serve(model, policy, service);
    let mut stuck: Vec<_> = (0..3).map(|_| kit::connect_narrow(server.local_addr())).collect();
    stuck.iter_mut().for_each(|stream| stream.write_all(b"go").expect("send"));
    // A connection that the stop finds without an answer would be closed, not reset.
    stuck.iter_mut().for_each(|stream| tape.check(0, &kit::hear(stream, 1)));
    kit::until("an outbox is full", || witness.most_queued.load(SeqCst) >= high);

    let start = Instant::now();
    server.stop();
    let stats = server.join();
    assert!(start.elapsed() >= TIMEOUT, "it had {TIMEOUT:?} to finish, not {:?}", start.elapsed());
    kit::check(&stats);
    assert_eq!(stats.closed_by(CloseReason::Stopped), 3);
    assert_eq!(witness.closings(), [CloseReason::Stopped; 3]);
    for mut stream in stuck {
        let (heard, ending) = kit::hear_all(&mut stream);
        tape.check(1, &heard);
        assert_eq!(ending, Ending::Reset);
    }
}
