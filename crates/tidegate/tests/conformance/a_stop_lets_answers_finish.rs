//! `stop` under load: answers in flight are finished, new connections are not served, and `join` returns.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::{CloseReason, Model};

use crate::kit::{self, Ending, Producer, Tape};

on_every_model!(case);

const TOTAL: usize = 3 << 20;
const CALLERS: usize = 8;

fn case(model: Model) {
    let tape = Tape::new(5);
    let (service, witness) = Producer::service(&tape, TOTAL as u64);
    let policy = kit::policy(model)
        .drain_timeout(kit::slow(Duration::from_secs(45)))
        // so that most of each answer is still to be produced
        .socket_send_buffer(Some(64 * 1024));
    // Where no other test gets the port when it is free again.
    let server = kit::serve_at((kit::any_loopback(), 0).into(), model, policy, service);
    let addr = server.local_addr().clone();
    let mut callers: Vec<_> = (0..CALLERS).map(|_| kit::connect_narrow(&addr)).collect();
    for stream in &mut callers {
        stream.write_all(b"go").expect("send");
        tape.check(0, &kit::hear(stream, 1000));
    }
    server.stop();
    server.stop(); // twice is once

    // Whether it still reaches the kernel's queue or not: nobody serves it.
    let late = TcpStream::connect(&addr);
    for mut stream in callers {
        let (heard, ending) = kit::hear_all(&mut stream);
        assert_eq!((heard.len(), ending), (TOTAL - 1000, Ending::EndOfStream));
        tape.check(1000, &heard);
    }
    let stats = server.join();
    kit::check(&stats);
    // An accept that is posted may take the late one before it is ended; it is let go at once.
    let accepted = stats.accepted as usize;
    assert!((CALLERS..=CALLERS + 1).contains(&accepted), "{accepted}");
    assert_eq!(witness.closings(), vec![CloseReason::Finished; accepted]);
    if let Ok(mut late) = late {
        late.set_read_timeout(Some(kit::timeout())).expect("timeout");
        let _ = late.write_all(b"go");
        let heard = kit::hear_some(&mut late, &mut [0; 100]);
        assert!(
            heard.as_ref().is_ok_and(|&n| n == 0) || is_reset(&heard),
            "served while stopping: {heard:?}"
        );
    }
    let refused = TcpStream::connect(&addr).expect_err("nobody listens any more");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

fn is_reset(outcome: &std::io::Result<usize>) -> bool {
    outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
}
