//! `tidegate bench`, the built binary: rows are filled and sane. Nothing here depends on speed.
//! Servers run on models of Linux.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tidegate::Model;
use tidegate_lab::files::Cache;
use tidegate_lab::kernel_memory::socket_bytes;
use tidegate_lab::memory;
use tidegate_lab::models::Scarce;
use tidegate_lab::report::Results;

fn command(args: &[&str], folder: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(args).arg("--out").arg(folder);
    command
}

fn bench(args: &[&str], folder: &std::path::Path) -> Output {
    command(args, folder).output().unwrap()
}

/// The control groups that a lab has now, one a line.
fn groups_of(lab: u32) -> String {
    let name = format!("tidegate-{lab}");
    let found = Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", &name]).output().unwrap();
    String::from_utf8(found.stdout).unwrap()
}

/// A bench that may have so many descriptors. The hard limit too, or it would raise the soft one again.
fn with_descriptors(limit: u32, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate"), "bench"]).args(args);
    command
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
    let paces: Vec<String> = table.rows.iter().take(3).map(|row| row.pace.to_string()).collect();
    assert_eq!(
        (table.rows.len(), paces.join(", ").as_str()),
        (6, "unlimited, 200 outstanding, 200000 B/s a block")
    );
    for row in &table.rows {
        assert_eq!((row.attempted, row.connected, row.load.wrong), (30, 30, 0), "{row:?}");
        assert!(row.bound.is_none() && row.asked == 30 && row.verified <= 30, "{row:?}");
        // Answers on their way at the end may be late on a busy machine, but the other clients wait for theirs.
        assert!(row.load.failed == 0 && (row.verified > 0), "{row:?}");
        assert!(row.load.requests > 0 && row.usage.user_memory_kib > 0 && row.usage.threads > 0, "{row:?}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("30/30/") && !page.contains("http://www.w3.org/1999") && !page.contains("<script"));
    assert!(std::fs::read_to_string(folder.path().join("models.csv")).unwrap().lines().count() == 7);
}

#[test]
fn a_row_of_the_table_says_what_there_was_too_little_of() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        with_descriptors(256, &["models", "--models", "epoll", "--connections", "1000", "--seconds", "1"])
            .args(["--out", folder.path().to_str().unwrap()])
            .output()
            .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).models.unwrap();
    for row in &table.rows {
        assert!(row.asked == 1000 && (1..256).contains(&row.attempted), "{row:?}");
        assert_eq!((row.connected, row.bound), (row.attempted, Some(Scarce::ServerDescriptors)), "{row:?}");
    }
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("of 1,000: descriptors of the server"), "{shown}");
    assert!(shown.contains("instead of 1000 connections") && shown.contains("ulimit -n"), "{shown}");
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
        let s = &point.figures.requests_per_s;
        assert!(s.rounds.len() == 3 && 0.0 < s.min && s.min <= s.median && s.median <= s.max, "{point:?}");
        assert_eq!((point.figures.failed, point.figures.verdicts.len()), (0, 3));
    }
    assert!(folder.path().join("answer.svg").exists());
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("Responses a second") && shown.contains("report.html"), "{shown}");
}

