//! Starts and stops servers and loads. Every child leads its own process group, which is killed when its handle is
//! dropped, or by [`end_all`] when the lab itself is interrupted. If the lab is killed, its servers end by themselves:
//! [`end_with_the_lab`].

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Bench, LabError};

/// Running groups.
static GROUPS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Directories of running experiments.
static SCRATCH: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has [`end_all`] remove a directory.
pub(crate) fn remove_at_end(folder: &Path) {
    SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// It was removed.
pub(crate) fn is_removed(folder: &Path) {
    SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| path != folder);
}

/// Removes a directory with its files; or a control group, once the system has buried the processes in it.
pub(crate) fn remove(folder: &Path) {
    for _ in 0..500 {
        match std::fs::remove_dir(folder) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(10)),
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
                let _ = std::fs::remove_dir_all(folder);
                return;
            }
            _ => return,
        }
    }
}

/// A directory for files of an experiment; removed when dropped, or by [`end_all`].
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new one in this directory: nobody else knows its name before it is there.
    pub(crate) fn create(inside: &Path, prefix: &str) -> std::io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(inside)?;
        remove_at_end(folder.path());
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        is_removed(self.0.path());
    }
}

/// In the environment of servers that the lab starts: its process id. They end when it is gone.
const LAB: &str = "TIDEGATE_LAB";

/// Makes a command a child of the lab that ends with it. The lab has to keep the child's standard input open.
pub(crate) fn ends_with_the_lab(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::piped()).env(LAB, std::process::id().to_string())
}

/// In a server that a lab may have started: ends this process once that lab is gone, however it ended. Without a lab it
/// does nothing.
///
/// The end of the lab is also that of standard input, so this costs nothing until then. What a shell has started in the
/// background has none; there it costs one system call each second.
///
/// # Errors
/// The thread that waits for it cannot be started.
pub fn end_with_the_lab() -> std::io::Result<()> {
    const LOOK: Duration = Duration::from_secs(1);
    let Some(lab) = std::env::var(LAB).ok().and_then(|id| id.parse().ok()) else { return Ok(()) };
    let wait = move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink()); // an error is an end, too
        while tidegate_os::process::is_there(lab) {
            std::thread::sleep(LOOK);
        }
        // Standard error may have gone with the lab.
        let _ =
            writeln!(std::io::stderr(), "error: the lab that started this server (process {lab}) is gone");
        std::process::exit(1)
    };
    std::thread::Builder::new().name("tidegate-lab".into()).spawn(wait).map(drop)
}

/// Kills every child of the lab immediately, and prevents new ones; for a program that exits without dropping its
/// handles.
pub fn end_all() {
    let groups = groups();
    for group in groups.iter() {
        let _ = tidegate_os::process::end_group(*group, tidegate_os::process::End::Kill); // it may be gone already
    }
    for folder in SCRATCH.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        remove(folder); // its servers have just ended
    }
    std::mem::forget(groups); // who starts another waits for the end
}

/// A process group led by a child of the lab. Its id cannot be reused until the child has been waited for and all
/// members are gone.
pub(crate) struct ProcessGroup(u32);

impl ProcessGroup {
    /// Starts a child that leads a group.
    pub(crate) fn start(command: &mut Command) -> std::io::Result<(Child, Self)> {
        let mut groups = groups(); // none is started between the end of all and the end of the program
        let child = tidegate_os::process::in_own_group(command).spawn()?;
        groups.push(child.id());
        let group = Self(child.id());
        Ok((child, group))
    }

    pub(crate) fn end(&self, how: tidegate_os::process::End) {
        let _ = tidegate_os::process::end_group(self.0, how); // it may be gone already
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        groups().retain(|group| *group != self.0);
    }
}

