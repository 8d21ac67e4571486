//! What only `uring` has: a pool of buffers.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;
use rustix::process::Signal;
use tidegate::Model;
use tidegate_lab::memory::ResultTable;
use tidegate_lab::report::Results;

use crate::harness;
use crate::kit::{Server, run, tidegate};

pub fn trials() -> Vec<Trial> {
    let all = tests![
        a_ring_with_one_buffer_serves_everybody,
        buffers_that_may_not_be_locked_are_said_and_the_rest_is_measured
    ];
    harness::needs(Model::Uring.availability().is_available(), "io_uring", all)
}

fn counter(stderr: &[String], name: &str) -> u64 {
    let line = stderr.iter().find(|line| line.starts_with('{')).expect("the counters");
    serde_json::from_str::<serde_json::Value>(line).unwrap()[name].as_u64().expect("a number")
}

fn a_ring_with_one_buffer_serves_everybody() {
    let mut options = vec!["serve", "http", "--listen", "127.0.0.1:0", "--model", "uring"];
    options.extend(["--buffers", "1", "--buffer-bytes", "4096", "--threads", "1", "--stats"]);
    let server = Server::start(&options);
    let load = run(&mut tidegate(&["load", "http", &server.url, "-c", "200", "-n", "5000"]));
    assert_eq!(load.code, Some(0), "{}", load.stderr);
    server.signal(Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert!(counter(&stderr, "no_buffers") > 0, "{stderr:?}");
}

fn results(folder: &Path) -> ResultTable {
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    serde_json::from_str::<Results>(&text).unwrap().memory.unwrap()
}

fn buffers_that_may_not_be_locked_are_said_and_the_rest_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -l 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tidegate"), "bench", "memory"])
        .args(["--quick", "--models", "uring", "--connections", "2", "--seconds", "1", "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    let table = results(folder.path());
    assert!(!table.rows.is_empty() && table.rows.iter().all(|row| !row.buffers.locked), "{table:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("not measured: uring with locked: RLIMIT_MEMLOCK is 65536 bytes"), "{shown}");
}
