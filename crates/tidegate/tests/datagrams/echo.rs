//! Every byte comes back, and datagrams stay what they were.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use tidegate::{DatagramClient, DatagramPath, Model};

use crate::kit::*;

#[test]
fn datagrams_of_any_length_come_back_exactly() {
    everywhere("exact", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let peer = peer(&server);
        let mut random = fastrand::Rng::with_seed(7);
        let mut lengths: Vec<usize> = (0..100).map(|_| random.usize(0..3_000)).collect();
        lengths.extend([0, 1, 1_472, 1_473, 16_384, 65_507, 0]);
        let mut bytes_sent = 0;
        for &length in &lengths {
            let sent: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
            assert!(ask(&peer, &sent) == sent, "{length} bytes on {model}");
            bytes_sent += length as u64;
        }
        let stats = end(server);
        let all = lengths.len() as u64;
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (all, all), "{stats:?}");
        assert_eq!((stats.bytes_in, stats.bytes_out), (bytes_sent, bytes_sent), "{stats:?}");
        assert!(stats.receives > 0 && stats.sends > 0 && stats.wake_ups > 0, "{stats:?}");
    });
}

#[test]
fn the_other_family_of_addresses_is_served_too() {
    if let Err(e) = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        // Where the system lists ::1, there is IPv6.
        let listed = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
        assert!(cfg!(target_os = "linux") && !listed.contains(&format!("{:032x}", 1)), "{e}");
        return;
    }
    everywhere("IPv6", |model, policy| {
        let server = start(model, policy, IpAddr::V6(Ipv6Addr::LOCALHOST), |_| Echo);
        let peer = peer(&server);
        for length in [0, 64, 1_500, 65_507] {
            let sent = vec![length as u8; length];
            assert!(ask(&peer, &sent) == sent, "{length} bytes on {model}");
        }
        assert_eq!(end(server).datagrams_out, 4);
    });
}

/// Joined for sending, joined in the server, and taken apart again: nobody sees a boundary move.
#[test]
fn joined_datagrams_keep_their_boundaries() {
    everywhere("boundaries", |model, policy| {
        let server = start(model, policy.clone(), LOCALHOST, |_| Echo);
        let joining = policy.path(Some(DatagramPath::Segments));
        let client = DatagramClient::connect(server.local_addr(), &joining);
        if !DatagramPath::Segments.availability().is_available() {
            let why = client.expect_err("a client that joins").to_string();
            return assert!(why.contains("use batched or plain"), "{why}");
        }
        let mut client = client.unwrap();
        // Sizes, counts, and a last one that is whole, short, or one byte long.
        for (size, count, last) in [(64, 10, 64), (64, 10, 17), (1_200, 20, 1), (333, 2, 332), (1, 64, 1)] {
            let mut sent: Vec<u8> = (0..size * (count - 1) + last).map(|at| (at % 251) as u8).collect();
            sent.iter_mut().step_by(size).enumerate().for_each(|(at, byte)| *byte = at as u8);
            assert_eq!(client.send(&sent, size).unwrap(), count);
            let mut received = Vec::new();
            while received.len() < count {
                client.receive(Duration::from_secs(30), |bytes| received.push(bytes.to_vec())).unwrap();
            }
            assert!(received.iter().eq(sent.chunks(size)), "{count} of {size}, last {last}, on {model}");
        }
        let stats = end(server);
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (106, 106), "{stats:?}");
    });
}

/// The same seen by a peer that knows nothing of joining.
#[test]
fn a_plain_peer_gets_joined_replies_one_by_one() {
    everywhere("plain peer", |model, policy| {
        let server = start(model, policy.clone(), LOCALHOST, |_| ManyLetters);
        let peer = peer(&server);
        peer.send(b"26").unwrap();
        for letter in b'a'..=b'z' {
            let length = if letter == b'z' { 7 } else { 100 };
            assert_eq!(take(&peer), vec![letter; length], "on {model}");
        }
        let stats = end(server);
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (1, 26));
        if policy.path == Some(DatagramPath::Segments) {
            assert_eq!(stats.sends, 1, "26 replies were to go as one: {stats:?}");
        }
    });
}

