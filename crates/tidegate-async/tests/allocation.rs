//! "No allocation for each poll": a round trip of async code allocates what a session without it does, the output that
//! the outbox copies, and, if the code leaves input to a later poll, the copy of that input.
//!
//! The counts are those of the whole process, so this is the only case of its program.

mod kit;

use std::alloc::System;
use std::io::{Read, Write};

use kit::{connect, echo, on_every_model, policy, start};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::{Consumed, Model, Outbox, Peer, Refusal, Service, Session};
use tidegate_async::{Connection, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[global_allocator]
static COUNTS: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WARM_UP: usize = 200;
const ROUND_TRIPS: usize = 400;

/// Times that the round trips are counted. The least counts: a thread that the pool starts because the processors are
/// taken by others, or a queue that grows, is seen in some of them; an allocation for each poll in all.
const COUNTED: usize = 5;

/// Bytes of a message.
const LENGTH: usize = 64;

/// The same without async code.
struct Plain;

impl Service for Plain {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self)
    }
}

impl Session for Plain {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

/// Reads each message byte by byte and waits for each: many polls for one answer.
async fn slow_echo(mut conn: Connection) {
    let mut message = [0; LENGTH];
    loop {
        for byte in &mut message {
            let Ok(next) = conn.read_u8().await else { return };
            *byte = next;
            yield_once().await;
        }
        if conn.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// Limits the time of each read.
async fn timed_echo(mut conn: Connection) {
    let handle = conn.handle();
    let mut message = [0; LENGTH];
    while let Ok(Ok(_)) = handle.timeout(kit::TIMEOUT, conn.read_exact(&mut message)).await {
        if conn.write_all(&message).await.is_err() {
            return;
        }
    }
}

/// Has the task polled once more.
async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|task| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        task.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Allocations of the process during [`ROUND_TRIPS`], when it has warmed up.
fn allocations(model: Model, service: impl Service) -> usize {
    let running = start(model, policy(model), service);
    let mut stream = connect(&running);
    let mut buffer = [7; LENGTH];
    let mut exchange = |times| {
        for _ in 0..times {
            stream.write_all(&buffer).unwrap();
            stream.read_exact(&mut buffer).unwrap();
        }
    };
    exchange(WARM_UP);
    let counted = std::iter::repeat_with(|| {
        let region = Region::new(COUNTS);
        exchange(ROUND_TRIPS);
        let made = region.change();
        made.allocations + made.reallocations
    });
    counted.take(COUNTED).min().unwrap()
}

/// Mail queues and the like grow now and then.
const NOW_AND_THEN: usize = 4;

#[test]
fn a_poll_allocates_nothing() {
    on_every_model(|model| {
        let plain = allocations(model, Plain);
        let (timed, slow) = (allocations(model, service(timed_echo)), allocations(model, service(slow_echo)));
        let counts = [plain, allocations(model, service(echo)), timed, slow];
        eprintln!("plain, async, timed, and with {LENGTH} polls: {counts:?} in {ROUND_TRIPS} round trips");
        // The output that the outbox copies; for the last, also the input that is left when a call ends.
        for (count, each) in counts.into_iter().zip([1, 1, 1, 2]) {
            assert!(count <= each * ROUND_TRIPS + NOW_AND_THEN, "on {model}: {counts:?}");
        }
    });
}
