//! `tidegate ab`, the built binary, against itself and against command lines. Nothing here depends on speed: what is
//! dearer sends 64 times as much.

use std::process::{Command, Output};

use serde_json::Value;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn ab(args: &[&str]) -> Output {
    Command::new(TIDEGATE).arg("ab").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_new_program_that_costs_more_ends_with_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("large.html");
    std::fs::write(&page, "x".repeat(256 * 1024)).unwrap();
    let large = format!("{TIDEGATE} serve http --listen {{listen}} --page {}", page.display());
    let fast = ["-c", "4", "--turn", "150ms"];

    let output = ab(&[&[TIDEGATE, &large], &fast[..]].concat());
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        shown.starts_with("NEW costs ") && shown.contains("% more CPU for a request than OLD, 95% CI "),
        "{output:?}"
    );
    assert!(shown.contains("they do not do the same work"), "{output:?}");
}

#[test]
fn what_is_not_sure_is_called_so_and_every_round_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ab.json");
    let short = ["-c", "2", "--turn", "250ms", "--budget", "1ms", "--json", file.to_str().unwrap()];
    let output = ab(&[&[TIDEGATE, TIDEGATE], &short[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).starts_with("Undecided: 1 pairs say nothing yet"), "{output:?}");
    let saved: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((&saved["decision"], saved["interval"].is_null()), (&"undecided".into(), true));
    let pair = &saved["pairs"][0];
    let turn = &pair["turns"][3];
    assert!(turn["old"]["cpu_s_per_100k"].as_f64().unwrap() > 0.0 && turn["new_first"].is_boolean());
    let activity = &pair["activity"];
    assert!(activity["load_average"].is_number() && activity["stolen"].is_number(), "{pair}");
    // Other processors do not say their clock rate there.
    assert!(activity["mhz"].is_number() || !cfg!(target_arch = "x86_64"), "{pair}");
    assert_eq!(saved["circumstances"]["settings"]["ab: new"], TIDEGATE);
}

#[test]
fn what_cannot_be_compared_is_refused_with_what_to_write() {
    for (args, part) in [
        (&[TIDEGATE, "/no/such/file"][..], "{listen}"),
        (&[TIDEGATE, "/"], "is not a file"),
        (&[TIDEGATE, TIDEGATE, "--path", "x"], "begin with '/'"),
        (&[TIDEGATE, TIDEGATE, "--least", "0"], "from 0.1 to 50 percent"),
        (&[TIDEGATE, TIDEGATE, "--false-alarms", "90"], "from 0.001 to 20 percent"),
        (&[TIDEGATE, TIDEGATE, "--turn", "1ms"], "from 20ms to 1m"),
    ] {
        let output = ab(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(text(&output.stderr).contains(part), "{args:?}: {output:?}");
    }
}

#[test]
fn a_program_that_does_not_serve_is_quoted() {
    for line in ["echo nothing to serve >&2; exit 3 # {listen}", "sleep 0.01; false {listen}"] {
        let output = ab(&[TIDEGATE, line, "-c", "1", "--turn", "20ms"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("ended before it served"), "{output:?}");
    }
}
