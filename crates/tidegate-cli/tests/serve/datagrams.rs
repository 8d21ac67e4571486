//! `serve udp --handover`: a successor takes the sockets.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use rustix::process::Signal;
use tidegate::Model;

use crate::clients::Clients;
use crate::kit::{DEADLINE, Server, run, tidegate};

fn echo(socket: &str, more: &[&str]) -> std::process::Command {
    tidegate(&[&["serve", "udp", "echo", "--stats", "--handover", socket][..], more].concat())
}

fn at_home(socket: &str, model: &str, path: &str) -> Server {
    let more = ["--listen", "127.0.0.1:0", "--model", model, "--path", path, "--threads", "2"];
    Server::of(&mut echo(socket, &more))
}

/// Peers that send a number and wait until it comes back: one that is lost holds its peer up for ever.
fn peers_of(addr: SocketAddr) -> Clients {
    Clients::asking(8, MOST_NUMBERS, || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(addr).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut number = 0_u64;
        move || {
            socket.send(&number.to_be_bytes()).unwrap();
            let mut back = [0; 16];
            let bytes = receive(&socket, &mut back);
            assert_eq!(back[..bytes], number.to_be_bytes());
            number += 1;
        }
    })
}

/// A receive with a time limit is interrupted by a process that is stopped and goes on (`signal(7)`).
fn receive(socket: &UdpSocket, into: &mut [u8]) -> usize {
    loop {
        match socket.recv(into) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            received => return received.expect("it comes back"),
        }
    }
}

/// More than any test has time for.
const MOST_NUMBERS: usize = 50_000_000;

/// What it received, from its last counters.
fn received(server: Server) -> usize {
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0), "{stderr:?}");
    let counters: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
    counters["datagrams_in"].as_u64().unwrap() as usize
}

#[test]
fn no_datagram_is_lost_when_a_successor_takes_the_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("handover.sock");
    let socket = socket.to_str().unwrap();
    let can = |model: &Model| !matches!(model, Model::Blocking | Model::Pool);
    for model in Model::available().into_iter().filter(can) {
        for path in ["plain", "gso"] {
            let first = at_home(socket, model.name(), path);
            let peers = peers_of(first.addr);
            peers.hears(200);
            let second = Server::of(&mut echo(socket, &["--model", model.name(), "--path", path]));
            assert_eq!(second.url, first.url, "{model}");
            first.wait_for("queued datagrams are left to it");
            let before = received(first);
            peers.hears(200);
            let answers = peers.end();
            second.signal(Signal::TERM);
            let after = received(second);
            assert!(before >= 200 && after >= 200, "{model}: both served");
            assert_eq!(before + after, answers, "{model}, {path}: each datagram once");
        }
    }
}

#[test]
fn a_successor_that_does_not_fit_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("handover.sock");
    let socket = socket.to_str().unwrap();
    for model in ["blocking", "pool"] {
        let outcome = run(&mut echo(socket, &["--listen", "127.0.0.1:0", "--model", model]));
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("sleep in the receive"), "{}", outcome.stderr);
    }
    let first = at_home(socket, "epoll", "batched");
    for (more, says) in [
        (&["--model", "epoll", "--path", "gso"][..], "--path batched"),
        (&["--model", "epoll", "--threads", "3"], "there are 2 sockets, one for each thread"),
        (&["--model", "poll", "--listen", "127.0.0.1:9"], "but the running server listens on"),
    ] {
        let outcome = run(&mut echo(socket, more));
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{says}: {}", outcome.stderr);
    }
    let sink = ["serve", "udp", "sink", "--model", "epoll", "--handover", socket];
    let sink = Server::attempt(&mut tidegate(&sink)).err().expect("it is no echo");
    assert_eq!(sink.code, Some(2));
    let says = "runs the service udp echo, and this one is udp sink";
    assert!(sink.stderr.contains(says), "{}", sink.stderr);
    let other = run(&mut tidegate(&["serve", "http", "--model", "epoll", "--handover", socket]));
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("serves datagrams"), "{}", other.stderr);
    let peers = peers_of(first.addr);
    peers.hears(10);
    peers.end();
    // Another model of the same kind, and threads as there are sockets.
    let second = Server::of(&mut echo(socket, &["--model", "select", "--listen", &first.addr.to_string()]));
    received(first);
    let peers = peers_of(second.addr);
    peers.hears(10);
    peers.end();
}
