//! Overlapped operations on datagrams allocate no memory, but for the bytes that are sent, which are the caller's.
//!
//! The counts are those of the whole process, so this is the only case of its program.
#![cfg(windows)]

use std::alloc::System;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate_os::datagram::{DatagramOptions, DatagramSocket, PortSharing};
use tidegate_os::events::Events;
use tidegate_os::overlapped::{DatagramDone, DatagramQueue, Notifier};
use tidegate_os::port::CompletionPort;
use tidegate_os::socket::Blocking;

#[global_allocator]
static COUNTS: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const WARM_UP: u64 = 50;
const ROUND_TRIPS: u64 = 1_000;

/// Allocations of the process during the round trips, when it has warmed up.
fn allocations(notify: impl Notifier) -> usize {
    let options = DatagramOptions::new(Blocking::Never);
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = Arc::new(DatagramSocket::bind(at, PortSharing::Own, &options).unwrap());
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    peer.connect(socket.local_addr().unwrap()).unwrap();
    let to = peer.local_addr().unwrap();
    let mut queue = DatagramQueue::new(notify, &socket, 4, 64).unwrap();
    let mut exchange = |round_trips| {
        for key in 0..round_trips {
            queue.receive(key);
            peer.send(b"there").unwrap();
            let mut pending = 2;
            while pending > 0 {
                match queue.next() {
                    None => queue.wait(Some(Duration::from_secs(1))).unwrap(),
                    Some(DatagramDone::Received(_, datagram)) => {
                        queue.recycle(datagram.unwrap());
                        queue.send(Bytes::from_static(b"back"), to, key);
                        pending -= 1;
                    }
                    Some(DatagramDone::Sent(_, outcome)) => {
                        outcome.unwrap();
                        pending -= 1;
                    }
                    Some(DatagramDone::Woken) => {}
                }
            }
            assert_eq!(peer.recv(&mut [0; 8]).unwrap(), 4);
        }
    };
    exchange(WARM_UP);
    let region = Region::new(COUNTS);
    exchange(ROUND_TRIPS);
    region.change().allocations
}

#[test]
fn a_round_trip_of_datagrams_allocates_nothing() {
    for (how, allocated) in [
        ("a completion port", allocations(CompletionPort::new(8).unwrap())),
        ("events", allocations(Events::new().unwrap())),
    ] {
        assert!(allocated < 10, "{allocated} in {ROUND_TRIPS} round trips through {how}");
    }
}