#[test]
fn points_that_become_the_same_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["concurrency", "--models", "epoll,epoll", "--connections", "1000,2000,1000", "--seconds", "0.1"];
    let output = with_descriptors(256, &args)
        .args(["--repeats", "1", "--page", "4k,4096", "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = results(folder.path());
    let table = found.concurrency.unwrap();
    assert_eq!((table.points.len(), found.pages.len()), (1, 0), "{table:?}");
    assert!(table.points[0].concurrency < 256 && table.length == "0.1 s", "{table:?}");
    assert_eq!(table.notes.iter().filter(|note| note.contains("ulimit -n")).count(), 2, "{:?}", table.notes);
}

#[test]
fn each_size_of_the_page_has_its_points() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["concurrency", "--models", "epoll", "--connections", "2,4", "--requests", "50", "--repeats", "1"];
    let output = bench(&[&args[..], &["--page", "1k,4k"]].concat(), folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = results(folder.path());
    let first = found.concurrency.unwrap();
    let [other] = found.pages.as_slice() else { panic!("{:?}", found.pages) };
    for (table, bytes) in [(&first, 1024), (other, 4096)] {
        let points: Vec<_> = table.points.iter().map(|p| (p.concurrency, p.figures.failed)).collect();
        assert_eq!((table.page_bytes, points), (bytes, vec![(2, 0), (4, 0)]), "{table:?}");
    }
    let lines = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap().lines().count();
    assert_eq!([lines("concurrency.csv"), lines("concurrency-4096.csv")], [3, 3]);
    for chart in ["responses-1024.svg", "cpu-1024.svg", "responses.svg", "cpu.svg"] {
        assert!(folder.path().join(chart).exists(), "{chart}");
    }
    let run = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let run = std::fs::read_to_string(run).unwrap();
    for row in
        ["epoll, 4 at once, a connection each, page of 1024 bytes\"", "epoll, 4 at once, a connection each\""]
    {
        assert!(run.contains(row), "{row} in {run}");
    }
    let shown = String::from_utf8_lossy(&output.stdout);
    let title = "Responses a second of one processor, against concurrency";
    for title in [format!("{title}, a 1 KiB page\n"), format!("{title}\n")] {
        assert!(shown.contains(&title), "{title} in {shown}");
    }
}

#[test]
fn where_no_model_can_reuse_sockets_the_reason_is_the_result() {
    for (models, reason) in [
        (&[][..], "left out: iocp: "),
        (
            &["--models", "epoll,poll"],
            "left out: reused sockets: of these models none can reuse sockets for accepts; iocp can",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = bench(&[&["reuse"], models].concat(), folder.path());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let table = results(folder.path()).reuse.unwrap();
        assert_eq!((table.rows.len(), table.left_out.len(), table.failed.len()), (0, 1, 0), "{table:?}");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.contains(reason), "{reason} in {shown}");
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("Left out") && !folder.path().join("reuse.csv").exists(), "{page}");
    }
}

/// A bench of demand in this directory: rows that were not kept, and the output.
fn demand_not_kept(folder: &std::path::Path) -> (Vec<(String, u64)>, Output) {
    let rest = ["--connections", "4", "--rates", "100,300", "--seconds", "1", "--repeats", "2"];
    let output = bench(&[&["demand", "--models", "epoll,poll"], &rest[..]].concat(), folder);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder).demand.unwrap();
    let named: Vec<_> = table.rows.iter().map(|row| (row.model.as_str(), row.rate)).collect();
    assert_eq!(named, [("poll", 100), ("poll", 300), ("epoll", 100), ("epoll", 300)]);
    for row in &table.rows {
        let rounds = &row.figures.requests_per_s.rounds;
        assert!(rounds.len() == 2 && row.figures.cpu_s_per_100k.min > 0.0, "{row:?}");
        // The schedule is exact, whatever the machine does: what was due was asked for.
        assert!(rounds.iter().all(|&answered| answered <= 1.1 * row.rate as f64), "{row:?}");
    }
    let missed = table.rows.into_iter().filter(|row| !row.is_kept());
    (missed.map(|row| (row.model, row.rate)).collect(), output)
}

#[test]
fn each_rate_has_its_demand() {
    /// A machine that is too busy for a rate in one try is hardly so in all.
    const TRIES: usize = 5;
    let folder = tempfile::tempdir().unwrap();
    let (mut missed, output) = demand_not_kept(folder.path());
    for _ in 1..TRIES {
        if missed.is_empty() {
            break;
        }
        let (again, _) = demand_not_kept(folder.path());
        missed.retain(|row| again.contains(row));
    }
    assert!(missed.is_empty(), "in {TRIES} tries never kept: {missed:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("Service demand at fixed rates") && shown.contains("300/s"), "{shown}");
    assert_eq!(std::fs::read_to_string(folder.path().join("demand.csv")).unwrap().lines().count(), 5);
    assert!(folder.path().join("demand.svg").exists());
    let output = bench(&["models", "--rates", "100"], folder.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2)
            && said.contains("--rates belongs to `bench demand` and `bench files`"),
        "{said}"
    );
}

