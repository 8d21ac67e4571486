//! `serve --config FILE`, and files that `tidegate tune` wrote. Nothing here depends on speed.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::kit::{Outcome, Server, run, tidegate};

pub struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    pub fn of(text: &str) -> Self {
        Self::of_bytes(text.as_bytes())
    }

    fn of_bytes(text: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.toml");
        std::fs::write(&path, text).unwrap();
        Self { _folder: folder, path }
    }

    pub fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub fn refused(&self, more: &[&str], says: &[&str]) {
        let outcome = run(&mut tidegate(&[&["serve", "--config", self.name()], more].concat()));
        refused(&outcome, &[says, &[self.name()]].concat());
    }
}

#[track_caller]
fn refused(outcome: &Outcome, says: &[&str]) {
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    let line = outcome.stderr.lines().find(|line| line.starts_with("error: ")).expect("an error");
    for text in says {
        assert!(line.contains(text), "{text:?} in {line:?}");
    }
}

#[test]
fn files_and_the_command_line_have_the_same_units() {
    for (key, value) in [
        ("max-connections", "\"1k\""),
        ("max-connections", "1000"),
        ("idle-timeout", "75"),
        ("idle-timeout", "\"1.5m\""),
        ("drain-timeout", "\"200ms\""),
        ("body-bytes", "\"16KiB\""),
        ("min-rate", "\"1k\""),
    ] {
        let head = "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\n";
        let file = File::of(&format!("{head}{key} = {value}\n"));
        drop(Server::start(&["serve", "--config", file.name()]));
        let option = format!("--{key}={}", value.trim_matches('"'));
        drop(Server::start(&["serve", "http", "--listen", "127.0.0.1:0", "--model", "poll", &option]));
    }
    let line = ["serve", "http", "--listen", "127.0.0.1:0", "--idle-timeout"];
    refused(&run(&mut tidegate(&[&line[..], &["10x"]].concat())), &["a plain number is seconds"]);
}

#[test]
fn a_server_starts_as_its_file_says() {
    let file = File::of(
        "log = \"json\"\n[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\nmodel = \"poll\"\nmax-connections = 7\nstats = true\n",
    );
    let server = Server::start(&["serve", "--config", file.name()]);
    assert!(
        server.talk("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200")
    );
    server.signal(Signal::TERM);
    let (status, _, stderr) = server.ended();
    assert_eq!(status.code(), Some(0));
    let counters = stderr.iter().find(|line| line.contains("\"accepted\"")).expect("the counters");
    assert!(counters.contains("\"model\":\"poll\""), "{counters}");
}

#[test]
fn an_option_beside_the_file_wins() {
    let file = File::of(
        "[[server]]\nservice = \"echo\"\nlisten = \"127.0.0.1:1\"\nmodel = \"poll\"\nstats = true\n",
    );
    let args = ["serve", "--config", file.name(), "echo", "--listen", "127.0.0.1:0", "--model", "select"];
    let server = Server::start(&args);
    server.signal(Signal::TERM);
    let (_, _, stderr) = server.ended();
    assert!(stderr.iter().any(|line| line.contains("\"model\":\"select\"")), "{stderr:?}");
    file.refused(&["http"], &["for the service echo"]);
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let with = |keys: &str| File::of(&format!("[[server]]\nservice = \"http\"\n{keys}\n"));
    with("max-conections = 5").refused(&[], &["unknown key `max-conections`", "`max-connections`"]);
    with("listen = 8080").refused(&[], &["--listen", "8080", "ADDR:PORT"]);
    with("threads = true").refused(&[], &["threads is true or false", "a number"]);
    with("tls-key = \"key.pem\"").refused(&[], &["--tls-cert"]);
    File::of("[[server]\n").refused(&[], &["line 1"]);
}

#[test]
fn limits_of_a_file_that_contradict_each_other_are_refused_like_options() {
    let file = File::of(
        "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\noutbox-low = \"64k\"\noutbox-high = \"16k\"\n",
    );
    let table = format!("{}: [[server]]: ", file.name());
    file.refused(&[], &["`outbox-low` (64KiB)", "`outbox-high` (16KiB)", &table]);
    file.refused(
        &["http", "--outbox-low", "32k"],
        &["--outbox-low (32KiB)", "`outbox-high` (16KiB)", &table],
    );
    let second = File::of(
        "[[server]]\nservice = \"http\"\n[[server]]\nservice = \"echo\"\noutbox-low = 100\noutbox-high = 50\n",
    );
    second.refused(&[], &[&format!("{}: [[server]] 2 (echo): `outbox-low` (100)", second.name())]);
}

