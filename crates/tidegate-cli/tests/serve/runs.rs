//! The good path.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tidegate::Model;

#[cfg(target_os = "linux")]
use crate::established::established;
use crate::kit::{DEADLINE, Server, run, tidegate, with_descriptors};

const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn http_on_every_model_answers_and_stops_on_sigterm() {
    for model in Model::available() {
        let server = Server::start(&["serve", "http", "--model", model.name(), "--listen", "127.0.0.1:0"]);
        assert_eq!(server.url, format!("http://{}/", server.addr));
        let answer = server
            .talk(&format!("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nPUT / HTTP/1.1\r\nHost: a\r\n\r\n{LAST}"));
        let lines: Vec<_> = answer.lines().filter(|line| line.starts_with("HTTP/1.1 ")).collect();
        assert_eq!(
            lines,
            ["HTTP/1.1 200 OK", "HTTP/1.1 405 Method Not Allowed", "HTTP/1.1 200 OK"],
            "{model}"
        );
        let (_, page) = answer.rsplit_once("\r\n\r\n").unwrap();
        assert_eq!(page.len(), 4096, "{model}");
        let bad = server.talk("GET / HTTP/1.1\r\n\r\n");
        assert!(bad.starts_with("HTTP/1.1 400 ") && bad.contains("Host"), "{model}: {bad}");
        server.signal(Signal::TERM);
        let (status, stdout, _) = server.ended();
        assert_eq!((status.code(), stdout.as_str()), (Some(0), ""), "{model}");
    }
}

/// There is no card behind loopback; what the kernel or the rights do not allow is said by name.
#[cfg(target_os = "linux")]
#[test]
fn polling_a_card_that_is_not_there_does_no_harm() {
    for model in Model::available().into_iter().filter(|&model| model != Model::Tokio) {
        let args =
            ["serve", "echo", "--model", model.name(), "--listen", "127.0.0.1:0", "--busy-poll", "50us"];
        if !rustix::process::geteuid().is_root() {
            let outcome = run(&mut tidegate(&args));
            assert!(outcome.stderr.contains("busy_poll"), "{model}: {}", outcome.stderr);
            continue;
        }
        let server = Server::start(&args);
        let mut stream = server.connect();
        stream.write_all(b"hello").unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello", "{model}");
    }
}

#[test]
fn echo_sends_back_and_says_where_it_is() {
    let server =
        Server::start(&["serve", "echo", "--listen", "127.0.0.1:0", "--model", "poll", "--threads", "1"]);
    assert_eq!(server.url, format!("tcp://{}", server.addr));
    let mut stream = server.connect();
    stream.write_all(b"there and back").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "there and back");
    server.signal(Signal::INT);
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn the_strategy_changes_while_it_runs() {
    let server =
        Server::start(&["serve", "echo", "--listen", "127.0.0.1:0", "--model", "poll", "--threads", "1"]);
    let mut stream = server.connect();
    for (signal, strategy) in [(Signal::USR1, "Throughput"), (Signal::USR2, "Connections")] {
        server.signal(signal);
        server.wait_for(&format!("the strategy is now {strategy}"));
        stream.write_all(b"still here").unwrap();
        let mut back = [0; 10];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"still here");
    }
    drop(stream);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn auto_says_which_model_and_why() {
    let server = Server::start(&["serve", "http", "--listen", "127.0.0.1:0"]);
    let best = Model::best();
    assert_eq!(server.wait_for("note: model"), format!("note: model {}: {}", best.model, best.why));
}

#[test]
fn a_page_of_ones_own_is_served_as_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.json");
    std::fs::write(&page, "{\"a\":1}").unwrap();
    let page = page.to_str().unwrap();
    let server =
        Server::start(&["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--page", page]);
    let answer = server.talk(LAST);
    assert!(
        answer.contains("\r\nContent-Type: application/json\r\n") && answer.ends_with("\r\n\r\n{\"a\":1}")
    );
}

#[test]
fn limits_on_requests_are_those_of_the_command_line() {
    let server = Server::start(&[
        "serve",
        "http",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "poll",
        "--head-bytes",
        "1k",
        "--body-bytes",
        "10",
        "--request-timeout",
        "100ms",
    ]);
    let large = server.talk(&format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(1024)));
    assert!(large.starts_with("HTTP/1.1 431 "), "{large}");
    let body = server.talk("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n");
    assert!(body.starts_with("HTTP/1.1 413 "), "{body}");
    let slow = server.talk("GET / HTTP/1.1\r\n");
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
}

#[test]
fn the_counters_are_one_line_of_json_at_exit() {
    let server = Server::start(&["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--stats"]);
    let sent = server.talk(LAST).len() as u64;
    server.signal(Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0));
    let stats: serde_json::Value = serde_json::from_str(stderr.last().unwrap()).unwrap();
    assert_eq!(stats["model"], "poll");
    assert_eq!((&stats["accepted"], &stats["bytes_in"]), (&1.into(), &(LAST.len() as u64).into()));
    assert_eq!((&stats["bytes_out"], &stats["closed"]["finished"]), (&sent.into(), &1.into()));
}

