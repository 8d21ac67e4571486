//! Keeps a server to a share of its processors, so that the load has processor time left and the server is the limit.
//!
//! A load that is as dear as the server it measures is busy first, and then all servers look alike. With a share the
//! cost of a request is the same, and the rate of a whole processor follows from it. Two ways, in this order:
//!
//! 1. A quota of a control group: `cpu.max`, or `cpu.cfs_quota_us` of version 1 (`cgroups(7)`, "CPU Bandwidth Control"
//!    of the kernel's documentation). Needs a group that this user may make a child of.
//! 2. Threads of the lab that never sleep, on the server's processors: the scheduler shares them out. The share is then
//!    exact for a server with one busy thread, and more for one with many.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use tidegate::system::pin_to_cpus;
use tidegate_load::cpu_time::family_ids;
use tidegate_os::process::is_there;

use crate::Bench;
use crate::control_group::{self, Cgroup, CgroupVersion};
use crate::process::{self, Process, start_thread};

/// The period of a quota, in µs. A quota is at least 1,000 µs.
const PERIOD_US: f64 = 10_000.0;

/// Limits what servers get of their processors.
pub(crate) struct Throttle {
    cpus: Vec<usize>,
    group: Option<ThrottleGroup>,
    /// What the group has failed with: it is not used any more, but there until its servers have ended.
    failure: Option<String>,
    competitors: Vec<Competitor>,
}

impl Throttle {
    /// Without a control group, whatever this system allows.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn of_competitors(cpus: Vec<usize>) -> Self {
        Self { cpus, group: None, failure: None, competitors: Vec::new() }
    }

    /// Finds out what this system allows.
    pub(crate) fn new(bench: &Bench) -> Self {
        let cpus = if bench.is_pinned_apart() { bench.server_cpus.clone() } else { Vec::new() };
        let group = (!cpus.is_empty()).then(|| ThrottleGroup::make(bench)).flatten();
        Self { cpus, group, failure: None, competitors: Vec::new() }
    }

    /// Sets the share of servers from now on, above 0 and at most 1; returns the one in effect, which is 1 if nothing
    /// can limit them.
    pub(crate) fn set(&mut self, share: f64) -> f64 {
        self.competitors.clear();
        if self.cpus.is_empty() {
            return 1.0;
        }
        if let Some(group) = self.working_group() {
            match group.set(share, self.cpus.len()) {
                Ok(()) => return share,
                Err(e) => self.give_up_group("its quota", &e),
            }
        }
        for _ in 0..rivals(share) {
            self.competitors.extend(self.cpus.iter().filter_map(|&cpu| Competitor::start(cpu)));
        }
        1.0 / (1.0 + self.competitors.len() as f64 / self.cpus.len() as f64)
    }

    /// Puts a running server under the limit, with all its threads and the processes that it has started. Returns the
    /// share in effect: if the group does not take them, competitors limit this server and those after it.
    pub(crate) fn hold(&mut self, pid: u32, share: f64) -> f64 {
        let Some(group) = self.working_group() else { return share };
        match each_member(pid, |pid| group.take(pid)) {
            Ok(()) => share,
            Err(e) => {
                self.give_up_group("cgroup.procs", &e);
                self.set(share)
            }
        }
    }

    fn working_group(&self) -> Option<&ThrottleGroup> {
        self.group.as_ref().filter(|_| self.failure.is_none())
    }

    fn give_up_group(&mut self, what: &str, why: &io::Error) {
        self.failure = Some(format!("{what}: {why}"));
        if let Some(group) = &self.group {
            let _ = group.set(1.0, self.cpus.len()); // for what is in it already; it may be gone
        }
    }

    /// How it is done, for the reader of the figures.
    pub(crate) fn method(&self) -> String {
        const GROUP: &str = "a control group's quota";
        const COMPETITORS: &str = "busy threads of the lab on the same processor";
        match (&self.group, &self.failure) {
            _ if self.cpus.is_empty() => "nothing, since server and load are not kept apart".into(),
            (None, _) => COMPETITORS.into(),
            (Some(_), None) => GROUP.into(),
            (Some(_), Some(why)) => format!("{GROUP} until it failed ({why}), and then by {COMPETITORS}"),
        }
    }
}

/// Competitors on each processor that leave a server at most this share of it.
fn rivals(share: f64) -> usize {
    const INEXACT: f64 = 1e-9; // of a quotient that should be a whole number
    (1.0 / share - 1.0 - INEXACT).ceil().max(0.0) as usize
}

