//! What every command does when nobody takes its output, or the disk is full: no panic, the exit code it would have had
//! or 1, and nothing lost that can still be shown.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::kit::{Outcome, Server, finish, run, tidegate};

/// A standard stream whose reader has gone.
fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn with_output(args: &[&str], stdout: Stdio, stderr: Stdio) -> Outcome {
    finish(tidegate(args).stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().unwrap())
}

/// A small run saved by bench; its file.
fn saved(folder: &Path) -> String {
    let out = folder.to_str().unwrap();
    let args = ["bench", "concurrency", "--models", "epoll", "--connections", "2", "--requests", "50"];
    let outcome = run(&mut tidegate(&[&args[..], &["--repeats", "2", "--out", out]].concat()));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    out.to_owned()
}

/// The result of a load, as a file in this directory.
fn result(http: &str, folder: &Path) -> String {
    let file = folder.join("load.json").to_str().unwrap().to_owned();
    let outcome = run(&mut tidegate(&["load", "http", http, "-c", "2", "-n", "20", "--json", &file]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    file
}

/// Commands that print and succeed. `of` has what some of them need: servers, a saved run, and the result of a load.
fn commands(of: &Needs) -> Vec<Vec<&str>> {
    let (http, echo, chat, udp) = (&*of.http.url, &*of.echo.url, &*of.chat.url, &*of.udp.url);
    let (attack, run, result) = (&*of.attack, &*of.run, &*of.result);
    vec![
        vec!["--help"],
        vec!["--version"],
        vec!["serve", "http", "--help"],
        vec!["doctor"],
        vec!["doctor", "--json"],
        vec!["completions", "bash"],
        vec!["man"],
        vec!["compare", run, run],
        vec!["compare", run, run, "--json", "-"],
        vec!["load", "http", http, "-c", "2", "-n", "20"],
        vec!["load", "http", http, "-c", "2", "-n", "20", "--json", "-"],
        vec!["load", "http", http, "-c", "2", "-n", "20", "--ndjson"],
        vec!["load", "http", http, "-c", "2", "-n", "20", "--phases"],
        vec!["load", "echo", echo, "-c", "2", "-n", "20"],
        vec!["load", "ping", echo, "-n", "20", "--warm-up", "0"],
        vec!["load", "udp", udp, "-n", "20"],
        vec!["load", "chat", chat, "-c", "4", "-n", "5"],
        vec!["load", "attack", attack, "-d", "0.2", "--silent", "2"],
        vec!["load", "merge", result],
        vec!["load", "merge", result, "--json", "-"],
    ]
}

struct Needs {
    http: Server,
    echo: Server,
    chat: Server,
    udp: Server,
    attack: String,
    run: String,
    result: String,
    _folder: tempfile::TempDir,
}

impl Needs {
    fn new() -> Self {
        let server = |what| Server::start(&["serve", what, "--listen", "127.0.0.1:0"]);
        let http = server("http");
        let folder = tempfile::tempdir().unwrap();
        let (attack, run, result) =
            (http.url.clone(), saved(folder.path()), result(&http.url, folder.path()));
        Self {
            http,
            echo: server("echo"),
            chat: server("chat"),
            udp: Server::start(&["serve", "udp", "echo", "--listen", "127.0.0.1:0"]),
            attack,
            run,
            result,
            _folder: folder,
        }
    }
}

#[test]
fn a_reader_that_stops_changes_no_exit_code() {
    let needs = Needs::new();
    for args in commands(&needs) {
        let read = with_output(&args, Stdio::piped(), Stdio::piped());
        assert_eq!(read.code, Some(0), "{args:?}: {}", read.stderr);
        let unread_stdout = with_output(&args, unread(), Stdio::piped());
        assert_eq!(unread_stdout.code, Some(0), "{args:?}: {}", unread_stdout.stderr);
        assert!(!unread_stdout.stderr.contains("panicked"), "{args:?}: {}", unread_stdout.stderr);
        assert_eq!(with_output(&args, unread(), unread()).code, Some(0), "{args:?} with nobody at stderr");
    }
    let bad = ["load", "http", "http://127.0.0.1:1/", "-n", "1"];
    assert_eq!(with_output(&bad, unread(), unread()).code, Some(1));
    assert_eq!(with_output(&["serve", "nonsense"], unread(), unread()).code, Some(2));
}

#[test]
fn a_reader_that_stops_changes_no_exit_code_of_what_measures() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (out, found, program) = (file("bench"), file("found.toml"), env!("CARGO_BIN_EXE_tidegate"));
    let small = ["--models", "epoll", "--connections", "2", "--requests", "50", "--repeats", "1"];
    let bench = [&["bench", "concurrency"], &small[..], &["--out", &out]].concat();
    let tune =
        ["tune", "--quick", "--budget", "1ms", "--models", "poll", "-c", "3", "--caps", "3", "--force"];
    let tune = [&tune[..], &["--out", &found]].concat();
    let ab = vec!["ab", program, program, "-c", "1", "--turn", "20ms", "--budget", "1ms"];
    for args in [bench, tune, ab] {
        let read = with_output(&args, Stdio::piped(), Stdio::piped());
        let unread_stdout = with_output(&args, unread(), Stdio::piped());
        assert_eq!(unread_stdout.code, read.code, "{args:?}: {}", unread_stdout.stderr);
        assert!(!unread_stdout.stderr.contains("panicked"), "{args:?}: {}", unread_stdout.stderr);
        assert_eq!(with_output(&args, unread(), unread()).code, read.code, "{args:?}: nobody at stderr");
        if read.code == Some(0) {
            // A full disk is said. `ab` has 2 for what is no answer.
            let disk = with_output(&args, full(), Stdio::piped());
            assert!(disk.stderr.contains("cannot write to stdout"), "{args:?}: {}", disk.stderr);
            assert_eq!(disk.code, Some(if args[0] == "ab" { 2 } else { 1 }), "{args:?}");
        }
    }
}

#[test]
fn output_that_a_full_disk_does_not_take_is_an_error() {
    let needs = Needs::new();
    // Nobody has to receive lines of progress.
    let has_progress = |args: &Vec<&str>| args.iter().any(|arg| ["--ndjson", "--phases"].contains(arg));
    for args in commands(&needs).into_iter().filter(|args| !has_progress(args)) {
        let outcome = with_output(&args, full(), Stdio::piped());
        assert_eq!(outcome.code, Some(1), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("error: cannot write to stdout: "), "{args:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("panicked"), "{args:?}: {}", outcome.stderr);
    }
}

#[test]
fn results_that_cannot_be_saved_are_shown_and_leave_the_old_ones() {
    let needs = Needs::new();
    let (http, echo, chat, run_file) = (&*needs.http.url, &*needs.echo.url, &*needs.chat.url, &*needs.run);
    let udp = &*needs.udp.url;
    let cases: [(&[&str], &str, &str); 9] = [
        (&["load", "http", http, "-n", "20"], "--json", "requests"),
        (&["load", "http", http, "-n", "20"], "--hgrm", "requests"),
        (&["load", "http", http, "-n", "20"], "--csv", "requests"),
        (&["load", "ping", echo, "-n", "20", "--warm-up", "0"], "--json", "round trips"),
        (&["load", "chat", chat, "-c", "4", "-n", "5"], "--json", "deliveries"),
        (&["load", "attack", http, "-d", "0.2", "--silent", "2"], "--json", "attackers"),
        (&["load", "udp", udp, "-n", "20"], "--json", "came back"),
        (&["load", "merge", &needs.result], "--json", "requests"),
        (&["compare", run_file, run_file], "--json", "B against A"),
    ];
    for (args, option, shows) in cases {
        let device = run(&mut tidegate(&[args, &[option, "/dev/full"]].concat()));
        assert_eq!(device.code, Some(1), "{args:?} {option}: {}", device.stderr);
        assert!(device.stdout.contains(shows), "{args:?} {option}: {}", device.stdout);
        assert!(device.stderr.contains("/dev/full"), "{args:?} {option}: {}", device.stderr);

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result");
        std::fs::write(&file, "precious").unwrap();
        // No file may grow: what is written is an error (EFBIG), as where a disk is full.
        let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).args(args);
        let small = run(command.args([option, file.to_str().unwrap()]));
        assert_eq!(small.code, Some(1), "{args:?} {option}: {}", small.stderr);
        assert!(small.stdout.contains(shows), "{args:?} {option}: {}", small.stdout);
        assert!(small.stderr.contains(file.to_str().unwrap()), "{args:?} {option}: {}", small.stderr);
        assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{args:?} {option}");
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "{args:?} {option}: nothing is left"
        );
    }
}