#[test]
fn a_default_yields_to_the_descriptor_limit_and_says_so() {
    for (model, expected) in [
        (Model::Poll, "148: the descriptor limit is 200; raise it with ulimit -n"),
        (
            Model::Uring,
            "298: the descriptor limit is 200, also for the table of each ring; raise it with ulimit -n",
        ),
    ] {
        if !Model::available().contains(&model) {
            continue;
        }
        let server = Server::of(&mut with_descriptors(
            200,
            &["serve", "http", "--listen", "127.0.0.1:0", "--model", model.name(), "--threads", "1"],
        ));
        let note = server.wait_for("max-connections");
        assert_eq!(note, format!("note: max-connections lowered to {expected}"));
        assert!(server.talk(LAST).starts_with("HTTP/1.1 200 OK\r\n"));
    }
}

#[test]
fn a_second_signal_does_not_wait_for_slow_readers() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    std::fs::File::create(&page).unwrap().set_len(32 << 20).unwrap(); // more than the kernel takes
    let server = Server::start(&[
        "serve",
        "http",
        "--listen",
        "127.0.0.1:0",
        "--model",
        "poll",
        "--drain-timeout",
        "10m",
        "--send-timeout",
        "none",
        "--page",
        page.to_str().unwrap(),
    ]);
    let mut slow = server.connect();
    slow.write_all(LAST.as_bytes()).unwrap();
    slow.read_exact(&mut [0]).unwrap();
    server.signal(Signal::TERM);
    server.wait_for("stopping: 1 connections may finish within 600s");
    server.signal(Signal::INT);
    assert_eq!(server.ended().0.code(), Some(1));
}

/// Asks again and again on one connection until the server says that it leaves; `None` where this thread was held up
/// for so long that the server may have taken the connection for idle.
fn ask_until_the_server_closes(stream: TcpStream, answers: &AtomicUsize) -> Option<()> {
    const PAGE: usize = 4096;
    let mut stream = BufReader::new(stream);
    let mut asked_before = Instant::now();
    loop {
        let asked = Instant::now();
        let mut answer = || {
            stream.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if stream.read_line(&mut head)? == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
            }
            stream.read_exact(&mut [0; PAGE]).map(|()| head)
        };
        match answer() {
            Ok(head) if head.contains("Connection: close\r\n") => return Some(()),
            Ok(_) => _ = answers.fetch_add(1, Ordering::Relaxed),
            Err(_) if asked_before.elapsed() > Duration::from_millis(500) => return None,
            Err(e) => panic!("no answer after {:?}, {:?}: {e}", asked_before.elapsed(), asked.elapsed()),
        }
        asked_before = asked;
    }
}

#[test]
fn a_stop_cuts_no_answer_of_a_kept_connection() {
    for model in Model::available() {
        let server = Server::start(&["serve", "http", "--model", model.name(), "--listen", "127.0.0.1:0"]);
        let answers: [AtomicUsize; 32] = Default::default();
        let notified = thread::scope(|scope| {
            let ask = |answers| {
                let stream = server.connect();
                scope.spawn(move || ask_until_the_server_closes(stream, answers))
            };
            let clients: Vec<_> = answers.iter().map(ask).collect();
            // One that was not answered yet is perhaps not even accepted.
            while answers.iter().any(|answers| answers.load(Ordering::Relaxed) < 20) {
                assert!(clients.iter().all(|client| !client.is_finished()), "{model}");
                thread::yield_now();
            }
            server.signal(Signal::TERM);
            clients
                .into_iter()
                .filter_map(|client| client.join().unwrap_or_else(|_| panic!("{model}")))
                .count()
        });
        assert!(notified > 0, "{model}");
        assert_eq!(server.ended().0.code(), Some(0), "{model}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_stop_answers_those_who_were_not_accepted_yet() {
    const CLIENTS: usize = 100; // less than any backlog
    for model in Model::available() {
        let server = Server::start(&["serve", "http", "--model", model.name(), "--listen", "127.0.0.1:0"]);
        server.pause();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(LAST.as_bytes()).unwrap();
        }
        let start = Instant::now();
        while established(server.pid(), server.addr) < CLIENTS {
            assert!(start.elapsed() < DEADLINE, "{model}");
            thread::yield_now();
        }
        server.signal(Signal::TERM);
        server.signal(Signal::CONT);
        for client in &mut clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{model}: {e}"));
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{model}: {answer:?}");
        }
        assert_eq!(server.ended().0.code(), Some(0), "{model}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_keeps_to_its_processors() {
    let cpu = *tidegate::system::allowed_cpus().first().unwrap();
    let list = cpu.to_string();
    let server =
        Server::start(&["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--cpus", &list]);
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{list}\n")), "{status}");
    }
}
