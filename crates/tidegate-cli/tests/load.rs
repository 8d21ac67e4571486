//! `tidegate load`, the built binary, against servers of its own and against bad ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tidegate_load::Report;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A server that is killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(service: &str, model: &str) -> Self {
        let mut child = Command::new(TIDEGATE)
            .args(["serve", service, "--listen", "127.0.0.1:0", "--model", model])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load(args: &[&str]) -> Output {
    // `timeout` of its own: a load that hangs is a failed test and not a stuck suite.
    Command::new(TIDEGATE).arg("load").args(args).args(["--timeout", "20"]).output().unwrap()
}

fn report(output: &Output) -> Report {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

/// A server that handles each connection on a thread of its own with `serve`.
fn bad_server(serve: fn(std::net::TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    addr
}

#[test]
fn every_echoed_byte_is_verified_and_counted() {
    let server = Server::start("echo", "epoll");
    for model in ["epoll", "poll", "blocking", "tokio"] {
        let output = load(&[
            "echo",
            &server.url,
            "-c",
            "20",
            "-n",
            "500",
            "--size",
            "1000",
            "--model",
            model,
            "--json",
            "-",
        ]);
        let report = report(&output);
        assert_eq!(output.status.code(), Some(0), "{model}: {output:?}");
        assert_eq!((report.requests, report.failed, report.connected), (500, 0, 20), "{model}");
        assert_eq!((report.bytes_sent, report.bytes_received), (500_000, 500_000), "{model}");
        assert_eq!(report.model, model);
        assert!(report.latency_us.p50 > 0 && report.latency_us.p50 <= report.latency_us.max);
    }
}

#[test]
fn http_answers_are_read_to_the_end_whether_connections_are_kept_or_not() {
    let server = Server::start("http", "epoll");
    let kept = load(&["http", &server.url, "-c", "10", "-n", "300", "--json", "-"]);
    let kept = report(&kept);
    assert_eq!((kept.requests, kept.failed, kept.attempted), (300, 0, 10));
    let anew = load(&["http", &server.url, "-c", "10", "-n", "300", "--no-keepalive", "--json", "-"]);
    let anew = report(&anew);
    assert_eq!((anew.requests, anew.failed, anew.attempted), (300, 0, 300));
    assert!(anew.bytes_received >= 300 * 4096);
}

#[test]
fn a_paced_load_keeps_its_pace() {
    let server = Server::start("echo", "epoll");
    let output =
        load(&["echo", &server.url, "-c", "10", "-d", "1", "--size", "100", "-r", "10000", "--json", "-"]);
    let report = report(&output);
    // 100 messages of 100 bytes; only the upper bound is a promise on a slow machine.
    assert!(report.requests <= 115 && report.requests > 0, "{report:?}");
}

#[test]
fn an_echo_that_changes_a_byte_is_found_out() {
    let addr = bad_server(|mut stream| {
        let mut buffer = [0; 4096];
        let mut seen = 0;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if seen <= 5000 && 5000 < seen + n {
                buffer[5000 - seen] ^= 1;
            }
            seen += n;
            if stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    });
    let output = load(&["echo", &addr.to_string(), "-c", "1", "-n", "10", "--size", "1000", "--json", "-"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((report.requests, report.wrong), (5, 1), "{report:?}");
    assert!(report.first_error.unwrap().contains("byte 5000 came back wrong"));
}

#[test]
fn answers_cut_off_and_refused_connections_are_failures() {
    let addr = bad_server(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
    });
    let output = load(&["http", &addr.to_string(), "-c", "1", "-n", "3", "--no-keepalive", "--json", "-"]);
    assert_eq!((output.status.code(), report(&output).failed), (Some(1), 3));

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = load(&["http", &closed.to_string(), "-c", "2", "-n", "4", "--no-keepalive", "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    for (args, part) in [
        (&["http", "https://127.0.0.1/"][..], "only http and tcp"),
        (&["http", "nowhere"], "HOST:PORT"),
        (&["echo", "127.0.0.1:9", "-c", "0"], "at least one connection"),
        (&["echo", "127.0.0.1:9", "-c", "100000000", "--model", "epoll"], "ulimit -n"),
        (&["echo", "127.0.0.1:9", "--model", "iocp"], "unavailable"),
        (&["echo", "127.0.0.1:9", "--model", "kqueue"], "unknown model"),
        (&["echo", "127.0.0.1:9", "--no-keepalive"], "means nothing for echo"),
        (&["http", "127.0.0.1:9", "-r", "5"], "means nothing for http"),
        (&["http", "127.0.0.1:9", "--json", "/no/such/folder/x.json"], "can not write"),
    ] {
        let output = load(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

#[test]
fn each_connection_sends_the_messages_it_is_told_to_and_then_rests() {
    static RECEIVED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let addr = bad_server(|mut stream| {
        let (mut buffer, mut received) = ([0; 4096], 0);
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            received += n;
            if stream.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        RECEIVED.lock().unwrap().push(received);
    });
    let each = ["-c", "7", "--messages", "200", "--window", "2", "--size", "50", "--json", "-"];
    let output = load(&[&["echo", addr.to_string().as_str()][..], &each].concat());
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        (report.requests, report.verified_connections, report.open_at_end),
        (1400, 7, 7),
        "{report:?}"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while RECEIVED.lock().unwrap().len() < 7 {
        assert!(Instant::now() < deadline, "connections stay open after the load has ended");
        std::thread::yield_now();
    }
    assert_eq!(*RECEIVED.lock().unwrap(), [200 * 50; 7]);

    let output = load(&["http", &format!("http://{addr}/"), "--messages", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("means nothing for http"), "{output:?}");
}
