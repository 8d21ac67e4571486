//! Stopping, peers that go, services that fail.

use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use tidegate::{DatagramServer, DatagramService, Replies};

use crate::kit::*;

#[test]
fn a_stop_wakes_every_thread_that_has_nothing_to_do() {
    everywhere("silent stop", |model, policy| {
        let threads = if has_threads(model) { 3 } else { 1 };
        let drain_timeout = Duration::from_secs(60);
        let policy = policy.threads(NonZeroUsize::new(threads)).drain_timeout(drain_timeout);
        let server = start(model, policy, LOCALHOST, |_| Echo);
        assert!(!server.is_broken());
        let asked = Instant::now();
        let stats = end(server);
        assert!(asked.elapsed() < drain_timeout / 2, "{model} waited for what does not come");
        assert_eq!((stats.datagrams_in, stats.receive_errors), (0, 0), "{model}: {stats:?}");
    });
}

/// What it has received is answered; what it has not is left where it is, and is no error.
#[test]
fn who_leaves_receives_nothing_more_and_answers_what_it_has() {
    everywhere("leave", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let peer = peer(&server);
        assert_eq!(ask(&peer, b"hello"), b"hello", "on {model}");
        server.leave();
        for _ in 0..20 {
            let _ = peer.send(b"too late, perhaps"); // refused once the socket is closed
        }
        let stats = server.join();
        assert_eq!(
            (stats.datagrams_out, stats.receive_errors),
            (stats.datagrams_in, 0),
            "{model}: {stats:?}"
        );
        assert!((1..=21).contains(&stats.datagrams_in), "{model}: {stats:?}");
    });
}

/// What waits in the kernel when the stop comes is still answered.
#[test]
fn a_stop_serves_what_has_arrived() {
    everywhere("graceful stop", |model, policy| {
        let server = DatagramServer::new(|_| Echo).model(model).policy(policy);
        let bound = server.bind((LOCALHOST, 0)).unwrap();
        let peer = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        peer.connect(bound.local_addr()).unwrap();
        for n in 0..50u8 {
            peer.send(&[n]).unwrap();
        }
        let stats = end(bound.start().unwrap());
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (50, 50), "{model}: {stats:?}");
        for n in 0..50u8 {
            assert_eq!(take(&peer), [n]);
        }
    });
}

/// A stop with more in the socket than a thread can have received, and answers that are still on their way.
#[test]
fn a_stop_serves_what_no_receive_has_taken_yet() {
    everywhere("stop with a full socket", |model, policy| {
        let policy = policy.batch(4).replies(8);
        let server = DatagramServer::new(|_| Echo).model(model).policy(policy);
        let bound = server.bind((LOCALHOST, 0)).unwrap();
        let peer = UdpSocket::bind((LOCALHOST, 0)).unwrap();
        peer.connect(bound.local_addr()).unwrap();
        for n in 0..100u8 {
            peer.send(&[n]).unwrap();
        }
        let stats = end(bound.start().unwrap());
        assert_eq!((stats.datagrams_in, stats.datagrams_out), (100, 100), "{model}: {stats:?}");
        for n in 0..100u8 {
            assert_eq!(take(&peer), [n], "on {model}");
        }
    });
}

/// Answers to a port that nobody has come back as an error by ICMP, which is not the server's end.
#[test]
fn peers_that_have_gone_do_no_harm() {
    everywhere("gone", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Echo);
        for _ in 0..20 {
            let gone = UdpSocket::bind((LOCALHOST, 0)).unwrap();
            gone.send_to(b"good-bye", server.local_addr()).unwrap();
        }
        until(&server, "all were seen", |stats| stats.datagrams_in == 20);
        assert_eq!(ask(&peer(&server), b"hello"), b"hello", "on {model}");
        assert_eq!(end(server).datagrams_in, 21);
    });
}

#[test]
fn a_panic_costs_the_datagram_and_nothing_else() {
    struct Fragile;
    impl DatagramService for Fragile {
        fn on_datagram(&mut self, from: SocketAddr, bytes: &[u8], out: &mut Replies) {
            assert!(bytes != b"break", "on purpose, in a test");
            out.send(from, bytes);
        }
    }
    everywhere("panic", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Fragile);
        let peer = peer(&server);
        peer.send(b"break").unwrap();
        assert_eq!(ask(&peer, b"hold"), b"hold", "on {model}");
        assert!(!server.is_broken());
        let stats = end(server);
        assert_eq!((stats.panics, stats.datagrams_in, stats.datagrams_out), (1, 2, 1), "{stats:?}");
    });
}

#[test]
fn a_handle_outlives_its_server_and_does_not_keep_the_port() {
    everywhere("handle", |model, policy| {
        let server = start(model, policy, LOCALHOST, |_| Echo);
        let handle = server.handle();
        let peer = peer(&server);
        assert_eq!(ask(&peer, b"hold"), b"hold", "on {model}");
        handle.stop();
        let stats = server.join();
        // The kernel closes what a ring had registered some time after the ring, and another test may have the port for
        // a while.
        let ended = Instant::now();
        while let Err(e) = UdpSocket::bind(handle.local_addr()) {
            assert!(ended.elapsed() < Duration::from_secs(60), "on {model} the port is kept: {e}");
            std::thread::sleep(Duration::from_millis(10));
        }
        handle.stop();
        assert_eq!((handle.stats().datagrams_in, stats.datagrams_in), (1, 1), "on {model}");
    });
}