#[test]
fn demand_is_compared_between_numbers_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let rest = ["--connections", "4", "--rates", "100", "--seconds", "1", "--repeats", "1"];
    let models = ["demand", "--models", "epoll,blocking", "--threads", "4,1,4"];
    let output = bench(&[&models[..], &rest].concat(), folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).demand.unwrap();
    let named: Vec<_> = table.rows.iter().map(|row| (row.model.as_str(), row.threads)).collect();
    assert_eq!(named, [("epoll", Some(1)), ("epoll", Some(4))]);
    let shown = String::from_utf8_lossy(&output.stdout);
    for text in ["to the fewest threads", "left out: blocking: it has no number of I/O threads to set"] {
        assert!(shown.contains(text), "{text:?} in {shown}");
    }
    let [one, four] = [&table.rows[0], &table.rows[1]].map(|row| row.figures.cpu_s_per_100k.median);
    let ratio = format!(" {:.2} ", four / one);
    let line = shown.lines().find(|line| line.contains("epoll") && line.contains(&ratio));
    assert!(line.is_some(), "{ratio:?} in {shown}");
    let csv = std::fs::read_to_string(folder.path().join("demand.csv")).unwrap();
    assert!(csv.starts_with("model,rate,threads,") && csv.contains("epoll,100,4,"), "{csv}");
    let output = bench(&["models", "--threads", "1"], folder.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("--threads belongs to `bench demand`"),
        "{said}"
    );
}

#[test]
fn a_program_of_the_users_is_measured_on_every_model() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_tidegate");
    let options =
        ["app", "--models", "epoll,poll", "--connections", "8", "--requests", "400", "--repeats", "2"];
    let command = ["--", program, "serve", "http", "--model", "{model}", "--listen", "{listen}"];
    let output = Command::new(program)
        .args(["bench"])
        .args(options)
        .args(["--out", folder.path().to_str().unwrap()])
        .args(command)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(&format!(" for `{program}`: a request costs")), "{shown}");
    assert!(shown.contains("peak MiB, c=8"), "{shown}");
    let table = results(folder.path()).concurrency.unwrap();
    assert_eq!(table.points.len(), 2);
    for point in &table.points {
        let peak = point.figures.peak_bytes.as_ref().unwrap();
        assert!(peak.min > 1e6 && peak.rounds.len() == 2 && point.figures.failed == 0, "{point:?}");
    }
}

#[test]
fn a_program_that_does_not_serve_is_named_with_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        let words = words.iter().copied();
        let all =
            ["bench", "app", "--models", "epoll", "--connections", "2", "--repeats", "1", "--requests", "2"];
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(all)
            .args(["--out", folder.path().to_str().unwrap(), "--"])
            .args(words)
            .output()
            .unwrap()
    };
    let output = run(&["sh", "-c", "echo no such luck >&2; exit 3", "{model}", "{listen}"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("ended before it served") && shown.contains("no such luck"), "{shown}");
    assert!(!shown.contains("Which model"), "there is nothing to tell: {shown}");
    let output = run(&["sh", "-c", "exit 3", "{listen}"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("{model} is missing"), "{output:?}");
}

/// What a server that died had answered until then is no figure of it.
#[test]
fn a_program_that_dies_in_the_middle_of_a_round_is_named_with_what_it_said() {
    // Ends once its server has used 0.2 s of processor time for answers (fields 14 and 15, `proc_pid_stat(5)`).
    let script = "\"$0\" serve http --model \"$1\" --listen \"$2\" & server=$!; \
        until set -- $(cat /proc/$server/stat) && [ $((${14} + ${15})) -ge 20 ]; do sleep 0.01; done; \
        echo out of luck >&2; kill -9 $server; exit 3";
    let folder = tempfile::tempdir().unwrap();
    let options = ["--models", "epoll", "--connections", "8", "--repeats", "1", "--requests", "100000000"];
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "app"])
        .args(options)
        .args(["--out", folder.path().to_str().unwrap(), "--", "sh", "-c", script])
        .args([env!("CARGO_BIN_EXE_tidegate"), "{model}", "{listen}"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("out of luck") && !shown.contains("Here take"), "{shown}");
    let table = results(folder.path()).concurrency.unwrap();
    assert_eq!((table.points.len(), table.failed.len()), (0, 1), "{table:?}");
}

