//! `serve chat` and `load chat`: the built binary against itself.
#![cfg(unix)]

use kit::{Server, run, tidegate};

#[path = "serve/kit.rs"]
#[allow(dead_code, reason = "not every user uses all of it")]
mod kit;

fn load(server: &Server, args: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let all = [&["load", "chat", &server.url, "--json", "-"], args].concat();
    let outcome = run(&mut tidegate(&all));
    let report = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome.code, report, outcome.stderr)
}

#[test]
fn every_member_hears_everything_in_every_room() {
    let server =
        Server::start(&["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "0", "--threads", "2"]);
    for websocket in [&[][..], &["--websocket"]] {
        let args =
            ["-c", "50", "--rooms", "3", "--speakers", "6", "--rate", "200", "-n", "100", "--threads", "2"];
        let pid = server.pid().to_string();
        let (code, report, stderr) = load(&server, &[&args[..], websocket, &["--server-pid", &pid]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!((&report["joined"], &report["said"]), (&50.into(), &100.into()));
        // Speakers and members take the rooms in turn: 17, 17 and 16 members; 34, 34 and 32 messages or as the turns fall.
        let delivered = report["delivered"].as_u64().unwrap();
        assert!((100 * 16..=100 * 17).contains(&delivered), "{delivered}");
        assert_eq!((&report["wrong"], &report["undelivered"]), (&0.into(), &0.into()));
        assert!(report["latency_us"]["p50"].as_u64().unwrap() > 0);
        assert!(report["server_cpu_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn who_stops_reading_is_cut_off_and_nobody_else_misses_anything() {
    let server = Server::start(&[
        "serve",
        "chat",
        "--listen",
        "127.0.0.1:0",
        "--lines-per-s",
        "0",
        "--behind-bytes",
        "128KiB",
        "--socket-send-buffer",
        "4KiB",
    ]);
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
        "600",
        "--size",
        "900",
    ];
    let (code, report, stderr) = load(&server, &args);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!((&report["stopped_reading"], &report["cut_off"]), (&2.into(), &2.into()), "{report}");
    assert_eq!(report["delivered"], 18 * 600);
}

#[test]
fn messages_that_are_refused_fail_the_run() {
    let server =
        Server::start(&["serve", "chat", "--listen", "127.0.0.1:0", "--lines-per-s", "1", "--burst", "1"]);
    let (code, report, stderr) = load(&server, &["-c", "3", "--rate", "1000", "-n", "20", "--timeout", "5"]);
    assert_eq!(code, Some(1));
    assert!(report["refused"].as_u64().unwrap() > 0 && report["undelivered"] == 0, "{report}");
    assert!(stderr.contains("too fast"), "{stderr}");
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
        (&["load", "chat", "wss://127.0.0.1:1"], "does not speak TLS"),
        (&["serve", "chat", "--line-bytes", "10"], "at least 256"),
        (&["serve", "chat", "--rooms", "0"], "rooms is 0"),
        (&["serve", "chat", "--behind-bytes", "1KiB"], "ten longest lines"),
        (&["serve", "chat", "--line-bytes", "8KiB", "--input-bytes", "4096"], "raise input_bytes"),
        (&["serve", "echo", "--message-bytes", "1KiB"], "--websocket"),
    ] {
        let outcome = run(&mut tidegate(args));
        assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(says), "{args:?}: {}", outcome.stderr);
    }
}
