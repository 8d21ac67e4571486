//! What several modules here need to make a system call by way of the C library.

use std::io;
use std::time::Duration;

/// Whether a call failed that answers -1 then, and why.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// The number of bytes that a call answers, or -1.
pub(crate) fn count(returned: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Again after a signal.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// A time limit; lifetimes of machines are cut to 68 years, which any system can count.
#[cfg(target_os = "linux")]
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().min(i32::MAX as u64) as _, tv_nsec: time.subsec_nanos() as _ }
}

/// Waits as `poll(2)` does; a signal is an error. On Linux to the nanosecond, elsewhere to the millisecond above.
#[cfg(target_os = "linux")]
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let length = entries.len() as libc::nfds_t;
    // SAFETY: pointer and length describe the slice, of which only `revents` are written; `timeout` is null or points
    // to a time that outlives the call; no signal mask is given.
    let n = unsafe { libc::ppoll(entries.as_mut_ptr(), length, timeout, std::ptr::null()) };
    Ok(check(n)? as usize)
}

/// Waits as `poll(2)` does; a signal is an error. On Linux to the nanosecond, elsewhere to the millisecond above.
#[cfg(not(target_os = "linux"))]
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    super::poll::wait_in_ms(entries, timeout)
}