#[test]
fn the_answer_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        ["--models", "epoll,blocking", "--connections", "8,16", "--requests", "400", "--repeats", "4"];
    let bench =
        command(&options, folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lab = bench.id();
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found = results(folder.path());
    let table = found.concurrency.as_ref().unwrap();
    assert_eq!(table.points.len(), 4);
    for point in &table.points {
        let rate = &point.figures.per_processor_s;
        let cost = &point.figures.cpu_s_per_100k;
        assert!((rate.rounds[0] * cost.rounds[0] / 1e5 - 1.0).abs() < 1e-6, "{point:?}");
        assert!((0.05..=1.0).contains(&point.share), "{point:?}");
    }
    assert!(found.models.is_none() && found.survival.is_none() && found.latency.is_none());
    // What else the machine did is saved, too, for each experiment.
    let run = std::fs::read_dir(folder.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(run).unwrap()).unwrap();
    let activity = run["activity"].as_array().unwrap();
    assert_eq!(activity.len(), 2, "{activity:?}");
    for one in activity {
        assert!(one["load_average"].is_number() && one["stolen"].is_number(), "{one}");
        assert!(one["mhz"].is_number() || !cfg!(target_arch = "x86_64"), "{one}");
    }
    let shown = String::from_utf8_lossy(&output.stdout);
    let sentence = shown.lines().next().unwrap();
    assert!(sentence.starts_with("Here take `") && sentence.contains("µs of processor time"), "{shown}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    let place = |text| page.find(text).unwrap_or_else(|| panic!("{text:?} is not on the page"));
    assert!(place("Here take <code>") < place("<dt>machine"));
    for file in ["answer.svg", "responses.svg", "cpu.svg", "concurrency.csv"] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
    if !table.throttle.contains("control group") {
        eprintln!("left out: the end of its control group: servers were limited by {}", table.throttle);
    }
    assert_eq!(groups_of(lab), "", "servers were limited by {}", table.throttle);
}

#[test]
fn every_resting_connection_is_verified_held_and_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["connections", "--models", "epoll,tokio", "--connections", "20,60", "--seconds", "1"];
    let output = bench(&args, folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).connections.unwrap();
    assert_eq!(table.rows.iter().map(|r| r.asked).collect::<Vec<_>>(), [20, 60, 20, 60]);
    for row in &table.rows {
        assert_eq!([row.attempted, row.connected, row.verified], [row.asked; 3], "{row:?}");
        assert!(row.held.is_none_or(|held| held == row.asked), "{row:?}");
        assert!(row.kernel_bytes_each.is_none_or(|bytes| bytes > 1_000.0), "{row:?}");
        assert!(row.object_bytes_each.is_some_and(f64::is_finite), "{row:?}");
        assert!(row.user_bytes[1] > 0 && row.threads > 0 && row.connects_per_s > 0.0, "{row:?}");
        let among = row.probe_among.unwrap();
        for probe in [row.probe_alone, among] {
            assert!(probe.round_trips > 0 && 0 < probe.p50_us && probe.p50_us <= probe.p99_us, "{row:?}");
        }
    }
    let csv = std::fs::read_to_string(folder.path().join("connections.csv")).unwrap();
    let columns = |line: &str| line.split(',').count();
    assert!(
        csv.lines().count() == 5 && csv.lines().all(|l| columns(l) == columns(csv.lines().next().unwrap()))
    );
    let chart = std::fs::read_to_string(folder.path().join("connections.svg")).unwrap();
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(
        page.contains(chart.trim_end())
            && page.contains("20/20/20")
            && page.contains("kernel objects B/connection")
    );
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("60/60/60") && shown.contains("probe among idle µs"), "{shown}");
}

