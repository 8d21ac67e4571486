//! A connection on which nothing moves is closed by [`Policy::idle_timeout`]; one on which something does is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tidegate::{CloseReason, Model, Running};

use crate::kit::{self, Echo, Ending};

on_every_model!(case);

const LIMIT: Duration = Duration::from_millis(300);

fn case(model: Model) {
    let (service, witness) = Echo::service();
    let limits = kit::policy(model).first_byte_timeout(None).idle_timeout(Some(LIMIT));
    let server = kit::serve(model, limits, service);
    let idle = || {
        let (mut stream, start) = loop {
            let (mut stream, start) = connect(&server);
            if moves(&mut stream) {
                break (stream, start);
            }
            assert_it_stood_still(start);
        };
        let (heard, ending) = kit::hear_all(&mut stream);
        assert_eq!((heard.len(), ending), (0, Ending::EndOfStream));
        assert!(start.elapsed() >= LIMIT, "closed after {:?}", start.elapsed());
    };
    std::thread::scope(|scope| {
        let idle = scope.spawn(idle);
        let (mut busy, mut last) = connect(&server);
        while !idle.is_finished() {
            let start = Instant::now();
            if moves(&mut busy) {
                last = start;
            } else {
                assert_it_stood_still(last);
                (busy, last) = connect(&server);
            }
        }
        idle.join().expect("idle");
    });
    kit::until("all are closed", || server.stats().open() == 0);
    assert!(server.stats().closed_by(CloseReason::IdleTimeout) >= 1);
    assert!(witness.closings().contains(&CloseReason::IdleTimeout));
    kit::finish(server);
}

/// A connection, and a time before which nothing moved on it.
fn connect(server: &Running) -> (TcpStream, Instant) {
    let start = Instant::now();
    (kit::connect(server.local_addr()), start)
}

fn moves(stream: &mut TcpStream) -> bool {
    stream.write_all(b"again").is_ok() && stream.read_exact(&mut [0; 5]).is_ok()
}

/// A connection was closed on which something moved at `last`, or later: only a machine that is suspended for as long
/// as the limit may make it look idle.
fn assert_it_stood_still(last: Instant) {
    assert!(last.elapsed() >= LIMIT, "closed {:?} after bytes were moving", last.elapsed());
}
