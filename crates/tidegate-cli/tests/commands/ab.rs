//! `tidegate ab`, the built binary, against itself and against command lines. Nothing here depends on speed: what is
//! dearer sends 64 times as much.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

fn ab(args: &[&str]) -> Output {
    Command::new(TIDEGATE).arg("ab").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Few connections, short turns, and few pairs. Of programs that differ so much no pair says the opposite.
const FAST: [&str; 6] = ["-c", "4", "--turn", "50ms", "--false-alarms", "5"];

/// How often a comparison is made.
const TRIES: usize = 5;

/// A comparison that comes to an answer: where the machine pauses for several turns in a row there is none.
fn answered(args: &[&str]) -> Output {
    let has_answer = |output: &Output| {
        let said = text(&output.stderr);
        let stood_still =
            ["no request was answered", "used no processor time"].iter().any(|why| said.contains(why));
        output.status.code() != Some(2) || !stood_still
    };
    (0..TRIES).map(|_| ab(args)).find(has_answer).expect("requests are answered, if not each time")
}

/// A command line whose page has 256 KiB, in this directory; the usual one has 4.
fn with_large_page(folder: &Path) -> String {
    let page = folder.join("large.html");
    std::fs::write(&page, "x".repeat(256 * 1024)).unwrap();
    format!("{TIDEGATE} serve http --listen {{listen}} --page {}", page.display())
}

#[test]
fn a_new_program_that_costs_more_ends_with_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let large = with_large_page(folder.path());
    let output = answered(&[&[TIDEGATE, &large], &FAST[..]].concat());
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        shown.starts_with("NEW costs ") && shown.contains("% more CPU for a request than OLD, 95% CI "),
        "{output:?}"
    );
    assert!(shown.contains("they do not do the same work"), "{output:?}");
}

#[test]
fn a_new_program_that_costs_less_ends_with_code_0() {
    let folder = tempfile::tempdir().unwrap();
    let large = with_large_page(folder.path());
    let output = answered(&[&[&*large, TIDEGATE], &FAST[..]].concat());
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        shown.starts_with("NEW costs ") && shown.contains("% less CPU for a request than OLD, 95% CI "),
        "{output:?}"
    );
    assert!(shown.contains("they do not do the same work"), "{output:?}");
}

/// Its processor time counts, and it ends, although it is a child of the shell.
#[test]
fn a_command_line_may_have_variables_and_several_commands() {
    let folder = tempfile::tempdir().unwrap();
    let large = with_large_page(folder.path());
    let several = format!("X=1; {large}; true");
    let variable = format!("X=1 {TIDEGATE} serve http --listen {{listen}}");
    let output = answered(&[&[&*variable, &several], &FAST[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).starts_with("NEW costs "), "{output:?}");
    let page = folder.path().display().to_string();
    let of_process = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.ok()?.path().join("cmdline")).ok()
    };
    let runs = || std::fs::read_dir("/proc").unwrap().filter_map(of_process).any(|line| line.contains(&page));
    let ended = Instant::now();
    while runs() {
        assert!(ended.elapsed() < Duration::from_secs(60), "it still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Not each time: in 5% of cases a difference is found by design. What is slow remains undecided when its time is over.
#[test]
fn a_program_beside_itself_ends_with_code_0() {
    let coarse = ["--least", "50", "--budget", "30s"];
    let args = [&[TIDEGATE, TIDEGATE], &FAST[..], &coarse].concat();
    let is_as_it_should_be = |output: &Output| {
        let said = ["No difference that matters: NEW costs ", "Undecided: "];
        output.status.code() == Some(0) && said.iter().any(|said| text(&output.stdout).starts_with(said))
    };
    let tries = (0..TRIES).map(|_| answered(&args));
    let others: Vec<Output> = tries.take_while(|output| !is_as_it_should_be(output)).collect();
    assert!(others.len() < TRIES, "{others:?}");
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
        (&[TIDEGATE, TIDEGATE, "--false-alarms", "6"], "from 0.001 to 5 percent"),
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