#[test]
fn results_of_the_lab_that_cannot_be_saved_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (out, program) = (folder.path().to_str().unwrap(), env!("CARGO_BIN_EXE_tidegate"));
    // A file of the report on a disk that is full.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("report.json")).unwrap();
    let bench = ["bench", "concurrency", "--models", "epoll", "--connections", "2", "--requests", "50"];
    let bench = [&bench[..], &["--repeats", "1", "--out", out]].concat();
    let ab = ["ab", program, program, "-c", "1", "--turn", "300ms", "--budget", "1ms", "--json", "/dev/full"];
    // Memory takes no time to measure, so that this search always finds something to write.
    let tune =
        ["tune", "--goal", "connections", "--quick", "--budget", "1h", "--models", "blocking", "-c", "3"];
    let tune = [&tune[..], &["--caps", "3", "--force", "--out", "/dev/full"]].concat();
    let cases = [
        (bench, 1, "Responses a second", "report.json"),
        (ab.to_vec(), 2, "NEW", "/dev/full"), // 1 would be an answer
        (tune, 1, "for connections", "/dev/full; the settings were:"),
    ];
    for (args, code, shows, path) in cases {
        let outcome = run(&mut tidegate(&args));
        assert_eq!(outcome.code, Some(code), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stdout.contains(shows), "{args:?}: {}{}", outcome.stdout, outcome.stderr);
        assert!(outcome.stderr.contains(path) && !outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    }
    assert!(!folder.path().join("runs").exists(), "a run without its report");
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let half: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".tidegate")).collect();
    assert!(half.is_empty(), "{half:?}");
}

