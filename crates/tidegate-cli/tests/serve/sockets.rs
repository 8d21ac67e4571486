//! Unix sockets and Multipath TCP.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;
use tidegate::Model;

use crate::kit::{DEADLINE, Server, run, tidegate};

fn serve(what: &str, at: &str, more: &[&str]) -> std::process::Command {
    tidegate(&[&["serve", what, "--listen", at, "--threads", "2"][..], more].concat())
}

fn get(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_unix_socket_serves_and_is_loaded_on_every_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let at = format!("unix:{}", path.display());
    for model in Model::available() {
        let server = Server::of(&mut serve("http", &at, &["--model", model.name()]));
        assert_eq!(server.url, at);
        assert!(get(&path).starts_with("HTTP/1.1 200 "), "{model}");
        let target = format!("http://{at}:/page");
        let load =
            run(&mut tidegate(&["load", "http", &target, "-c", "8", "-n", "400", "--model", model.name()]));
        assert_eq!(load.code, Some(0), "{model}: {}{}", load.stdout, load.stderr);
        server.signal(Signal::TERM);
        assert_eq!(server.ended().0.code(), Some(0));
        assert!(!path.exists(), "{model}: it takes its file away");
    }
}

#[test]
fn only_a_dead_server_makes_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let at = format!("unix:{}", path.display());
    let first = Server::of(&mut serve("http", &at, &[]));
    let second = run(&mut serve("http", &at, &[]));
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains("a server listens on this socket"), "{}", second.stderr);
    drop(first); // kills it
    // The kernel ends a ring, and what it listened with, a moment after its process.
    let start = Instant::now();
    while UnixStream::connect(&path).is_ok() {
        assert!(start.elapsed() < DEADLINE, "a dead server listens");
        std::thread::yield_now();
    }
    assert!(path.exists());
    let third = Server::of(&mut serve("http", &at, &[]));
    assert!(get(&path).starts_with("HTTP/1.1 200 "));
    third.signal(Signal::TERM);
    assert_eq!(third.ended().0.code(), Some(0));
}

#[test]
fn a_successor_takes_a_unix_socket_and_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, door) = (folder.path().join("socket"), folder.path().join("door"));
    let (at, door) = (format!("unix:{}", path.display()), door.to_str().unwrap().to_owned());
    for model in Model::available() {
        let more = ["--model", model.name(), "--handover", &door];
        let first = Server::of(&mut serve("http", &at, &more));
        let elsewhere = run(&mut serve("http", "unix:/elsewhere", &more));
        assert_eq!(elsewhere.code, Some(2), "{model}");
        assert!(
            elsewhere.stderr.contains(&format!("the running server listens on {at}")),
            "{}",
            elsewhere.stderr
        );
        let second = Server::of(&mut tidegate(&[&["serve", "http"][..], &more].concat()));
        assert_eq!(second.url, at);
        let (status, _, stderr) = first.ended();
        assert_eq!(status.code(), Some(0), "{model}: {stderr:?}");
        assert!(path.exists(), "{model}: the successor's");
        assert!(get(&path).starts_with("HTTP/1.1 200 "));
        second.signal(Signal::TERM);
        assert_eq!(second.ended().0.code(), Some(0));
        assert!(!path.exists(), "{model}: the last one takes it away");
    }
}

#[test]
fn a_service_manager_may_pass_a_unix_socket_and_keeps_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let held = OwnedFd::from(UnixListener::bind(&path).unwrap());
    let mut command = tidegate(&["serve", "http", "--model", "poll"]);
    command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", "0").stdin(Stdio::from(held));
    let server = Server::started(&mut command);
    assert_eq!(server.url, format!("unix:{}", path.display()));
    assert!(get(&path).starts_with("HTTP/1.1 200 "));
    server.signal(Signal::TERM);
    assert_eq!(server.ended().0.code(), Some(0));
    assert!(path.exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_needs_no_file() {
    let at = format!("unix:@tidegate-test-{}", std::process::id());
    let server = Server::of(&mut serve("echo", &at, &[]));
    assert_eq!(server.url, at);
    let load = run(&mut tidegate(&["load", "echo", &at, "-c", "4", "-n", "100"]));
    assert_eq!(load.code, Some(0), "{}{}", load.stdout, load.stderr);
}

#[test]
fn what_a_unix_socket_can_not_keep_is_bad_usage() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("unix:{}", folder.path().join("socket").display());
    for (more, says) in [
        (&["--mptcp"][..], "one path only"),
        (&["--socket-send-buffer", "64k"], "socket_send_buffer can not be enforced on a Unix socket"),
        (&["--fast-open", "16"], "accept.fast_open can not be enforced on a Unix socket"),
    ] {
        let outcome = run(&mut serve("http", &at, more));
        assert_eq!(outcome.code, Some(2), "{more:?}");
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    }
    let load = run(&mut tidegate(&["load", "http", &at, "--sources", "2"]));
    assert_eq!(load.code, Some(2));
    assert!(load.stderr.contains("no source address"), "{}", load.stderr);
}

/// Where the kernel has it, both ends use it; where it has not, that is said and nothing else is put in its place.
#[test]
fn multipath_tcp_is_never_silently_plain() {
    let here = std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1");
    let mut command = serve("echo", "127.0.0.1:0", &["--mptcp"]);
    if !here {
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(1));
        return assert!(outcome.stderr.contains("Multipath TCP"), "{}", outcome.stderr);
    }
    let server = Server::of(&mut command);
    let target = server.addr.to_string();
    for more in [&["--mptcp"][..], &[]] {
        let args = [&["load", "echo", &target, "-c", "4", "-n", "400"][..], more].concat();
        let load = run(&mut tidegate(&args));
        assert_eq!(load.code, Some(0), "{more:?}: {}{}", load.stdout, load.stderr);
    }
}