#[test]
fn a_file_that_is_not_text_is_not_said_to_be_missing() {
    let file = File::of_bytes(b"# \xff\n[[server]]\nservice = \"http\"\n");
    file.refused(&[], &["not UTF-8 from byte 2 on; save it as UTF-8"]);
    let nowhere = run(&mut tidegate(&["serve", "--config", "/none/at/all.toml"]));
    refused(&nowhere, &["/none/at/all.toml", "give a file that exists"]);
    let folder = run(&mut tidegate(&["serve", "--config", "/etc"]));
    refused(&folder, &["/etc: cannot be read: Is a directory"]);
    assert!(!folder.stderr.contains("give a file that exists"), "{}", folder.stderr);
}

#[test]
fn a_search_that_judged_nothing_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for goal in ["throughput", "p99", "connections", "cpu"] {
        let path = folder.path().join(format!("{goal}.toml"));
        // The budget is over after the first trial, however fast the machine is.
        let tune = ["tune", "--goal", goal, "--quick", "--budget", "1ms", "--models", "poll", "-c", "3"];
        let outcome =
            run(&mut tidegate(&[&tune[..], &["--caps", "3", "--out", path.to_str().unwrap()]].concat()));
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        for text in ["the budget of 0.001 s was over", "--budget", "Nothing was written"] {
            assert!(outcome.stderr.contains(text), "{text:?} in {}", outcome.stderr);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{goal}");
    }
}

/// The shortest whole search: its model has few settings, and memory takes no time to measure.
const WHOLE: [&str; 11] = [
    "tune",
    "--goal",
    "connections",
    "--quick",
    "--budget",
    "1h",
    "--models",
    "blocking",
    "-c",
    "3",
    "--out",
];

#[test]
fn what_tune_writes_serve_takes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("found.toml");
    let out = path.to_str().unwrap();
    let tune = [&WHOLE[..], &[out, "--caps", "3"]].concat();
    let outcome = run(&mut tidegate(&tune));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("model = \"blocking\""), "{text}");

    let server = Server::start(&["serve", "--config", out, "echo", "--listen", "127.0.0.1:0"]);
    let mut stream = server.connect();
    use std::io::{Read, Write};
    stream.write_all(b"GET / ").unwrap();
    let mut start = [0; 6];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"GET / ");

    let again = run(&mut tidegate(&tune));
    refused(&again, &[out, "--force"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_whole_search_shows_every_stage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("found.toml");
    let out = path.to_str().unwrap();
    std::fs::write(&path, "old").unwrap();
    let outcome = run(&mut tidegate(&[&WHOLE[..], &[out, "--caps", "3,5", "--force"]].concat()));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let served = "max-connections stays at its default: up to 5 were established and served";
    for text in ["model stays at blocking", "buffer-bytes", served] {
        assert!(outcome.stdout.contains(text), "{text:?} in {}", outcome.stdout);
    }
    // The number that was tried last is no limit.
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("max-connections =") && !text.contains("old"), "{text}");
}

#[test]
fn a_number_of_connections_that_the_server_has_no_descriptors_for_is_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("found.toml");
    let words = ["tune", "--goal", "connections", "--quick", "--budget", "1h", "--models", "poll", "-c", "3"];
    let rest = ["--caps", "20,5000", "--out", path.to_str().unwrap()];
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 1024 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_tidegate")]);
    let outcome = run(command.args(words).args(rest));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let shown = &outcome.stdout;
    assert!(shown.contains("with 5000 the server failed") && shown.contains("1024 descriptors"), "{shown}");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("max-connections = 20"), "{text}");
}

#[test]
fn what_tune_cannot_do_is_said_before_it_begins() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new.toml");
    let nowhere = folder.path().join("none").join("new.toml");
    let tune = |args: &[&str]| run(&mut tidegate(&[&["tune", "--budget", "1ms"], args].concat()));
    let out = out.to_str().unwrap();
    refused(&tune(&["--out", nowhere.to_str().unwrap()]), &["an existing directory"]);
    refused(&tune(&["--out", out, "--models", "iocp"]), &["iocp is unavailable", "doctor"]);
    refused(&tune(&["--out", out, "--rate", "5"]), &["--goal p99"]);
    refused(&tune(&["--out", out, "--goal", "p99", "--rate=0"]), &["--rate is not above 0"]);
    refused(&tune(&["--out", out, "--goal", "connections", "--no-keepalive"]), &["--no-keepalive"]);
    refused(&tune(&["--out", out, "--max-delay", "200us"]), &["--max-delay requires --goal cpu"]);
    let cpu = |delay| tune(&["--out", out, "--goal", "cpu", "--max-delay", delay]);
    refused(&cpu("1s"), &["--max-delay", "coalesce", "10ms"]);
    refused(&cpu("0s"), &["--max-delay", "leave it out"]);
}
