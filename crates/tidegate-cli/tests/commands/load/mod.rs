//! `tidegate load`, the built binary, against servers of its own and against bad ones.
//! Servers run on models of Linux.

mod absence;
#[path = "../../../../tidegate/tests/harness/closed_port.rs"]
mod closed_port;
mod habits;
mod interrupts;
mod settings;
mod unreached;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use closed_port::ClosedPort;
use tidegate_load::Report;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// A server that is killed when dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(service: &str, model: &str) -> Self {
        Self::start_with(service, model, None)
    }

    fn start_with(service: &str, model: &str, option: Option<&str>) -> Self {
        let mut child = Command::new(TIDEGATE)
            .args(["serve", service, "--listen", "127.0.0.1:0", "--model", model])
            .args(option)
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

/// An echo server that takes one connection, and goes away after the tenth message.
fn short_lived() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..10 {
            let n = stream.read(&mut buffer).unwrap();
            stream.write_all(&buffer[..n]).unwrap();
        }
    });
    target
}

#[test]
fn ping_says_which_way_its_messages_went() {
    for (option, fast_paths) in [(None, 0), (Some("--fast-path"), 1)] {
        let server = Server::start_with("echo", "epoll", option);
        let args = ["ping", &server.url, "-n", "200", "--model", "epoll", "--fast-path", "--json", "-"];
        let output = load(&args);
        assert!(output.status.success(), "{output:?}");
        let report: tidegate_load::PingReport = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((report.round_trips, report.fast_paths), (200, fast_paths), "{report:?}");
        // Said once, and only where there is something to say.
        let said = String::from_utf8_lossy(&output.stderr).matches("plain TCP").count() as u64;
        assert_eq!(said, 1 - fast_paths, "{output:?}");
    }
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

/// Answers one request on each of so many connections; returns how many ended by a reset.
fn counts_resets(connections: usize) -> (String, std::thread::JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let served = std::thread::spawn(move || {
        let end_of = |mut stream: std::net::TcpStream| {
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood").unwrap();
            stream.read(&mut [0; 4096])
        };
        let streams = listener.incoming().map(Result::unwrap).take(connections);
        streams.filter(|stream| end_of(stream.try_clone().unwrap()).is_err()).count()
    });
    (target, served)
}

#[test]
fn connections_are_reset_after_their_response_only_if_asked_for() {
    for (options, resets) in [(&[][..], 0), (&["--reset-on-close"], 30)] {
        let (target, served) = counts_resets(30);
        let call =
            [&["http", &*target, "-c", "3", "-n", "30", "--no-keepalive", "--json", "-"], options].concat();
        let report = report(&load(&call));
        assert_eq!((report.requests, report.failed, report.reset_on_close), (30, 0, resets > 0));
        assert_eq!(served.join().unwrap(), resets);
    }
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
    assert!(report.first_error.unwrap().contains("byte 5000 differs"));
}

#[test]
fn answers_cut_off_and_refused_connections_are_failures() {
    let addr = bad_server(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort");
    });
    let output = load(&["http", &addr.to_string(), "-c", "1", "-n", "3", "--no-keepalive", "--json", "-"]);
    assert_eq!((output.status.code(), report(&output).failed), (Some(1), 3));

    let closed = ClosedPort::new();
    let output =
        load(&["http", &closed.addr.to_string(), "-c", "2", "-n", "4", "--no-keepalive", "--json", "-"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    for (args, part) in [
        (&["http", "ftp://127.0.0.1/"][..], "must be http, https"),
        (&["http", "nowhere"], "HOST:PORT"),
        (&["echo", "127.0.0.1:9", "-c", "0"], "at least one connection"),
        (&["http", "127.0.0.1:9", "-c", "1", "--reset-on-close"], "--no-keepalive"),
        (&["echo", "127.0.0.1:9", "-c", "16000000", "--model", "epoll"], "ulimit -n"),
        (&["echo", "127.0.0.1:9", "--model", "iocp"], "unavailable"),
        (&["echo", "127.0.0.1:9", "--model", "kqueue"], "possible values: blocking, pool"),
        (&["echo", "127.0.0.1:9", "--no-keepalive"], "unexpected argument"),
        (&["http", "127.0.0.1:9", "-r", "5"], "unexpected argument"),
        (&["http", "127.0.0.1:9", "--rate", "0"], "--rate must be"),
        (&["http", "127.0.0.1:9", "--rate", "5", "--ramp-rate", "5"], "FROM:TIME"),
        (&["http", "127.0.0.1:9", "-n", "5", "--warm-up", "1"], "-d instead of -n"),
        (&["http", "127.0.0.1:9", "-H", "nonsense"], "Name: value"),
        (&["http", "127.0.0.1:9", "--check-status", "9xx"], "2xx"),
        (&["http", "127.0.0.1:9", "--fail-if", "p42>1ms"], "METRIC OP VALUE"),
        (&["http", "127.0.0.1:9", "--json", "-", "--ndjson"], "standard output"),
        (&["http", "127.0.0.1:9", "--source", "127.0.0.9-127.0.0.1"], "upwards"),
        (&["http", "127.0.0.1:9", "--source", "::1"], "IPv6"),
        (&["http", "127.0.0.1:9", "--server-pid", "4194305"], "no such process"),
        (&["http", "127.0.0.1:9", "--body-file", "/no/such/file"], "cannot read"),
        (&["http", "127.0.0.1:9", "--path-file", "/no/such/file"], "cannot read --path-file"),
        (&["http", "127.0.0.1:9", "--path-file", "/dev/null"], "at least one --path"),
        (&["http", "127.0.0.1:9", "--requests-each", "1", "--no-keepalive"], "leave --no-keepalive out"),
        (&["http", "127.0.0.1:9", "-d", "1e300"], "not a time; write 10s"),
        (&["http", "127.0.0.1:9", "-d", "99999999999"], "at most a year"),
        (&["http", "127.0.0.1:9", "-d", "10x"], "not a time; write 10s"),
        (&["http", "127.0.0.1:9", "-c", "10x"], "not a whole number; write 500, 10k"),
        // On every model: that of the best one takes no descriptors for connections.
        (&["http", "127.0.0.1:9", "-c", "1000000M"], "-c 1000000000000 is more than 16777216"),
        (&["http", "127.0.0.1:9", "-c", "10000M", "--no-keepalive"], "-c 10000000000 is more than"),
        (&["echo", "127.0.0.1:9", "-c", "18446744073709551615"], "-c 18446744073709551615 is more than"),
        (&["http", "127.0.0.1:9", "-c", "18446744073709551615", "--model", "epoll"], "lower it"),
        (&["chat", "127.0.0.1:9", "-c", "18446744073709551615"], "raise it with ulimit -n"),
        (&["http", "127.0.0.1:9", "-c", "10M", "--threads", "10M"], "--threads must be from 1 to 1024"),
        (&["http", "127.0.0.1:9", "--rate", "fast"], "not a number; write 500"),
        (&["http", "127.0.0.1:9", "--json", "/no/such/folder/x.json"], "cannot write"),
    ] {
        let output = load(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

#[test]
fn each_connection_sends_its_messages_and_then_rests() {
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
    assert!(String::from_utf8_lossy(&output.stderr).contains("--messages"), "{output:?}");
}

#[test]
fn each_connection_asks_for_a_path_of_its_own() {
    static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let addr = bad_server(|stream| {
        let mut answers = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Some(path) = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) {
                ASKED.lock().unwrap().push(path.to_owned());
                if answers.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                    return;
                }
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("paths");
    let paths: Vec<String> = (0..12).map(|n| format!("/{n:03}")).collect();
    std::fs::write(&file, paths.join("\n")).unwrap();
    let url = format!("http://{addr}/");
    let args = ["http", url.as_str(), "-c", "12", "--path-file", file.to_str().unwrap(), "--json", "-"];
    let output = load(&[&args[..], &["--requests-each", "1", "--rate", "100000"]].concat());
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!((report.requests, report.verified_in_window), (12, 12), "{report:?}");
    let mut asked = ASKED.lock().unwrap().clone();
    asked.sort();
    assert_eq!(asked, paths);
}

#[test]
fn an_open_loop_counts_from_when_a_request_was_due() {
    // Holds its first answer back; the other 19 requests are due within 20 ms and wait behind it.
    let addr = bad_server(|mut stream| {
        let mut held = false;
        while let Ok(1..) = stream.read(&mut [0; 4096]) {
            if !std::mem::replace(&mut held, true) {
                std::thread::sleep(std::time::Duration::from_millis(300));
            }
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let url = addr.to_string();
    let output = load(&["http", &url, "-c", "1", "-n", "20", "--rate", "1000", "--json", "-"]);
    let report = report(&output);
    let open = report.open_loop.unwrap();
    assert_eq!((open.scheduled, open.started, open.not_started, report.requests), (20, 20, 0, 20));
    assert!(report.latency_us.min >= 280_000, "every one of them waited: {:?}", report.latency_us);
    assert!(open.late_starts >= 19 && open.worst_late_us >= 280_000, "{open:?}");
}

/// It gives at most 200 answers a second, and a connection is free for each request.
#[test]
fn a_server_that_answers_what_was_due_after_the_window_has_not_kept_the_rate() {
    static TURN: Mutex<()> = Mutex::new(());
    let addr = bad_server(|mut stream| {
        while let Ok(1..) = stream.read(&mut [0; 4096]) {
            let turn = TURN.lock().unwrap();
            std::thread::sleep(Duration::from_millis(5));
            drop(turn);
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let output = load(&["http", &addr.to_string(), "-c", "300", "--rate", "350", "-d", "1", "--json", "-"]);
    let report = report(&output);
    let verdict = report.verdict.unwrap();
    assert!(report.requests_per_s < 250.0, "{} answers/s", report.requests_per_s);
    assert!(!verdict.because.contains("raise --rate"), "{verdict}");
}

#[test]
fn requests_that_found_no_connection_free_are_missed() {
    let addr = bad_server(|mut stream| while let Ok(1..) = stream.read(&mut [0; 4096]) {});
    let args = ["load", "http", &addr.to_string(), "-c", "2", "-d", "0.1", "--rate", "1000"];
    let begun = Instant::now();
    loop {
        let output =
            Command::new(TIDEGATE).args(args).args(["--timeout", "0.1", "--json", "-"]).output().unwrap();
        let report = report(&output);
        let open = report.open_loop.as_ref().unwrap();
        assert!(open.started <= 2 && report.timed_out == open.started, "{report:?}");
        // A machine that stalls for as long as the window connects or begins nothing in time: try again.
        if (report.connected, open.started) == (2, 2) {
            assert_eq!((open.scheduled, open.not_started), (100, 98));
            assert_eq!(output.status.code(), Some(1));
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "not once did both connections begin: {open:?}");
    }
}

#[test]
fn connections_made_for_each_request_keep_the_schedule_too() {
    let server = Server::start("http", "epoll");
    let args =
        ["http", &server.url, "-c", "10", "-n", "100", "--rate", "2000", "--no-keepalive", "--json", "-"];
    let report = report(&load(&args));
    assert_eq!((report.requests, report.failed, report.attempted), (100, 0, 100), "{report:?}");
    // The last one is due 99/2000 s after the first.
    assert!(report.elapsed_s >= 0.05);
}

/// Answers with what was asked, until the connection ends.
fn mirror(mut stream: std::net::TcpStream) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..n]);
        // Every request of the test ends with this.
        while let Some(end) = seen.windows(5).position(|part| part == b"[end]") {
            let request: Vec<u8> = seen.drain(..end + 5).collect();
            let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", request.len());
            if stream.write_all(&[head.as_bytes(), &request].concat()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn requests_have_the_shape_that_was_asked_for() {
    let url = bad_server(mirror).to_string();
    let shape = [
        "http",
        &url,
        "-c",
        "2",
        "-n",
        "40",
        "--json",
        "-",
        "--body",
        "hi [end]",
        "-H",
        "X-Y: z",
        "--pipeline",
        "4",
    ];
    let run = |more: &[&str]| {
        let output = load(&[&shape, more].concat());
        (output.status.code(), report(&output))
    };
    let (code, good) = run(&["--path", "/a", "--check-body-contains", "POST /a HTTP/1.1"]);
    assert_eq!((code, good.requests, good.connected), (Some(0), 40, 2), "{good:?}");
    let (code, field) = run(&["--method", "PUT", "--check-body-contains", "X-Y: z\r\n\r\nhi"]);
    assert_eq!((code, field.requests), (Some(0), 40), "{field:?}");
    // Both paths in turn: half of the answers name the other one.
    let (code, turns) = run(&["--path", "/a", "--path", "/b", "--check-body-contains", "/b HTTP"]);
    assert_eq!((code, turns.requests, turns.wrong), (Some(1), 20, 20), "{turns:?}");
    let (code, status) = run(&["--check-status", "200,3xx"]);
    assert_eq!((code, status.failed, status.failed_by_status[1]), (Some(1), 40, 40), "{status:?}");
}

#[test]
fn a_result_goes_wherever_it_is_asked_for_and_merges() {
    let server = Server::start("http", "epoll");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, hgrm, csv) = (file("a.json"), file("a.hgrm"), file("a.csv"));
    let output = load(&[
        "http",
        &server.url,
        "-c",
        "4",
        "-n",
        "200",
        "--json",
        &json,
        "--hgrm",
        &hgrm,
        "--csv",
        &csv,
        "--ndjson",
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let result: Report = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!(tidegate_load::histogram::decode(&result.latency_v2).unwrap().len(), 200);
    assert!(result.verdict.is_some());
    assert!(read(&hgrm).contains("Total count    =          200]"));
    // However many seconds it took, they add up.
    let rows = read(&csv);
    let column = |row: &str| row.split(',').nth(2).unwrap().parse::<u64>().unwrap();
    assert_eq!(rows.lines().skip(1).map(column).sum::<u64>(), 200, "{rows}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let seconds = lines.lines().map(|line| serde_json::from_str::<tidegate_load::Second>(line).unwrap());
    assert_eq!(seconds.map(|second| second.requests).sum::<u64>(), 200, "{lines}");

    let copy = file("b.json");
    std::fs::copy(&json, &copy).unwrap();
    let merged =
        Command::new(TIDEGATE).args(["load", "merge", &json, &copy, "--json", "-"]).output().unwrap();
    let merged = report(&merged);
    assert_eq!((merged.requests, merged.connections), (400, 8));
    assert_eq!(merged.latency_us.p99, result.latency_us.p99);
    let bad = Command::new(TIDEGATE).args(["load", "merge", &csv]).output().unwrap();
    assert_eq!(bad.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&bad.stderr).contains("not a result of tidegate load --json"), "{bad:?}");
}

#[test]
fn an_incomplete_result_stays_one_when_it_is_merged() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start("http", "epoll");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let together = |name: &str, troubles: &[&str]| {
        let output = load(&["http", &server.url, "-c", "1", "-n", "1", "--json", "-"]);
        let troubles = troubles.iter().map(|&trouble| trouble.into()).collect();
        let together = Some(tidegate_load::Together { troubles, ..Default::default() });
        let report = Report { together, ..report(&output) };
        std::fs::write(path(name), serde_json::to_vec(&report).unwrap()).unwrap();
        path(name)
    };
    let results =
        [together("a", &["agent b was lost"]), together("b", &["agent c was late"]), together("c", &[])];
    let merge = |args: &[&str]| Command::new(TIDEGATE).args(["load", "merge"]).args(args).output().unwrap();
    let output = merge(&[&results[0], &results[1], &results[2], "--json", "-"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("agent b was lost") && said.contains("agent c was late"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report(&output).together.unwrap().troubles, ["agent b was lost", "agent c was late"]);
    let csv = path("csv");
    for option in [&["--csv", &csv][..], &["--ndjson"], &["--phases"]] {
        let output = merge(&[&[results[2].as_str()], option].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option:?}: {output:?}");
        assert!(said.contains(option[0]), "{said}");
    }
    assert_eq!(merge(&[&results[2], "--quiet"]).status.code(), Some(0));
}

#[test]
fn a_file_for_two_results_and_a_result_that_counts_twice_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (same, other) = (file("same"), format!("{}/./same", folder.path().display()));
    for (first, second) in [("--json", "--csv"), ("--json", "--hgrm"), ("--hgrm", "--csv")] {
        let output = load(&["http", "127.0.0.1:1", "-n", "1", first, &same, second, &other]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{first} and {second} both name {other}")), "{said}");
        assert!(!std::path::Path::new(&same).exists());
    }
    let nowhere = load(&["http", "127.0.0.1:1", "-n", "1", "--json", "/none/at/all"]);
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert!(
        said.contains("cannot write /none/at/all: No such file") && !said.contains(".tidegate-"),
        "{said}"
    );

    let server = Server::start("http", "epoll");
    let result = file("a.json");
    let output = load(&["http", &server.url, "-c", "1", "-n", "5", "--json", &result, "--csv", "/dev/null"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    std::os::unix::fs::symlink(&result, file("link")).unwrap();
    for again in [&result, &file("link")] {
        let merge = ["load", "merge", &result, again, "--json", "/dev/null", "--hgrm", "/dev/null"];
        let twice = Command::new(TIDEGATE).args(merge).output().unwrap();
        let said = String::from_utf8_lossy(&twice.stderr);
        assert_eq!(twice.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{again} is given twice")), "{said}");
    }
    let once = ["load", "merge", &result, "--json", "/dev/null", "--hgrm", "/dev/null"];
    assert_eq!(Command::new(TIDEGATE).args(once).output().unwrap().status.code(), Some(0));
}

#[test]
fn a_condition_that_holds_fails_the_run() {
    let server = Server::start("http", "epoll");
    let run =
        |conditions: &[&str]| load(&[&["http", &server.url, "-c", "2", "-n", "20"], conditions].concat());
    assert_eq!(run(&["--fail-if", "p99>1000s", "--fail-if", "errors>0"]).status.code(), Some(0));
    let failed = run(&["--fail-if", "errors>0", "--fail-if", "p50<1000s"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("--fail-if p50<1000s: it was"), "{failed:?}");
}

/// A server whose backlog is full while others connect again and again: those that are late are not waited for.
#[test]
fn a_load_with_a_connection_for_each_request_begins_although_some_have_none() {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut child = Command::new(TIDEGATE)
        .args([
            "load",
            "http",
            &url,
            "-c",
            "1500",
            "-d",
            "1s",
            "--no-keepalive",
            "--timeout",
            "1h",
            "--phases",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first block has connections, and no answers; the backlog has room for few of the others.
    let first: Vec<_> = listener.incoming().take(1000).map(Result::unwrap).collect();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let is_begun = lines.map_while(Result::ok).any(|line| line == "phase measuring");
        let _ = begun.send(is_begun); // too late, if nobody waits any more
    });
    let begins = begins.recv_timeout(Duration::from_secs(60));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(first);
    assert_eq!(begins, Ok(true), "the load waits for those that have no connection");
}
