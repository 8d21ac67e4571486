//! `--log` and `--log-level`: lines for people or for programs.

use rustix::process::Signal;
use serde_json::Value;

use crate::kit::{Server, run, tidegate};

const SERVE: [&str; 4] = ["serve", "http", "--listen", "127.0.0.1:0"];

#[test]
fn every_line_of_json_is_an_object_with_the_same_fields() {
    let server = Server::start(&[&SERVE[..], &["--log", "json"]].concat());
    server.signal(Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0));
    let lines: Vec<Value> = stderr.iter().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string() && line["target"].is_string());
        assert!(line["fields"]["event"].is_string() && line["fields"]["message"].is_string(), "{line}");
    }
    let events: Vec<_> = lines.iter().map(|line| line["fields"]["event"].as_str().unwrap()).collect();
    assert!(events.contains(&"model"), "{events:?}");
}

#[test]
fn notes_are_said_at_any_level_and_text_is_the_default() {
    for more in [&["--log-level", "error"][..], &["--log", "text"], &[]] {
        let server = Server::start(&[&SERVE[..], more].concat());
        server.wait_for("note: model ");
    }
}

#[test]
fn an_error_is_an_object_too() {
    let outcome = run(&mut tidegate(&["--log", "json", "serve", "http", "--cpus", "99999"]));
    assert_eq!(outcome.code, Some(2));
    let line: Value = serde_json::from_str(outcome.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((&line["level"], &line["fields"]["event"]), (&"ERROR".into(), &"failed".into()));
    assert_eq!(line["fields"]["code"], 2);
    assert!(line["fields"]["message"].as_str().unwrap().contains("no processor 99999"));
}

#[test]
fn what_is_no_format_level_or_filter_is_bad_usage() {
    for (args, says) in
        [(["--log", "xml"], "text, json"), (["--log-level", "loud"], "error, warn, info, debug, trace")]
    {
        let outcome = run(&mut tidegate(&[&SERVE[..], &args].concat()));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    }
    let outcome = run(tidegate(&SERVE).env("TIDEGATE_LOG", "tidegate=loud"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    assert!(outcome.stderr.contains("TIDEGATE_LOG") && outcome.stderr.contains("tidegate=debug"));
}
