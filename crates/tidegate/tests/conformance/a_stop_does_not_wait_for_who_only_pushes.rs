//! A stop ends a connection whose session goes on sending of its own: it has its last word, and the peer reads all of
//! it.

use std::time::Duration;

use tidegate::Consumed;
use tidegate::{CloseReason, Flow, Mail, Model, Outbox, Session};

use crate::kit::{self, Ending};

on_every_model!(case);

/// Says something at short intervals, without being asked.
struct Clock;

const INTERVAL: Duration = Duration::from_millis(20);

impl Session for Clock {
    fn on_open(&mut self, out: &mut Outbox<'_>) -> Flow {
        out.wake_at(out.now() + INTERVAL);
        Flow::Continue
    }

    fn on_bytes(&mut self, input: &[u8], _: &mut Outbox<'_>) -> Consumed {
        Consumed::all(input)
    }

    fn on_mail(&mut self, _: Mail, out: &mut Outbox<'_>) -> Flow {
        out.write(b"tick");
        out.wake_at(out.now() + INTERVAL);
        Flow::Continue
    }

    fn on_leave(&mut self, out: &mut Outbox<'_>) {
        out.write(b"over");
    }
}

fn case(model: Model) {
    let policy = kit::policy(model).drain_timeout(kit::slow(Duration::from_secs(45)));
    let server = kit::serve(model, policy, kit::sessions(|| Clock).speaking_first());
    let mut stream = kit::connect(server.local_addr());
    assert_eq!(kit::hear(&mut stream, 8), b"ticktick");
    server.stop();
    let (heard, ending) = kit::hear_all(&mut stream);
    assert_eq!(ending, Ending::EndOfStream);
    assert!(heard.ends_with(b"tickover"), "{} bytes, and no last word", heard.len());
    let stats = server.join();
    kit::check(&stats);
    assert_eq!((stats.closed_by(CloseReason::Finished), stats.closed_by(CloseReason::Stopped)), (1, 0));
}
