//! `serve chat` and `load chat`: the built binary against itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{Server, finish, run, tidegate};

/// A chat server whose members may say as many lines as they want, with more options.
fn serve_chat(more: &[&str]) -> Server {
    Server::start(&[&["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "none"], more].concat())
}

fn load(server: &Server, args: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let all = [&["load", "chat", &server.url, "--json", "-"], args].concat();
    let outcome = run(&mut tidegate(&all));
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome.code, report, outcome.stderr)
}

#[test]
fn every_member_hears_everything_in_every_room() {
    let server = serve_chat(&["--threads", "2"]);
    for more in [&[][..], &["--websocket"], &["--wait", "spin:1ms"]] {
        let args =
            ["-c", "50", "--rooms", "3", "--speakers", "6", "--rate", "200", "-n", "100", "--threads", "2"];
        let pid = server.pid().to_string();
        let (code, report, stderr) = load(&server, &[&args[..], more, &["--server-pid", &pid]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!((&report["joined"], &report["said"]), (&50.into(), &100.into()));
        // Speakers and members take the rooms in turn: 17, 17 and 16 members; 34, 34 and 32 messages or as the turns
        // fall.
        let delivered = report["delivered"].as_u64().unwrap();
        assert!((100 * 16..=100 * 17).contains(&delivered), "{delivered}");
        assert_eq!((&report["wrong"], &report["undelivered"]), (&0.into(), &0.into()));
        assert!(report["latency_us"]["p50"].as_u64().unwrap() > 0);
        assert!(report["server_cpu_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn who_stops_reading_is_cut_off_and_nobody_else_misses_anything() {
    // All of it together is 32 KiB more than the server keeps for a member. So much the kernel keeps for one that reads
    // and has no processor, with its usual receive buffer, but not for one that has stopped: that has 4 KiB. And one
    // thread has come to its end when the others have heard the last message.
    let server = serve_chat(&["--threads", "1", "--behind-bytes", "128KiB", "--socket-send-buffer", "4KiB"]);
    let args = [
        "-c",
        "20",
        "--stop-reading",
        "10%",
        "--speakers",
        "4",
        "--rate",
        "300",
        "-n",
        "180",
        "--size",
        "900",
    ];
    let (code, report, stderr) = load(&server, &args);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!((&report["stopped_reading"], &report["cut_off"]), (&2.into(), &2.into()), "{report}");
    assert_eq!(report["delivered"], 18 * 180);
}

/// A certificate for this host and its key, in a folder.
fn papers() -> (tempfile::TempDir, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let pair = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&files[0], pair.cert.pem()).unwrap();
    std::fs::write(&files[1], pair.signing_key.serialize_pem()).unwrap();
    (folder, files)
}

#[test]
fn members_of_both_kinds_may_be_encrypted() {
    let (_folder, [cert, key]) = papers();
    let server = serve_chat(&["--tls-cert", &cert, "--tls-key", &key]);
    for (scheme, speech) in [("tls", "lines"), ("wss", "web_socket")] {
        let target = format!("{scheme}://{}", server.addr);
        let args =
            ["-c", "20", "--speakers", "4", "--rate", "200", "-n", "50", "--json", "-", "--tls-ca", &cert];
        let outcome = run(&mut tidegate(&[&["load", "chat", &target][..], &args].concat()));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&report["speech"], &report["delivered"]), (&speech.into(), &(20 * 50).into()));
        assert_eq!(report["tls"]["handshakes"], 20, "{report}");
    }
    let stranger = run(&mut tidegate(&["load", "chat", &format!("tls://{}", server.addr), "-c", "2"]));
    assert_eq!(stranger.code, Some(1), "{}", stranger.stderr);
    assert!(stranger.stderr.contains("no TLS connection"), "nobody vouches for it: {}", stranger.stderr);
}

/// A messenger that lets its one member in and passes nothing on.
fn mute() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut stream = BufReader::new(listener.accept().unwrap().0);
        line(&mut stream);
        stream.get_mut().write_all(b"= joined load0 as m0, 1 here, at #1\n").unwrap();
        while !line(&mut stream).is_empty() {}
    });
    addr
}

#[test]
fn the_wait_for_a_message_that_is_missing_is_no_part_of_the_run() {
    let args = ["load", "chat", &mute(), "-c", "1", "--speakers", "1", "-n", "1", "--timeout", "10"];
    let outcome = run(&mut tidegate(&[&args[..], &["--json", "-"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["said"], &report["undelivered"]), (&1.into(), &1.into()), "{}", outcome.stderr);
    assert!(report["elapsed_s"].as_f64().unwrap() < 9.0, "{report}");
}

/// A member that speaks lines, in a room.
fn member(server: &Server, room: &str) -> BufReader<TcpStream> {
    let mut stream = server.connect();
    stream.write_all(format!("/join {room} watcher\n").as_bytes()).unwrap();
    let mut member = BufReader::new(stream);
    assert!(line(&mut member).starts_with("= joined"));
    member
}

fn line(member: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    member.read_line(&mut line).unwrap();
    line
}

#[test]
fn an_interrupted_load_tells_what_was_heard_until_then() {
    let server = serve_chat(&[]);
    let mut watcher = member(&server, "load0");
    let mut command = tidegate(&["load", "chat", &server.url, "-c", "5", "-d", "600", "--json", "-"]);
    let load = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !line(&mut watcher).contains(": tg ") {}
    kill_process(Pid::from_child(&load), Signal::INT).unwrap();
    let outcome = finish(load);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("interrupted; the result is of the"), "{}", outcome.stderr);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(
        (&report["interrupted"], &report["undelivered"], &report["wrong"]),
        (&true.into(), &0.into(), &0.into())
    );
    let said = report["said"].as_u64().unwrap();
    assert!(said > 0 && report["delivered"] == said * 5, "{report}");
}

#[test]
fn a_messenger_that_goes_away_ends_the_load() {
    let server = serve_chat(&[]);
    let mut watcher = member(&server, "load0");
    let args = ["load", "chat", &server.url, "-c", "5", "-d", "15m", "--timeout", "15m", "--json", "-"];
    let mut command = tidegate(&args);
    let load = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !line(&mut watcher).contains(": tg ") {}
    drop(server);
    let outcome = finish(load);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("a member lost its connection"), "{}", outcome.stderr);
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["lost_members"], 5, "{report}");
}

