//! `tidegate bench`, the built binary: rows are filled and sane. Nothing here depends on speed.

use std::process::{Command, Output};

use tidegate_lab::report::Results;

fn bench(args: &[&str], folder: &std::path::Path) -> Output {
    let out = folder.to_str().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("bench")
        .args(args)
        .args(["--out", out])
        .output()
        .unwrap()
}

fn results(folder: &std::path::Path) -> Results {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn the_table_has_a_filled_row_for_each_model_and_load() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        bench(&["models", "--models", "epoll,poll", "--connections", "30", "--seconds", "1"], folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).models.unwrap();
    assert_eq!(table.rows.len(), 4);
    for row in &table.rows {
        assert_eq!((row.attempted, row.connected, row.load.failed), (30, 30, 0), "{row:?}");
        assert!(row.load.requests > 0 && row.usage.user_memory_kib > 0 && row.usage.threads > 0, "{row:?}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("30/30") && !page.contains("http://www.w3.org/1999") && !page.contains("<script"));
    assert!(std::fs::read_to_string(folder.path().join("models.csv")).unwrap().lines().count() == 5);
}

#[test]
fn each_point_has_its_median_and_spread() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "concurrency",
        "--models",
        "epoll,tokio",
        "--connections",
        "5",
        "--requests",
        "200",
        "--repeats",
        "3",
    ];
    let output = bench(&args, folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).concurrency.unwrap();
    assert_eq!(table.points.len(), 2);
    for point in &table.points {
        let s = point.requests_per_s;
        assert!(s.count == 3 && 0.0 < s.min && s.min <= s.median && s.median <= s.max, "{point:?}");
        assert_eq!(point.failed, 0);
    }
    assert!(folder.path().join("responses.svg").exists());
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("Responses a second") && shown.contains("report.html"), "{shown}");
}

#[test]
fn what_can_not_be_measured_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let output = bench(&["models"], &file.join("inside"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--out"));
    let output = bench(&["models", "--models", "rio"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
