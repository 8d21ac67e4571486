//! Socket activation, hand-over to a successor, and what a drain says at its end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tidegate::Model;

use crate::clients::Clients;
use crate::config::File;
use crate::kit::{DEADLINE, Server, run, tidegate};

const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn get(addr: SocketAddr) -> std::io::Result<usize> {
    let mut stream = TcpStream::connect_timeout(&addr, DEADLINE)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(LAST.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, page)) if head.starts_with("HTTP/1.1 200 ") => Ok(page.len()),
        _ => Err(std::io::Error::other(format!("{answer:?}"))),
    }
}

/// `serve http` with a hand-over at `path`.
fn handing(path: &Path, model: Model, more: &[&str]) -> Command {
    let fixed = ["serve", "http", "--model", model.name(), "--threads", "2", "--handover"];
    tidegate(&[&fixed[..], &[path.to_str().unwrap()], more].concat())
}

/// Clients that make a connection for each request.
fn clients(addr: SocketAddr) -> Clients {
    Clients::asking(4, MOST_REQUESTS, || move || assert_eq!(get(addr).expect("no request fails"), 4096))
}

const MOST_REQUESTS: usize = 50_000;

#[test]
fn a_restart_by_hand_over_fails_no_request_on_any_model() {
    for model in Model::available() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover.sock");
        let mut running = Server::of(&mut handing(&path, model, &["--listen", "127.0.0.1:0"]));
        let addr = running.addr;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let clients = clients(addr);
        for _ in 0..3 {
            clients.hears(50);
            let next = Server::of(&mut handing(&path, model, &[]));
            assert_eq!(next.addr, addr, "{model}");
            let (status, _, stderr) = std::mem::replace(&mut running, next).ended();
            assert_eq!(status.code(), Some(0), "{model}: {stderr:?}");
            assert!(stderr.iter().any(|line| line.contains(" 0 were cut off")), "{model}: {stderr:?}");
            assert!(path.exists(), "the successor's");
        }
        clients.hears(50);
        assert!(clients.end() >= 200);
        running.signal(Signal::TERM);
        assert_eq!(running.ended().0.code(), Some(0));
        assert!(!path.exists(), "the last one takes it away");
    }
}

#[test]
fn a_stop_closes_the_listening_socket_at_once_although_it_could_be_handed_over() {
    for model in Model::available() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover.sock");
        let drain = ["--listen", "127.0.0.1:0", "--drain-timeout", "10m"];
        let server = Server::of(&mut handing(&path, model, &drain));
        // Half a request, which the server waits for.
        let mut held = server.connect();
        held.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").unwrap();
        assert_eq!(get(server.addr).unwrap(), 4096, "{model}: that the first one was accepted before");
        server.signal(Signal::TERM);
        let since = std::time::Instant::now();
        while TcpStream::connect(server.addr).is_ok() {
            assert!(since.elapsed() < DEADLINE, "{model}: callers wait for a server that does not accept");
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!(server.ended().0.code(), Some(0), "{model}");
    }
}

#[test]
fn a_successor_that_fails_leaves_the_first_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let first = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    let elsewhere = run(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:1"]));
    assert_eq!((elsewhere.code, elsewhere.stdout.as_str()), (Some(2), ""));
    assert!(elsewhere.stderr.contains(&format!("the running server listens on {}", first.addr)));
    let contrary = run(&mut handing(&path, Model::Poll, &["--outbox-low", "1m"]));
    assert_eq!(contrary.code, Some(2));
    if Model::Uring.availability().is_available() {
        let other = run(&mut handing(&path, Model::Uring, &[]));
        assert_eq!(other.code, Some(2));
        assert!(other.stderr.contains("--model poll"), "{}", other.stderr);
    }
    // Takes the sockets, and dies before it is ready.
    let mut dying = UnixStream::connect(&path).unwrap();
    dying.write_all(b"tidegate handover 1").unwrap();
    assert_eq!(dying.read(&mut [0; 64]).unwrap(), "poll/http".len());
    drop(dying);
    first.wait_for("it gave up before it accepted");
    let mut strange = UnixStream::connect(&path).unwrap();
    strange.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    first.wait_for("another version of the protocol");
    assert_eq!(get(first.addr).unwrap(), 4096);
    let second = Server::of(&mut handing(&path, Model::Poll, &[]));
    assert_eq!(first.ended().0.code(), Some(0));
    assert_eq!(get(second.addr).unwrap(), 4096);
}

