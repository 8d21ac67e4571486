//! A broker, agents and a server, each a process of its own that ends with its owner.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tidegate_load::Report;

pub const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// No test waits longer for anything.
pub const LONGEST: Duration = Duration::from_secs(60);

/// How often a load is tried that a busy machine may keep from beginning in time, though not each time.
const TRIES: usize = 5;

/// What the tests with a broker need.
pub const NATS_SERVER: &str = "nats-server: apt-get install nats-server, or https://nats.io/download";

/// Where nats-server is. Without it there is nothing to test against.
pub fn nats_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|folder| folder.join("nats-server"))
        .find(|file| file.exists())
}

/// A process that is killed when dropped.
pub struct Guard(pub Child);

impl Guard {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < LONGEST, "the process does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of a process, which are read all the time, so that it never waits for us.
pub struct Lines(mpsc::Receiver<String>);

impl Lines {
    pub fn of(reader: impl std::io::Read + Send + 'static) -> Self {
        let (said, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        Self(lines)
    }

    /// The next one that has `part`.
    pub fn wait_for(&self, part: &str) -> String {
        self.up_to(part).pop().unwrap()
    }

    /// All up to the next one that has `part`.
    pub fn up_to(&self, part: &str) -> Vec<String> {
        let begun = Instant::now();
        let mut others = Vec::new();
        loop {
            match self.0.recv_timeout(LONGEST.saturating_sub(begun.elapsed())) {
                Ok(line) if line.contains(part) => {
                    others.push(line);
                    return others;
                }
                Ok(line) => others.push(line),
                Err(e) => panic!("no line with {part:?}, but {others:?}: {e}"),
            }
        }
    }
}

/// A broker on a port of its own.
pub struct Broker {
    pub process: Guard,
    pub url: String,
}

impl Broker {
    /// With these further arguments; none if there is no nats-server.
    pub fn start(args: &[&str]) -> Option<Self> {
        let mut child = Command::new(nats_server()?)
            .args(["-a", "127.0.0.1", "-p", "-1"])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let process = Guard(child);
        // "[123] 2026/01/01 00:00:00.000000 [INF] Listening for client connections on 127.0.0.1:4222"
        let line = Lines::of(stderr).wait_for("Listening for client connections on ");
        let addr = line.rsplit(' ').next().unwrap().to_owned();
        let begun = Instant::now();
        while TcpStream::connect(&addr).is_err() {
            assert!(begun.elapsed() < LONGEST, "the broker does not accept at {addr}");
        }
        Some(Self { process, url: format!("nats://{addr}") })
    }
}

/// Starts an agent and waits until it waits for work.
pub fn agent(url: &str, name: &str, args: &[&str]) -> Guard {
    talking_agent(url, name, args).0
}

/// The same, and what it says after that.
pub fn talking_agent(url: &str, name: &str, args: &[&str]) -> (Guard, Lines) {
    let mut child = Command::new(TIDEGATE)
        .args(["agent", "--nats", url, "--name", name])
        .args(unless_given(args, ["--allow", "127.0.0.0/8"]))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let guard = Guard(child);
    let lines = Lines::of(stderr);
    lines.wait_for("waits for loads at");
    (guard, lines)
}

/// Three agents.
pub fn three(url: &str) -> [Guard; 3] {
    ["a1", "a2", "a3"].map(|name| agent(url, name, &[]))
}

/// Starts a server and waits until it accepts; its URL without scheme and path.
pub fn server(service: &str) -> (Guard, String) {
    server_with(service, &[])
}

/// The same with these further arguments.
pub fn server_with(service: &str, args: &[&str]) -> (Guard, String) {
    let mut child = Command::new(TIDEGATE)
        .args(["serve", service, "--listen", "127.0.0.1:0"])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = child.stdout.take().unwrap();
    let guard = Guard(child);
    let line = Lines::of(stdout).wait_for("listening on ");
    let url = line.trim().rsplit(' ').next().unwrap();
    let addr = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/').to_owned();
    (guard, addr)
}

/// The arguments of a load that agents carry, with its result on standard output.
pub fn load_args<'a>(kind: &'a str, target: &'a str, url: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["load", kind, target, "--nats", url, "--json", "-"];
    args.extend(rest);
    args.extend(unless_given(rest, ["--clock-bound", "1.5"]));
    args
}

/// Repeats what could not begin in time, which agents and their lead say themselves. Who asks for that gives a bound of
/// clocks of his own.
pub fn begun_in_time(mut run: impl FnMut() -> Output) -> Output {
    let late = |output: &Output| {
        let text = stderr(output);
        text.contains("so its start cannot be determined exactly")
            || text.lines().any(|line| line.contains(" began ") && line.contains(" s too late"))
    };
    let mut output = run();
    for _ in 1..TRIES {
        if !late(&output) {
            break;
        }
        output = run();
    }
    output
}

/// An option with what it is in most tests.
pub fn unless_given<'a>(args: &[&str], option: [&'a str; 2]) -> impl Iterator<Item = &'a str> {
    option.into_iter().take(if args.contains(&option[0]) { 0 } else { 2 })
}

/// Runs a load to its end; one with the usual bound of clocks again if it could not begin in time.
pub fn load(kind: &str, target: &str, url: &str, rest: &[&str]) -> Output {
    let run = || finish(begin(kind, target, url, rest));
    if rest.contains(&"--clock-bound") { run() } else { begun_in_time(run) }
}

/// Begins a load.
pub fn begin(kind: &str, target: &str, url: &str, rest: &[&str]) -> Child {
    Command::new(TIDEGATE)
        .args(load_args(kind, target, url, rest))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Begins an echo load over agents and waits until its first second is over.
pub fn seen_to_run(url: &str, addr: &str, rest: &[&str]) -> Child {
    let mut child = Command::new(TIDEGATE)
        .args(["load", "echo", addr, "--nats", url])
        // When they began matters to nobody who looks at the seconds after it.
        .args(["--ndjson", "--clock-bound", "30"])
        .args(rest)
        .args(unless_given(rest, ["--agent-timeout", "10"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // With --ndjson each second is a line.
    Lines::of(child.stdout.take().unwrap()).wait_for("at_s");
    child
}

/// Waits for the end of a load, but not for ever.
pub fn finish(child: Child) -> Output {
    let pid = rustix::process::Pid::from_child(&child);
    let (over, end) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let output = child.wait_with_output();
        let _ = over.send(());
        output
    });
    if end.recv_timeout(LONGEST).is_err() {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("the load does not end");
    }
    waiter.join().unwrap().unwrap()
}

pub fn report(output: &Output) -> Report {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
