//! What a process uses while it is measured, as the system counts it: `/proc` (`proc(5)`), or the accounting of
//! Windows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tidegate_load::cpu_time::{cpu_s, family_ids, in_proc};

use crate::LabError;
use crate::kernel_memory::{self, Sockets};

/// What a server used over a measuring window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time, user and kernel, in seconds.
    pub cpu_s: f64,
    /// The same as a percentage of one processor over the window.
    pub cpu_percent: f64,
    /// Length of the window in seconds.
    pub window_s: f64,
    /// Most resident memory that is not backed by files, in KiB.
    pub user_memory_kib: u64,
    /// Most kernel memory of its sockets, in KiB; `None` where it cannot be read.
    pub kernel_memory_kib: Option<u64>,
    /// Most threads.
    pub threads: u64,
}

/// Watches a process until asked to stop.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Peaks>,
    begun: Instant,
    cpu_s: f64,
    /// Length of the window and processor time used in it, once it has ended.
    window: Option<(f64, f64)>,
    pid: u32,
}

#[derive(Default)]
struct Peaks {
    user_memory_kib: u64,
    kernel_memory_kib: Option<u64>,
    threads: u64,
}

/// How often a process is looked at. Memory and threads change slowly; processor time is read at both ends.
const EVERY: Duration = Duration::from_millis(200);

impl Sampler {
    /// Begins to watch process `pid`, a server that listens on `port`.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn start(pid: u32, port: u16) -> Result<Self, LabError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let watch = move || {
            let mut peaks = Peaks::default();
            loop {
                let last = stopped.load(Relaxed);
                peaks.look(pid, port);
                if last {
                    return peaks;
                }
                std::thread::park_timeout(EVERY);
            }
        };
        let thread = crate::process::start_thread("watch", watch)?;
        Ok(Self { stop, thread, begun: Instant::now(), cpu_s: cpu_s(pid), window: None, pid })
    }

    /// Ends the window for processor time; memory and threads are watched on.
    pub fn end_window(&mut self) {
        let used = (cpu_s(self.pid) - self.cpu_s).max(0.0);
        self.window.get_or_insert((self.begun.elapsed().as_secs_f64(), used));
    }

    /// Stops watching.
    #[must_use]
    pub fn stop(mut self) -> Usage {
        self.end_window();
        let (window_s, cpu_s) = self.window.unwrap_or_default();
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        let peaks = self.thread.join().unwrap_or_default();
        Usage {
            cpu_s,
            cpu_percent: 100.0 * cpu_s / window_s.max(1e-9),
            window_s,
            user_memory_kib: peaks.user_memory_kib,
            kernel_memory_kib: peaks.kernel_memory_kib,
            threads: peaks.threads,
        }
    }
}

impl Peaks {
    fn look(&mut self, pid: u32, port: u16) {
        let usage = tidegate_os::process::usage(pid).unwrap_or_default(); // it may be gone
        self.user_memory_kib = self.user_memory_kib.max(usage.user_bytes / 1024);
        self.threads = self.threads.max(usage.threads);
        let of_sockets = || kernel_memory::of_port(port).ok().and_then(|sockets| sockets.bytes());
        let kernel = usage.kernel_bytes.or_else(of_sockets).map(|bytes| bytes / 1024);
        self.kernel_memory_kib = self.kernel_memory_kib.max(kernel);
    }
}

/// What a server holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ServerUsage {
    /// Resident memory that is not backed by files, in bytes.
    pub(crate) user_bytes: u64,
    /// Kernel memory of its sockets, or all that the system counts for it, in bytes; `None` where it cannot be asked.
    pub(crate) kernel_bytes: Option<u64>,
    /// Its sockets; `None` where the kernel cannot be asked.
    pub(crate) sockets: Option<Sockets>,
    /// Its threads.
    pub(crate) threads: u64,
}

impl ServerUsage {
    /// By process `pid`, a server that listens on `port`. Costs a walk through its pages and its sockets.
    pub(crate) fn by(pid: u32, port: u16) -> Self {
        let usage = tidegate_os::process::usage(pid).unwrap_or_default(); // it may be gone
        // RssAnon may be behind by some pages for each processor (`proc_pid_status(5)`); smaps_rollup counts them.
        let pages = in_proc(pid, "smaps_rollup").unwrap_or_default();
        let user_bytes = field(&pages, "Anonymous:").map_or(usage.user_bytes, |kib| kib * 1024);
        let sockets = kernel_memory::of_port(port).ok();
        let kernel_bytes = usage.kernel_bytes.or_else(|| sockets.and_then(|sockets| sockets.bytes()));
        Self { user_bytes, kernel_bytes, sockets, threads: usage.threads }
    }
}

/// The most resident memory that a process and those it started had at any time, in bytes; `None` where it cannot be
/// asked.
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    let of = |member| field(&in_proc(member, "status")?, "VmHWM:");
    let kib: Vec<u64> = family_ids(pid).into_iter().filter_map(of).collect();
    (!kib.is_empty()).then(|| kib.iter().sum::<u64>() * 1024)
}

/// Bytes that a process has had read from disks so far (`proc_pid_io(5)`); `None` where it cannot be asked.
pub(crate) fn read_from_disk(pid: u32) -> Option<u64> {
    field(&in_proc(pid, "io")?, "read_bytes:")
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_by_name() {
        assert_eq!(field("Rss:  9 kB\nAnonymous:   1234 kB\n", "Anonymous:"), Some(1234));
    }
}