#[test]
fn a_successor_with_another_service_does_not_take_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let first = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    let echo = ["serve", "echo", "--model", "poll", "--handover", path.to_str().unwrap()];
    match Server::attempt(&mut tidegate(&echo)) {
        Ok(server) => panic!("echo took the place of http, at {}", server.url),
        Err(outcome) => {
            assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
            let says = "runs the service http, and this one is echo";
            assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
        }
    }
    assert_eq!(get(first.addr).unwrap(), 4096);
}

/// One of an earlier version says which model it runs on, and not which service.
#[test]
fn a_predecessor_that_does_not_name_its_service_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let handover = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let sockets = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = sockets.local_addr().unwrap();
    let earlier = std::thread::spawn(move || {
        let (mut stream, _) = handover.accept().unwrap();
        assert_eq!(stream.read(&mut [0; 64]).unwrap(), "tidegate handover 1".len());
        tidegate::system::handover::send(&stream, b"poll", &[std::os::fd::AsFd::as_fd(&sockets)]).unwrap();
        let mut ready = String::new();
        stream.read_to_string(&mut ready).unwrap();
        assert_eq!(ready, "ready");
    });
    let next = Server::of(&mut handing(&path, Model::Poll, &[]));
    assert_eq!(next.addr, addr);
    earlier.join().unwrap();
    assert_eq!(get(addr).unwrap(), 4096);
}

#[test]
fn who_finds_nobody_to_take_over_from_says_where_it_listens_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let says =
        format!("no server answers at {} to take over from; listening on 127.0.0.1:8080", path.display());
    // The port may be in use: the note is written before it is bound.
    let said = match Server::attempt(&mut handing(&path, Model::Poll, &[])) {
        Ok(server) => {
            server.signal(Signal::TERM);
            server.ended().2.join("\n")
        }
        Err(outcome) => outcome.stderr,
    };
    assert!(said.contains(&says), "{said}");
    let asked = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    let next = Server::of(&mut handing(&path, Model::Poll, &[]));
    for server in [asked, next] {
        server.signal(Signal::TERM);
        let stderr = server.ended().2.join("\n");
        assert!(!stderr.contains("to take over from"), "{stderr}");
    }
}

#[test]
fn silent_callers_keep_no_successor_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let first = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    let addr = first.addr;
    let mut callers: Vec<UnixStream> = (0..20).map(|_| UnixStream::connect(&path).unwrap()).collect();
    // These take the sockets and never get ready.
    for caller in callers.iter_mut().rev().take(3) {
        caller.set_read_timeout(Some(DEADLINE)).unwrap();
        caller.write_all(b"tidegate handover 1").unwrap();
        assert!(caller.read(&mut [0; 64]).unwrap() > 0);
    }
    let second = Server::of(&mut handing(&path, Model::Poll, &[]));
    assert_eq!(second.addr, addr);
    assert_eq!(first.ended().0.code(), Some(0));
    assert_eq!(get(addr).unwrap(), 4096);
}

