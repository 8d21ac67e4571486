//! A connection that rests costs at most 200 bytes of user memory on `epoll` and `uring`: its entry, its session, its
//! timer, and what the allocator adds to each piece.
//!
//! The counts are those of the whole process, so this is the only case of its program.
#![cfg(target_os = "linux")]

use std::alloc::System;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::{Consumed, Model, Outbox, Peer, Policy, Refusal, Running, Server, Service, Session, system};

#[global_allocator]
static COUNTS: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Most bytes for each connection.
const BOUND: usize = 200;

/// Together with the one before them they fill the segments that tables grow by.
const CONNECTIONS: usize = 4 * 1024 - 1;

/// What an allocator adds to a piece at most: a header, and the rest up to its next size.
const OVERHEAD: usize = 16;

struct Echo;

impl Service for Echo {
    type Session = Self;

    fn open(&self, _: &Peer) -> Result<Self, Refusal> {
        Ok(Self)
    }
}

impl Session for Echo {
    fn on_bytes(&mut self, input: &[u8], out: &mut Outbox<'_>) -> Consumed {
        out.write(input);
        Consumed::all(input)
    }
}

/// A connection that has had an answer, so that all there is for one has been made.
fn connection(running: &Running) -> TcpStream {
    let mut stream = TcpStream::connect(running.local_addr().addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut buffer = *b"request";
    stream.write_all(&buffer).unwrap();
    stream.read_exact(&mut buffer).unwrap();
    stream
}

/// Bytes that each of many connections has while it rests.
fn bytes_each(model: Model) -> usize {
    let idle_timeout = Some(Duration::from_secs(3600)); // each has its place among the timers
    let policy = Policy::default().threads(NonZeroUsize::new(1)).max_connections(5_000);
    let policy = policy.idle_timeout(idle_timeout);
    let server = Server::new(Echo).model(model).policy(policy);
    let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let _first = connection(&running);
    let mut connections = Vec::with_capacity(CONNECTIONS);
    let region = Region::new(COUNTS);
    connections.extend(std::iter::repeat_with(|| connection(&running)).take(CONNECTIONS));
    let change = region.change();
    let pieces = change.allocations - change.deallocations;
    let bytes = change.bytes_allocated - change.bytes_deallocated;
    (bytes + pieces * OVERHEAD).div_ceil(CONNECTIONS)
}

#[test]
fn a_connection_that_rests_has_few_bytes() {
    let needed = 2 * CONNECTIONS as u64 + 400;
    let descriptors = system::raise_descriptor_limit().expect("descriptor limit");
    assert!(
        descriptors >= needed,
        "raise the hard RLIMIT_NOFILE from {descriptors} to {needed} for this case"
    );
    let works = Model::available();
    for model in [Model::Epoll, Model::Uring].into_iter().filter(|model| works.contains(model)) {
        let bytes = bytes_each(model);
        eprintln!("{model}: {bytes} bytes for each connection");
        assert!(bytes <= BOUND, "on {model} each connection has {bytes} bytes");
    }
}
