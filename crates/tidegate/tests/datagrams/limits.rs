//! What is too long, too much, or cannot be.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::{
    DatagramClient, DatagramPath, DatagramPolicy, DatagramServer, DatagramService, Model, Replies, StartError,
};

use crate::kit::*;

#[test]
fn a_datagram_over_the_limit_is_dropped_and_counted_and_never_shown_in_part() {
    everywhere("too long", |model, policy| {
        let policy = policy.largest_datagram(100);
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let peer = peer(&server);
        for length in [101, 5_000, 65_507] {
            peer.send(&vec![1; length]).unwrap();
        }
        // Datagrams of one peer stay in order: when this one is back, the others were seen.
        assert_eq!(ask(&peer, &[2; 100]), [2; 100], "on {model}");
        let stats = end(server);
        assert_eq!((stats.truncated, stats.datagrams_in, stats.datagrams_out), (3, 1, 1), "{stats:?}");
    });
}

#[test]
fn a_client_is_not_shown_a_datagram_over_its_limit_in_part() {
    for path in [DatagramPath::Plain, DatagramPath::Batched, DatagramPath::Segments] {
        if !path.availability().is_available() {
            continue;
        }
        let peer = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        let policy = DatagramPolicy::default().path(Some(path)).largest_datagram(100);
        let mut client = DatagramClient::connect(peer.local_addr().unwrap(), &policy).unwrap();
        let to = client.local_addr().unwrap();
        for length in [101, 200, 65_507, 100] {
            peer.send_to(&vec![length as u8; length], to).unwrap();
        }
        let (mut shown, mut counted) = (Vec::new(), 0);
        while shown.last() != Some(&vec![100; 100]) {
            counted += client.receive(Duration::from_secs(30), |bytes| shown.push(bytes.to_vec())).unwrap();
        }
        let lengths: Vec<usize> = shown.iter().map(Vec::len).collect();
        assert_eq!((lengths, counted), (vec![100], 1), "on {path:?}");
    }
}

/// The kernel joins those of one size and a shorter one behind them.
#[test]
fn of_joined_datagrams_over_the_limit_a_client_is_shown_the_last_that_is_not() {
    if !DatagramPath::Segments.availability().is_available() {
        return;
    }
    let server =
        start(Model::Poll, DatagramPolicy::default().path(Some(DatagramPath::Segments)), LOCALHOST, |_| Echo);
    let policy = DatagramPolicy::default().path(Some(DatagramPath::Segments)).largest_datagram(100);
    let mut client = DatagramClient::connect(server.local_addr(), &policy).unwrap();
    let sent = [&[200; 2_000][..], &[100; 100]].concat();
    assert_eq!(client.send(&sent, 200).unwrap(), 11);
    let mut shown = Vec::new();
    while shown.is_empty() {
        client.receive(Duration::from_secs(30), |bytes| shown.push(bytes.to_vec())).unwrap();
    }
    assert_eq!(shown, [[100; 100]]);
    end(server);
}

/// The kernel joins those of one size and a shorter one behind them.
#[test]
fn of_joined_datagrams_over_the_limit_a_server_is_shown_the_last_that_is_not() {
    everywhere("short tail", |model, policy| {
        let server = start(model, policy.clone().largest_datagram(100), LOCALHOST, |_| Echo);
        let joining = policy.path(Some(DatagramPath::Segments));
        let Ok(mut client) = DatagramClient::connect(server.local_addr(), &joining) else { return };
        let sent = [&[200; 2_000][..], &[100; 100]].concat();
        assert_eq!(client.send(&sent, 200).unwrap(), 11);
        let mut shown = Vec::new();
        while shown.is_empty() {
            client.receive(Duration::from_secs(30), |bytes| shown.push(bytes.to_vec())).unwrap();
        }
        assert_eq!(shown, [[100; 100]], "on {model}");
        let stats = end(server);
        assert_eq!((stats.truncated, stats.datagrams_in), (10, 1), "{stats:?}");
    });
}

/// Of 1,000 replies to each datagram only as many are sent as may wait.
#[test]
fn the_queue_of_replies_is_bounded() {
    struct Chatter;
    impl DatagramService for Chatter {
        fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
            let taken = (0..1_000).filter(|_| out.send(from, bytes)).count();
            assert!(taken <= 10 && out.len() <= 10);
        }
    }
    everywhere("bounded", |model, policy| {
        let policy = policy.replies(10);
        let server = start(model, policy, LOCALHOST, |_| Chatter);
        let peer = peer(&server);
        for question in 0..3u8 {
            peer.send(&[question]).unwrap();
            for _ in 0..10 {
                assert_eq!(take(&peer), [question], "on {model}");
            }
        }
        let stats = end(server);
        assert_eq!((stats.datagrams_out, stats.replies_dropped, stats.panics), (30, 2_970, 0), "{stats:?}");
    });
}