#[test]
fn a_start_of_several_that_fails_late_leaves_the_door_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let first = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    // The second one finds only when it starts that its socket has no folder.
    let file = File::of(&format!(
        "[[server]]\nservice = \"http\"\nmodel = \"poll\"\nhandover = \"{0}\"\n\
         [[server]]\nservice = \"echo\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nhandover = \"{0}s/none\"\n",
        path.display()
    ));
    let failed = run(&mut tidegate(&["serve", "--config", file.name()]));
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), ""), "{}", failed.stderr);
    assert!(failed.stderr.contains("cannot put a socket at"), "{}", failed.stderr);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["handover.sock"]);
    first.wait_for("it gave up before it accepted");
    let second = Server::of(&mut handing(&path, Model::Poll, &[]));
    assert_eq!(second.addr, first.addr);
    assert_eq!(first.ended().0.code(), Some(0));
    assert_eq!(get(second.addr).unwrap(), 4096);
}

#[test]
fn the_metrics_are_handed_over_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let args = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let first = Server::of(&mut handing(&path, Model::Poll, &args));
    let said = first.wait_for("metrics on ");
    let addr = said.split("http://").nth(1).unwrap().trim_end_matches("/metrics");
    let second = Server::of(&mut handing(&path, Model::Poll, &["--metrics", addr]));
    assert_eq!(first.ended().0.code(), Some(0));
    assert_eq!(second.wait_for("metrics on "), said);
}

#[test]
fn a_path_that_is_taken_or_left_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let outcome = run(&mut handing(&file, Model::Poll, &["--listen", "127.0.0.1:0"]));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("is not a socket; give another path"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let path = folder.path().join("handover.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // its process was killed
    let server = Server::of(&mut handing(&path, Model::Poll, &["--listen", "127.0.0.1:0"]));
    assert_eq!(get(server.addr).unwrap(), 4096);
}

/// A service manager's way of starting: the socket is descriptor 3.
fn activated(socket: impl Into<OwnedFd>, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).args(args);
    command.stdin(Stdio::from(socket.into()));
    command
}

#[test]
fn a_passed_socket_is_served_and_outlives_the_server_on_every_model() {
    for model in Model::available() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        for _ in 0..2 {
            let mut command =
                activated(socket.try_clone().unwrap(), &["serve", "http", "--model", model.name()]);
            let server = Server::started(&mut command);
            assert_eq!(server.addr, addr, "{model}");
            server.wait_for("an inherited socket (LISTEN_FDS)");
            assert_eq!(get(addr).unwrap(), 4096, "{model}");
            server.signal(Signal::TERM);
            assert_eq!(server.ended().0.code(), Some(0), "{model}");
        }
    }
}

#[test]
fn a_passed_descriptor_that_does_not_listen_is_bad_usage() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(holder.local_addr().unwrap()).unwrap();
    let output = activated(connected, &["serve", "http", "--model", "poll"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("does not listen"), "{output:?}");
}

#[test]
fn the_service_manager_hears_of_start_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let hear = || {
        let mut message = [0; 128];
        let n = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..n]).trim().to_owned()
    };
    let mut command = tidegate(&["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll"]);
    let server = Server::of(command.env("NOTIFY_SOCKET", &path));
    assert_eq!(hear(), "READY=1");
    server.signal(Signal::TERM);
    assert_eq!(hear(), "STOPPING=1");
    assert_eq!(server.ended().0.code(), Some(0));
}

#[test]
fn a_drain_says_who_finished_and_who_was_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page");
    std::fs::File::create(&page).unwrap().set_len(32 << 20).unwrap(); // more than the kernel takes
    let page = page.to_str().unwrap();
    for (timeout, reads, says) in [
        ("100ms", false, "0 connections finished, 1 were cut off"),
        ("1m", true, "1 connections finished, 0 were"),
    ] {
        let args = ["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", "--page", page];
        let server = Server::start(&[&args[..], &["--drain-timeout", timeout]].concat());
        let mut reader = server.connect();
        reader.write_all(LAST.as_bytes()).unwrap();
        reader.read_exact(&mut [0]).unwrap();
        server.signal(Signal::TERM);
        server.wait_for("stopping: 1 connections");
        if reads {
            std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        }
        server.wait_for(says);
        assert_eq!(server.ended().0.code(), Some(0));
    }
}
