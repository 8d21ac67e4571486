//! A peer that runs: started in a separate process group, on the server's processor, and ended with the group.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use tidegate::system;

use super::PAGE_BYTES;
use super::scenario::{PeerProgram, Placeholders, shell};
use crate::experiment::{MeasuredServer, scratch};
use crate::process::{ProcessGroup, Scratch, ends_with_the_lab, with_last_lines};
use crate::{Bench, LabError};

/// How long a peer may take until it serves, and to end when it is asked to.
const START: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(3);

/// How often it is looked whether it serves, or has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A running peer.
pub(crate) struct RunningPeer {
    name: String,
    child: Child,
    group: ProcessGroup,
    dir: Scratch,
    url: String,
}

impl RunningPeer {
    /// Starts it, and waits until it serves.
    pub(crate) fn start(
        bench: &Bench,
        peer: &PeerProgram,
        build: PathBuf,
        keep_alive: bool,
    ) -> Result<Self, LabError> {
        let failed = |why: String| LabError::Process { what: peer.name.clone(), why };
        let port = free_port().map_err(|e| failed(format!("no free port: {e}")))?;
        let cpu = bench.server_cpus.first().copied().unwrap_or(0);
        let dir = scratch("peer")?;
        let places = Placeholders { port, cpu, dir: dir.path().into(), build, here: peer.here.clone() };
        furnish(peer, &places).map_err(|e| failed(format!("{}: {e}", places.dir.display())))?;
        let command = if keep_alive { &peer.start } else { peer.start_close.as_ref().unwrap_or(&peer.start) };
        let (child, group) = spawn(bench, &places, command).map_err(|e| failed(format!("{command}: {e}")))?;
        let url = format!("http://127.0.0.1:{port}{}", peer.path);
        let mut running = Self { name: peer.name.clone(), child, group, dir, url };
        running.wait_until_it_serves(peer, port)?;
        Ok(running)
    }

    fn wait_until_it_serves(&mut self, peer: &PeerProgram, port: u16) -> Result<(), LabError> {
        let deadline = Instant::now() + START;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        loop {
            let why = match self.child.try_wait() {
                Ok(None) => {
                    let is_ready = match &peer.ready_line {
                        Some(line) => self.log().contains(line.as_str()),
                        None => TcpStream::connect(at).is_ok(),
                    };
                    if is_ready {
                        return Ok(());
                    }
                    if Instant::now() < deadline {
                        std::thread::sleep(LOOK);
                        continue;
                    }
                    format!("did not serve on port {port} within {} s", START.as_secs())
                }
                Ok(Some(status)) => format!("ended before it served ({status}); start it in the foreground"),
                Err(e) => e.to_string(),
            };
            return Err(self.failure(why));
        }
    }

    /// Whether a process of its group has not ended. One that has is a zombie until its parent waits for it, which for
    /// the leader is this process and for others may be nobody.
    fn is_alive(&self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return false };
        let group = self.id().to_string();
        let is_member = |stat: &str| {
            // After the name, which may have any characters in it: state, parent, group.
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            let state = fields.next().unwrap_or("X");
            !["Z", "X"].contains(&state) && fields.nth(1) == Some(group.as_str())
        };
        let mut stats =
            processes.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats.any(|stat| is_member(&stat))
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join("log")).unwrap_or_default()).into_owned()
    }
}

impl MeasuredServer for RunningPeer {
    fn url(&self) -> &str {
        &self.url
    }

    /// The process that leads the group.
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn failure(&mut self, why: String) -> LabError {
        LabError::Process { what: self.name.clone(), why: with_last_lines(why, &self.log()) }
    }
}

impl Drop for RunningPeer {
    fn drop(&mut self) {
        self.group.end(tidegate_os::process::End::Ask);
        let deadline = Instant::now() + END;
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        // What does not end in time.
        self.group.end(tidegate_os::process::End::Kill);
        let _ = self.child.wait();
    }
}

/// On the server's processors: a thread keeps to them and hands that down to what it starts (`sched_setaffinity(2)`).
fn spawn(bench: &Bench, places: &Placeholders, command: &str) -> std::io::Result<(Child, ProcessGroup)> {
    let log = std::fs::File::create(places.dir.join("log"))?;
    let mut shell = shell(&places.command(command));
    ends_with_the_lab(&mut shell).stdout(log.try_clone()?).stderr(log).current_dir(&places.dir);
    let started = std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            if !bench.server_cpus.is_empty() {
                system::pin_to_cpus(&bench.server_cpus)?;
            }
            ProcessGroup::start(&mut shell)
        });
        starter.join()
    });
    started.unwrap_or_else(|_| Err(std::io::Error::other("the thread that starts it failed")))
}

/// The page and the peer's own files.
fn furnish(peer: &PeerProgram, places: &Placeholders) -> std::io::Result<()> {
    let www = places.dir.join("www");
    std::fs::create_dir_all(&www)?;
    std::fs::write(www.join("index.html"), "x".repeat(PAGE_BYTES))?;
    for (name, text) in &peer.files {
        let path = places.dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        std::fs::write(path, places.fill(text))?;
    }
    // A server started by root may give its workers to a user who has to read the page.
    tidegate_os::process::open_to_all(&places.dir)
}

/// Ports below those that systems give to connections and to listeners without a port of their own (from 32,768 on
/// Linux, `net.ipv4.ip_local_port_range`; from 49,152 elsewhere): between this choice and the start of the peer, the
/// system gives none of them to another program.
const PORTS: std::ops::Range<u16> = 10_000..32_768;

/// Free now; the peer takes it in a moment.
fn free_port() -> std::io::Result<u16> {
    const TRIES: usize = 100;
    let one = || {
        let port = fastrand::u16(PORTS);
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map(|_| port)
    };
    (1..TRIES).find_map(|_| one().ok()).map_or_else(one, Ok)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// The shell ends at once, and the script, its child, a while later.
    #[test]
    fn a_server_below_a_shell_has_time_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let (script, ended) = (folder.path().join("script"), folder.path().join("ended"));
        let text = "#!/bin/sh\ntrap 'sleep 0.2; echo > ended; exit' TERM\necho serving\n\
                    while :; do sleep 0.05; done\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let peer = PeerProgram {
            name: "script".into(),
            start: format!("cd '{}' || exit\nX=1; ./script; true", folder.path().display()),
            path: "/".into(),
            ready_line: Some("serving".into()),
            ..PeerProgram::default()
        };
        let bench = Bench { program: "a".into(), server_cpus: Vec::new(), load_cpus: vec![0], group: None };
        let running = RunningPeer::start(&bench, &peer, PathBuf::new(), true).unwrap();
        assert!(running.is_alive() && !ended.exists());
        drop(running);
        assert!(ended.exists(), "it was killed");
    }
}
