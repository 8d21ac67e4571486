//! `tidegate load attack` and `tidegate bench survival`, the built binary. Nothing here depends on speed.
//! Servers run on models of Linux.

use std::process::{Command, Output};

use tidegate_lab::report::Results;

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

#[test]
fn an_attack_on_a_stranger_is_refused_before_anything_is_sent() {
    // Of a block kept for documentation (RFC 5737).
    for target in ["http://192.0.2.1/", "203.0.113.1:7"] {
        let output = tidegate(&["load", "attack", target, "-d", "1"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            error.contains("not an address of this machine") && error.contains("your own servers"),
            "{error}"
        );
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn an_attack_that_does_nothing_is_bad_usage() {
    let mut args = vec!["load", "attack", "127.0.0.1:9"];
    for kind in ["--silent", "--trickle", "--flood", "--half-open", "--reset-rate"] {
        args.extend([kind, "0"]);
    }
    let output = tidegate(&args);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing to do"), "{output:?}");
}

#[test]
fn survival_has_a_filled_row_and_a_bound_beside_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let args = ["bench", "survival", "--quick", "--seconds", "1", "--models", "epoll", "--connections", "5"];
    let output = tidegate(&[&args[..], &["--out", out]].concat());
    // Whether half of the rate was kept depends on the machine; that it was measured does not.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let text = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let table = serde_json::from_str::<Results>(&text).unwrap().survival.unwrap();
    let [row] = table.rows.as_slice() else { panic!("{output:?}") };
    for service in [&row.before, &row.under, &row.after] {
        assert!(service.requests_per_s > 0.0 && service.errors == 0, "{service:?}");
        assert!(0 < service.user_bytes && service.user_bytes < row.bound_bytes, "{row:?}");
    }
    assert!(row.attack.kinds.iter().all(|kind| kind.opened > 0), "{:?}", row.attack);
    assert!(std::fs::read_to_string(folder.path().join("survival.csv")).unwrap().lines().count() == 2);
}
