//! Every input the fuzzer found worth keeping, as a plain test.

use std::path::Path;

#[track_caller]
fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("a corpus beside the targets") {
        let path = entry.expect("a readable folder").path();
        let data = std::fs::read(&path).expect("a readable file");
        println!("{}", path.display()); // shown if it fails: the last one is the culprit
        body(&data);
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn core() {
    replay("core", tidegate_fuzz_bodies::core);
}

#[test]
fn http() {
    replay("http", tidegate_fuzz_bodies::http);
}

#[test]
fn path() {
    replay("path", tidegate_fuzz_bodies::path);
}

#[test]
fn proxy() {
    replay("proxy", tidegate_fuzz_bodies::proxy);
}

#[test]
fn answer() {
    replay("answer", tidegate_fuzz_bodies::answer);
}

#[test]
fn broker() {
    replay("broker", tidegate_fuzz_bodies::broker);
}

#[test]
fn websocket() {
    replay("websocket", tidegate_fuzz_bodies::websocket);
}

#[test]
fn chat() {
    replay("chat", tidegate_fuzz_bodies::chat);
}

#[cfg(target_os = "linux")]
#[test]
fn offer() {
    replay("offer", tidegate_fuzz_bodies::offer);
}

#[cfg(target_os = "linux")]
#[test]
fn hostile() {
    replay("hostile", tidegate_fuzz_bodies::hostile);
}
