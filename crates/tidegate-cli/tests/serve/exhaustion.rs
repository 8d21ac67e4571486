//! The server runs out of what it needs: it neither spins nor exits, and everybody is served in the end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use rustix::process::Signal;
use tidegate::Model;

use crate::kit::{self, Server, with_address_space, with_descriptors};

/// More than descriptors: most of them have to wait in the backlog.
const CLIENTS: usize = 1_000;

/// A busy loop would use a processor for as long as the server is full; this is no more than a small part of it.
const CALM: f64 = 0.5;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

const OK: &str = "HTTP/1.1 200 OK";

fn cpu_s(server: &Server) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|f| f.parse::<u64>().unwrap()).sum();
    ticks as f64 / tidegate_os::process::clock_ticks_per_s() as f64
}

fn rest_for(time: std::time::Duration) {
    let start = std::time::Instant::now();
    while let Some(left) = time.checked_sub(start.elapsed()) {
        thread::park_timeout(left);
    }
}

/// The first line of the answer, or what came instead.
fn answer_of(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        Ok(_) => answer.lines().next().unwrap_or("nothing at all").to_owned(),
        Err(e) => format!("{e} after {} bytes", answer.len()),
    }
}

fn answered(stream: &mut TcpStream) -> bool {
    answer_of(stream) == OK
}

/// Holders take every place and stay silent; then many clients ask. While nobody can be served the server must rest;
/// once the holders have gone everybody must be.
fn holds_out(server: Server, holders: usize, model: Model) {
    let _ = tidegate::system::raise_descriptor_limit();
    let mut held: Vec<TcpStream> = (0..holders).map(|_| server.connect()).collect();
    for stream in &mut held {
        stream.write_all(b"GET /").unwrap();
    }
    let mut clients: Vec<TcpStream> = (0..CLIENTS - holders).map(|_| server.connect()).collect();
    for stream in &mut clients {
        stream.write_all(REQUEST).unwrap();
    }
    let window = std::time::Duration::from_secs(2);
    let before = cpu_s(&server);
    rest_for(window);
    let used = (cpu_s(&server) - before) / window.as_secs_f64();
    assert!(used < CALM, "{used} of a processor while full");
    drop(held);
    for (i, stream) in clients.iter_mut().enumerate() {
        assert_eq!(answer_of(stream), OK, "client {i} on {model}");
    }
    assert!(
        server.talk("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200 ")
    );
    server.signal(Signal::TERM);
    let (status, ..) = server.ended();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_server_with_256_descriptors_and_1000_clients_is_calm_and_serves_all_of_them() {
    for model in Model::available() {
        let server = Server::of(&mut with_descriptors(256, &kit::http_args(model)));
        holds_out(server, 700, model); // more than the rings of two threads hold
    }
}

fn counter(stderr: &[String], name: &str) -> u64 {
    let line = stderr.iter().find(|line| line.starts_with('{')).expect("the counters");
    serde_json::from_str::<serde_json::Value>(line).unwrap()[name].as_u64().expect("a number")
}

#[test]
fn a_server_that_gets_no_more_threads_refuses_and_goes_on() {
    // Each connection wants two stacks of 64 MiB of address space: a few hundred connections at most.
    let mut options = kit::http_args(Model::Blocking);
    options.extend(["--thread-stack-bytes", "64MiB", "--defer-accept", "none", "--stats"]);
    let server = Server::of(&mut with_address_space(4 << 20, &options));
    let _ = tidegate::system::raise_descriptor_limit();
    let mut refused = 0;
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = server.connect();
        let asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut first = [0; 15];
        match asked.and_then(|()| stream.read_exact(&mut first)) {
            Ok(()) => held.push(stream),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0 && held.len() > 1, "{refused} refused, {} held", held.len());
    drop(held);
    // It recovers by itself, as soon as the threads of the others have ended.
    let deadline = std::time::Instant::now() + crate::kit::DEADLINE / 2;
    let served = || {
        let mut stream = server.connect();
        stream.write_all(REQUEST).is_ok() && answered(&mut stream)
    };
    while !served() {
        assert!(std::time::Instant::now() < deadline, "it did not recover");
    }
    server.signal(Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(counter(&stderr, "no_threads") >= refused, "{stderr:?}");
}

#[test]
fn blocking_outlives_a_crowd_for_which_there_is_no_memory() {
    const CROWD: usize = 1_200;
    let _ = tidegate::system::raise_descriptor_limit();
    // The stacks alone of them all are 300 MiB.
    for mib in [200, 250, 300] {
        let mut options = kit::http_args(Model::Blocking);
        options.extend(["--defer-accept", "none", "--stats"]);
        let server = Server::of(&mut with_address_space(mib << 10, &options));
        let mut clients: Vec<TcpStream> = (0..CROWD).map(|_| server.connect()).collect();
        for stream in &mut clients {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"); // it may have been refused already
        }
        let answered = |stream: &mut TcpStream| stream.read_exact(&mut [0; 15]).is_ok();
        let served = clients.iter_mut().map(answered).filter(|&answered| answered).count();
        let said = || server.said();
        assert!((1..CROWD).contains(&served), "{served} of {CROWD} served in {mib} MiB: {:?}", said());
        drop(clients);
        let deadline = std::time::Instant::now() + crate::kit::DEADLINE / 2;
        let served_again = || {
            let mut stream = server.connect();
            stream.write_all(REQUEST).is_ok() && answer_of(&mut stream) == OK
        };
        while !served_again() {
            assert!(std::time::Instant::now() < deadline, "{mib} MiB: it did not recover");
        }
        server.signal(Signal::TERM);
        let (status, _, stderr) = server.ended();
        assert_eq!(status.code(), Some(0), "{mib} MiB: {stderr:?}");
        assert!(counter(&stderr, "no_threads") > 0, "{mib} MiB: {stderr:?}");
    }
}

/// A connection that dials another one takes two places; limits are not always a multiple of that.
#[test]
fn a_proxy_at_its_defaults_warns_of_nothing() {
    for model in [Model::Uring, Model::Epoll].into_iter().filter(|model| model.availability().is_available())
    {
        for descriptors in [1_024, 1_025, 4_096] {
            let args = ["serve", "proxy", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--threads", "2"];
            let args = [&args[..], &["--model", model.name()]].concat();
            let server = Server::of(&mut with_descriptors(descriptors, &args));
            server.signal(Signal::TERM);
            let (status, _, stderr) = server.ended();
            assert_eq!(status.code(), Some(0), "{stderr:?}");
            assert!(!stderr.iter().any(|line| line.contains("WARN")), "{model}, {descriptors}: {stderr:?}");
        }
    }
}