/// Has a server taken first, so that what it starts from then on is limited by itself, and then those that it has
/// started before, until there are no new ones: one of these may start another before it is taken itself. Those that
/// have ended need not be taken.
fn each_member(server: u32, take: impl Fn(u32) -> io::Result<()>) -> io::Result<()> {
    let take = |pid| take(pid).or_else(|e| if is_there(pid) { Err(e) } else { Ok(()) });
    take(server)?;
    let mut taken = HashSet::from([server]);
    loop {
        let new: Vec<u32> = family_ids(server).into_iter().filter(|&pid| taken.insert(pid)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for pid in new {
            take(pid)?;
        }
    }
}

/// What the names of our groups begin with; the process id of the lab follows.
const NAME: &str = "tidegate-";

/// Removes the groups of labs that were killed: ours, and those for a map of sockets, which the library names
/// `tidegate-fastpath-PID-NUMBER`.
pub(crate) fn remove_left_behind(parent: &Path) {
    let lab = |name: &str| {
        let name = name.strip_prefix(NAME)?;
        let of_map = name.strip_prefix("fastpath-").and_then(|name| name.split_once('-'));
        of_map.map_or(name, |(lab, _)| lab).parse().ok()
    };
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let lab = entry.file_name().to_str().and_then(lab);
        if lab.is_some_and(|lab| !is_there(lab)) {
            process::remove(&entry.path()); // its servers may not have ended yet; another lab may be faster
        }
    }
}

fn quota_file(version: CgroupVersion) -> &'static str {
    match version {
        CgroupVersion::Two => "cpu.max",
        CgroupVersion::One => "cpu.cfs_quota_us",
    }
}

/// A control group of our own; removed when dropped, which needs the servers in it to have ended, or when the lab is
/// interrupted.
struct ThrottleGroup(Cgroup);

impl ThrottleGroup {
    fn make(bench: &Bench) -> Option<Self> {
        let name = format!("{NAME}{}", std::process::id());
        let make = |parent: Cgroup| {
            remove_left_behind(&parent.folder);
            Self::at(Cgroup { folder: parent.folder.join(&name), ..parent }, bench)
        };
        parents(control_group::own()).into_iter().find_map(make)
    }

    /// A group that takes a quota and a process.
    fn at(group: Cgroup, bench: &Bench) -> Option<Self> {
        std::fs::create_dir(&group.folder).ok()?;
        process::remove_at_end(&group.folder);
        let group = Self(group);
        group.set(1.0, 1).ok()?;
        let inside = Bench { group: Some(group.0.folder.clone()), ..bench.clone() };
        Process::start(&inside, &["--version".into()]).ok()?;
        Some(group)
    }

    fn set(&self, share: f64, cpus: usize) -> io::Result<()> {
        let quota = (share * PERIOD_US * cpus as f64).max(1_000.0);
        let put = |file, text: String| std::fs::write(self.0.folder.join(file), text);
        let file = quota_file(self.0.version);
        match self.0.version {
            CgroupVersion::Two => put(file, format!("{quota:.0} {PERIOD_US}")),
            CgroupVersion::One => {
                put("cpu.cfs_period_us", PERIOD_US.to_string())?;
                put(file, format!("{quota:.0}"))
            }
        }
    }

