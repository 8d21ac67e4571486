//! The commands of README and book that come to an end on one machine are run: servers are started and stopped, loads
//! are shortened and sent to a server that the test starts. The others are only parsed, and [`PARSED`] says why.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::commands::{TIDEGATE, alternatives, filled, in_line, in_shell, product};
use super::pages::{Page, root};

/// Commands that are not run: the words they begin with, or an option with its value anywhere in them, and why.
const PARSED: &[(&str, &str)] = &[
    ("--nats", "needs a NATS broker, and agents on other hosts"),
    ("agent", "waits for a NATS broker"),
    ("bench", "measures for a minute and more; tests/commands/bench.rs runs short ones"),
    ("tune", "tries settings for minutes; tests/serve/config.rs runs a short one"),
    ("ab", "needs two programs and minutes; tests/commands/ab.rs runs it"),
    ("fastpath", "needs the rights for eBPF; tests/fastpath runs it"),
    ("load attack", "attacks for 30 s; tests/commands/attack.rs runs a short one"),
    ("--tls-ca cert.pem", "with a certificate that the page makes with openssl"),
];

/// Lines with a program of others in front, and why they are not run.
const WRAPPED: &[(&str, &str)] = &[
    ("mptcpize", "part of mptcpd, and a kernel with Multipath TCP"),
    ("smc_run", "part of smc-tools, and a network card with RDMA"),
    ("LD_PRELOAD", "a library for a network card with RDMA"),
];

/// The longest that one command may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A command as it is run: with placeholders filled in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    page: String,
    line: String,
    words: Vec<String>,
}

/// The commands of a page that are written whole: lines of a shell, and code in prose that names the program.
fn of(page: &Page) -> Vec<Case> {
    let spans = page.spans.iter().filter(|span| span.contains("tidegate ")).cloned();
    let mut found = Vec::new();
    for line in in_shell(page).chain(spans) {
        for (line, words) in in_line(&line) {
            let words: Vec<_> = words.iter().map(|word| alternatives(word)).collect();
            for words in product(&words) {
                let merged = words.starts_with(&["load".into(), "merge".into()]);
                let words = words.iter().filter(|word| !(merged && *word == "…")).map(|word| filled(word));
                let words = words.collect::<Result<Vec<_>, _>>().unwrap_or_default();
                found.push(Case { page: page.path.clone(), line: line.clone(), words });
            }
        }
    }
    found
}

/// Why a command is not run.
fn only_parsed(case: &Case) -> Option<&'static str> {
    let words = &case.words;
    let is_at = |at: usize, entry: &[&str]| {
        words[at..].iter().map(String::as_str).take(entry.len()).eq(entry.iter().copied())
    };
    let matches = |entry: &str| {
        let entry: Vec<&str> = entry.split(' ').collect();
        let anywhere = if entry[0].starts_with("--") { words.len() } else { 1 };
        (0..anywhere.min(words.len())).any(|at| is_at(at, &entry))
    };
    let is_help = words.last().is_some_and(|word| word == "--help");
    let is_name = words.len() == 1 && ["serve", "load", "cert"].contains(&words[0].as_str());
    let is_incomplete = words.is_empty() || words.iter().any(|word| word.contains('…'));
    match () {
        () if is_help => None,
        () if is_name => Some("the name of a command"),
        () if is_incomplete => Some("a part is left out"),
        () => {
            let wrapped = WRAPPED.iter().find(|(program, _)| case.line.contains(program));
            wrapped.or_else(|| PARSED.iter().find(|(entry, _)| matches(entry))).map(|(_, why)| *why)
        }
    }
}

/// What every command finds in its folder: certificates, a configuration, results and a page.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        finish(folder.path(), &["cert", "./tls"], &[0]).unwrap();
        fs::copy(at("tls/cert.pem"), at("cert.pem")).unwrap();
        fs::copy(at("tls/key.pem"), at("key.pem")).unwrap();
        for name in ["file.toml", "tidegate.toml"] {
            fs::write(at(name), "[[server]]\nservice = \"http\"\nlisten = \"127.0.0.1:0\"\n").unwrap();
        }
        for name in ["before", "after"] {
            fs::copy(root().join("benchmarks/runs/answer.json"), at(name)).unwrap();
        }
        let (server, url) =
            Server::start(folder.path(), &["serve", "echo", "--listen", "127.0.0.1:0"]).unwrap();
        for name in ["a.json", "b.json"] {
            let load = ["load", "echo", addr(&url), "-c", "2", "-n", "100", "--json", name];
            finish(folder.path(), &load, &[0]).unwrap();
        }
        server.stop().unwrap();
        Self(folder)
    }

    /// A folder of its own with these files; without certificates for the command that writes some.
    fn copy(&self, with_certificates: bool) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path()) {
            let to = folder.path().join(entry.file_name().unwrap());
            if entry.is_file() {
                fs::copy(entry, to).unwrap();
            } else if with_certificates {
                fs::create_dir(&to).unwrap();
                for file in fs::read_dir(entry).unwrap().map(|file| file.unwrap().path()) {
                    fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
                }
            }
        }
        folder
    }
}

