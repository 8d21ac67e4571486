//! Ends that cannot take part, and ends that are killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use crate::harness;

pub(crate) fn trials() -> Vec<Trial> {
    if std::env::var_os(TARGET).is_some() {
        return tests![without_memfd];
    }
    let mut all = tests![
        the_other_end_has_not_the_option,
        there_is_no_memory_to_share,
        a_killed_process_leaves_no_memory_behind
    ];
    let namespaces = "network namespaces, and unshare, nsenter, ip and timeout to make them";
    all.extend(harness::needs(has_namespaces(), namespaces, tests![the_other_end_is_another_host]));
    let root = rustix::process::geteuid().is_root();
    let user = tests![the_other_end_is_another_user];
    all.extend(harness::needs(root, "root, to start a process of another user", user));
    all
}

fn has_namespaces() -> bool {
    let trial = "command -v nsenter && ip link set lo up && ip link add near type veth peer name far";
    let output = Command::new("timeout").args(["60", "unshare", "-rn", "sh", "-c", trial]).output();
    output.is_ok_and(|output| output.status.success())
}

/// What every run of the generator is bounded by, and every condition.
const TIMEOUT: Duration = Duration::from_secs(60);
const PINGS: &str = "400";
/// What the message begins with.
const PLAIN: &str = "plain TCP, not the fast path";

fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_tidegate")
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An echo server, and where it listens.
fn serve(extra: &[&str]) -> (Running, String) {
    let mut command = Command::new(binary());
    command.args(["serve", "echo", "--listen", "127.0.0.1:0", "--model", "epoll", "--threads", "1"]);
    let child = command.args(extra).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start");
    let mut server = Running(child);
    let mut lines = BufReader::new(server.0.stdout.as_mut().expect("piped")).lines();
    let line = lines.next().expect("a line").expect("text");
    (server, line.strip_prefix("listening on ").expect("where").to_owned())
}

/// The words of a generator with four connections.
fn ping(to: &str) -> [&str; 10] {
    ["load", "ping", to, "--fast-path", "-c", "4", "-n", PINGS, "--json", "-"]
}

/// All bytes came back right, over TCP, and it was said once, with this reason.
fn fell_back(output: &Output, why: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let shown = String::from_utf8_lossy(&output.stdout);
    let all = format!("{shown}\n{errors}");
    assert_eq!(output.status.code(), Some(0), "{all}");
    let json = &shown[shown.find('{').expect("a report")..];
    let report: serde_json::Value =
        serde_json::Deserializer::from_str(json).into_iter().next().expect("JSON").expect("JSON");
    let numbers = ["connected", "fast_paths", "lost", "wrong"].map(|name| report[name].as_u64());
    assert_eq!(numbers, [Some(4), Some(0), Some(0), Some(0)], "{all}");
    assert!(report["round_trips"].as_u64() >= PINGS.parse().ok(), "{all}");
    assert_eq!(errors.matches(PLAIN).count(), 1, "{all}");
    assert!(errors.contains(why), "{all}");
}

fn the_other_end_has_not_the_option() {
    let (_server, addr) = serve(&[]);
    let output = Command::new(binary()).args(ping(&addr)).output().expect("start");
    fell_back(&output, "no fast path at 127.0.0.1:");
}

/// Not even by the same addresses: each network namespace has its own.
fn the_other_end_is_another_host() {
    const SCRIPT: &str = r#"
        set -e
        ip link set lo up
        unshare -n sleep 60 & other=$!
        trap 'kill $other $server 2>/dev/null' EXIT
        while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
        ip link add near type veth peer name far netns $other
        ip addr add 10.99.0.1/24 dev near && ip link set near up
        nsenter -t $other -n sh -c 'ip link set lo up; ip addr add 10.99.0.2/24 dev far; ip link set far up'
        echo two hosts
        mkfifo "$1/said"
        "$0" serve echo --listen 10.99.0.1:7000 --model epoll --fast-path >"$1/said" & server=$!
        read said <"$1/said"
        shift
        nsenter -t $other -n "$0" "$@"
    "#;
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", "-rn", "sh", "-c", SCRIPT, binary()]).arg(folder.path());
    let output = command.args(ping("10.99.0.1:7000")).output();
    let output = output.expect("timeout(1)");
    let made = String::from_utf8_lossy(&output.stdout).contains("two hosts");
    assert!(made, "two hosts could not be made: {}", String::from_utf8_lossy(&output.stderr));
    fell_back(&output, "10.99.0.1 is not an address of this host");
}

fn the_other_end_is_another_user() {
    let (_server, addr) = serve(&["--fast-path"]);
    // Where another user can reach it.
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("tidegate");
    std::fs::hard_link(binary(), &copy)
        .or_else(|_| std::fs::copy(binary(), &copy).map(drop))
        .expect("a copy");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("open to all");
    let output = Command::new(&copy).args(ping(&addr)).uid(65_534).output().expect("start");
    fell_back(&output, "runs as user 0");
}

const TARGET: &str = "TIDEGATE_TEST_TARGET";

/// A generator on a system without `memfd_create`.
fn without_memfd() {
    let target = std::env::var(TARGET).expect("the parent process sets it");
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    let rules = [(libc::SYS_memfd_create, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().expect("a processor that seccomp knows");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).expect("a filter");
    seccompiler::apply_filter(&BpfProgram::try_from(filter).expect("a filter")).expect("seccomp");
    let error = Command::new(binary()).args(ping(&target)).exec();
    panic!("{error}");
}

fn there_is_no_memory_to_share() {
    let (_server, addr) = serve(&["--fast-path"]);
    let mut command = Command::new(std::env::current_exe().expect("this file"));
    command
        .args([&harness::name(module_path!(), "without_memfd"), "--exact", "--nocapture"])
        .env(TARGET, &addr);
    fell_back(&command.output().expect("start"), "no shared memory: Function not implemented");
}

/// How many mappings and descriptors of shared memory a process has; none if it has gone.
fn shared(pid: u32) -> (usize, usize) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let held = descriptors
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter(|to| to.to_string_lossy().contains("memfd:tidegate"));
    (maps.matches("memfd:tidegate").count(), held.count())
}

fn until(what: &str, met: impl Fn() -> bool) {
    let start = Instant::now();
    while !met() {
        assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

fn a_killed_process_leaves_no_memory_behind() {
    for wait in ["block", "spin"] {
        for server_dies in [false, true] {
            // Nothing but the death of the other ends either of them before the condition has been waited for.
            let (mut server, addr) = serve(&["--fast-path", "--wait", wait, "--send-timeout", "600"]);
            let mut client = Command::new(binary());
            client.args(["load", "ping", &addr, "--fast-path", "-c", "4", "-d", "600", "--wait", wait]);
            let client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start");
            let mut client = Running(client);
            let (here, there) = (client.0.id(), server.0.id());
            until("both share the memory of four connections", || {
                shared(here) == (4, 0) && shared(there) == (4, 0)
            });
            let (dies, lives) = if server_dies { (&mut server, here) } else { (&mut client, there) };
            dies.0.kill().expect("kill");
            until("the other has let go of it", || shared(lives) == (0, 0));
            dies.0.wait().expect("wait");
            let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
            let mut left = names.filter(|name| name.file_name().to_string_lossy().contains("tidegate"));
            assert!(left.next().is_none(), "a memfd has no name there");
        }
    }
}
