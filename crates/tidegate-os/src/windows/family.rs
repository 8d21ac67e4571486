//! Other processes: what they hold, what they have started, and how they are ended.

use std::ffi::c_void;
use std::io;
use std::os::windows::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use windows_sys::Win32::Foundation::{
    CloseHandle, FILETIME, HANDLE, INVALID_HANDLE_VALUE, NTSTATUS, STATUS_INFO_LENGTH_MISMATCH,
};
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, GenerateConsoleCtrlEvent};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, PROCESSENTRY32W, Process32FirstW, Process32NextW, TH32CS_SNAPPROCESS,
};
use windows_sys::Win32::System::ProcessStatus::{
    GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS, PROCESS_MEMORY_COUNTERS_EX,
};
use windows_sys::Win32::System::Threading::{
    CREATE_NEW_PROCESS_GROUP, GetProcessTimes, OpenProcess, PROCESS_QUERY_LIMITED_INFORMATION,
    PROCESS_TERMINATE, TerminateProcess,
};

use super::version;

/// How processes are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They may clean up.
    Ask,
    /// At once.
    Kill,
}

/// What a process holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Memory of its own, in bytes (`PrivateUsage`; the working set where that is not counted).
    pub user_bytes: u64,
    /// Memory that the kernel holds for it and never pages out, in bytes (`QuotaNonPagedPoolUsage`); `None` where that
    /// is not counted.
    pub kernel_bytes: Option<u64>,
    /// Its threads.
    pub threads: u64,
}

/// A handle that is closed when dropped.
struct Owned(HANDLE);

impl Owned {
    fn process(pid: u32, rights: u32) -> io::Result<Self> {
        // SAFETY: no pointers.
        let process = unsafe { OpenProcess(rights, 0, pid) };
        if process.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(process)) }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: opened here, and nobody else has it.
        unsafe { CloseHandle(self.0) };
    }
}

fn good(outcome: i32) -> io::Result<()> {
    if outcome == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a process holds, as the system counts it.
///
/// # Errors
/// There is no such process, or it may not be asked.
pub fn usage(pid: u32) -> io::Result<ProcessUsage> {
    let process = Owned::process(pid, PROCESS_QUERY_LIMITED_INFORMATION)?;
    let bytes = size_of::<PROCESS_MEMORY_COUNTERS_EX>() as u32;
    let mut counters = PROCESS_MEMORY_COUNTERS_EX { cb: bytes, ..Default::default() };
    let place = (&raw mut counters).cast::<PROCESS_MEMORY_COUNTERS>();
    // SAFETY: the handle is open, and the size says that there is room for the longer structure.
    good(unsafe { GetProcessMemoryInfo(process.0, place, bytes) })?;
    let threads =
        all()?.into_iter().find(|entry| entry.th32ProcessID == pid).map_or(0, |entry| entry.cntThreads);
    // Wine does not count what is private.
    let user_bytes = if counters.PrivateUsage > 0 { counters.PrivateUsage } else { counters.WorkingSetSize };
    Ok(ProcessUsage {
        user_bytes: user_bytes as u64,
        // No process of Windows has nothing there; Wine, which does not count it, says 0.
        kernel_bytes: Some(counters.QuotaNonPagedPoolUsage as u64).filter(|&bytes| bytes > 0),
        threads: threads.into(),
    })
}

/// All processes there are (`CreateToolhelp32Snapshot`).
fn all() -> io::Result<Vec<PROCESSENTRY32W>> {
    // SAFETY: no pointers.
    let snapshot = unsafe { CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0) };
    if snapshot == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    let snapshot = Owned(snapshot);
    let mut entry = PROCESSENTRY32W { dwSize: size_of::<PROCESSENTRY32W>() as u32, ..Default::default() };
    let mut found = Vec::new();
    // SAFETY: the snapshot is open, and the entry says its own size.
    let mut more = unsafe { Process32FirstW(snapshot.0, &raw mut entry) };
    while more != 0 {
        found.push(entry);
        // SAFETY: as above.
        more = unsafe { Process32NextW(snapshot.0, &raw mut entry) };
    }
    Ok(found)
}

/// Nowhere: the `/proc` that Wine lets through is of the system below, which numbers processes otherwise.
pub fn proc_folder(_: u32) -> Option<PathBuf> {
    None
}

/// A process and those that it, and they, have started.
pub fn family(pid: u32) -> Vec<u32> {
    let all = all().unwrap_or_default();
    let mut found = vec![pid];
    let mut looked_at = 0;
    while let Some(&parent) = found.get(looked_at) {
        looked_at += 1;
        for entry in all.iter().filter(|entry| entry.th32ParentProcessID == parent) {
            if !found.contains(&entry.th32ProcessID) {
                found.push(entry.th32ProcessID);
            }
        }
    }
    found
}

/// Whether there is such a process.
pub fn is_there(pid: u32) -> bool {
    all().is_ok_and(|all| all.iter().any(|entry| entry.th32ProcessID == pid))
}

/// Processor time of a process so far, user and kernel.
///
/// # Errors
/// There is no such process, or it may not be asked.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    cpu_times(pid).map(|(user, kernel)| user + kernel)
}

/// Processor time of this process so far, in user mode and in the kernel.
///
/// # Errors
/// None that is known.
pub fn own_cpu_times() -> io::Result<(Duration, Duration)> {
    cpu_times(std::process::id())
}