#[test]
fn a_stop_and_a_hand_over_are_said_to_members() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("handover.sock");
    let serve =
        |at: &str| Server::start(&["serve", "chat", "--listen", at, "--handover", socket.to_str().unwrap()]);
    let mut server = serve("127.0.0.1:0");
    for ends in ["hand-over", "stop"] {
        // A successor takes the place of the first one, which drains and ends.
        let mut lines = member(&server, "tide");
        let mut frames = server.connect();
        frames
            .write_all(
                b"GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            )
            .unwrap();
        let mut head = [0; 12];
        frames.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 101");
        if ends == "stop" {
            server.signal(Signal::TERM);
        } else {
            let successor = serve(&server.addr.to_string());
            let (status, ..) = std::mem::replace(&mut server, successor).ended();
            assert!(status.success());
        }
        assert_eq!(line(&mut lines), "= the server is stopping; reconnect later\n", "{ends}");
        let mut rest = Vec::new();
        frames.read_to_end(&mut rest).unwrap();
        let at = rest.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        assert_eq!((rest[at], &rest[at + 2..at + 4]), (0x88, &1001_u16.to_be_bytes()[..]), "{ends}");
    }
}

#[test]
fn rooms_and_members_are_published() {
    let args = ["serve", "chat", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--name", "hall"];
    let server = Server::start(&args);
    let said = server.wait_for("metrics on http://");
    let addr = said.split("http://").nth(1).unwrap().trim_end_matches("/metrics").to_owned();
    let mut ann = member(&server, "tide");
    ann.get_mut().write_all(b"hello\n").unwrap();
    assert_eq!(line(&mut ann), "#2 watcher: hello\n");
    let mut scrape = TcpStream::connect(addr).unwrap();
    scrape.set_read_timeout(Some(crate::kit::DEADLINE)).unwrap();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    scrape.read_to_string(&mut page).unwrap();
    for sample in ["members", "rooms", "messages_total", "deliveries_total"] {
        let line = format!("\ntidegate_chat_{sample}{{server=\"hall\"}} 1\n");
        assert!(page.contains(&line), "{line} in {page}");
    }
}

#[test]
fn messages_that_are_refused_fail_the_run() {
    let server =
        Server::start(&["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "1", "--burst", "1"]);
    let (code, report, stderr) = load(&server, &["-c", "3", "--rate", "1000", "-n", "20", "--timeout", "30"]);
    assert_eq!(code, Some(1));
    assert!(report["refused"].as_u64().unwrap() > 0 && report["undelivered"] == 0, "{report}");
    assert!(stderr.contains("too many lines"), "{stderr}");
}

#[test]
fn what_makes_no_sense_is_said_before_anything_starts() {
    for (args, says) in [
        (&["load", "chat", "127.0.0.1:1", "-c", "2", "--rooms", "3"][..], "one member for each room"),
        (&["load", "chat", "127.0.0.1:1", "--speakers", "101"], "--speakers"),
        (&["load", "chat", "127.0.0.1:1", "--stop-reading", "100%"], "below 1"),
        (&["load", "chat", "127.0.0.1:1", "--stop-reading", "some"], "write 0.01 or 1%"),
        (&["load", "chat", "127.0.0.1:1", "--size", "10"], "64 to 60000"),
        (&["load", "chat", "127.0.0.1:1", "--rate", "0"], "--rate"),
        (&["load", "chat", "127.0.0.1:1", "-n", "1", "--rate", "0.00000000000000000001"], "--rate"),
        (&["load", "udp", "127.0.0.1:1", "-n", "1", "--rate", "0.00000000000000000001"], "--rate"),
        (
            &["load", "chat", "wss://127.0.0.1:1", "--tls-insecure", "--stop-reading", "1%"],
            "does not support TLS",
        ),
        (&["load", "chat", "ws://127.0.0.1:1", "--tls-insecure"], "the target is not encrypted"),
        (&["serve", "chat", "--line-bytes", "10"], "between 256"),
        (&["serve", "chat", "--rooms", "0"], "'0' for '--rooms"),
        (&["serve", "chat", "--waiting-bytes", "1MiB"], "--nats"),
        (&["serve", "chat", "--behind-bytes", "1KiB"], "lower --history-bytes"),
        (&["serve", "chat", "--behind-bytes", "8KiB", "--history-bytes", "1KiB"], "ten longest lines"),
        (&["serve", "chat", "--line-bytes", "100KiB", "--input-bytes", "64KiB"], "raise --input-bytes"),
        (&["serve", "echo", "--message-bytes", "1KiB"], "--websocket"),
        (&["serve", "echo", "--proxy-header-bytes", "1KiB"], "--proxy-protocol"),
        (&["serve", "echo", "--tls-handshake-timeout", "1s"], "--tls-cert"),
    ] {
        let outcome = run(&mut tidegate(args));
        assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{args:?}: {}", outcome.stderr);
    }
}