#[test]
fn fewer_descriptors_than_connections_are_said_and_what_fits_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["connections", "--models", "epoll", "--connections", "1000", "--seconds", "1", "--out"];
    let output = with_descriptors(256, &args).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).connections.unwrap();
    let [row] = table.rows.as_slice() else { panic!("{table:?}") };
    assert!(row.asked == 1000 && (1..256).contains(&row.attempted), "{row:?}");
    assert_eq!([row.connected, row.verified], [row.attempted; 2], "{row:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("instead of 1000 connections") && shown.contains("ulimit -n"), "{shown}");
}

#[test]
fn buffers_are_changed_one_at_a_time_and_their_memory_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let models = if Model::Uring.availability().is_available() { "epoll,uring" } else { "epoll" };
    let args = ["memory", "--quick", "--models", models, "--connections", "20", "--seconds", "0.5"];
    let output = bench(&args, folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).memory.unwrap();
    for name in ["defaults", "locked", "4 KiB each", "SO_SNDBUF 0", "SO_RCVBUF 0", "both 128 KiB"] {
        assert!(table.rows.iter().any(|row| row.buffers.to_string() == name), "{name} in {table:?}");
    }
    for row in &table.rows {
        let objects = row.object_kib.as_ref().unwrap();
        assert!(row.figures.failed == 0 && row.figures.cpu_s_per_100k.median > 0.0, "{row:?}");
        assert!(row.user_kib.median > 0.0 && objects.rounds.len() == 1, "{row:?}");
        // The structures of 20 sockets and of the one that listens; where their size is not known, no figure.
        let sockets = row.socket_kib.as_ref().map(|kib| kib.median);
        match socket_bytes() {
            Some(bytes) => assert!(sockets.is_some_and(|kib| kib >= (21 * bytes / 1024) as f64), "{row:?}"),
            None => assert_eq!(sockets, None, "{row:?}"),
        }
    }
    let locked = |row: &&memory::Row| row.model == "uring" && row.buffers.locked;
    if let Some(row) = table.rows.iter().find(locked) {
        assert!(row.user_kib.median >= 4096.0, "256 locked buffers of 16 KiB are in memory: {row:?}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    for file in ["memory.csv", "memory-cpu-epoll.svg", "memory-sockets-epoll.svg"] {
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(file.ends_with(".csv") || page.contains(text.trim_end()), "{file} is not on the page");
    }
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("Buffers: what they cost and save") && shown.contains("kernel objects"),
        "{shown}"
    );
}

#[test]
fn each_client_has_its_file_once_from_the_disk_and_once_from_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["files", "--models", "epoll,pool", "--connections", "50", "--rates", "500", "--repeats", "1"];
    let output = bench(&args, folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let shown = String::from_utf8_lossy(&output.stdout);
    let table = results(folder.path()).files.unwrap();
    assert_eq!(table.rows.len(), 8);
    for row in &table.rows {
        assert_eq!((row.asked, row.clients, row.answered, row.figures.failed), (50, 50, 50, 0), "{row:?}");
        let read = row.disk_bytes_each.as_ref().unwrap().median;
        match row.cache {
            Cache::Cold => {
                assert!(read >= 4096.0 || shown.contains("did not all come from the disk"), "{row:?}")
            }
            // Not 0: pages of libraries count, too, where they were not in the page cache.
            Cache::Warm => assert!(read < 2048.0, "{row:?}"),
        }
    }
    assert!(shown.contains("Files from disk") && shown.contains("50/50"), "{shown}");
    assert_eq!(std::fs::read_to_string(folder.path().join("files.csv")).unwrap().lines().count(), 9);
    assert!(folder.path().join("files-1.svg").exists() && folder.path().join("files-2.svg").exists());
    let left = std::fs::read_dir(folder.path()).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["runs"], "the files themselves are gone");
}