fn cpu_times(pid: u32) -> io::Result<(Duration, Duration)> {
    // Wine answers with the times of the calling process; in its list of all processes they are right.
    if version::is_wine() && pid != std::process::id() {
        return times_in_list(pid);
    }
    let process = Owned::process(pid, PROCESS_QUERY_LIMITED_INFORMATION)?;
    let mut times = [FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 }; 4];
    let [made, gone, kernel, user] = &mut times;
    // SAFETY: the handle is open, and all four places outlive the call.
    good(unsafe { GetProcessTimes(process.0, made, gone, kernel, user) })?;
    let time = |at: FILETIME| of_ticks(u64::from(at.dwHighDateTime) << 32 | u64::from(at.dwLowDateTime));
    Ok((time(times[3]), time(times[2])))
}

/// Processor time of a process, user and kernel, from the list of all of them (`SYSTEM_PROCESS_INFORMATION`, 64 bits).
///
/// Its entries follow each other without regard to alignment under Wine.
fn times_in_list(pid: u32) -> io::Result<(Duration, Duration)> {
    let list = list()?;
    let word = |at: usize| Some(u64::from_ne_bytes(list.get(at..at + 8)?.try_into().ok()?));
    let mut at = 0;
    while let (Some(next), Some(id)) = (word(at), word(at + 0x50)) {
        if let (true, Some(user), Some(kernel)) = (id == u64::from(pid), word(at + 0x28), word(at + 0x30)) {
            return Ok((of_ticks(user), of_ticks(kernel)));
        }
        match next as u32 {
            0 => break,
            bytes => at += bytes as usize,
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// `NtQuerySystemInformation`, found at run time.
fn list() -> io::Result<Vec<u8>> {
    type Query = unsafe extern "system" fn(i32, *mut c_void, u32, *mut u32) -> NTSTATUS;
    const PROCESSES: i32 = 5; // SystemProcessInformation
    const MOST: usize = 64 << 20;
    if size_of::<usize>() != size_of::<u64>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let function = version::ntdll(c"NtQuerySystemInformation").ok_or(io::ErrorKind::Unsupported)?;
    // SAFETY: this is its signature (winternl.h).
    let query: Query = unsafe { std::mem::transmute(function) };
    let mut list = vec![0; 64 << 10];
    loop {
        let mut written = 0;
        // SAFETY: pointer and size describe the list, which outlives the call.
        match unsafe { query(PROCESSES, list.as_mut_ptr().cast(), list.len() as u32, &raw mut written) } {
            STATUS_INFO_LENGTH_MISMATCH if list.len() < MOST => list.resize(list.len() * 2, 0),
            status if status < 0 => return Err(super::status::outcome(status, 0).unwrap_err()),
            _ => return Ok(list),
        }
    }
}

/// Units of 100 ns.
fn of_ticks(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.saturating_mul(100))
}

/// Makes a child lead a new group, which [`end_group`] ends.
pub fn in_own_group(command: &mut Command) -> &mut Command {
    command.creation_flags(CREATE_NEW_PROCESS_GROUP)
}

/// Control groups are for Linux only.
///
/// # Errors
/// Always.
pub fn start_in_group(_: &mut Command, _: std::fs::File) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "control groups are for Linux only"))
}

/// Asks (Ctrl-Break) all processes of a group that have this console to end, or makes its leader and whom that has
/// started end; a group that has gone is no error.
///
/// # Errors
/// The group is 0, which would mean other processes than its own; or it has another console, or belongs to another
/// user.
pub fn end_group(group: u32, how: End) -> io::Result<()> {
    if group == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a process group started here"));
    }
    if how == End::Ask {
        return ask_to_end(group);
    }
    let mut outcome = Ok(());
    for pid in family(group).into_iter().filter(|&pid| is_there(pid)) {
        // SAFETY: the handle is open for the call.
        let ended = Owned::process(pid, PROCESS_TERMINATE)
            .and_then(|process| good(unsafe { TerminateProcess(process.0, 1) }));
        outcome = outcome.and(if is_there(pid) { ended } else { Ok(()) });
    }
    outcome
}

/// Asks a process that leads a group to end (Ctrl-Break).
///
/// # Errors
/// It leads none, or has another console.
pub fn ask_to_end(pid: u32) -> io::Result<()> {
    if pid == 0 {
        return Err(io::ErrorKind::InvalidInput.into()); // all that have this console
    }
    // SAFETY: no pointers.
    good(unsafe { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, pid) })
}

/// Permissions are for Unix only: all who can see the folder can read it.
///
/// # Errors
/// None.
pub fn open_to_all(_: &std::path::Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_memory_has_threads_and_takes_time() {
        let me = std::process::id();
        let usage = usage(me).unwrap();
        assert!(usage.user_bytes > 0 && usage.threads > 0, "{usage:?}");
        assert!(usage.kernel_bytes.is_some() || version::is_wine(), "{usage:?}");
        assert!(is_there(me) && family(me).contains(&me) && cpu_time(me).is_ok());
    }

    #[test]
    fn the_time_of_a_child_is_its_own() {
        let mut child = in_own_group(Command::new("cmd").args(["/c", "pause"]))
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cmd starts");
        let own = || cpu_time(std::process::id()).unwrap();
        let start = std::time::Instant::now();
        while own() < Duration::from_millis(300) && start.elapsed() < Duration::from_secs(60) {
            std::hint::spin_loop(); // this process works, and the child waits
        }
        let (at_least, of_child) = (own(), cpu_time(child.id()).unwrap());
        end_group(child.id(), End::Kill).unwrap();
        child.wait().unwrap();
        assert!(of_child < at_least, "{of_child:?} of a child that waits, {at_least:?} of this process");
    }

    #[test]
    fn a_child_of_the_family_is_ended() {
        let mut child = in_own_group(Command::new("cmd").args(["/c", "pause"]))
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cmd starts");
        assert!(family(std::process::id()).contains(&child.id()));
        end_group(child.id(), End::Kill).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(end_group(0, End::Kill).is_err());
    }
}
