//! Datagrams with the built binary: `serve udp`, `load udp`, `bench udp`, on models and paths of Linux.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tidegate_lab::report::Results;
use tidegate_load::{Report, UdpReport};

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A server that is killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = Command::new(TIDEGATE)
            .args(["serve", "udp"])
            .args(args)
            .args(["--listen", "127.0.0.1:0", "--stats"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        assert!(url.starts_with("udp://127.0.0.1:"), "{url}");
        Self { child, url }
    }

    /// Stops it by signal: it must end well, and say its counters.
    fn stop(mut self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if start.elapsed() > Duration::from_secs(60) => panic!("it does not stop"),
                None => std::thread::yield_now(),
            }
        };
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(said.contains("drained: "), "{said}");
        serde_json::from_str(said.lines().last().unwrap()).unwrap_or_else(|e| panic!("{e}: {said}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(target: &str, args: &[&str]) -> (Output, Report) {
    let output =
        Command::new(TIDEGATE).args(["load", "udp", target, "--json", "-"]).args(args).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    (output, report)
}

fn number(counters: &Value, name: &str) -> u64 {
    counters[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counters}"))
}

#[test]
fn every_message_comes_back_on_every_path() {
    for (model, path) in [("epoll", "plain"), ("poll", "batched"), ("blocking", "gso"), ("tokio", "gso")] {
        let server = Server::start(&["echo", "--model", model, "--path", path]);
        // A window that the socket of the server can hold: then nothing is lost.
        let (output, report) = load(
            &server.url,
            &["--path", path, "-n", "5000", "--window", "32", "-c", "2", "--size", "100", "--timeout", "20"],
        );
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let udp = report.udp.as_ref().unwrap();
        let right = UdpReport {
            path: path.into(),
            echo: true,
            sent: 5000,
            received: 5000,
            sent_per_s: udp.sent_per_s,
            sends: udp.sends,
            receives: udp.receives,
            ..UdpReport::default()
        };
        assert_eq!(*udp, right, "{model}");
        assert_eq!((report.requests, report.bytes_sent, report.message_bytes), (5000, 500_000, 100));
        assert!(report.latency_us.p50 > 0 && report.verdict.is_some() && !report.seconds.is_empty());
        assert_eq!(report.seconds.iter().map(|second| second.requests).sum::<u64>(), 5000);
        let counters = server.stop();
        for name in ["datagrams_in", "datagrams_out"] {
            assert_eq!(number(&counters, name), 5000, "{counters}");
        }
        assert_eq!((counters["model"].as_str(), counters["path"].as_str()), (Some(model), Some(path)));
    }
}

#[test]
fn a_schedule_is_kept_message_by_message() {
    let server = Server::start(&["echo", "--threads", "1"]);
    // The socket of the server can hold all of them at once: then nothing is lost if a process stalls.
    let (output, report) = load(&server.url, &["--rate", "400", "-d", "0.5", "-c", "2", "--timeout", "20"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let open = report.open_loop.unwrap();
    assert_eq!((open.scheduled, open.rate_per_s), (200, 400.0));
    assert_eq!(open.started + open.not_started, 200);
    assert_eq!(report.udp.unwrap().received, open.started);
    assert_eq!(number(&server.stop(), "datagrams_in"), open.started);
}

/// The sink answers nothing: an echo load loses everything and says so; a load one way asks for nothing.
#[test]
fn a_sink_takes_and_does_not_answer() {
    let server = Server::start(&["sink", "--largest-datagram", "200"]);
    let (output, report) = load(&server.url, &["--one-way", "-n", "20", "--size", "200"]);
    assert_eq!((output.status.code(), report.requests), (Some(0), 20), "{output:?}");
    let (_, report) = load(&server.url, &["--one-way", "-n", "5", "--size", "201"]);
    assert_eq!(report.udp.map(|udp| (udp.echo, udp.sent)), Some((false, 5)));
    let output = Command::new(TIDEGATE)
        .args(["load", "udp", &server.url, "-n", "7", "--timeout", "0.1", "--json", "-"])
        .output()
        .unwrap();
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "nothing came back, and that was good?");
    assert_eq!((report.udp.map(|udp| (udp.lost, udp.received)), report.timed_out), (Some((7, 0)), 7));
    let counters = server.stop();
    assert_eq!((number(&counters, "datagrams_in"), number(&counters, "truncated")), (27, 5));
    assert_eq!(number(&counters, "datagrams_out"), 0);
}

/// An echo that repeats, swaps and spoils messages is found out.
#[test]
fn a_bad_echo_is_found_out() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        let mut room = [0; 2_000];
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            held.push(room[..n].to_vec());
            if held.len() == 4 {
                let mut spoiled = held[3].clone();
                spoiled[50] ^= 1;
                for reply in [&held[1], &held[0], &held[2], &held[2], &spoiled] {
                    socket.send_to(reply, from).unwrap();
                }
                held.clear();
            }
        }
    });
    let (output, report) = load(&addr.to_string(), &["-n", "4"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let udp = report.udp.unwrap();
    let seen = (udp.received, udp.duplicated, udp.reordered, udp.corrupt, udp.lost);
    assert_eq!(seen, (3, 1, 1, 1, 1));
}

#[test]
fn nobody_there_is_an_error_and_no_hang() {
    // Nobody else gets its port, and what others send there is refused (ICMP): it is connected, to itself.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    closed.connect(closed.local_addr().unwrap()).unwrap();
    let addr = closed.local_addr().unwrap().to_string();
    let (output, report) = load(&addr, &["-n", "1000000"]);
    assert_eq!((output.status.code(), report.requests), (Some(1), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing listens there"), "{output:?}");
}

#[test]
fn what_makes_no_sense_is_bad_usage() {
    for (args, part) in [
        (&["serve", "udp", "echo", "--model", "uring", "--path", "batched"][..], "choose plain or gso"),
        (&["serve", "udp", "echo", "--segments", "4"], "add --path gso"),
        (&["serve", "udp", "echo", "--batch", "1025"], "must be between 1 and 1024"),
        (&["serve", "udp", "echo", "--reply-bytes", "64k"], "contradicts --largest-datagram (65507)"),
        (&["serve", "udp", "echo", "--proxy-protocol"], "unexpected argument"),
        (&["serve", "udp", "twice"], "possible values: echo, sink"),
        (&["serve", "udp", "echo", "--wait", "spin", "--model", "blocking"], "with an event loop"),
        (&["load", "udp", "127.0.0.1:9", "--size", "23"], "--size is 23"),
        (&["load", "udp", "http://127.0.0.1:9"], "udp://HOST:PORT"),
        (&["load", "udp", "127.0.0.1:9", "--segments", "4"], "--path gso"),
        (&["load", "udp", "127.0.0.1:9", "--one-way", "--window", "4"], "cannot be used with"),
        (&["load", "udp", "127.0.0.1:9", "--rate", "0"], "--rate must be"),
        (&["load", "udp", "127.0.0.1:9", "-c", "0"], "--flows must be"),
    ] {
        let output = Command::new(TIDEGATE).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

#[test]
fn the_bench_has_a_filled_row_for_each_path() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(TIDEGATE)
        .args(["bench", "udp", "--models", "epoll", "--seconds", "1", "--repeats", "1", "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let table = serde_json::from_str::<Results>(&text).unwrap().udp.unwrap();
    assert_eq!((table.rows.len(), table.failed.len()), (6, 0), "{table:?}");
    for row in &table.rows {
        assert!(row.taken_per_s.median > 0.0 && row.sent_per_s.median > 0.0, "{row:?}");
        assert!(row.times_plain.is_some() && row.tcp_estimate() > 0.0, "{row:?}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("udp.csv")).unwrap().lines().count(), 7);
}
