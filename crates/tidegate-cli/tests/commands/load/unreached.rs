//! Targets that are not there, and servers that go away: datagrams, ping, the messenger, Unix sockets.

use std::io::Read;
use std::net::{ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::absence::{FIRST_SECOND, LONG, TRIES};
use super::bad_server;
use super::closed_port::ClosedPort;
use super::short_lived;
use crate::kit::{Outcome, run, tidegate};

fn load(args: &[&str]) -> Outcome {
    run(&mut tidegate(&[&["load"], args].concat()))
}

#[test]
fn of_a_name_without_an_address_the_error_says_what_to_do() {
    // Nobody has such a name (RFC 6761, 6.4), but some resolvers answer for every name; of one label that is longer
    // than 63 octets nobody is asked (RFC 1035, 2.3.4).
    let (invalid, too_long) = ("no-such-host.invalid", "x".repeat(64));
    let has_address = (invalid, 7).to_socket_addrs().is_ok();
    for name in [&*too_long, invalid].into_iter().filter(|&name| name != invalid || !has_address) {
        let (target, url) = (format!("{name}:7"), format!("http://{name}:7/"));
        for args in [
            ["http", &url],
            ["echo", &target],
            ["ping", &target],
            ["udp", &target],
            ["chat", &target],
            ["attack", &url],
        ] {
            // Where nobody answers for names, this one is given up soon (resolv.conf(5)).
            let mut command = tidegate(&[&["load"], &args[..]].concat());
            let outcome = run(command.env("RES_OPTIONS", "timeout:1 attempts:1"));
            assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.stderr);
            let message = format!("cannot find the address of {target}: ");
            for text in [&*message, "check the name and the resolver"] {
                assert!(outcome.stderr.contains(text), "{args:?}: {}", outcome.stderr);
            }
            assert_eq!(outcome.stdout, "", "{args:?}");
        }
    }
}

/// Lets a port refuse datagrams: a connected socket receives from its peer only.
fn close(socket: &UdpSocket) {
    socket.connect(socket.local_addr().unwrap()).unwrap();
}

#[test]
fn a_target_that_is_not_there_is_reported_in_the_first_second_with_what_to_do() {
    let closed = ClosedPort::new();
    let addr = closed.addr.to_string();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    close(&datagrams);
    let udp = datagrams.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| format!("unix:{}", folder.path().join(name).display());
    let (missing, stale) = (path("missing.sock"), path("stale.sock"));
    drop(UnixListener::bind(folder.path().join("stale.sock")).unwrap()); // its file stays
    for (args, target) in [
        (&["udp", &udp, "-d", LONG, "--timeout", LONG][..], &udp),
        (&["udp", &udp, "-d", LONG, "--timeout", LONG, "-c", "3"], &udp),
        (&["udp", &udp, "-d", LONG, "--timeout", LONG, "--rate", "10"], &udp),
        (&["udp", &udp, "-d", LONG, "--one-way"], &udp),
        (&["ping", &addr, "-n", "10"], &addr),
        (&["ping", &addr, "-d", LONG, "--warm-up", LONG], &addr),
        (&["chat", &addr, "-c", "5", "-d", LONG], &addr),
        (&["http", &missing, "-c", "5", "-d", LONG], &missing),
        (&["echo", &missing, "-c", "5", "-d", LONG, "--warm-up", LONG], &missing),
        (&["echo", &stale, "-c", "5", "-d", LONG], &stale),
        (&["chat", &stale, "-c", "5", "-d", LONG], &stale),
        (&["ping", &stale, "-d", LONG], &stale),
    ] {
        let in_time = (0..TRIES).any(|_| {
            let begun = Instant::now();
            let outcome = load(args);
            let after_s = begun.elapsed().as_secs_f64();
            assert_eq!(outcome.code, Some(1), "{args:?}: {}", outcome.stderr);
            for text in [target, "start the server, or give its"] {
                assert!(outcome.stderr.contains(text), "{args:?}: {}", outcome.stderr);
            }
            after_s < FIRST_SECOND
        });
        assert!(in_time, "{args:?}: not within a second, in {TRIES} tries");
    }
}

#[test]
fn an_attack_that_finds_nobody_ends_with_what_to_do() {
    let closed = ClosedPort::new();
    let addr = closed.addr.to_string();
    let url = format!("http://{addr}/");
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("unix:{}", folder.path().join("missing.sock").display());
    let only_resets = ["--silent", "0", "--trickle", "0", "--flood", "0", "--half-open", "0"];
    for (target, named, more) in
        [(&url, &addr, &[][..]), (&addr, &addr, &only_resets), (&missing, &missing, &["--reset-rate", "0"])]
    {
        let outcome = load(&[&["attack", target, "-d", LONG], more].concat());
        assert_eq!(outcome.code, Some(1), "{target} {more:?}: {}", outcome.stderr);
        for text in [named, "start the server, or give its"] {
            assert!(outcome.stderr.contains(text), "{target} {more:?}: {}", outcome.stderr);
        }
        assert!(outcome.stdout.contains("under attack for"), "{target} {more:?}: {}", outcome.stdout);
    }
}

#[test]
fn a_server_of_datagrams_that_goes_away_ends_the_load_and_the_verdict_says_so() {
    for more in [&[][..], &["--rate", "200"], &["-n", "100000000"]] {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let target = socket.local_addr().unwrap().to_string();
        let (stop, stopped) = channel::<()>();
        let server = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            for _ in 0..10 {
                let (n, from) = socket.recv_from(&mut buffer).unwrap();
                socket.send_to(&buffer[..n], from).unwrap();
            }
            close(&socket);
            let _ = stopped.recv(); // nobody else gets its port meanwhile
        });
        let amount = if more.contains(&"-n") { &[][..] } else { &["-d", LONG] };
        let fixed = ["udp", &target, "--timeout", LONG];
        let outcome = load(&[&fixed[..], amount, more].concat());
        drop(stop);
        server.join().unwrap();
        assert_eq!(outcome.code, Some(1), "{more:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("start the server, or give its address"), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("not its capacity"), "{more:?}: {}", outcome.stdout);
    }
}

#[test]
fn a_ping_ends_with_its_server() {
    let outcome = load(&["ping", &short_lived(), "-d", LONG, "--warm-up", "0s"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("closed while a message was under way"), "{}", outcome.stderr);
    let outcome = load(&["ping", &short_lived(), "-d", LONG, "--warm-up", LONG]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
}

#[test]
fn a_ping_to_a_target_that_stays_silent_comes_to_an_end() {
    let silent = bad_server(|mut stream| while let Ok(1..) = stream.read(&mut [0; 4096]) {}).to_string();
    let outcome = load(&["ping", &silent, "-n", "10", "--timeout", "300ms"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no answer for 0.3 s"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("raise --timeout"), "{}", outcome.stderr);
}
