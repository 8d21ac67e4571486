//! `serve proxy`: connections are passed on, upstreams share them, and one that is down is left out.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::process::Signal;
use tidegate::Model;

use crate::closed_port::ClosedPort;
use crate::kit::{DEADLINE, Outcome, Server, run, tidegate};
use crate::metrics::{get, samples};

/// A proxy in front of these upstreams.
fn proxy(to: &str, more: &[&str]) -> Server {
    let args = ["serve", "proxy", "--listen", "127.0.0.1:0", "--to", to];
    Server::start(&[&args[..], more].concat())
}

/// Where it publishes its counters.
fn metrics_of(server: &Server) -> SocketAddr {
    let line = server.wait_for("metrics on http://");
    line.split("http://").nth(1).unwrap().trim_end_matches("/metrics").parse().unwrap()
}

fn ask(server: &Server) -> std::io::Result<String> {
    let mut stream = server.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

fn page(text: &str) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.txt");
    std::fs::write(&file, text).unwrap();
    let server =
        Server::start(&["serve", "http", "--listen", "127.0.0.1:0", "--page", file.to_str().unwrap()]);
    (folder, server)
}

#[test]
fn upstreams_take_turns_on_every_model() {
    for model in Model::available() {
        let (one, two) = (page("the first page"), page("the second page"));
        let to = format!("{},{}", one.1.addr, two.1.addr);
        let server = proxy(&to, &["--model", model.name(), "--stats"]);
        let answers: Vec<_> = (0..4).map(|_| ask(&server).unwrap()).collect();
        for (answer, page) in answers.iter().zip(["the first page", "the second page"].iter().cycle()) {
            assert!(answer.ends_with(page), "{model}: {answer}");
        }
        server.signal(Signal::TERM);
        let (status, _, stderr) = server.ended();
        assert!(status.success(), "{model}: {stderr:?}");
        let counters: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
        assert_eq!(counters["proxy"]["unserved"], 0, "{model}: {counters}");
        for upstream in counters["proxy"]["upstreams"].as_array().unwrap() {
            assert_eq!(
                (&upstream["connected"], &upstream["open"]),
                (&2.into(), &0.into()),
                "{model}: {counters}"
            );
        }
    }
}

#[test]
fn an_upstream_that_is_down_is_left_out_and_its_clients_go_to_another() {
    let (_folder, up) = page("it is up");
    let closed = ClosedPort::new();
    let down = closed.addr;
    let more = ["--retry-after", "1h", "--metrics", "127.0.0.1:0"];
    let server = proxy(&format!("{down},{}", up.addr), &more);
    let metrics = metrics_of(&server);
    for _ in 0..4 {
        assert!(ask(&server).unwrap().ends_with("it is up"));
    }
    let samples = samples(&get(metrics, "/metrics").1);
    let of = |what: &str, at: SocketAddr| {
        samples[&format!("tidegate_proxy_upstream_{what}{{server=\"proxy\",upstream=\"{at}\"}}")]
    };
    assert_eq!((of("failed_total", down), of("left_out", down)), (1, 1), "one attempt, and then no more");
    assert_eq!((of("connected_total", up.addr), of("failed_total", up.addr)), (4, 0));
    assert_eq!(samples["tidegate_proxy_unserved_total{server=\"proxy\"}"], 0);
}

#[test]
fn a_client_whom_nobody_can_serve_is_reset() {
    let (one, other) = (ClosedPort::new(), ClosedPort::new());
    let server = proxy(&format!("{},{}", one.addr, other.addr), &["--stats"]);
    // It may be reset before connect returns, which reports that then.
    let end = TcpStream::connect_timeout(&server.addr, DEADLINE).and_then(|mut stream| {
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.read(&mut [0; 1])
    });
    assert_eq!(end.map_err(|e| e.kind()), Err(ErrorKind::ConnectionReset));
    server.signal(Signal::TERM);
    let (_, _, stderr) = server.ended();
    let counters: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
    assert_eq!(
        (&counters["proxy"]["unserved"], &counters["dial_failed"]),
        (&1.into(), &2.into()),
        "{counters}"
    );
}

/// Accepts one connection.
fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

