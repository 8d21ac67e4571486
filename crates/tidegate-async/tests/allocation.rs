//! "No allocation for each poll": a round trip of a connection that is established allocates nothing.
//!
//! The counts are those of the whole process, so this is the only case of its program.

mod kit;

use std::alloc::System;
use std::io::{Read, Write};

use kit::{connect, echo, on_every_model, policy, start};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_async::service;

#[global_allocator]
static COUNTS: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WARM_UP: usize = 200;
const ROUND_TRIPS: usize = 2_000;

#[test]
fn a_round_trip_allocates_nothing() {
    on_every_model(|model| {
        let running = start(model, policy(model), service(echo));
        let mut stream = connect(&running);
        let mut buffer = [7; 64];
        let mut exchange = |times| {
            for _ in 0..times {
                stream.write_all(&buffer).unwrap();
                stream.read_exact(&mut buffer).unwrap();
            }
        };
        exchange(WARM_UP);
        let region = Region::new(COUNTS);
        exchange(ROUND_TRIPS);
        let made = region.change();
        let count = made.allocations + made.reallocations;
        eprintln!("{count} allocations in {ROUND_TRIPS} round trips: {made:?}");
    });
}
