//! Where an I/O thread has few connections (`event-select` and `overlapped`: 62), the next one is started when those
//! there are full, and not before; a given number of threads is a bound. Other models have the same threads all along.
//!
//! `TIDEGATE_CONNECTIONS=8000` makes so many; `--nocapture` shows how many threads they got.

use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use tidegate::{Model, Running};

use crate::kit::{self, Echo};

on_every_model!(case, alone);

/// Connections of a thread of `event-select` and `overlapped`.
const EACH: usize = 62;

/// More than 64 threads can have.
const MANY: usize = 66 * EACH;

fn case(model: Model) {
    if matches!(model, Model::EventSelect | Model::Overlapped) {
        they_grow_with_the_connections(model);
        a_given_number_is_a_bound(model);
    } else {
        they_are_the_same_all_along(model);
    }
}

fn they_grow_with_the_connections(model: Model) {
    let asked = std::env::var("TIDEGATE_CONNECTIONS").ok().and_then(|text| text.parse().ok());
    let first = available_parallelism().map_or(1, Into::into);
    let (service, witness) = Echo::service();
    let server = kit::serve(model, kit::policy(model), service);
    let mut streams = Vec::new();
    for open in 0..asked.unwrap_or(MANY.max((first + 2) * EACH)) {
        // The last of the connections that fill all threads starts one more.
        assert_eq!(server.thread_stats().len(), first.max(open / EACH + 1), "{open} connections");
        let mut stream = kit::connect(server.local_addr());
        kit::exchange(&mut stream, format!("connection {open}").as_bytes());
        streams.push(stream);
    }
    kit::until("all are counted", || server.stats().open() == streams.len() as u64);
    let each: Vec<_> = server.thread_stats().iter().map(|thread| thread.accepted).collect();
    println!("{model}: {} connections on {} threads", streams.len(), each.len());
    assert!(each.iter().all(|&accepted| accepted <= EACH as u64), "{each:?}");
    for (n, stream) in streams.iter_mut().enumerate() {
        kit::exchange(stream, format!("still here: {n}").as_bytes());
    }
    // Those that have room again are given new ones; no thread is started for them.
    let before = server.thread_stats().len();
    streams.drain(..EACH).for_each(kit::reset);
    kit::until("some have left", || server.stats().open() == streams.len() as u64);
    streams.extend((0..EACH / 2).map(|_| served(&server)));
    assert_eq!(server.thread_stats().len(), before);
    let all = streams.len() + EACH;
    streams.into_iter().for_each(kit::reset);
    kit::until("all have left", || server.stats().open() == 0);
    assert_eq!(kit::finish(server).accepted, all as u64);
    assert_eq!(witness.closings().len(), all);
}

fn a_given_number_is_a_bound(model: Model) {
    let (service, _) = Echo::service();
    let policy = kit::policy(model).threads(NonZeroUsize::new(2));
    let server = kit::serve(model, policy, service);
    let mut streams: Vec<_> = (0..2 * EACH).map(|_| served(&server)).collect();
    let mut one_more = kit::connect(server.local_addr());
    assert_eq!((server.thread_stats().len(), server.stats().open()), (2, 2 * EACH as u64));
    streams.pop().map(kit::reset).expect("one of them");
    kit::exchange(&mut one_more, b"a place is free");
    assert_eq!(server.thread_stats().len(), 2);
    drop((streams, one_more));
    kit::finish(server);
}

fn they_are_the_same_all_along(model: Model) {
    let (service, _) = Echo::service();
    let server = kit::serve(model, kit::policy(model), service);
    let before = server.thread_stats().len();
    let streams: Vec<_> = (0..2 * EACH + 1).map(|_| served(&server)).collect();
    assert_eq!(server.thread_stats().len(), before);
    drop(streams);
    kit::finish(server);
}

fn served(server: &Running) -> TcpStream {
    let mut stream = kit::connect(server.local_addr());
    kit::exchange(&mut stream, b"hello");
    stream
}
