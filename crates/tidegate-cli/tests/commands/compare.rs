//! `tidegate compare`, the built binary, on runs that `bench` saved and on runs that were changed by hand. Nothing here
//! depends on speed. Servers run on models of Linux.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn tidegate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate")).args(args).output().unwrap()
}

fn compare(a: &Path, b: &Path, more: &[&str]) -> Output {
    tidegate(&[&["compare", a.to_str().unwrap(), b.to_str().unwrap()], more].concat())
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A real run, saved by a small bench of `rounds` rounds; its folder and its file.
fn saved(folder: &Path, rounds: &str) -> PathBuf {
    let out = folder.to_str().unwrap();
    let output = tidegate(&[
        "bench",
        "concurrency",
        "--models",
        "epoll,poll",
        "--connections",
        "5",
        "--requests",
        "200",
        "--repeats",
        rounds,
        "--out",
        out,
    ]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = String::from_utf8(output.stdout).unwrap();
    let line = shown.lines().find_map(|line| line.strip_prefix("run: ")).unwrap();
    PathBuf::from(line.split(" (").next().unwrap())
}

fn edited(file: &Path, to: &Path, edit: impl FnOnce(&mut Value)) -> PathBuf {
    let mut run: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    edit(&mut run);
    std::fs::write(to, run.to_string()).unwrap();
    to.to_owned()
}

/// Replaces all rounds of the first measure of every row.
fn set_rounds(run: &mut Value, rounds: &[f64]) {
    for row in run["rows"].as_array_mut().unwrap() {
        row["measures"][0]["rounds"] = rounds.into();
    }
}

#[test]
fn a_run_is_saved_with_all_that_it_takes_to_compare_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = saved(folder.path(), "4");
    let run: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((&run["kind"], &run["format"]), (&"tidegate run".into(), &1.into()));
    assert!(run["date"].as_str().unwrap().ends_with('Z'), "{run}");
    assert!(run["command"].as_array().unwrap().contains(&"concurrency".into()));
    assert_eq!(run["build"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(run["machine"]["system"].as_str().unwrap().contains(' '));
    assert_eq!(
        run["settings"]["concurrency, a connection for each request: length of a round"],
        "200 requests"
    );
    let rows = run["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["measures"][0]["name"], "cpu_s_per_100k");
        assert_eq!(row["verdicts"].as_array().unwrap().len(), 4);
        for measure in row["measures"].as_array().unwrap() {
            assert_eq!(measure["rounds"].as_array().unwrap().len(), 4, "{measure}");
        }
    }

    // Against itself, by file and by folder.
    let same = json(&compare(&file, folder.path(), &["--json", "-"]));
    assert_eq!(same["rows"].as_array().unwrap().len(), 2);
    for row in same["rows"].as_array().unwrap() {
        assert_eq!(row["verdict"], "no_significant_difference", "{row}");
    }
    let shown = compare(&file, &file, &[]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("no significant difference: +0.0%"), "{shown:?}");
}

#[test]
fn a_slower_build_is_found_and_too_few_rounds_are_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    let file = saved(folder.path(), "1");
    let put =
        |name: &str, rounds: &[f64]| edited(&file, &folder.path().join(name), |run| set_rounds(run, rounds));
    let a = put("a", &[1.00, 1.01, 0.99, 1.02, 0.98, 1.00]);
    let b = put("b", &[1.05, 1.06, 1.04, 1.07, 1.03, 1.05]);
    let verdicts = |output: &Output| {
        let rows = json(output)["rows"].clone();
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row["verdict"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(verdicts(&compare(&a, &b, &["--json", "-"])), ["worse", "worse"]);
    assert_eq!(verdicts(&compare(&b, &a, &["--json", "-"])), ["better", "better"]);
    assert_eq!(
        verdicts(&compare(&a, &b, &["--json", "-", "--margin", "10"])),
        ["no_significant_difference"; 2]
    );
    assert_eq!(verdicts(&compare(&a, &b, &["--json", "-", "--measure", "p99_us"])), ["too_few_rounds"; 2]);
    let shown = String::from_utf8(compare(&a, &b, &[]).stdout).unwrap();
    assert!(shown.contains("slower by +5.0% ["), "{shown}");
}

#[test]
fn other_circumstances_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let a = saved(folder.path(), "1");
    let b = edited(&a, &folder.path().join("b"), |run| {
        run["machine"]["system"] = "Linux 2.4".into();
        run["settings"]["concurrency, a connection for each request: length of a round"] = "7".into();
        run["settings"]["concurrency, a connection for each request: program"] = "./mine".into();
        run["rows"].as_array_mut().unwrap().remove(0);
    });
    let comparison = json(&compare(&a, &b, &["--json", "-"]));
    let warnings = comparison["warnings"].to_string();
    assert!(
        warnings.contains("kernel differs") && warnings.contains("length of a round differs"),
        "{warnings}"
    );
    assert!(warnings.contains("program differs: tidegate serve http and ./mine"), "{warnings}");
    assert_eq!(comparison["only_a"].as_array().unwrap().len(), 1);
    let shown = String::from_utf8(compare(&a, &b, &[]).stdout).unwrap();
    assert!(shown.contains("warning: kernel differs") && shown.contains("only A has"), "{shown}");
}

#[test]
fn what_cannot_be_compared_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let run = saved(folder.path(), "1");
    let other = folder.path().join("report.json");
    let alone = edited(&run, &folder.path().join("alone"), |run| {
        run["rows"].as_array_mut().unwrap().iter_mut().for_each(|row| row["name"] = "else".into());
    });
    for (b, more, why) in [
        (&other, &[][..], "no saved run"),
        (&folder.path().join("none"), &[], "tidegate bench"),
        (&alone, &[], "no rows in common"),
        (&run, &["--measure", "speed"], "cpu_s_per_100k"),
        (&run, &["--margin", "200"], "--margin"),
    ] {
        let output = compare(&run, b, more);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(why), "{why}: {output:?}");
    }
}