#[test]
fn the_upstream_receives_the_clients_address() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = upstream.local_addr().unwrap().to_string();
    for model in Model::available() {
        let server = proxy(&to, &["--send-proxy", "v1", "--model", model.name()]);
        let mut client = server.connect();
        let (port, to) = (client.local_addr().unwrap().port(), client.peer_addr().unwrap());
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        accept(&upstream).read_to_string(&mut heard).unwrap();
        let header = format!("PROXY TCP4 127.0.0.1 {} {port} {}", to.ip(), to.port());
        assert_eq!(heard, format!("{header}\r\nhello"), "{model}");
    }
    // What reads it is the other end's --proxy-protocol, in both versions.
    let echo = Server::start(&["serve", "echo", "--listen", "127.0.0.1:0", "--proxy-protocol"]);
    for version in ["v1", "v2"] {
        let server = proxy(&echo.addr.to_string(), &["--send-proxy", version]);
        let mut client = server.connect();
        client.write_all(b"hello").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello", "{version}");
    }
}

#[test]
fn a_stop_waits_for_the_answer_of_an_upstream() {
    for model in Model::available() {
        let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = upstream.local_addr().unwrap().to_string();
        let server = proxy(&to, &["--model", model.name(), "--metrics", "127.0.0.1:0"]);
        let metrics = metrics_of(&server);
        let mut client = server.connect();
        client.write_all(b"a question").unwrap();
        let mut far = accept(&upstream);
        far.read_exact(&mut [0; 10]).unwrap();
        server.signal(Signal::TERM);
        let start = Instant::now();
        while !get(metrics, "/metrics").1.contains("tidegate_accepting{server=\"proxy\"} 0") {
            assert!(start.elapsed() < DEADLINE, "{model}: it does not drain");
        }
        far.write_all(b"the answer").unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "the answer", "{model}");
        assert_eq!(far.read(&mut [0; 1]).unwrap(), 0, "{model}");
        assert!(server.ended().0.success(), "{model}");
    }
}

#[track_caller]
fn refused(outcome: &Outcome, says: &[&str]) {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{}", outcome.stderr);
    let line = outcome.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error");
    for text in says {
        assert!(outcome.stderr.contains(text), "{text:?} in {line:?}");
    }
}

#[test]
fn options_that_make_no_sense_are_named() {
    let serve =
        |args: &[&str]| run(&mut tidegate(&[&["serve", "proxy", "--listen", "127.0.0.1:0"], args].concat()));
    refused(&serve(&[]), &["--to"]);
    refused(&serve(&["--to", "somewhere"]), &["--to", "somewhere", "write ADDR:PORT"]);
    refused(&serve(&["--to", "127.0.0.1:1,,127.0.0.1:2"]), &["--to", "write ADDR:PORT"]);
    refused(&serve(&["--to", "127.0.0.1:0"]), &["--to", "port 0"]);
    refused(&serve(&["--to", "127.0.0.1:1,127.0.0.1:1"]), &["--to", "127.0.0.1:1", "twice"]);
    refused(&serve(&["--to", "127.0.0.1:1", "--balance", "random"]), &["--balance", "least-connections"]);
    refused(
        &serve(&["--to", "127.0.0.1:1", "--connect-timeout", "0s"]),
        &["--connect-timeout", "longer than zero"],
    );
    refused(
        &serve(&["--to", "127.0.0.1:1", "--connect-timeout", "soon"]),
        &["--connect-timeout", "not a time"],
    );
    refused(&serve(&["--to", "127.0.0.1:1", "--link-bytes", "0"]), &["--link-bytes", "between 1 and 1GiB"]);
    refused(&serve(&["--to", "127.0.0.1:1", "--send-proxy", "v3"]), &["--send-proxy", "v2"]);
    refused(&serve(&["--to", "127.0.0.1:1", "--max-connections", "1"]), &["--max-connections", "at least 2"]);
    let own = ["serve", "proxy", "--listen", "127.0.0.1:9", "--to", "127.0.0.1:9"];
    refused(&run(&mut tidegate(&own)), &["--to 127.0.0.1:9", "--listen"]);
}