#[test]
fn a_reply_that_no_datagram_can_carry_is_dropped_and_counted() {
    struct TooMuch;
    impl DatagramService for TooMuch {
        fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
            assert!(!out.send(from, &[0; 65_508]));
            out.send(from, bytes);
        }
    }
    everywhere("reply too long", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| TooMuch);
        assert_eq!(ask(&peer(&server), b"but this"), b"but this", "on {model}");
        let stats = end(server);
        assert_eq!((stats.replies_too_long, stats.datagrams_out), (1, 1), "{stats:?}");
    });
}

/// Far more than the server's socket can hold, from peers that never read: the server loses some, as it may, keeps
/// count of the rest, and then answers as before.
#[test]
fn a_flood_is_survived_and_accounted_for() {
    everywhere("flood", |model, policy| {
        let policy = policy.replies(64).batch(16);
        let server = start(model, policy.clone(), LOCALHOST, |_| Echo);
        let floods = DatagramPolicy::default().path(policy.path);
        let mut flood = DatagramClient::connect(server.local_addr(), &floods).unwrap();
        let block = vec![5; 200 * 64];
        let mut sent = 0;
        while sent < 20_000 {
            sent += flood.send(&block, 200).unwrap_or(0);
        }
        // The flood may still fill the queue: ask until an answer comes.
        let peer = peer(&server);
        peer.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        let mut room = [0; 16];
        let answered = (0..100).any(|_| {
            peer.send(b"still there?").unwrap();
            peer.recv(&mut room).is_ok()
        });
        assert!(answered, "silent after a flood on {model}");
        let stats = end(server);
        let gone = stats.replies_dropped + stats.no_buffers + stats.send_errors + stats.abandoned;
        assert_eq!(stats.datagrams_in, stats.datagrams_out + gone, "{stats:?}");
        assert!(stats.datagrams_in > 1, "{stats:?}");
    });
}

#[test]
fn what_cannot_be_is_refused_with_a_way_out() {
    let refusal = |model, policy: DatagramPolicy| {
        let server = DatagramServer::new(|_| Echo).model(model).policy(policy);
        server.bind((LOCALHOST, 0)).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let batched = DatagramPolicy::default().path(Some(DatagramPath::Batched));
    if Model::Uring.availability().is_available() {
        assert!(refusal(Model::Uring, batched).contains("choose plain or gso"));
    }
    assert!(refusal(Model::Rio, DatagramPolicy::default()).contains("rio is unavailable"));
    let contradicting = DatagramPolicy::default().reply_bytes(1);
    assert!(refusal(Model::Poll, contradicting).contains("raise reply_bytes"));
}

#[test]
fn datagrams_go_to_ip_addresses() {
    let bind = |at: &str| DatagramServer::new(|_| Echo).model(Model::Poll).bind(at).err();
    for stream in ["unix:/tmp/tidegate-test.sock", "mptcp:127.0.0.1:0"] {
        let why = bind(stream).expect("refused");
        assert!(matches!(why, StartError::NotForDatagrams { .. }), "{why:?}");
        assert!(why.to_string().contains("write ADDR:PORT"), "{why}");
        let why = DatagramClient::connect(stream, &DatagramPolicy::default()).expect_err("refused");
        assert!(matches!(why, StartError::NotForDatagrams { .. }), "{why:?}");
    }
    assert!(matches!(bind("localhost:0"), Some(StartError::Address(_))));
    assert!(bind("127.0.0.1:0").is_none());
}

/// Threads share a port among themselves, never with somebody else.
#[test]
fn a_port_that_is_taken_is_not_shared_by_mistake() {
    let threads = if has_threads(Model::Poll) { 2 } else { 1 };
    let policy = DatagramPolicy::default().threads(NonZeroUsize::new(threads));
    let first = start(Model::Poll, policy.clone(), LOCALHOST, |_| Echo);
    let second = DatagramServer::new(|_| Echo).model(Model::Poll).policy(policy).bind(first.local_addr());
    assert!(matches!(second.err(), Some(StartError::Listen { .. })));
    end(first);
}
