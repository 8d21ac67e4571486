//! Servers that are not there, or go away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_load::Report;

use super::closed_port::ClosedPort;
use super::{Server, TIDEGATE, bad_server, load, report, short_lived};
use crate::kit::{Outcome, finish, run, tidegate};

/// Loads that would take a quarter of an hour.
pub(super) const LONG: &str = "15m";

/// Time within which an absent target has to be reported.
pub(super) const FIRST_SECOND: f64 = 1.0;

/// How often a load is tried: another process may take the processor for a moment, but not each time.
pub(super) const TRIES: usize = 20;

/// A load that has to end by itself, and its result.
fn ended(args: &[&str]) -> (Outcome, Report) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let all = [&["load"], args, &["--json", file.to_str().unwrap(), "--timeout", "20"]].concat();
    let outcome = run(&mut tidegate(&all));
    let written = std::fs::read(&file).unwrap_or_else(|e| panic!("{args:?}: {e}; {}", outcome.stderr));
    (outcome, serde_json::from_slice(&written).unwrap())
}

/// For how long a load ran until it knew that nobody was there, by its own clock.
fn given_up_after_s(args: &[&str], report: &Report) -> f64 {
    // A number of messages is measured from the first dial on.
    let before_s = if args.contains(&"-d") { report.connect_s + report.warm_up_s } else { 0.0 };
    before_s + report.server_gone_after_s.unwrap_or(f64::INFINITY)
}

fn shown(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_target_that_is_not_there_is_an_error_at_once_with_what_to_do() {
    let closed = ClosedPort::new();
    let target = closed.addr.to_string();
    let url = format!("http://{target}/");
    let rate = ["--rate", "100"];
    for (args, more) in [
        (["http", &url], &[][..]),
        (["http", &url], &["--no-keepalive"]),
        (["http", &url], &rate),
        (["echo", &target], &[]),
        (["http", &url], &["--warm-up", LONG]),
        (["http", &url], &["--rate", "100", "--warm-up", LONG]),
        (["http", &url], &["--no-keepalive", "--rate", "100", "--warm-up", LONG]),
        (["http", &url], &["--no-keepalive", "--ramp-connections", LONG]),
        (["echo", &target], &["--warm-up", LONG]),
        (["echo", &target], &["--ramp-connections", LONG]),
        (["echo", &target], &["--messages", "2", "--half-close", "--ramp-connections", LONG]),
    ] {
        let amount = if more.contains(&"--messages") { &[][..] } else { &["-d", LONG] };
        let all = [&args[..], &["-c", "5"], amount, more].concat();
        let is_quick = |(_, report): &(Outcome, Report)| given_up_after_s(&all, report) < FIRST_SECOND;
        let quick = (0..TRIES).map(|_| ended(&all)).find(is_quick);
        let (outcome, _) =
            quick.unwrap_or_else(|| panic!("{args:?} {more:?}: never within {FIRST_SECOND} s"));
        let (summary, error) = (&outcome.stdout, &outcome.stderr);
        assert_eq!(outcome.code, Some(1), "{args:?} {more:?}: {error}");
        assert!(
            error.contains(&target) && error.contains("start the server, or give its address"),
            "{args:?} {more:?}: {error}"
        );
        assert!(!summary.contains("warning "), "advice for a load that there was not: {summary}");
    }
}

#[test]
fn a_server_that_goes_away_while_connections_are_opened_ends_the_load() {
    let target = short_lived();
    let (outcome, report) = ended(&["echo", &target, "-c", "2", "-d", LONG, "--ramp-connections", LONG]);
    assert_eq!((outcome.code, report.connected), (Some(1), 1), "{report:?}");
    assert!(outcome.stderr.contains("the server closed or refused every connection"), "{}", outcome.stderr);
    assert!(report.verdict.unwrap().because.contains("not its capacity"));
}

#[test]
fn connections_that_could_not_be_made_are_explained_after_a_warm_up_too() {
    // The second connection is dialled when the first has been accepted for long. Where the server had no processor
    // all that time, it is made nevertheless.
    let refused = (0..TRIES).map(|_| of_a_server_for_one()).find(|(_, report)| report.connected < 2);
    let (outcome, report) = refused.expect("the second one is refused, if not each time");
    assert_eq!((outcome.code, report.connect_failed), (Some(1), 1), "{report:?}");
    assert!(outcome.stderr.contains("start the server, or give its address"), "{}", outcome.stderr);
}

/// A load of two connections.
fn of_a_server_for_one() -> (Outcome, Report) {
    // Takes one connection, and refuses the others.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    });
    ended(&["echo", &target, "-c", "2", "-d", "300ms", "--ramp-connections", "1s", "--warm-up", "100ms"])
}

/// The first line on standard error that tells of no answer, while the load runs; it is ended then.
fn error_meanwhile(args: &[&str]) -> Option<String> {
    let amount = if args.contains(&"-n") { &[][..] } else { &["-d", "20"] };
    let mut child = Command::new(TIDEGATE)
        .arg("load")
        .args(args)
        .args(["-c", "2", "--timeout", "20"])
        .args(amount)
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
    for (args, target, remedy) in [
        (&["http", &silent_url][..], &silent, "speaks this protocol"),
        (&["http", &silent_url, "--rate", "100"], &silent, "speaks this protocol"),
        (&["echo", &silent], &silent, "speaks this protocol"),
        (&["ping", &silent], &silent, "speaks this protocol"),
        (&["ping", &silent, "-n", "100"], &silent, "speaks this protocol"),
        (&["chat", &silent], &silent, "speaks this protocol"),
        (&["echo", &deaf], &deaf, "firewalls"),
        (&["ping", &deaf], &deaf, "firewalls"),
    ] {
        let line = error_meanwhile(args).unwrap_or_else(|| panic!("{args:?}: nothing was said"));
        let note = format!("no answer yet from {target}: ");
        assert!(line.contains(&note) && line.contains(remedy), "{args:?}: {line}");
    }
}

/// The first four connections have answers. To the clients some more are established: SYNs that are sent again at the
/// same time find the backlog free before any of them fills it. The blocks of 128 are not waited for one by one.
#[test]
fn connects_that_hang_are_failures_and_the_others_are_tried() {
    let (socket, addr, fillers) = full_backlog();
    let listener = TcpListener::from(socket.try_clone().unwrap());
    let made = fillers.len();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(made + 4).map_while(Result::ok).skip(made) {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    drop(fillers);
    let args =
        ["load", "echo", &addr.to_string(), "-c", "1300", "-d", "0.1", "--timeout", "3", "--json", "-"];
    let output = Command::new(TIDEGATE).args(args).output().unwrap();
    let report = report(&output);
    assert_eq!((report.attempted, report.connected + report.connect_failed), (1300, 1300), "{report:?}");
    assert!((500..1300).contains(&report.connect_failed), "{report:?}");
    assert!(report.connect_s < 20.0, "not much more than two timeouts, and not eleven: {report:?}");
    assert_eq!(output.status.code(), Some(1));
    assert!(shown(&output).1.contains(&format!("cannot connect to {addr}: timed out")), "{output:?}");
}

/// Half of the connections are closed after two messages, which leaves the schedule to the others.
#[test]
fn connections_that_are_closed_between_messages_leave_their_part_of_the_schedule_to_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, mut stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let messages = if number % 2 == 0 { 2 } else { usize::MAX };
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                for _ in 0..messages {
                    match stream.read(&mut buffer) {
                        Ok(n @ 1..) if stream.write_all(&buffer[..n]).is_ok() => {}
                        _ => return,
                    }
                }
            });
        }
    });
    // The requests of those that were closed take longer than a late request is waited for.
    let output = load(&["echo", &target, "-c", "16", "-n", "100", "--rate", "100", "--json", "-"]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(1), "connections are missing: {output:?}");
    let open = report.open_loop.as_ref().unwrap();
    assert_eq!((open.scheduled, open.not_started), (100, 0), "{report:?}");
    assert!(report.failed > 0 && report.requests + report.failed >= 100, "{report:?}");
}

