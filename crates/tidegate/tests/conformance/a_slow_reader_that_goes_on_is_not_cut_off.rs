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
        let by_time = policy.clone().send_timeout(Some(limit)).min_rate(None);
        let by_rate = policy.clone().send_timeout(None).min_rate(Some(rate));
        for policy in [by_time, by_rate] {
            scope.spawn(move || assert!((0..TRIES).any(|_| is_read_slowly(model, &policy)), "always interrupted"));
        }
    });
}

/// How often a case is tried whose reader may get no processor for a good part of the limit.
const TRIES: usize = 5;

/// Whether it receives everything. An end is an error, unless the reader itself has paused for long.
fn is_read_slowly(model: Model, policy: &Policy) -> bool {
    let limit = kit::slow(LIMIT);
    let server = kit::serve(model, policy.clone(), kit::sessions(|| Generous));
    let mut stream = kit::connect_narrow(server.local_addr());
    stream.write_all(b"go").expect("send");
    let (start, mut read) = (Instant::now(), 0);
    let (mut last, mut longest) = (start, Duration::ZERO);
    while read < ANSWER {
        let now = Instant::now();
        longest = longest.max(now - std::mem::replace(&mut last, now));
        // By the clock: what a busy machine has kept it from reading, it reads then.
        let due = ((start.elapsed().as_secs_f64() * PACE) as usize).min(ANSWER);
        if due == read {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        match stream.read(&mut vec![0; due - read]) {
            Ok(n @ 1..) => read += n,
            _ if longest > limit / 4 => break,
            ended => panic!("after {read} bytes: {ended:?}"),
        }
    }
    drop(stream);
    kit::finish(server);
    read == ANSWER
}
