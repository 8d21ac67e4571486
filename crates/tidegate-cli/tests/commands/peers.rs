//! `tidegate bench peers`, the built binary, with peers that a user adds. tidegate itself plays the other servers,
//! so nothing has to be installed; nothing here depends on speed. Peers are lines of a shell, and measured beside
//! models of Linux.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tidegate_lab::report::Results;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

/// How long anything here may take.
const TIMEOUT: Duration = Duration::from_secs(120);

fn bench(folder: &Path, peers: &str, more: &[&str]) -> Command {
    let file = folder.join("mine.toml");
    std::fs::write(&file, peers).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args([
        "bench",
        "peers",
        "--requests",
        "200",
        "--repeats",
        "2",
        "--connections",
        "5",
        "--models",
        "epoll",
    ]);
    command.arg("--peers").arg(&file).arg("--out").arg(folder.join("report")).args(more);
    command.env("XDG_CACHE_HOME", folder.join("cache"));
    command
}

fn results(folder: &Path) -> Results {
    serde_json::from_str(&std::fs::read_to_string(folder.join("report/report.json")).unwrap()).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Ids of processes that were started with this text in their environment or command line.
fn processes_with(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter(|e| e.file_name().to_string_lossy().chars().all(|c| c.is_ascii_digit()));
    let has = |path: &Path| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = std::fs::read(path.join(file)).unwrap_or_default();
            bytes.windows(mark.len()).any(|window| window == mark.as_bytes())
        })
    };
    pids.filter(|e| has(&e.path())).map(|e| e.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn peers_of_the_user_are_measured_beside_the_models_and_counted_in_baselines() {
    let folder = tempfile::tempdir().unwrap();
    // The baseline of this test is tidegate on poll; the other one answers from a child of the shell that started it.
    let peers = format!(
        "[[peer]]\nname = \"baseline\"\nstart = \"exec {PROGRAM} serve http --model poll --listen 127.0.0.1:{{port}}\"\n\
         [[peer]]\nname = \"mine\"\nabout = \"x\"\ncheck = \"test -d {{here}}\"\nbuild = \"echo yes > {{build}}/built\"\n\
         start = \"test $(cat {{build}}/built) = yes && {PROGRAM} serve http --page {{dir}}/www/index.html --listen 127.0.0.1:{{port}} --cpus {{cpu}} & wait\"\n\
         ready_line = \"listening on\"\n\
         [[peer]]\nname = \"absent\"\ncheck = \"false\"\ninstall = \"apt install absent\"\nstart = \"absent {{port}}\"\n"
    );
    let output = bench(folder.path(), &peers, &["--only", "mine,absent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let table = results(folder.path()).peers.unwrap();
    assert_eq!(table.rows.len(), 6, "{table:?}");
    for keep_alive in [true, false] {
        let rows: Vec<_> = table.rows.iter().filter(|row| row.case.keep_alive == keep_alive).collect();
        let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["baseline", "mine", "tidegate epoll"]);
        for row in rows {
            let f = &row.figures;
            assert_eq!((f.failed, f.verdicts.len(), f.cpu_s_per_100k.rounds.len()), (0, 2, 2), "{row:?}");
            assert!(f.cpu_s_per_100k.min > 0.0, "{row:?}");
            let times = row.times_baseline.as_ref().unwrap();
            assert!(row.name != "baseline" || times.rounds == [1.0, 1.0], "{row:?}");
        }
    }
    assert_eq!(table.left_out.len(), 1);
    let shown = said(&output);
    assert!(
        shown.contains("Times the baseline") && shown.contains("not installed: apt install absent"),
        "{shown}"
    );
    let page = std::fs::read_to_string(folder.path().join("report/report.html")).unwrap();
    assert!(page.contains("apt install absent") && page.contains("times the baseline"));
    // Who was killed may still be ending: only its parent has been waited for.
    let deadline = Instant::now() + TIMEOUT;
    wait_for("the end of the peers", deadline, &mut || {
        processes_with(folder.path().to_str().unwrap()).is_empty()
    });
}

#[test]
fn a_peer_that_does_not_do_its_part_is_named_and_the_others_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let peers = format!(
        "[[peer]]\nname = \"baseline\"\ncheck = \"false\"\nstart = \"x {{port}}\"\n\
         [[peer]]\nname = \"dies\"\nstart = \"echo no such port: {{port}}; exit 3\"\n\
         [[peer]]\nname = \"short\"\nstart = \"echo hello > page; exec {PROGRAM} serve http --page page --listen 127.0.0.1:{{port}}\"\n\
         [[peer]]\nname = \"unbuilt\"\nbuild = \"echo no compiler; echo missing header >&2; false\"\nstart = \"x {{port}}\"\n"
    );
    let output = bench(folder.path(), &peers, &["--only", "dies,short,unbuilt"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let shown = said(&output);
    for why in ["no such port: ", "exit status: 3", "page of 4096", "missing header"] {
        assert!(shown.contains(why), "{why}: {shown}");
    }
    let table = results(folder.path()).peers.unwrap();
    assert!(
        table.rows.iter().all(|row| row.name == "tidegate epoll" && row.times_baseline.is_none()),
        "{table:?}"
    );
    assert_eq!(table.rows.len(), 2);
}

fn wait_for(what: &str, deadline: Instant, is_so: &mut dyn FnMut() -> bool) {
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} took too long");
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupted_bench_leaves_nothing_running() {
    for signal in [Signal::TERM, Signal::HUP] {
        interrupted_by(signal);
    }
}

fn interrupted_by(signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    // It never serves, so the bench waits for it.
    let peers = "[[peer]]\nname = \"stuck\"\nready_line = \"never\"\nstart = \"touch {here}/begun; sleep 600 & sleep 600; echo {port}\"\n\
                 [[peer]]\nname = \"baseline\"\ncheck = \"false\"\nstart = \"x {port}\"\n";
    let bench = bench(folder.path(), peers, &["--only", "stuck"]);
    // Under nohup(1) SIGHUP is ignored, and stays so in what it starts: here it is as a terminal leaves it.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(bench.get_program()).args(bench.get_args());
    command.env("XDG_CACHE_HOME", folder.path().join("cache"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mark = folder.path().to_str().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    wait_for("the peer", deadline, &mut || folder.path().join("begun").exists());
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut code = None;
    wait_for("the end", deadline, &mut || {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(1), "{signal:?}");
    wait_for("the end of the peers", deadline, &mut || processes_with(mark).is_empty());
}

#[test]
fn wrong_files_and_names_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (peers, more, why) in [
        ("[[peer]]\nname = \"a\"\nstart = \"x\"", &[][..], "{port}"),
        ("[[peer]]\nname = \"a\"\nstrat = \"x\"", &[], "strat"),
        (
            "[[peer]]\nname = \"a\"\nstart = \"{port}\"",
            &["--only", "b"],
            "unknown peer b; the peers are baseline",
        ),
    ] {
        let output = bench(folder.path(), peers, more).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains(why), "{why}: {}", said(&output));
    }
    let output = Command::new(PROGRAM).args(["bench", "models", "--only", "go"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
