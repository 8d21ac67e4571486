//! Processors, limits and facts of the system.

use std::io;

use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessAffinityMask, SetProcessAffinityMask,
};

pub use super::family::{
    End, ProcessUsage, ask_to_end, cpu_time, end_group, family, in_own_group, is_there, open_to_all,
    own_cpu_times, proc_folder, start_in_group, usage,
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

fn system_info() -> SYSTEM_INFO {
    // SAFETY: a structure of integers and pointers that nobody follows: all zeroes are a value.
    let mut info = unsafe { std::mem::zeroed() };
    // SAFETY: writes one SYSTEM_INFO.
    unsafe { GetSystemInfo(&raw mut info) };
    info
}

/// There is no such signal here.
pub fn ignores_hangup() -> bool {
    false
}

/// Bytes of a page of memory.
pub fn page_bytes() -> usize {
    system_info().dwPageSize as usize
}

/// Ticks a second of the system's accounting of processor time (`FILETIME`: 100 ns).
pub fn clock_ticks_per_s() -> u64 {
    10_000_000
}

/// Memory of the machine, all of it and what can be had now, in bytes.
pub fn memory_bytes() -> Option<(u64, u64)> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: the structure says its own size, and outlives the call.
    let known = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    (known != 0).then_some((status.ullTotalPhys, status.ullAvailPhys))
}

/// Lets threads sleep as long as they ask for: this system knows no slack that a thread may set.
///
/// # Errors
/// None.
pub fn exact_sleeps() -> io::Result<()> {
    Ok(())
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

/// Nothing: the heaps of this system give freed memory back by themselves.
pub fn trim_heap() {}

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