/// Waits for the end of a process, at most until the deadline; then it is killed.
fn wait(child: &mut Child) -> Result<i32, String> {
    let start = Instant::now();
    while start.elapsed() < DEADLINE {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return status.code().ok_or_else(|| status.to_string());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("did not end within {DEADLINE:?}"))
}

fn spawn(folder: &Path, words: &[&str]) -> Result<Child, String> {
    let mut command = Command::new(TIDEGATE);
    command.args(words).current_dir(folder).env_remove("TIDEGATE_LOG").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())
}

/// All of a stream, read by a thread of its own so that the process never waits for a reader.
fn read(mut stream: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        String::from_utf8_lossy(&all).into_owned()
    })
}

/// Runs a command to its end, which has to be one of these codes; returns what it printed.
fn finish(folder: &Path, words: &[&str], codes: &[i32]) -> Result<String, String> {
    let mut child = spawn(folder, words)?;
    let (stdout, stderr) = (read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap()));
    let code = wait(&mut child);
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    match code {
        Ok(code)
            if codes.contains(&code) && !(stdout.is_empty() && words[0] != "man" && words[0] != "cert") =>
        {
            Ok(stdout)
        }
        Ok(code) => Err(format!("exit code {code}: {stdout}{stderr}")),
        Err(e) => Err(format!("{e}: {stdout}{stderr}")),
    }
}