/// Datagrams that wait in the kernel are received with one call, and answered with one; on the plain path one by one.
#[test]
fn a_batch_is_one_call_in_each_direction() {
    const WAITING: usize = 16;
    everywhere("batches", |model, policy| {
        if model == Model::Uring {
            return; // a ring makes no call for a datagram, nor for several
        }
        let path = policy.path;
        let gate = Arc::new(Barrier::new(2));
        let of_service = gate.clone();
        let server = start(model, policy, LOCALHOST, move |_| Gated(Some(of_service.clone())));
        let peer = peer(&server);
        peer.send(b"first").unwrap();
        gate.wait(); // the first one has been received, and nothing else
        for at in 0..WAITING {
            peer.send(&[at as u8; 64]).unwrap();
        }
        gate.wait();
        assert_eq!(take(&peer), b"first");
        for at in 0..WAITING {
            assert_eq!(take(&peer), [at as u8; 64], "on {model}");
        }
        until(&server, "all counted", |stats| stats.datagrams_out == 1 + WAITING as u64);
        let stats = server.stats();
        let calls = if path == Some(DatagramPath::Plain) { 1 + WAITING as u64 } else { 2 };
        assert_eq!((stats.receives, stats.sends), (calls, calls), "{model}, {path:?}: {stats:?}");
        end(server);
    });
}

/// Sends everything back, the first one when it is let go on.
struct Gated(Option<Arc<Barrier>>);

impl tidegate::DatagramService for Gated {
    fn on_datagram(&mut self, from: std::net::SocketAddr, bytes: &[u8], out: &mut tidegate::Replies) {
        if let Some(gate) = self.0.take() {
            gate.wait();
            gate.wait();
        }
        assert!(out.send(from, bytes));
    }
}

/// Answers with a datagram for each letter, the last one shorter.
struct ManyLetters;

impl tidegate::DatagramService for ManyLetters {
    fn on_datagram(&mut self, from: std::net::SocketAddr, _: &[u8], out: &mut tidegate::Replies) {
        for letter in b'a'..=b'z' {
            assert!(out.send(from, &vec![letter; if letter == b'z' { 7 } else { 100 }]));
        }
    }
}

/// However many receives a thread has, and whichever of them is reported first.
#[test]
fn a_peer_is_answered_in_the_order_in_which_it_has_sent() {
    everywhere("order", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let peer = peer(&server);
        for round in 0..20u8 {
            for n in 0..50u8 {
                peer.send(&[round, n]).unwrap();
            }
            for n in 0..50u8 {
                assert_eq!(take(&peer), [round, n], "on {model}");
            }
        }
        assert_eq!(end(server).datagrams_out, 1000);
    });
}

#[test]
fn several_threads_serve_many_peers_and_each_peer_in_order() {
    everywhere("threads", |model, policy| {
        let policy = policy.threads(NonZeroUsize::new(4));
        if !has_threads(model) {
            return refuses_threads(model, policy);
        }
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let peers: Vec<UdpSocket> = (0..32).map(|_| peer(&server)).collect();
        for round in 0..5u8 {
            for (at, peer) in peers.iter().enumerate() {
                peer.send(&[round, at as u8]).unwrap();
            }
        }
        for (at, peer) in peers.iter().enumerate() {
            let mut rounds: Vec<u8> = (0..5)
                .map(|_| take(peer))
                .map(|got| {
                    assert_eq!((got.len(), got[1]), (2, at as u8), "a datagram of somebody else on {model}");
                    got[0]
                })
                .collect();
            if model == Model::Pool {
                rounds.sort_unstable(); // several workers answer one peer
            }
            assert_eq!(rounds, [0, 1, 2, 3, 4], "on {model}");
        }
        until(&server, "all counted", |stats| stats.datagrams_out == 160);
        let busy = server.thread_stats().iter().filter(|stats| stats.datagrams_in > 0).count();
        if model != Model::Pool {
            assert!(busy > 1, "one thread served all on {model}");
        }
        assert_eq!(server.thread_stats().len(), 4);
        let stats = end(server);
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (160, 160), "{stats:?}");
    });
}

#[test]
fn each_thread_has_a_service_of_its_own() {
    everywhere("services", |model, policy| {
        let policy = policy.threads(NonZeroUsize::new(3));
        if !has_threads(model) {
            return refuses_threads(model, policy);
        }
        let made = Arc::new(Mutex::new(HashSet::new()));
        let noted = made.clone();
        let server = start(model, policy, LOCALHOST, move |thread| {
            assert!(noted.lock().unwrap().insert(thread));
            Echo
        });
        assert_eq!(made.lock().unwrap().len(), 3, "on {model}");
        end(server);
    });
}
