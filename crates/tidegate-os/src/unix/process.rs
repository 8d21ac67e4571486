//! Processors, descriptor limits and facts of the system.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::call::check;

/// The soft and the hard limit on open descriptors.
pub fn descriptor_limit() -> (u64, u64) {
    let limit = ResourceLimit::Descriptors.get();
    (bounded(limit.rlim_cur).unwrap_or(u64::MAX), bounded(limit.rlim_max).unwrap_or(u64::MAX))
}

/// Raises the soft limit on open descriptors to the hard one and returns it.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = ResourceLimit::Descriptors.get();
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reading one `rlimit` during the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(bounded(limit.rlim_max).unwrap_or(u64::MAX))
}

/// A limit of this process.
pub(super) enum ResourceLimit {
    AddressSpace,
    Descriptors,
    LockedMemory,
}

impl ResourceLimit {
    /// The soft value; `None` is without limit.
    pub(super) fn soft(self) -> Option<u64> {
        bounded(self.get().rlim_cur)
    }

    fn get(self) -> libc::rlimit {
        let which = match self {
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::Descriptors => libc::RLIMIT_NOFILE,
            Self::LockedMemory => libc::RLIMIT_MEMLOCK,
        };
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is valid for writing one `rlimit` during the call. It fails for no resource named above.
        unsafe { libc::getrlimit(which, &raw mut limit) };
        limit
    }
}

/// A value of a limit, unless it means none.
#[allow(clippy::unnecessary_cast, reason = "it has 32 bits, or a sign, on some systems")]
fn bounded(value: libc::rlim_t) -> Option<u64> {
    (value != libc::RLIM_INFINITY).then_some(value as u64)
}

/// How many bytes this process may lock in memory; `None` is without limit.
pub fn locked_memory_limit() -> Option<u64> {
    ResourceLimit::LockedMemory.soft()
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
    // SAFETY: no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096) // every system knows it
}

/// Clock ticks a second, the unit of `/proc/PID/stat`.
pub fn clock_ticks_per_s() -> u64 {
    // SAFETY: no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100) // every system knows it
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
    let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0) else { return false };
    // SAFETY: no pointers, and signal 0 is sent to nobody.
    match check(unsafe { libc::kill(pid, 0) }) {
        Ok(_) => true,
        Err(e) => e.raw_os_error() == Some(libc::EPERM),
    }
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
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "not a process group started here");
    let group = i32::try_from(group).ok().filter(|&g| g > 1).ok_or_else(wrong)?;
    let signal = match how {
        End::Ask => libc::SIGTERM,
        End::Kill => libc::SIGKILL,
    };
    // SAFETY: no pointers; a group from 2 on is no other than itself.
    match check(unsafe { libc::killpg(group, signal) }) {
        Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(e),
        _ => Ok(()),
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
    use std::io::Write as _;
    use std::os::unix::process::CommandExt as _;
    let join = move || (&processes).write(b"0").map(drop);
    // SAFETY: between fork and exec only `write(2)` is called, on a descriptor that was opened before:
    // async-signal-safe, and no allocation.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// Kernel name and release, as `uname` prints them.
pub fn system_name() -> String {
    // SAFETY: integers only: all zeroes are a value.
    let mut system: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: `system` is valid for writing one `utsname` during the call, which cannot fail then.
    unsafe { libc::uname(&raw mut system) };
    format!("{} {}", text(&system.sysname), text(&system.release))
}

/// The text of an array that a zero ends.
#[allow(clippy::unnecessary_cast, reason = "a character of C has a sign on some systems")]
fn text(characters: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Asks a process to end (`SIGTERM`).
///
/// # Errors
/// There is no such process, it belongs to somebody else, or the number means more than one process.
pub fn ask_to_end(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: no pointers; a number from 2 on is one process.
    check(unsafe { libc::kill(pid, libc::SIGTERM) }).map(drop)
}

/// The processors the calling thread may run on.
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> Vec<usize> {
    let mut set = no_cpus();
    // SAFETY: `set` is valid for writing its own size during the call; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: plain arithmetic, inside of the set.
    (0..CPUS).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Processors that a set has room for. Not `CPU_SETSIZE`: for older musl that is 128, while its sets have 1,024 bits.
#[cfg(target_os = "linux")]
const CPUS: usize = 8 * size_of::<libc::cpu_set_t>();

#[cfg(target_os = "linux")]
fn no_cpus() -> libc::cpu_set_t {
    // SAFETY: integers only: all zeroes are a value, the set of none.
    unsafe { std::mem::zeroed() }
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
    // SAFETY: no pointers: one nanosecond, for the calling thread.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) }).map(drop)
}

/// Lets threads sleep as long as they ask for: this system knows no slack.
#[cfg(not(target_os = "linux"))]
pub fn exact_sleeps() -> io::Result<()> {
    Ok(())
}

/// Keeps the calling thread, and threads it starts from now on, on the given processors.
#[cfg(target_os = "linux")]
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = no_cpus();
    for &cpu in cpus {
        if cpu >= CPUS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no processor {cpu}")));
        }
        // SAFETY: plain arithmetic, inside of the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is valid for reading its own size during the call; 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(drop)
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