/// A running child: its output lines are read through a channel, and its standard error is kept for error messages.
pub struct Process {
    what: String,
    child: Child,
    group: ProcessGroup,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts `tidegate` with these arguments.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(bench: &Bench, args: &[String]) -> Result<Self, LabError> {
        let what = shown(args);
        let mut command = Command::new(&bench.program);
        ends_with_the_lab(command.args(args)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |why: String| LabError::Process { what: what.clone(), why };
        if let Some(group) = &bench.group {
            let processes = std::fs::OpenOptions::new().write(true).open(group.join("cgroup.procs"));
            let joined =
                processes.and_then(|processes| tidegate_os::process::start_in_group(&mut command, processes));
            joined.map_err(|e| failed(e.to_string()))?;
        }
        let (mut child, group) = ProcessGroup::start(&mut command).map_err(|e| failed(e.to_string()))?;
        let (sender, lines) = channel();
        let errors = Arc::new(Mutex::new(String::new()));
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let mut process = Self { what, child, group, stdin, lines, errors, readers: Vec::new() };
        // If a thread cannot be started, the child is ended with `process`.
        if let Some(stdout) = stdout {
            process.readers.push(start_thread("lines", move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            })?);
        }
        if let Some(mut stderr) = stderr {
            let errors = process.errors.clone();
            process.readers.push(start_thread("errors", move || {
                let mut text = String::new();
                // A read error ends the output; the exit code is still checked.
                let _ = stderr.read_to_string(&mut text);
                *errors.lock().unwrap_or_else(PoisonError::into_inner) = text;
            })?);
        }
        Ok(process)
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the first output line that begins with `start`.
    ///
    /// # Errors
    /// It exits, or prints no such line within `limit`.
    pub fn wait_for_line(&mut self, start: &str, limit: Duration) -> Result<String, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let why = format!("did not say {start:?} within {} s", limit.as_secs());
                    return Err(self.failure(why));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let why = format!("ended before it said {start:?}");
                    return Err(self.failure(why));
                }
            }
        }
    }

    /// Releases a load that waits after its last phase.
    pub fn release(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(b"\n"); // it may have ended already
        }
    }

    /// Waits for its exit; returns whether the exit code was 0.
    ///
    /// # Errors
    /// It does not exit within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<bool, LabError> {
        self.release();
        Ok(self.ended_within(limit)?.success())
    }

    /// Like [`wait`](Self::wait), but a failure is an error.
    ///
    /// # Errors
    /// It does not exit within `limit`, or fails.
    pub fn finish(mut self, limit: Duration) -> Result<(), LabError> {
        self.release();
        self.succeeded_within(limit)
    }

    /// Its exit status, once it has exited.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn ended_within(&mut self, limit: Duration) -> Result<ExitStatus, LabError> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                _ => return Err(self.failure(format!("did not end within {} s", limit.as_secs()))),
            }
        }
    }

    fn succeeded_within(&mut self, limit: Duration) -> Result<(), LabError> {
        match self.ended_within(limit)? {
            status if status.success() => Ok(()),
            status => Err(self.failure(format!("ended with {status}"))),
        }
    }

    /// Asks it to exit (SIGTERM) and returns its standard error.
    ///
    /// # Errors
    /// It does not exit within `limit`, or fails.
    pub fn stop(mut self, limit: Duration) -> Result<String, LabError> {
        if let Err(e) = tidegate_os::process::ask_to_end(self.child.id()) {
            return Err(self.failure(format!("cannot be asked to stop: {e}")));
        }
        self.succeeded_within(limit)?;
        self.end(); // the readers have all of it then
        Ok(std::mem::take(&mut *self.errors.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// An error with its name and its last output.
    pub fn failure(&mut self, why: String) -> LabError {
        self.end();
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        LabError::Process { what: self.what.clone(), why: with_last_lines(why, &errors) }
    }

    fn end(&mut self) {
        // It may be gone already; then there is nothing to stop.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.group.end(tidegate_os::process::End::Kill);
        }
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a thread of the lab.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, LabError> {
    let started = std::thread::Builder::new().name(format!("tidegate-{name}")).spawn(run);
    started.map_err(|e| LabError::Process { what: format!("the thread {name:?}"), why: e.to_string() })
}

/// What went wrong, with the last lines of a program's output if there are some.
pub(crate) fn with_last_lines(why: String, output: &str) -> String {
    let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with("note:")).collect();
    let last = lines[lines.len().saturating_sub(3)..].join(" | ");
    if last.is_empty() { why } else { format!("{why}: {last}") }
}

/// A command for people.
pub(crate) fn shown(args: &[String]) -> String {
    format!("tidegate {}", without_secrets(args.iter().cloned()).join(" "))
}

/// Words of a command line, of which the URL of a broker says where it is, but not who one is to it.
pub(crate) fn without_secrets(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut follows = false;
    let public = |word: String| {
        let is_url = std::mem::replace(&mut follows, word == "--nats") || word.starts_with("--nats=");
        match word.rsplit_once('@') {
            Some((before, host)) if is_url => {
                let scheme = before.find("://").and_then(|at| before.get(..at + 3));
                let scheme = scheme.unwrap_or(if before.starts_with("--nats=") { "--nats=" } else { "" });
                format!("{scheme}{host}")
            }
            _ => word,
        }
    };
    words.map(public).collect()
}

/// Processors as the `--cpus` option takes them; none leaves the option out.
#[must_use]
pub fn cpus(list: &[usize]) -> Vec<String> {
    if list.is_empty() {
        return Vec::new();
    }
    vec!["--cpus".into(), list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_url_of_a_broker_no_secret_is_shown() {
        for (args, said) in [
            ("load http a:1 --nats nats://u:s3cret@b --json f@g", "load http a:1 --nats nats://b --json f@g"),
            ("--nats=nats://u:s3,c@b,nats://t@c:1 --agents 2", "--nats=nats://c:1 --agents 2"),
            ("--nats u:s3cret@b", "--nats b"),
            ("--nats=s3cret@b", "--nats=b"),
            ("--nats nats://b", "--nats nats://b"),
        ] {
            let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
            assert_eq!(shown(&args), format!("tidegate {said}"));
        }
    }
}
