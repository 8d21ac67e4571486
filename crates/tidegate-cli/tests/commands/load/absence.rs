//! Servers that are not there, or go away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_load::Report;

use super::closed_port::ClosedPort;
use super::{Server, TIDEGATE, bad_server, load, report};

/// Loads that would take a quarter of an hour.
const LONG: &str = "15m";

/// Within what a target that is not there has to be told, by the load's own clock.
const FIRST_SECOND: f64 = 1.0;

/// How often a load is tried: another process may take the processor for a moment, but not each time.
const TRIES: usize = 5;

/// A load that has to end by itself, and for how long it ran until it knew that nobody was there.
fn given_up(args: &[&str]) -> (Output, f64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let output = load(&[args, &["--json", file.to_str().unwrap()]].concat());
    let report: Report = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    (output, report.connect_s + report.server_gone_after_s.unwrap_or(f64::INFINITY))
}

fn shown(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_target_that_is_not_there_is_told_at_once_with_what_to_do() {
    let closed = ClosedPort::new();
    let target = closed.addr.to_string();
    let url = format!("http://{target}/");
    let rate = ["--rate", "100"];
    for (args, more) in [
        (["http", &url], &[][..]),
        (["http", &url], &["--no-keepalive"]),
        (["http", &url], &rate),
        (["echo", &target], &[]),
    ] {
        let try_it = |_| given_up(&[&args[..], &["-c", "5", "-d", LONG], more].concat());
        let tries: Vec<(Output, f64)> = (0..TRIES).map(try_it).collect();
        let after_s = tries.iter().map(|(_, after_s)| *after_s).fold(f64::INFINITY, f64::min);
        assert!(after_s < FIRST_SECOND, "{args:?} {more:?}: {after_s} s at best");
        let output = &tries[0].0;
        let (summary, error) = shown(output);
        assert_eq!(output.status.code(), Some(1), "{args:?} {more:?}: {output:?}");
        assert!(
            error.contains(&target) && error.contains("start the server, or give its address"),
            "{error}"
        );
        assert!(!summary.contains("warning "), "advice for a load that there was not: {summary}");
    }
}

/// The first line on standard error that tells of no answer, while the load runs; it is ended then.
fn told_meanwhile(args: &[&str]) -> Option<String> {
    let mut child = Command::new(TIDEGATE)
        .arg("load")
        .args(args)
        .args(["-c", "2", "-d", "20", "--timeout", "20"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.contains("no answer"));
    let runs = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    line.filter(|_| runs)
}

/// A port whose backlog is full: the system drops SYNs. Held as long as what is returned.
fn full_backlog() -> (Socket, SocketAddr, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    let mut fillers = Vec::new();
    while let Ok(filler) = TcpStream::connect_timeout(&addr, Duration::from_millis(300)) {
        fillers.push(filler);
        assert!(fillers.len() < 100, "this backlog has no end");
    }
    (socket, addr, fillers)
}

#[test]
fn a_target_that_is_silent_is_named_long_before_the_timeout() {
    let silent = bad_server(|mut stream| while let Ok(1..) = stream.read(&mut [0; 4096]) {}).to_string();
    let (_socket, deaf, _fillers) = full_backlog();
    let (silent_url, deaf) = (format!("http://{silent}/"), deaf.to_string());
    for (args, target) in [
        (&["http", &silent_url][..], &silent),
        (&["http", &silent_url, "--rate", "100"], &silent),
        (&["echo", &silent], &silent),
        (&["echo", &deaf], &deaf),
    ] {
        let line = told_meanwhile(args);
        assert!(line.is_some_and(|line| line.ends_with(&format!("no answer yet from {target}"))), "{args:?}");
    }
}

#[test]
fn a_target_that_answers_is_not_called_silent() {
    let server = Server::start("http", "epoll");
    let output = load(&["http", &server.url, "-c", "2", "-d", "1.2"]);
    assert_eq!((output.status.code(), shown(&output).1.as_str()), (Some(0), ""));
}

#[test]
fn many_connections_are_not_all_tried_where_nobody_is() {
    let closed = ClosedPort::new();
    let output = load(&["echo", &closed.addr.to_string(), "-c", "5000", "-d", LONG, "--json", "-"]);
    let report = report(&output);
    assert_eq!((output.status.code(), report.connections, report.attempted), (Some(1), 5000, 1000));
    assert!(shown(&output).1.contains("start the server, or give its address"), "{output:?}");
}

#[test]
fn a_server_that_goes_away_ends_the_load_and_the_verdict_says_so() {
    let folder = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--no-keepalive"], &["--rate", "500"]] {
        let mut server = Server::start("http", "epoll");
        let file = folder.path().join("result.json");
        let mut child = Command::new(TIDEGATE)
            .args([
                "load",
                "http",
                &server.url,
                "-c",
                "5",
                "-d",
                LONG,
                "--phases",
                "--json",
                file.to_str().unwrap(),
            ])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line == "phase measuring"), "the load ended before it measured");
        server.child.kill().unwrap();
        lines.for_each(drop);
        let output = child.wait_with_output().unwrap();
        let (_, error) = shown(&output);
        assert_eq!(output.status.code(), Some(1), "{more:?}: {error}");
        assert!(error.contains("the server closed or refused every connection"), "{more:?}: {error}");
        let report: Report = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert!(report.server_gone_after_s.is_some_and(|after| after <= report.elapsed_s), "{report:?}");
        assert!(report.verdict.unwrap().because.contains("not its capacity"));
    }
}

#[test]
fn the_summary_shows_statuses_and_how_latency_is_distributed() {
    let server = Server::start("http", "epoll");
    let output = load(&["http", &server.url, "-c", "2", "-n", "100"]);
    let (summary, _) = shown(&output);
    assert!(summary.contains("\nstatuses     200: 100\n"), "{summary}");
    assert!(summary.contains("% █") && summary.contains("s to "), "{summary}");
    let output = load(&["http", &server.url, "-c", "2", "-n", "100", "--method", "POST", "--json", "-"]);
    let report = report(&output);
    assert_eq!(report.answers_by_status, [(405, 100)], "{report:?}");
}

/// A server that answers what it receives. Its threads end with the test.
fn answering(answer: fn(&[u8]) -> Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&answer(&buffer[..n])).is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

#[test]
fn bytes_that_were_not_asked_for_fail_the_load() {
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let http = answering(|_| [OK, OK].concat());
    let junk = answering(|_| [OK, b"XXXX"].concat());
    let echo = answering(|message| [message, b"!"].concat());
    for args in [
        ["http", &format!("http://{http}/"), "-n", "20"],
        ["http", &format!("http://{junk}/"), "-n", "20"],
        ["echo", &echo.to_string(), "-n", "20"],
    ] {
        let output = load(&[&args[..], &["-c", "2", "--json", "-"]].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        let report: Report = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            report.failed > 0 && report.wrong > 0 && report.wrong <= report.failed,
            "{args:?}: {report:?}"
        );
        assert!(report.first_error.is_some(), "{args:?}");
        let judged = load(&[&args[..], &["-c", "2", "--fail-if", "errors>0"]].concat());
        assert_eq!(judged.status.code(), Some(1), "{args:?}: {judged:?}");
    }
}