#[test]
fn a_target_that_answers_is_not_called_silent() {
    let server = Server::start("http", "epoll");
    let said = |_| {
        let output = load(&["http", &server.url, "-c", "2", "-d", "1.2"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        shown(&output).1
    };
    let notes: Vec<String> = (0..TRIES).map(said).take_while(|said| !said.is_empty()).collect();
    assert!(notes.len() < TRIES, "{notes:?}");
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
    let warm_up = ["--warm-up", LONG];
    let slow_warm_up = ["--rate", "500", "--warm-up", LONG];
    for (service, phase, more) in [
        ("http", "phase measuring", &[][..]),
        ("http", "phase measuring", &["--no-keepalive"]),
        ("http", "phase measuring", &["--rate", "500"]),
        ("echo", "phase measuring", &[]),
        ("http", "phase connected 5 5", &warm_up),
        ("http", "phase connected 5 5", &slow_warm_up),
        ("echo", "phase connected 5 5", &warm_up),
    ] {
        let mut server = Server::start(service, "epoll");
        let file = folder.path().join("result.json");
        let fixed = ["load", service, &server.url, "-c", "5", "-d", LONG, "--phases", "--json"];
        let mut command = tidegate(&fixed);
        command.arg(&file).args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line == phase), "the load ended before {phase:?}");
        server.child.kill().unwrap();
        let outcome = finish(child);
        let error = outcome.stderr;
        assert_eq!(outcome.code, Some(1), "{service} {more:?}: {error}");
        assert!(error.contains("the server closed or refused every connection"), "{more:?}: {error}");
        let report: Report = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        // The window ends there, and not with the schedule: rates are of what there was.
        let after = report.server_gone_after_s.expect("it is gone");
        assert!(after <= report.elapsed_s && report.elapsed_s < 900.0, "{report:?}");
        assert!(report.verdict.unwrap().because.contains("not its capacity"));
    }
}

/// The first connection sends all requests before the second one is dialled, and closes: nobody is missing.
#[test]
fn a_load_that_has_all_its_answers_before_its_ramp_is_over_has_found_its_server() {
    let server = Server::start("http", "epoll");
    for more in [&["--no-keepalive"][..], &[]] {
        let fixed = ["http", &server.url, "-c", "3", "-n", "20", "--ramp-connections", "3s", "--json", "-"];
        let output = load(&[&fixed[..], more].concat());
        let report = report(&output);
        assert_eq!((output.status.code(), report.requests, report.failed), (Some(0), 20, 0), "{output:?}");
        assert_eq!(report.server_gone_after_s, None, "{more:?}");
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