/// Processes that this one has started and that run.
fn children(of: u32) -> Vec<Pid> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| state_and_parent(*pid).is_some_and(|(_, parent)| parent == of);
    pids.filter(is_child).filter_map(|pid| Pid::from_raw(pid as i32)).collect()
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn runs(pid: Pid) -> bool {
    state_and_parent(pid.as_raw_nonzero().get() as u32).is_some_and(|(state, _)| state != 'Z')
}

#[test]
fn a_hangup_takes_the_children_along() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_tidegate");
    // A program that never serves, so that the bench waits for it.
    let stuck = ["--", "sh", "-c", "exec sleep 600", "{model}", "{listen}"];
    // The exit code 1 of `ab` is an answer.
    let commands: [(&[&str], &[&str], i32); 4] = [
        (&["bench", "models", "--models", "epoll", "--connections", "2", "--seconds", "50", "--out"], &[], 1),
        (&["bench", "app", "--models", "epoll", "--connections", "2", "--out"], &stuck, 1),
        (&["tune", "--models", "epoll", "--budget", "50s", "--out"], &[], 1),
        (&["ab", program, program, "--budget", "50s", "--json"], &[], 2),
    ];
    for (args, words, code) in commands {
        let out = folder.path().join(args[..2].join("-").replace('/', "-"));
        // Under nohup(1) SIGHUP is ignored, and stays so in what it starts: here it is as a terminal leaves it.
        let mut command = std::process::Command::new("env");
        command.args(["--default-signal=HUP", program]).args(args).arg(&out).args(words);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let start = Instant::now();
        let started = first_of(&mut child, |_| true);
        kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
        let outcome = finish(child);
        assert_eq!(outcome.code, Some(code), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("interrupted"), "{args:?}: {}", outcome.stderr);
        while started.iter().any(|&pid| runs(pid)) {
            assert!(start.elapsed() < crate::kit::DEADLINE, "{args:?} leaves {started:?} behind");
            std::thread::yield_now();
        }
    }
}

/// What a child starts first, of the programs that are looked for.
fn first_of(child: &mut std::process::Child, is_it: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let start = Instant::now();
    loop {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended by itself");
        let started: Vec<Pid> = children(child.id()).into_iter().filter(|&pid| is_it(pid)).collect();
        if !started.is_empty() {
            return started;
        }
        assert!(start.elapsed() < crate::kit::DEADLINE, "it starts nothing");
        std::thread::yield_now();
    }
}

fn is(pid: Pid, command: &str) -> bool {
    let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    words.split(|&byte| byte == 0).nth(1) == Some(command.as_bytes())
}

#[test]
fn servers_end_with_a_lab_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (out, file) = (folder.path().join("bench"), folder.path().join("found.toml"));
    let (out, file, tidegate) =
        (out.to_str().unwrap(), file.to_str().unwrap(), env!("CARGO_BIN_EXE_tidegate"));
    let commands: [&[&str]; 3] = [
        &["bench", "models", "--models", "epoll", "--connections", "2", "--seconds", "50", "--out", out],
        &["tune", "--models", "epoll", "--budget", "50s", "--out", file],
        &["ab", tidegate, tidegate, "--budget", "50s"],
    ];
    for args in commands {
        let mut child = self::tidegate(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        first_of(&mut child, |pid| is(pid, "load")); // now a server serves
        let servers = first_of(&mut child, |pid| is(pid, "serve"));
        let start = Instant::now();
        child.kill().unwrap();
        child.wait().unwrap();
        while servers.iter().any(|&pid| runs(pid)) {
            assert!(start.elapsed() < crate::kit::DEADLINE, "{args:?} leaves {servers:?} behind");
            std::thread::yield_now();
        }
    }
}
