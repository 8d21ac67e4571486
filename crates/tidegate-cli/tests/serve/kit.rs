//! Running the binary, with a deadline on everything.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tidegate::Model;

/// Nothing here takes a second; a machine under load may take long.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Options of `serve http` on a model. `pool` has a descriptor for each worker.
pub fn http_args(model: Model) -> Vec<&'static str> {
    let mut args = vec!["serve", "http", "--listen", "127.0.0.1:0", "--model", model.name()];
    if model == Model::Pool {
        args.extend(["--threads", "16"]);
    }
    args
}

/// Ends a process that is still there when the deadline has come: then all its pipes end, and the test fails.
struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    fn over(pid: Pid) -> Self {
        let (alive, gone) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if gone.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        Self { _alive: alive }
    }
}

pub fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args);
    command
}

/// The same, allowed so many descriptors.
pub fn with_descriptors(limit: usize, args: &[&str]) -> Command {
    with_limit("-n", limit, args)
}

/// The command under a lower limit on locked memory, in KiB.
pub fn with_locked_memory(limit: usize, args: &[&str]) -> Command {
    with_limit("-l", limit, args)
}

/// The command with room for only so many bytes of address space, in KiB: threads cannot be made then.
pub fn with_address_space(limit: usize, args: &[&str]) -> Command {
    with_limit("-v", limit, args)
}

fn with_limit(which: &str, limit: usize, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit {which} {limit}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]).args(args);
    command
}

/// A user who has no other processes, so that the limit counts only those of this command.
fn user_without_processes() -> u32 {
    50_000 + std::process::id() % 10_000
}

/// The command with so few processes, threads included. The limit does not bind the superuser, for whom another user
/// takes it.
pub fn with_processes(limit: usize, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -u {limit} 2>/dev/null || ulimit -p {limit} || exit 9; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_tidegate")]).args(args);
    if rustix::process::geteuid().is_root() {
        std::os::unix::process::CommandExt::uid(&mut command, user_without_processes());
    }
    command
}

/// What a command that ends by itself came to.
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(command: &mut Command) -> Outcome {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    finish(child)
}

/// Waits for the end of a command that was started with pipes.
pub fn finish(child: Child) -> Outcome {
    let _watchdog = Watchdog::over(Pid::from_child(&child));
    let output = child.wait_with_output().expect("the binary ends");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A running `tidegate serve`. Killed when dropped.
pub struct Server {
    child: Child,
    _watchdog: Watchdog,
    stdout: BufReader<std::process::ChildStdout>,
    stderr: Receiver<String>,
    /// The URL it said it listens on.
    pub url: String,
    /// Its address; a Unix socket has none, and this is 0.0.0.0:0.
    pub addr: SocketAddr,
}

impl Server {
    pub fn start(args: &[&str]) -> Self {
        Self::of(&mut tidegate(args))
    }

    pub fn of(command: &mut Command) -> Self {
        Self::started(command.stdin(Stdio::null()))
    }

    /// With the standard input the command has.
    pub fn started(command: &mut Command) -> Self {
        match Self::attempt(command) {
            Ok(server) => server,
            Err(outcome) => panic!("no address; {}", outcome.stderr),
        }
    }

    /// A server, or what came of the command if it ends, or is ended at the deadline, without having listened.
    pub fn attempt(command: &mut Command) -> Result<Self, Outcome> {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let watchdog = Watchdog::over(Pid::from_child(&child));
        let (lines, stderr) = mpsc::channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let url = match next_url(&mut stdout) {
            Ok(url) => url,
            Err(stdout) => {
                let code = child.wait().unwrap().code();
                return Err(Outcome { code, stdout, stderr: stderr.iter().collect::<Vec<_>>().join("\n") });
            }
        };
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let addr = match url.contains("unix:") {
            true => unspecified,
            false => url.split("//").nth(1).unwrap().trim_end_matches('/').parse().unwrap(),
        };
        Ok(Self { child, _watchdog: watchdog, stdout, stderr, url, addr })
    }

    /// The URL of the next server of this process.
    pub fn next_url(&mut self) -> String {
        next_url(&mut self.stdout).unwrap()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and waits until all its threads have stopped; `Signal::CONT` lets it go on.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let status = waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED).unwrap();
        assert!(status.is_some_and(|(_, status)| status.stopped()));
    }

    /// Waits for a line on stderr that contains `text`.
    pub fn wait_for(&self, text: &str) -> String {
        let found =
            std::iter::from_fn(|| self.stderr.recv_timeout(DEADLINE).ok()).find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text:?} was not said"))
    }

    /// Waits for its end; returns what it left on stdout and stderr.
    pub fn ended(mut self) -> (ExitStatus, String, Vec<String>) {
        let status = self.child.wait().unwrap();
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        (status, stdout, self.stderr.iter().collect())
    }

    /// What it has written to stderr since somebody looked.
    pub fn said(&self) -> Vec<String> {
        self.stderr.try_iter().collect()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.addr, DEADLINE);
        let stream = stream.unwrap_or_else(|e| panic!("{e}; it said: {:?}", self.said()));
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends `request` and reads until the server closes.
    pub fn talk(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn next_url(stdout: &mut impl BufRead) -> Result<String, String> {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let url = line.strip_prefix("listening on ").and_then(|line| line.strip_suffix('\n'));
    url.map(str::to_owned).ok_or(line)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
