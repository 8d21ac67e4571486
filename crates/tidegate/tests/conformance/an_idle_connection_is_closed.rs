//! A connection on which nothing moves is closed by [`Policy::idle_timeout`]; one on which something does is not.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Model, Policy};

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

const LIMIT: Duration = Duration::from_millis(300);

fn case(model: Model) {
    let (service, witness) = Echo::service();
    let limits = Policy { first_byte_timeout: None, idle_timeout: Some(LIMIT), ..kit::policy(model) };
    let server = kit::serve(model, limits, service);
    let idle = || {
        let mut stream = kit::connect(server.local_addr());
        let start = Instant::now();
        kit::exchange(&mut stream, b"only once");
        let (heard, ending) = kit::hear_all(&mut stream);
        assert_eq!((heard.len(), ending), (0, Ending::EndOfStream));
        assert!(start.elapsed() >= LIMIT, "closed after {:?}", start.elapsed());
    };
    std::thread::scope(|scope| {
        let idle = scope.spawn(idle);
        let mut busy = kit::connect(server.local_addr());
        while !idle.is_finished() {
            let start = Instant::now();
            let moved = busy.write_all(b"again").is_ok() && busy.read_exact(&mut [0; 5]).is_ok();
            if !moved {
                // Only a machine that stands still may have made it look idle.
                assert!(start.elapsed() >= LIMIT / 2, "closed while bytes were moving");
                busy = kit::connect(server.local_addr());
            }
        }
        idle.join().expect("idle");
    });
    kit::until("all are closed", || server.stats().open() == 0);
    assert!(server.stats().closed_by(CloseReason::IdleTimeout) >= 1);
    assert!(witness.closings().contains(&CloseReason::IdleTimeout));
    kit::finish(server);
}
