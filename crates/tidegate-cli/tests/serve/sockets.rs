//! Unix sockets and Multipath TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
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
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    ask(stream)
}

fn get_at(url: &str) -> String {
    let stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    ask(stream)
}

fn ask(mut stream: impl Read + Write) -> String {
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
fn one_service_listens_on_several_addresses_on_every_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let at = format!("unix:{}", path.display());
    for model in Model::available() {
        let more = ["--listen", "[::1]:0", "--listen", &at, "--model", model.name(), "--stats"];
        let mut server = Server::of(&mut serve("http", "127.0.0.1:0", &more));
        let second = server.next_url();
        assert!(second.starts_with("http://[::1]:"), "{second}");
        assert_eq!(server.next_url(), at);
        for answer in [get_at(&server.url), get_at(&second), get(&path)] {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{model}: {answer}");
        }
        server.signal(Signal::TERM);
        let (status, _, stderr) = server.ended();
        assert_eq!(status.code(), Some(0));
        let counters = stderr.iter().find(|line| line.contains("\"accepted\":3,"));
        assert!(counters.is_some(), "{model}: the counters are those of all addresses: {stderr:?}");
        assert!(!path.exists(), "{model}");
    }
}

#[test]
fn addresses_that_exclude_each_other_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("unix:{}", folder.path().join("socket").display());
    let outcome = run(&mut serve("http", &at, &["--listen", &at]));
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    let says = format!("--listen {at} conflicts with --listen {at}");
    assert!(outcome.stderr.contains(&says), "{}", outcome.stderr);
    let outcome = run(&mut serve("http", "127.0.0.1:0", &["--listen", &at, "--mptcp"]));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("Unix sockets do not support it"), "{}", outcome.stderr);
}

#[test]
fn members_of_one_room_come_from_every_address() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server =
        Server::of(&mut serve("chat", "127.0.0.1:0", &["--listen", &format!("unix:{}", path.display())]));
    let mut far = BufReader::new(server.connect());
    let mut near = BufReader::new(UnixStream::connect(&path).unwrap());
    near.get_ref().set_read_timeout(Some(DEADLINE)).unwrap();
    let mut line = String::new();
    far.get_mut().write_all(b"/join tide far\n").unwrap();
    far.read_line(&mut line).unwrap();
    near.get_mut().write_all(b"/join tide near\n").unwrap();
    line.clear();
    near.read_line(&mut line).unwrap();
    assert_eq!(line, "= joined tide as near, 2 here, at #2\n");
    near.get_mut().write_all(b"hello\n").unwrap();
    while !line.ends_with("near: hello\n") {
        line.clear();
        assert_ne!(far.read_line(&mut line).unwrap(), 0);
    }
}

#[test]
fn a_successor_takes_all_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let (path, handover) = (folder.path().join("socket"), folder.path().join("handover.sock"));
    let (at, handover) = (format!("unix:{}", path.display()), handover.to_str().unwrap().to_owned());
    let handing = ["--model", "epoll", "--metrics", "127.0.0.1:0", "--handover", &handover];
    let mut first =
        Server::of(&mut serve("http", "127.0.0.1:0", &[&["--listen", &at][..], &handing].concat()));
    assert_eq!(first.next_url(), at);
    let one = run(&mut serve("http", &first.addr.to_string(), &handing));
    assert_eq!(one.code, Some(2));
    let says = format!("the running server listens on {}, {at}", first.addr);
    assert!(one.stderr.contains(&says), "{}", one.stderr);
    // In another order, and a port that is not named.
    let mut second =
        Server::of(&mut serve("http", &at, &[&["--listen", "127.0.0.1:0"][..], &handing].concat()));
    assert_eq!(second.url, first.url);
    assert_eq!(second.next_url(), at);
    assert_eq!(first.ended().0.code(), Some(0));
    assert!(get_at(&second.url).starts_with("HTTP/1.1 200 ") && get(&path).starts_with("HTTP/1.1 200 "));
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0.code(), Some(0));
    assert!(!path.exists(), "the last one takes the file away");
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
    let (path, handover) = (folder.path().join("socket"), folder.path().join("handover.sock"));
    let (at, handover) = (format!("unix:{}", path.display()), handover.to_str().unwrap().to_owned());
    for model in Model::available() {
        let more = ["--model", model.name(), "--handover", &handover];
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

#[test]
fn a_service_manager_keeps_the_file_of_its_socket_also_when_a_server_succeeds_another() {
    let folder = tempfile::tempdir().unwrap();
    let (path, handover) = (folder.path().join("socket"), folder.path().join("handover.sock"));
    let held = UnixListener::bind(&path).unwrap();
    let start = || {
        let mut command =
            tidegate(&["serve", "http", "--model", "poll", "--handover", handover.to_str().unwrap()]);
        let socket = OwnedFd::from(held.try_clone().unwrap());
        command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", "0").stdin(Stdio::from(socket));
        Server::started(&mut command)
    };
    let first = start();
    let second = start();
    assert_eq!(first.ended().0.code(), Some(0), "it has a successor");
    assert!(get(&path).starts_with("HTTP/1.1 200 "));
    second.signal(Signal::TERM);
    assert_eq!(second.ended().0.code(), Some(0));
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
fn what_a_unix_socket_cannot_keep_is_bad_usage() {
    let folder = tempfile::tempdir().unwrap();
    let at = format!("unix:{}", folder.path().join("socket").display());
    for (more, says) in [
        (&["--mptcp"][..], "Unix sockets do not support it"),
        (&["--socket-send-buffer", "64k"], "--socket-send-buffer cannot be enforced on a Unix socket"),
        (&["--fast-open", "16"], "--fast-open cannot be enforced on a Unix socket"),
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