    fn take(&self, pid: u32) -> io::Result<()> {
        std::fs::write(self.0.folder.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for ThrottleGroup {
    fn drop(&mut self) {
        process::remove(&self.0.folder);
        process::is_removed(&self.0.folder);
    }
}

/// Groups that may have a child with a quota, the nearest first: this process's own, and for version 2 the one above,
/// because one with processes of its own gives no quotas to its children.
fn parents(own: Vec<Cgroup>) -> Vec<Cgroup> {
    let with_above = |group: Cgroup| {
        let above = group.folder.parent().filter(|_| group.version == CgroupVersion::Two);
        let above = above.map(|above| Cgroup { folder: above.to_path_buf(), ..group });
        std::iter::once(group).chain(above)
    };
    own.into_iter().flat_map(with_above).collect()
}

/// A thread that takes what it can get of a processor.
struct Competitor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Competitor {
    fn start(cpu: usize) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let compete = move || {
            // Anywhere else it would only disturb.
            if pin_to_cpus(&[cpu]).is_ok() {
                while !stopped.load(Relaxed) {
                    std::hint::spin_loop();
                }
            }
        };
        Some(Self { stop, thread: Some(start_thread("competitor", compete).ok()?) })
    }
}

impl Drop for Competitor {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_a_processor_with_the_load_is_not_limited() {
        let bench = Bench { program: "a".into(), server_cpus: vec![0], load_cpus: vec![0], group: None };
        let mut throttle = Throttle::new(&bench);
        assert!((throttle.set(0.5) - 1.0).abs() < f64::EPSILON);
        assert!((throttle.hold(1, 1.0) - 1.0).abs() < f64::EPSILON);
        assert!(throttle.method().contains("not kept apart"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn groups_of_labs_that_are_gone_are_removed_and_no_others() {
        let mut lab = std::process::Command::new("true").spawn().unwrap();
        lab.wait().unwrap();
        let (gone, here) = (lab.id(), std::process::id());
        let stays = [format!("tidegate-{here}"), format!("tidegate-fastpath-{here}-0"), "tidegate-x".into()];
        let leaves = [format!("tidegate-{gone}"), format!("tidegate-fastpath-{gone}-12")];
        let folder = tempfile::tempdir().unwrap();
        for name in stays.iter().chain(&leaves) {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_left_behind(folder.path());
        assert!(stays.iter().all(|name| folder.path().join(name).exists()));
        assert!(!leaves.iter().any(|name| folder.path().join(name).exists()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn competitors_leave_a_share_and_end() {
        let mut throttle = Throttle::of_competitors(tidegate::system::allowed_cpus());
        // At most what was asked for.
        for (asked, left) in [(0.9, 0.5), (0.7, 0.5), (0.5, 0.5), (0.4, 1.0 / 3.0), (0.25, 0.25), (0.1, 0.1)]
        {
            assert!((throttle.set(asked) - left).abs() < 1e-9, "{asked}");
        }
        assert!((throttle.set(1.0) - 1.0).abs() < 1e-9 && throttle.competitors.is_empty());
        assert!((1..100).all(|n| rivals(1.0 / f64::from(n)) == n as usize - 1), "whole numbers stay so");
    }

    /// A server whose worker runs already, as that of nginx.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_server_has_started_is_held_with_it() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let mut command = Command::new("sh");
        let command = command.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped());
        let (mut server, group) = process::ProcessGroup::start(command).unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let taken = std::cell::RefCell::new(Vec::new());
        each_member(server.id(), |pid| {
            taken.borrow_mut().push(pid);
            Ok(())
        })
        .unwrap();
        assert_eq!(taken.into_inner(), [server.id(), line.trim().parse().unwrap()]);
        let refused = each_member(server.id(), |_| Err(io::Error::other("full")));
        assert_eq!(refused.unwrap_err().to_string(), "full");
        group.end(tidegate_os::process::End::Kill);
        server.wait().unwrap();
    }

    #[test]
    fn a_quota_is_written_as_either_version_wants_it() {
        let folder = tempfile::tempdir().unwrap();
        let read = |file| std::fs::read_to_string(folder.path().join(file)).unwrap();
        for version in [CgroupVersion::Two, CgroupVersion::One] {
            // Not dropped: the folder is no group.
            let group = ThrottleGroup(Cgroup { folder: folder.path().into(), version });
            let group = std::mem::ManuallyDrop::new(group);
            group.set(0.4, 2).unwrap();
        }
        assert_eq!(read("cpu.max"), "8000 10000");
        assert_eq!((read("cpu.cfs_period_us"), read("cpu.cfs_quota_us")), ("10000".into(), "8000".into()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_group_that_takes_no_process_is_not_used_and_one_that_stops_to_is_replaced_by_competitors() {
        let cpus = tidegate::system::allowed_cpus();
        let bench = Bench::new(std::env::current_exe().unwrap(), &cpus);
        let parent = tempfile::tempdir().unwrap();
        let group = Cgroup { folder: parent.path().join("group"), version: CgroupVersion::Two };
        // A quota can be written here.
        assert!(ThrottleGroup::at(group.clone(), &bench).is_none());
        assert!(!group.folder.exists(), "removed again");
        // Gone.
        let group = Some(ThrottleGroup(group));
        let mut throttle = Throttle { group, ..Throttle::of_competitors(cpus) };
        assert_eq!(throttle.method(), "a control group's quota");
        assert!((throttle.hold(std::process::id(), 0.7) - 0.5).abs() < 1e-9, "what one competitor leaves");
        let (method, why) = (throttle.method(), "quota until it failed (cgroup.procs: No such file");
        assert!(
            method.contains(why) && method.ends_with("busy threads of the lab on the same processor"),
            "{method}"
        );
        assert!((throttle.hold(std::process::id(), 0.5) - 0.5).abs() < 1e-9);
        assert!((throttle.set(0.3) - 0.25).abs() < 1e-9, "for the rest of the run");
    }

    /// Where the kernel lets this user make a group with a quota, the lab makes one, and nowhere else.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_group_with_a_quota_is_made_where_the_kernel_has_them() {
        let cpus = tidegate::system::allowed_cpus();
        // This program ends at once, too.
        let bench = Bench::new(std::env::current_exe().unwrap(), &cpus);
        let Some(group) = ThrottleGroup::make(&bench) else {
            for parent in parents(control_group::own()) {
                let folder = parent.folder.join(format!("tidegate-test-{}", std::process::id()));
                let made = std::fs::create_dir(&folder);
                let quota = folder.join(quota_file(parent.version));
                let opened = std::fs::File::options().write(true).open(quota);
                let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
                let taken = std::fs::write(folder.join("cgroup.procs"), child.id().to_string());
                child.kill().unwrap();
                child.wait().unwrap();
                if made.is_ok() {
                    std::fs::remove_dir(&folder).unwrap();
                }
                let is_refused = made.is_err() || opened.is_err() || taken.is_err();
                assert!(is_refused, "a group with a quota can be made: {}", folder.display());
            }
            return;
        };
        group.set(0.4, 2).unwrap();
        let folder = group.0.folder.clone();
        let quota = std::fs::read_to_string(folder.join(quota_file(group.0.version))).unwrap();
        assert!(quota.starts_with("8000"), "{quota}");
        drop(group);
        assert!(!folder.exists());
    }
}
