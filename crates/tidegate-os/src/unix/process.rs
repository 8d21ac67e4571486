//! Processors, descriptor limits and facts of the system.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The soft and the hard limit on open descriptors.
pub fn descriptor_limit() -> (u64, u64) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX))
}

/// Raises the soft limit on open descriptors to the hard one and returns it.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// How many bytes this process may lock in memory; `None` is without limit.
pub fn locked_memory_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Whether `SIGHUP` is ignored, as under `nohup(1)`.
pub fn ignores_hangup() -> bool {
    // SAFETY: integers and pointers that nobody follows: all zeroes are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and `action` is valid for writing one `sigaction` during the call.
    let known = unsafe { libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_IGN
}

/// Bytes of a page of memory.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Clock ticks a second, the unit of `/proc/PID/stat`.
pub fn clock_ticks_per_s() -> u64 {
    rustix::param::clock_ticks_per_second()
}

/// Processor time, user and kernel, that a process has used so far, all its threads together: to the nanosecond, where
/// `/proc/PID/stat` counts ticks of 10 ms. Children are not in it.
///
/// # Errors
/// There is no such process, or ([`io::ErrorKind::Unsupported`]) the system tells of no other process but this one.
#[cfg(not(target_vendor = "apple"))]
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut clock: libc::clockid_t = 0;
    // SAFETY: `clock` is valid for writing one clock id during the call (`clock_getcpuclockid(3)`).
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
        0 => {}
        e => return Err(io::Error::from_raw_os_error(e)),
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing one `timespec` during the call; a clock id of a process that has gone is
    // refused.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (s, ns) = (u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
    Ok(Duration::new(s, ns))
}

/// Processor time of this process so far: Apple's systems have no clock of another one.
///
/// # Errors
/// It is another process ([`io::ErrorKind::Unsupported`]).
#[cfg(target_vendor = "apple")]
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    if pid != std::process::id() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    own_cpu_times().map(|(user, kernel)| user + kernel)
}

/// Processor time of this process so far, in user mode and in the kernel (`getrusage(2)`).
///
/// # Errors
/// None that is known.
pub fn own_cpu_times() -> io::Result<(Duration, Duration)> {
    // SAFETY: integers only: all zeroes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writing one `rusage` during the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let time = |at: libc::timeval| {
        let (s, us) = (u64::try_from(at.tv_sec).unwrap_or(0), u64::try_from(at.tv_usec).unwrap_or(0));
        Duration::from_secs(s) + Duration::from_micros(us)
    };
    Ok((time(usage.ru_utime), time(usage.ru_stime)))
}

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident memory that is not backed by files, in bytes (`RssAnon`).
    pub user_bytes: u64,
    /// Memory that the kernel holds for it: not counted by process here.
    pub kernel_bytes: Option<u64>,
    /// Its threads.
    pub threads: u64,
}

/// What a process holds (`/proc/PID/status`, `proc(5)`).
///
/// # Errors
/// There is no such process, or no such file on this system.
pub fn usage(pid: u32) -> io::Result<ProcessUsage> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = field(&status, "RssAnon:").unwrap_or(0);
    Ok(ProcessUsage {
        user_bytes: kib * 1024,
        kernel_bytes: None,
        threads: field(&status, "Threads:").unwrap_or(0),
    })
}

/// Gives memory that was freed back to the system, if something that is still used lies behind it (`malloc_trim(3)`).
/// Takes milliseconds for each hundred megabytes, in which other threads may wait for their allocations. Does something
/// about glibc's allocator alone. What is free at the end of a thread's heap stays up to glibc's own threshold, which
/// grows with what the process frees, to 64 MiB at most (`mallopt(3)`, `M_TRIM_THRESHOLD`).
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: no pointers; it takes the locks of the allocator itself.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of the machine, all of it and what can be had now, in bytes (`/proc/meminfo`); `None` where there is no such
/// file.
pub fn memory_bytes() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |name| field(&text, name).map(|kib| kib.saturating_mul(1024));
    Some((bytes("MemTotal:")?, bytes("MemAvailable:")?))
}

/// The number of a line that begins with `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Where the system describes a process (`proc(5)`); there may be nothing.
pub fn proc_folder(pid: u32) -> Option<PathBuf> {
    Some(format!("/proc/{pid}").into())
}

/// A process; whom it has started is only found in `/proc` here.
pub fn family(pid: u32) -> Vec<u32> {
    vec![pid]
}

/// Whether there is such a process.
pub fn is_there(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| {
        matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(rustix::io::Errno::PERM))
    })
}

/// Makes a child lead a new group, which [`end_group`] ends.
pub fn in_own_group(command: &mut std::process::Command) -> &mut std::process::Command {
    std::os::unix::process::CommandExt::process_group(command, 0)
}

/// Lets every user of the system read a folder.
///
/// # Errors
/// It is not there, or somebody else's.
pub fn open_to_all(folder: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

/// Asks (`SIGTERM`) or makes (`SIGKILL`) all processes of a group end; a group that has gone is no error.
///
/// # Errors
/// The group belongs to another user, or is 0 or 1, which would mean other processes than its own.
pub fn end_group(group: u32, how: End) -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "not a process group started here");
    let group = i32::try_from(group).ok().filter(|&g| g > 1).and_then(Pid::from_raw).ok_or_else(wrong)?;
    let signal = match how {
        End::Ask => Signal::TERM,
        End::Kill => Signal::KILL,
    };
    match kill_process_group(group, signal) {
        Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// How processes are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They may clean up.
    Ask,
    /// At once.
    Kill,
}

