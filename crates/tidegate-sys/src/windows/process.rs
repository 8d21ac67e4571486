//! Processors, limits and facts of the system.

use std::io;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, FILETIME};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessAffinityMask, GetProcessTimes, OpenProcess,
    PROCESS_QUERY_LIMITED_INFORMATION, SetProcessAffinityMask,
};

/// The soft and the hard limit on open descriptors: Windows has none; what bounds sockets is memory.
pub fn descriptor_limit() -> (u64, u64) {
    (u64::MAX, u64::MAX)
}

/// There is no limit to raise.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    Ok(u64::MAX)
}

/// How many bytes this process may lock in memory: what its working set can be raised to, which shows when it is tried.
pub fn locked_memory_limit() -> Option<u64> {
    None
}

/// Threads that this process can have before starting one more may kill it: a failed start is just an error here.
pub fn most_threads() -> Option<usize> {
    None
}

fn system_info() -> SYSTEM_INFO {
    // SAFETY: a structure of integers and pointers that nobody follows: all zeroes are a value.
    let mut info = unsafe { std::mem::zeroed() };
    // SAFETY: writes one SYSTEM_INFO.
    unsafe { GetSystemInfo(&raw mut info) };
    info
}

/// Bytes of a page of memory.
pub fn page_bytes() -> usize {
    system_info().dwPageSize as usize
}

/// Ticks a second of the system's accounting of processor time (`FILETIME`: 100 ns).
pub fn clock_ticks_per_s() -> u64 {
    10_000_000
}

/// How processes are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// They may clean up.
    Ask,
    /// At once.
    Kill,
}

/// Lets threads sleep as long as they ask for: this system knows no slack that a thread may set.
///
/// # Errors
/// None.
pub fn exact_sleeps() -> io::Result<()> {
    Ok(())
}

/// Processor time of a process so far, user and kernel.
///
/// # Errors
/// There is no such process, or it may not be asked.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    // SAFETY: no pointers; the handle is closed below.
    let process = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) };
    if process.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut times = [FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 }; 4];
    let [made, gone, kernel, user] = &mut times;
    // SAFETY: the handle is open, and all four places outlive the call.
    let asked = unsafe { GetProcessTimes(process, made, gone, kernel, user) };
    let outcome = if asked == 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: opened above, and nobody else has it.
    unsafe { CloseHandle(process) };
    outcome?;
    let ticks = |time: &FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    Ok(Duration::from_nanos((ticks(&times[2]) + ticks(&times[3])) * 100))
}

/// Groups of processes are for Unix only.
///
/// # Errors
/// Always.
pub fn end_group(_: u32, _: End) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// To ask a process to end takes a signal, which only Unix has.
///
/// # Errors
/// Always.
pub fn ask_to_end(_: u32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Name and release of the system.
pub fn system_name() -> String {
    super::version::name()
}

/// The processors the calling thread may run on: those of the process, in its processor group.
pub fn allowed_cpus() -> Vec<usize> {
    let (mut of_process, mut of_system) = (0usize, 0usize);
    // SAFETY: the handle of the process itself is always valid, and both places outlive the call.
    let known =
        unsafe { GetProcessAffinityMask(GetCurrentProcess(), &raw mut of_process, &raw mut of_system) };
    if known == 0 || of_process == 0 {
        return (0..std::thread::available_parallelism().map_or(1, Into::into)).collect();
    }
    (0..usize::BITS as usize).filter(|cpu| of_process >> cpu & 1 == 1).collect()
}

/// Keeps the whole process on the given processors of its group: threads do not inherit a place from who starts them.
pub fn pin_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut mask = 0usize;
    for &cpu in cpus {
        let bit = u32::try_from(cpu).ok().and_then(|cpu| 1usize.checked_shl(cpu));
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("no processor {cpu}"));
        mask |= bit.ok_or_else(wrong)?;
    }
    // SAFETY: the handle of the process itself is always valid.
    let kept = unsafe { SetProcessAffinityMask(GetCurrentProcess(), mask) };
    if kept == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