/// What a load has written until it is killed, too.
#[test]
fn an_interrupted_bench_leaves_no_temporary_files() {
    let [folder, temporary] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let inside = || std::fs::read_dir(temporary.path()).unwrap().flatten().map(|entry| entry.path());
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "demand", "--models", "epoll", "--rates", "100", "--seconds", "1m", "--out"])
        .arg(folder.path())
        .env("TMPDIR", temporary.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let holds_a_file = |path: std::path::PathBuf| {
        path.is_file() || std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
    };
    // The load makes its file before its window, of which it writes the figures when that has ended.
    while !inside().any(holds_a_file) {
        assert!(Instant::now() < deadline && bench.try_wait().unwrap().is_none(), "no load was started");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(inside().collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_interrupted_bench_takes_its_files_along() {
    let folder = tempfile::tempdir().unwrap();
    let inside = || std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    let mut bench = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "files", "--models", "epoll", "--connections", "20", "--rates", "1", "--out"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Written after the files themselves; the first round then takes 20 s.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !inside().any(|path| path.join("paths").exists()) {
        assert!(Instant::now() < deadline && bench.try_wait().unwrap().is_none(), "no files were made");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(inside().collect::<Vec<_>>(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_interrupted_or_killed_bench_leaves_no_control_group() {
    let folder = tempfile::tempdir().unwrap();
    // Begins with its group, where it can have one, and goes on with a server.
    let start = || {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["bench", "concurrency", "--models", "epoll", "--requests", "1000000", "--out"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task", bench.id());
        let has_children = || {
            let tasks = std::fs::read_dir(&children).into_iter().flatten().flatten();
            tasks
                .filter_map(|task| std::fs::read(task.path().join("children")).ok())
                .any(|ids| !ids.is_empty())
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_children() {
            assert!(
                Instant::now() < deadline && bench.try_wait().unwrap().is_none(),
                "no server was started"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        bench
    };
    let mut killed = start();
    let had = groups_of(killed.id());
    if had.is_empty() {
        eprintln!("left out: the ends of control groups: this user can make none below /sys/fs/cgroup");
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    // The next one removes what that one could not.
    let mut bench = start();
    assert_eq!(groups_of(bench.id()).is_empty(), had.is_empty());
    assert!(Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap().success());
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert_eq!(groups_of(killed.id()) + &groups_of(bench.id()), "", "had {had}");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let output = bench(&["models"], &file.join("inside"));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--out") && said.matches("(os error").count() == 1, "{said}");
    let output = bench(&["models", "--models", "rio"], folder.path());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = bench(&["files", "--seconds", "1"], folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("no effect on `bench files`"), "{said}");
}

#[test]
fn round_trips_are_measured_over_every_transport() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["latency", "--quick", "--models", "epoll,pool", "--seconds", "1", "--repeats", "1"];
    let output = bench(&args, folder.path());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let table = results(folder.path()).latency.unwrap();
    let names: Vec<_> = table.rows.iter().map(|row| row.setup.name()).collect();
    for line in [
        "pool, TCP, block",
        "epoll, TCP, spin:1ms",
        "epoll, Unix, spin",
        "epoll, fast path, spin",
        "no model, bare ring, spin",
    ] {
        assert!(names.iter().any(|name| name == line), "{line} in {names:?}");
    }
    for row in table.rows.iter().chain(&table.sizes) {
        assert!(row.mean_us.median > 0.0 && row.p50_us.median <= row.p99_9_us.median, "{row:?}");
    }
    assert!(table.sizes.iter().any(|row| row.message_bytes == 1 << 20));
    assert!(folder.path().join("round-trip.svg").exists() && folder.path().join("throughput.svg").exists());
    assert!(folder.path().join("latency.csv").exists());
    let run = tidegate_lab::run::Run::load(folder.path()).unwrap();
    assert!(run.rows.len() > table.rows.len(), "and some of the chart: {:?}", run.rows);
    assert_eq!(run.circumstances.settings["latency: length of a window"], "1 s");
}
