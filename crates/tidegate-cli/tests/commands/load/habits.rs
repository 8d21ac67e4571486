//! What hands know from other generators: units, and short names of options. And advice that can be followed.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use super::{Server, TIDEGATE, bad_server, load, mirror, report};

#[test]
fn amounts_have_the_units_that_people_write() {
    let server = Server::start("http", "epoll");
    let output = load(&["http", &server.url, "-d", "1s", "-c", "10", "--rate", "1k", "--json", "-"]);
    let paced = report(&output);
    let open = paced.open_loop.as_ref().unwrap();
    // A machine that stalls at the end of a run has some of what is due then not begun.
    assert_eq!((open.started + open.not_started, paced.failed), (1_000, 0), "{output:?}");
    assert_eq!((paced.connections, open.scheduled, open.rate_per_s), (10, 1_000, 1_000.0), "{paced:?}");
    let counted = report(&load(&["http", &server.url, "-c", "0.01k", "-n", "1k", "--json", "-"]));
    assert_eq!((counted.connections, counted.requests), (10, 1_000), "{counted:?}");
    // A plain number is seconds, with or without decimals; minutes and hours are units, too.
    for (text, s) in [("0.3", 0.3), ("300ms", 0.3), ("0.005m", 0.3), ("300000us", 0.3), ("0.0001h", 0.36)] {
        let timed = report(&load(&["http", &server.url, "-c", "1", "-d", text, "--json", "-"]));
        assert!(timed.elapsed_s > s * 0.9 && timed.elapsed_s < s + 20.0, "{text}: {}", timed.elapsed_s);
    }
    let sized = Server::start("echo", "epoll");
    let sized = report(&load(&["echo", &sized.url, "-c", "1", "-n", "3", "--size", "1KiB", "--json", "-"]));
    assert_eq!(sized.bytes_sent, 3 * 1_024, "{sized:?}");
}

#[test]
fn short_names_of_other_generators_are_understood() {
    let url = bad_server(mirror).to_string();
    let run = |options: &[&str]| {
        let fixed = ["http", &url, "-c", "2", "--body", "[end]", "--json", "-"];
        let output = load(&[&fixed[..], options].concat());
        assert_eq!(output.status.code(), Some(0), "{options:?}: {output:?}");
        report(&output)
    };
    // What comes back is the request: each check fails unless the option did what its long name does.
    let contains = |options: &[&str], text: &str| {
        let report = run(&[options, &["-n", "6", "--check-body-contains", text]].concat());
        assert_eq!((report.requests, report.wrong), (6, 0), "{options:?}: {report:?}");
    };
    contains(&["-m", "PUT"], "PUT / HTTP/1.1");
    contains(&["-X", "PATCH"], "PATCH / HTTP/1.1");
    contains(&["-H", "X-Y: z"], "X-Y: z\r\n");
    for threads in [1, 2] {
        assert_eq!(run(&["-t", &threads.to_string(), "-n", "6"]).threads, threads);
    }
    let timed = run(&["-z", "300ms"]);
    assert!(timed.requests > 0 && (0.27..20.0).contains(&timed.elapsed_s), "{timed:?}");
}

/// The advice in a summary: what to raise, and what to lower.
fn advice(options: &[&str]) -> String {
    let output = Command::new(TIDEGATE).arg("load").args(options).args(["--timeout", "1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nverdict "), "{options:?}: {text}");
    let is_advice = |line: &&str| line.starts_with("verdict ") || line.starts_with("warning ");
    text.lines().filter(is_advice).collect::<Vec<_>>().join("\n")
}

#[test]
fn no_advice_contradicts_the_line_above_it() {
    // Each keeps its rate, and answers half of the requests in time.
    let halting = bad_server(|mut stream| {
        while let Ok(1..) = stream.read(&mut [0; 4096]) {
            std::thread::sleep(Duration::from_millis(100));
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let silent = bad_server(|mut stream| {
        let mut is_first = true;
        while let Ok(1..) = stream.read(&mut [0; 4096]) {
            let answers = std::mem::take(&mut is_first);
            if answers && stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    });
    let server = Server::start("http", "epoll");
    let echo = Server::start("echo", "epoll");
    let (halting, silent) = (halting.to_string(), silent.to_string());
    let cases: [&[&str]; 9] = [
        &["http", &server.url, "-c", "4", "-d", "1s"],
        &["http", &server.url, "-c", "4", "-n", "500"],
        &["http", &server.url, "-c", "20", "-d", "1s", "--rate", "50"],
        &["http", &halting, "-c", "2", "-d", "1s", "--rate", "500"],
        &["http", &halting, "-c", "2", "-d", "1s"],
        &["http", &silent, "-c", "40", "-d", "1s", "--rate", "30"],
        &["http", &server.url, "-c", "4", "--requests-each", "5"],
        &["echo", &echo.url, "-c", "4", "--messages", "5"],
        &["echo", &echo.url, "-c", "4", "-d", "2s", "-r", "20000"],
    ];
    let opposites = [
        ("raise --rate", "lower --rate"),
        ("raise --rate", "lower the load"),
        ("raise -c", "lower -c"),
        ("the requested rate was kept;", "not every request"),
    ];
    for case in cases {
        let said = advice(case);
        for (one, other) in opposites {
            assert!(!(said.contains(one) && said.contains(other)), "{case:?}: {one}, and {other}:\n{said}");
        }
        // Where no -d was given, -d cannot be made longer.
        assert!(!(case.contains(&"-n") && said.contains("-d 10")), "{case:?}:\n{said}");
        let counts_each = case.contains(&"--messages") || case.contains(&"--requests-each");
        assert!(!(counts_each && said.contains("raise -d or -n")), "{case:?}:\n{said}");
        // A load with a pace waits for that, and not for answers.
        let is_paced = case.contains(&"-r");
        for wrong in ["raise -c", "all connections waited", "wake each other"] {
            assert!(!(is_paced && said.contains(wrong)), "{case:?}: {wrong}\n{said}");
        }
    }
}