/// Has a command start inside of a control group, whose `cgroup.procs` this is, opened for writing. The program finds
/// itself there, so that all its sockets belong to the group (a socket belongs to the one in which it was made).
///
/// A group that does not take it (it is gone, or not this user's) fails the start of the command.
///
/// # Errors
/// None here.
pub fn start_in_group(command: &mut std::process::Command, processes: std::fs::File) -> io::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let join = move || rustix::io::write(&processes, b"0").map(drop).map_err(io::Error::from);
    // SAFETY: between fork and exec only `write(2)` is called, on a descriptor that was opened before:
    // async-signal-safe, and no allocation.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// Kernel name and release, as `uname` prints them.
pub fn system_name() -> String {
    let u = rustix::system::uname();
    format!("{} {}", u.sysname().to_string_lossy(), u.release().to_string_lossy())
}

/// Asks a process to end (`SIGTERM`).
///
/// # Errors
/// There is no such process, it belongs to somebody else, or the number means more than one process.
pub fn ask_to_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1).and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::TERM)?)
}

/// The processors the calling thread may run on.
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// The processors the calling thread may run on.
#[cfg(not(target_os = "linux"))]
pub fn allowed_cpus() -> Vec<usize> {
    (0..std::thread::available_parallelism().map_or(1, Into::into)).collect()
}

/// Lets the calling thread, and threads it starts from now on, sleep as long as they ask for and not up to 50 µs
/// longer: the kernel then groups no wake-ups (`PR_SET_TIMERSLACK`, prctl(2)). Nothing to do on other systems than
/// Linux.
#[cfg(target_os = "linux")]
pub fn exact_sleeps() -> io::Result<()> {
    Ok(rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?)
}

/// Lets threads sleep as long as they ask for: this system knows no slack.
#[cfg(not(target_os = "linux"))]
pub fn exact_sleeps() -> io::Result<()> {
    Ok(())
}

/// Keeps the calling thread, and threads it starts from now on, on the given processors.
#[cfg(target_os = "linux")]
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no processor {cpu}")));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread on the given processors: not available on this system.
#[cfg(not(target_os = "linux"))]
pub fn pin_to_cpus(_: &[usize]) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not pin threads to processors"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn what_lies_before_something_used_is_given_back() {
        const PIECES: usize = 1_000;
        let resident = || usage(std::process::id()).unwrap().user_bytes;
        let mut pieces: Vec<Vec<u8>> = (0..PIECES).map(|_| vec![7; 64 << 10]).collect();
        // Each is large enough to hold whole pages, and has one behind it that stays.
        let mut is_kept = false;
        let full = resident();
        pieces.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        trim_heap();
        let left = resident();
        let given_back = (PIECES / 2 * (48 << 10)) as u64; // other tests of this process allocate, too
        assert!(left + given_back < full, "{left} bytes left of {full}");
    }

    #[test]
    fn the_time_of_a_process_grows_as_it_works() {
        let me = std::process::id();
        let before = cpu_time(me).unwrap();
        let mut rounds = 0u64;
        while cpu_time(me).unwrap() == before {
            rounds += 1; // each round is work
            assert!(rounds < 1 << 24, "the clock of this process does not advance");
        }
        assert!(cpu_time(u32::MAX).is_err());
    }

    #[test]
    fn this_process_holds_memory_has_threads_and_takes_time() {
        let me = std::process::id();
        assert!(is_there(me) && !is_there(u32::MAX) && own_cpu_times().is_ok());
        let status = "Name:\tx\nRssAnon:\t    1234 kB\nThreads:\t7\n";
        let found = (field(status, "RssAnon:"), field(status, "Threads:"), field(status, "No:"));
        assert_eq!(found, (Some(1234), Some(7), None));
        if std::path::Path::new("/proc/self/status").exists() {
            let usage = usage(me).unwrap();
            assert!(usage.user_bytes > 0 && usage.threads > 0, "{usage:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_with_exact_sleeps_and_those_it_starts_have_no_slack() {
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let before = slack();
        assert!(before > 1, "the system's default is 50 us");
        let exact = std::thread::spawn(move || {
            exact_sleeps().unwrap();
            (slack(), std::thread::spawn(slack).join().unwrap())
        });
        assert_eq!(exact.join().unwrap(), (1, 1), "nanoseconds");
        assert_eq!(slack(), before, "other threads are left as they are");
    }

    #[test]
    fn only_groups_of_ones_own_are_ended() {
        for group in [0, 1, u32::MAX] {
            assert_eq!(end_group(group, End::Ask).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_whole_group_ends() {
        use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
        let mut child =
            std::process::Command::new("sleep").arg("60").process_group(0).spawn().expect("sleep starts");
        end_group(child.id(), End::Ask).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(end_group(child.id(), End::Kill).is_ok(), "a group that has gone is no error");
    }
}