/// A server. Killed when dropped.
struct Server {
    child: Child,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Server {
    /// Starts a server and waits until it listens; also returns its URL.
    fn start(folder: &Path, words: &[&str]) -> Result<(Self, String), String> {
        let mut child = spawn(folder, words)?;
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = read(child.stderr.take().unwrap());
        let mut server = Self { child, stderr: Some(stderr) };
        let (found, url) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(url) = line.strip_prefix("listening on ") {
                    let _ = found.send(url.to_owned());
                }
            }
        });
        match url.recv_timeout(DEADLINE) {
            Ok(url) => Ok((server, url)),
            Err(_) => {
                let _ = server.child.kill();
                Err(format!("does not listen: {}", server.said()))
            }
        }
    }

    fn said(&mut self) -> String {
        self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }

    /// Stops it, which has to succeed.
    fn stop(mut self) -> Result<(), String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(|e| e.to_string())?;
        match wait(&mut self.child) {
            Ok(0) => Ok(()),
            end => Err(format!("stopped with {end:?}: {}", self.said())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address and port in a URL.
fn addr(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn run(case: &Case, files: &Files) -> Result<(), String> {
    let words = &case.words;
    let folder = files.copy(words[0] != "cert");
    let as_text = |words: &[String]| words.join(" ");
    let strs = |words: &[String]| words.iter().map(String::as_str).map(str::to_owned).collect::<Vec<_>>();
    let is_help = words.last().is_some_and(|word| word == "--help");
    let done = match words[0].as_str() {
        _ if is_help => finish(folder.path(), &refs(words), &[0]).map(drop),
        "serve" => {
            let words = at_free_port(strs(words), folder.path());
            Server::start(folder.path(), &refs(&words)).and_then(|(server, _)| server.stop())
        }
        "load" if words[1] != "merge" => load(words, folder.path()),
        // A wrong answer and the end of standard input are 1.
        "lesson" if words.len() > 1 => finish(folder.path(), &refs(words), &[0, 1]).map(drop),
        _ => finish(folder.path(), &refs(words), &[0]).map(drop),
    };
    done.map_err(|e| format!("{}: {}\n    tidegate {}: {e}", case.page, case.line, as_text(words)))
}

fn refs(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// A server's options, with addresses and paths that are free here.
fn at_free_port(mut words: Vec<String>, folder: &Path) -> Vec<String> {
    let mut listens = words.iter().any(|word| word == "--config"); // the file has an address
    for at in 1..words.len() {
        match words[at - 1].as_str() {
            "--listen" => {
                words[at] = "127.0.0.1:0".into();
                listens = true;
            }
            "--handover" => words[at] = folder.join("handover.sock").to_str().unwrap().into(),
            _ => {}
        }
    }
    if !listens {
        words.extend(["--listen".into(), "127.0.0.1:0".into()]);
    }
    words
}

/// Runs a short form of a load against a server of its own.
fn load(words: &[String], folder: &Path) -> Result<(), String> {
    let target = &words[2];
    let is_secure = ["https://", "tls://", "wss://"].iter().any(|scheme| target.starts_with(scheme));
    let service = match words[1].as_str() {
        "ping" => "echo",
        "udp" => "udp echo",
        same => same,
    };
    let socket = folder.join("socket");
    let listen =
        if target.starts_with("unix:") { format!("unix:{}", socket.display()) } else { "127.0.0.1:0".into() };
    let mut server = vec!["serve"];
    server.extend(service.split(' '));
    server.extend(["--listen", &listen]);
    if is_secure {
        server.extend(["--tls-cert", "tls/cert.pem", "--tls-key", "tls/key.pem"]);
    }
    if words.iter().any(|word| word == "--fast-path") {
        server.push("--fast-path");
    }
    let (server, url) = Server::start(folder, &server)?;
    let mut words = words.to_vec();
    words[2] = match target.split_once("://") {
        None if target.starts_with("unix:") => {
            let path = target.match_indices(':').nth(1).map_or("", |(at, _)| &target[at..]);
            format!("{listen}{path}")
        }
        None => addr(&url).to_owned(),
        Some((scheme, rest)) => {
            let path = rest.split_once('/').map(|(_, path)| format!("/{path}")).unwrap_or_default();
            format!("{scheme}://{}{path}", addr(&url))
        }
    };
    let mut is_bounded = false;
    for at in 3..words.len() {
        match words[at - 1].as_str() {
            "-c" => words[at] = least(&words[at], 10),
            "-n" => words[at] = least(&words[at], 200),
            "--rate" => words[at] = least(&words[at], 500),
            "-d" => words[at] = "300ms".into(),
            _ => {}
        }
        is_bounded |= ["-n", "-d", "--messages"].contains(&words[at - 1].as_str());
    }
    if !is_bounded {
        words.extend(["-d".into(), "300ms".into()]);
    }
    // A condition may fail here: it is about a server on a quiet machine.
    let codes: &[i32] = if words.iter().any(|word| word == "--fail-if") { &[0, 1] } else { &[0] };
    let loaded = finish(folder, &refs(&words), codes);
    server.stop()?;
    loaded.map(drop).map_err(|e| format!("as tidegate {}: {e}", words.join(" ")))
}

/// A number of a load, such as 20k, but no more than `most`.
fn least(number: &str, most: u64) -> String {
    let of = |number: &str, times: u64| number.parse::<u64>().ok().map(|n| n * times);
    let number = match number.strip_suffix('k') {
        Some(thousands) => of(thousands, 1_000),
        None => of(number, 1),
    };
    number.unwrap_or(most).min(most).to_string()
}

#[test]
fn every_finite_command_succeeds() {
    let start = Instant::now();
    let pages = Page::all();
    let book = pages.iter().filter(|page| page.path == "README.md" || page.path.starts_with("docs/"));
    let all: Vec<Case> = book.flat_map(of).filter(|case| !case.page.ends_with("options.md")).collect();
    let (parsed, whole): (Vec<_>, Vec<_>) = all.into_iter().partition(|case| only_parsed(case).is_some());
    let distinct: BTreeMap<Vec<String>, Case> =
        whole.into_iter().map(|case| (case.words.clone(), case)).collect();
    let cases: Vec<Case> = distinct.into_values().collect();
    assert!(cases.len() >= 40, "only {} commands are run", cases.len());
    let unused = PARSED.iter().filter(|(_, why)| !parsed.iter().any(|case| only_parsed(case) == Some(why)));
    assert_eq!(unused.count(), 0, "a reason for a command that no page has");
    let (files, next, faults) = (Files::new(), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(fault) = run(case, &files) {
                        faults.lock().unwrap().push(fault);
                    }
                }
            });
        }
    });
    println!(
        "{} commands run, {} only parsed, in {:.1} s",
        cases.len(),
        parsed.len(),
        start.elapsed().as_secs_f64()
    );
    super::none("commands fail", faults.into_inner().unwrap());
}

#[test]
fn commands_that_fail_are_found() {
    let page = Page::of(
        "docs/made-up.md",
        "```\ntidegate serve http --page no-such-file\ntidegate load echo 127.0.0.1:1 -c 10 -n 60k\ntidegate bench \
         udp\ntidegate load http http://127.0.0.1:1/ --check-status 404\n```\n\n`tidegate serve …` `tidegate serve`\n",
    );
    let (parsed, whole): (Vec<_>, Vec<_>) =
        of(&page).into_iter().partition(|case| only_parsed(case).is_some());
    assert_eq!((parsed.len(), whole.len()), (3, 3), "{parsed:?} {whole:?}");
    let files = Files::new();
    let faults: Vec<_> = whole.iter().map(|case| run(case, &files).is_err()).collect();
    assert_eq!(
        faults,
        [true, false, true],
        "a page that is missing, a load that works, a status that is not the server's"
    );
}
