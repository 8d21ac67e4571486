//! [`Policy::send_timeout`] and [`Policy::min_rate`]: a peer that reads slowly, and faster than they ask for, gets
//! everything, also of an answer that the kernel does not take at once.

use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use tidegate::policy::MinRate;
use tidegate::{Consumed, Model, Outbox, Policy, Session};

use crate::kit;

on_every_model!(case);

/// Is in the kernel's hands at once where operations are long: a send of `uring` goes on until all is sent.
const ANSWER: usize = 120 * 1024;

/// So many bytes a second are read.
const PACE: f64 = 25_000.0;

/// What one operation may have, which is known only at its end, is read in less; what does not fit the buffers of the
/// sockets is not.
const LIMIT: Duration = Duration::from_secs(2);

/// Answers anything with much.
struct Generous;

impl Session for Generous {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(&vec![b'x'; ANSWER]);
        Consumed::all(input)
    }
}

fn case(model: Model) {
    let limit = kit::slow(LIMIT);
    let rate = MinRate::new(NonZeroU32::new(1000).unwrap()).grace(limit);
    let policy = kit::policy(model).socket_send_buffer(Some(16 * 1024));
    thread::scope(|scope| {
        scope.spawn(|| read_slowly(model, policy.clone().send_timeout(Some(limit)).min_rate(None)));
        scope.spawn(|| read_slowly(model, policy.clone().send_timeout(None).min_rate(Some(rate))));
    });
}

fn read_slowly(model: Model, policy: Policy) {
    let server = kit::serve(model, policy, kit::sessions(|| Generous));
    let mut stream = kit::connect_narrow(server.local_addr());
    stream.write_all(b"go").expect("send");
    let (start, mut read) = (Instant::now(), 0);
    while read < ANSWER {
        // By the clock: what a busy machine has kept it from reading, it reads then.
        let due = ((start.elapsed().as_secs_f64() * PACE) as usize).min(ANSWER);
        if due == read {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        let n = stream.read(&mut vec![0; due - read]).unwrap_or_else(|e| panic!("after {read} bytes: {e}"));
        assert_ne!(n, 0, "it ended after {read} bytes");
        read += n;
    }
    drop(stream);
    kit::finish(server);
}
