//! Bad input: one clear error with its remedy, the right exit code, nothing on stdout, nothing half-started.

use std::net::TcpListener;

use crate::config::File;
use crate::kit::{Outcome, Server, run, tidegate, with_descriptors, with_locked_memory};

fn serve(args: &[&str]) -> Outcome {
    run(&mut tidegate(&[&["serve"], args].concat()))
}

#[track_caller]
fn refused(outcome: &Outcome, code: i32, says: &[&str]) {
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    let line = outcome.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error");
    for text in says {
        assert!(line.contains(text), "{text:?} in {line:?}");
    }
}

#[test]
fn a_model_that_does_not_exist_or_is_not_here() {
    let unknown = serve(&["http", "--model", "kqueue"]);
    refused(&unknown, 2, &["'kqueue'", "--model"]);
    assert!(["epoll", "auto"].iter().all(|name| unknown.stderr.contains(name)), "{}", unknown.stderr);
    refused(
        &serve(&["http", "--listen", "127.0.0.1:0", "--model", "iocp"]),
        2,
        &["iocp is unavailable", "Windows"],
    );
}

#[test]
fn an_address_that_is_none_or_belongs_to_somebody_else() {
    for text in ["here", "127.0.0.1", "127.0.0.1:99999", ":8080", "example.org:80"] {
        refused(&serve(&["echo", "--listen", text]), 2, &[text, "write ADDR:PORT"]);
    }
    // Of a block kept for documentation (RFC 5737).
    let foreign = serve(&["echo", "--listen", "203.0.113.1:0", "--model", "poll"]);
    refused(&foreign, 1, &["203.0.113.1:0", "no interface of this machine"]);
}

#[test]
fn a_port_in_use() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap();
    for model in tidegate::Model::available() {
        let outcome = serve(&["http", "--listen", &addr.to_string(), "--model", model.name()]);
        refused(&outcome, 1, &[&addr.to_string(), "another program uses port", "choose another port"]);
    }
}

#[test]
fn a_page_that_cannot_be_served() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.html");
    refused(
        &serve(&["http", "--page", missing.to_str().unwrap()]),
        2,
        &["missing.html", "give a file that exists"],
    );
    refused(
        &serve(&["http", "--page", folder.path().to_str().unwrap()]),
        2,
        &["a directory; give a regular file"],
    );
    refused(&serve(&["http", "--page", "/dev/null"]), 2, &["not a regular file"]);
    let large = folder.path().join("large");
    std::fs::File::create(&large).unwrap().set_len((64 << 20) + 1).unwrap(); // sparse
    refused(&serve(&["http", "--page", large.to_str().unwrap()]), 2, &["larger than 64 MiB"]);
}

#[test]
fn limits_that_contradict_each_other() {
    let marks = serve(&["http", "--outbox-low", "64k", "--outbox-high", "16KiB"]);
    refused(&marks, 2, &["--outbox-low (64KiB)", "--outbox-high (16KiB)", "must lie below"]);
    let stale = serve(&["echo", "--idle-timeout", "1s"]);
    refused(&stale, 2, &["--first-byte-timeout (30s)", "--idle-timeout (1s)", "make --first-byte-timeout"]);
    let head = serve(&["http", "--head-bytes", "128k"]);
    refused(
        &head,
        2,
        &["--head-bytes (128KiB)", "--input-bytes (64KiB)", "lower --head-bytes or raise --input-bytes"],
    );
    let threads = serve(&["http", "--threads", "8", "--max-connections", "4"]);
    refused(&threads, 2, &["--threads (8)", "--max-connections (4)"]);
}

#[test]
fn values_that_are_none() {
    refused(&serve(&["http", "--buffer-bytes", "5000"]), 2, &["'5000'", "--buffer-bytes", "multiple of"]);
    refused(&serve(&["http", "--buffer-bytes", "much"]), 2, &["--buffer-bytes", "16KiB"]);
    refused(&serve(&["http", "--idle-timeout", "30x"]), 2, &["--idle-timeout", "'30x'", "write 10s"]);
    refused(
        &serve(&["http", "--request-timeout", "0s"]),
        2,
        &["'0s'", "--request-timeout", "longer than zero"],
    );
    refused(&serve(&["http", "--linger-timeout", "none"]), 2, &["--linger-timeout"]);
    refused(&serve(&["http", "--threads", "0"]), 2, &["--threads"]);
    refused(&serve(&["http", "--cpus", "99999"]), 2, &["no processor 99999", "may use"]);
}

#[test]
fn what_there_is_no_flag_for() {
    refused(&serve(&["echo", "--page", "x"]), 2, &["--page"]);
    refused(&serve(&["http", "--poll-hard", "10"]), 2, &["--poll-hard"]);
    refused(&serve(&["gopher"]), 2, &["gopher"]);
}

#[test]
fn limits_that_mean_nothing_on_the_model() {
    let pool = serve(&["http", "--model", "pool", "--max-receiving", "10"]);
    refused(&pool, 2, &["--max-receiving", "pool", "number of threads"]);
    let spin = serve(&["echo", "--model", "blocking", "--wait", "spin"]);
    refused(&spin, 2, &["--wait", "blocking", "epoll"]);
    let library = serve(&["echo", "--model", "tokio", "--busy-poll", "50us"]);
    refused(&library, 2, &["--busy-poll", "tokio", "epoll"]);
    refused(&serve(&["echo", "--busy-poll", "2s"]), 2, &["--busy-poll", "between 1us and 1s"]);
    let marks = serve(&["echo", "--model", "poll", "--posted-accepts", "1:2"]);
    refused(&marks, 2, &["--posted-accepts", "--accept-batch", "--backlog"]);
    refused(&serve(&["echo", "--posted-accepts", "3:2"]), 2, &["--posted-accepts", "3:2", "low watermark"]);
    let both = serve(&["echo", "--model", "epoll", "--wait", "spin", "--coalesce", "200us"]);
    refused(&both, 2, &["coalesce", "200us", "wait", "spin"]);
    refused(&serve(&["echo", "--model", "pool", "--coalesce", "200us"]), 2, &["--coalesce", "pool", "epoll"]);
    refused(&serve(&["echo", "--coalesce", "1s"]), 2, &["--coalesce", "between 0s and 10ms"]);
    refused(&serve(&["echo", "--wait", "sleep"]), 2, &["--wait", "spin:50ms"]);
}

#[test]
fn limits_that_change_nothing_on_the_model_are_said_and_the_server_runs() {
    for (model, options, says) in [
        ("poll", &["--events-per-wait", "7"][..], "events-per-wait has no effect on poll: each wait"),
        ("epoll", &["--buffers", "7"], "buffers has no effect on epoll: it has no pool"),
        (
            "blocking",
            &["--threads", "2"],
            "threads has no effect on blocking: it has two threads for each connection: --max-connections",
        ),
        ("pool", &["--accept-batch", "2"], "accept-batch has no effect on pool"),
        ("select", &["--thread-stack-bytes", "64k"], "thread-stack-bytes has no effect on select"),
        (
            "epoll",
            &["--receive", "zero-byte"],
            "receive has no effect on epoll: idle connections pin no buffer",
        ),
    ] {
        has_no_effect(&["echo"], model, options, says);
    }
    let stack = ["--thread-stack-bytes", "64k"];
    has_no_effect(
        &["udp", "echo"],
        "epoll",
        &stack,
        "thread-stack-bytes has no effect on epoll: its threads",
    );
}

fn has_no_effect(service: &[&str], model: &str, options: &[&str], says: &str) {
    let args = ["--listen", "127.0.0.1:0", "--model", model];
    let server = Server::start(&[&["serve"], service, &args, options].concat());
    server.signal(rustix::process::Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0), "{stderr:?}");
    assert_eq!(stderr.iter().filter(|line| line.contains(says)).count(), 1, "{says:?} in {stderr:?}");
}

#[test]
fn more_memory_than_may_be_locked() {
    let args =
        ["serve", "echo", "--model", "epoll", "--threads", "1", "--lock-memory", "--buffer-bytes", "16m"];
    refused(&run(&mut with_locked_memory(64, &args)), 1, &["--lock-memory", "RLIMIT_MEMLOCK", "ulimit -l"]);
}

#[test]
fn more_connections_than_descriptors() {
    let args = ["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--max-connections", "1000"];
    let outcome = run(&mut with_descriptors(200, &args));
    refused(&outcome, 2, &["--max-connections is 1000", "descriptor limit of 200", "ulimit -n"]);
    let none = run(&mut with_descriptors(5, &args[..6]));
    refused(&none, 2, &["too low for any connection", "ulimit -n"]);
}

#[test]
fn a_number_has_one_range_whatever_is_wrong_with_it() {
    for threads in ["0", "100000", "-1", "many", "99999999999999999999999"] {
        let option = format!("--threads={threads}");
        let says = ["--threads", "must be between 1 and 65536, or none"];
        refused(&serve(&["http", &option]), 2, &says);
        let file = File::of(&format!("[[server]]\nservice = \"http\"\nthreads = \"{threads}\"\n"));
        file.refused(&[], &says);
    }
    refused(&serve(&["http", "--max-connections", "0"]), 2, &["must be between 1 and 16000000"]);
}

#[test]
fn a_folder_or_a_page_that_cannot_be_read_is_complained_of_once() {
    for args in [&["files", "/etc/passwd"][..], &["http", "--page", "/none/at/all"]] {
        let outcome = serve(args);
        assert_eq!(outcome.code, Some(2));
        assert_eq!(outcome.stderr.matches("(os error").count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn threads_that_take_all_descriptors_are_named() {
    let args = ["serve", "http", "--listen", "127.0.0.1:0", "--model", "pool"];
    let none = run(&mut with_descriptors(256, &args));
    refused(&none, 2, &["256 threads take all: lower --threads to 64, or raise it with ulimit -n"]);
    let server = Server::of(&mut with_descriptors(256, &[&args[..], &["--threads", "64"]].concat()));
    assert!(
        server.talk("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200")
    );
}
