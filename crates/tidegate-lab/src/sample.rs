//! What a process uses while it is measured, from `/proc` (`proc(5)`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

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
    /// Most kernel memory of its sockets, in KiB; `None` where it can not be read.
    pub kernel_memory_kib: Option<u64>,
    /// Most threads.
    pub threads: u64,
}

/// Watches a process until told to stop.
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
    #[must_use]
    pub fn start(pid: u32, port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut peaks = Peaks::default();
            loop {
                let last = told.load(Relaxed);
                peaks.look(pid, port);
                if last {
                    return peaks;
                }
                std::thread::park_timeout(EVERY);
            }
        });
        Self { stop, thread, begun: Instant::now(), cpu_s: cpu_s(pid), window: None, pid }
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
        let status = status(pid);
        self.user_memory_kib = self.user_memory_kib.max(field(&status, "RssAnon:").unwrap_or(0));
        self.threads = self.threads.max(field(&status, "Threads:").unwrap_or(0));
        let kernel = kernel_memory::of_port(port).ok().map(|sockets| sockets.bytes / 1024);
        self.kernel_memory_kib = self.kernel_memory_kib.max(kernel);
    }
}

/// What a server holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Held {
    /// Resident memory that is not backed by files, in bytes.
    pub(crate) user_bytes: u64,
    /// Its sockets; `None` where the kernel can not be asked.
    pub(crate) sockets: Option<Sockets>,
    /// Its threads.
    pub(crate) threads: u64,
}

impl Held {
    /// By process `pid`, a server that listens on `port`. Costs a walk through its pages and its sockets.
    pub(crate) fn by(pid: u32, port: u16) -> Self {
        let status = status(pid);
        // RssAnon may be behind by some pages for each processor (`proc_pid_status(5)`); smaps_rollup counts them.
        let pages = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let user_kib = field(&pages, "Anonymous:").or_else(|| field(&status, "RssAnon:")).unwrap_or(0);
        Self {
            user_bytes: user_kib * 1024,
            sockets: kernel_memory::of_port(port).ok(),
            threads: field(&status, "Threads:").unwrap_or(0),
        }
    }
}

fn status(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

fn field(status: &str, name: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// Processor time of a process so far, in seconds; 0 if it is gone.
#[must_use]
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks(&stat) as f64 / tidegate::system::clock_ticks_per_s() as f64
}

/// User and kernel time of a `/proc/PID/stat` line. Its second field is a name in parentheses that may hold anything.
fn ticks(stat: &str) -> u64 {
    let after_name = stat.rsplit(')').next().unwrap_or("");
    after_name.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_by_name_and_place() {
        let stat = "77 (a) b (c)) S 1 77 77 0 -1 4194560 100 0 0 0 250 50 3 4 20 0 5 0 100 1000 200";
        assert_eq!(ticks(stat), 300);
        assert_eq!(ticks(""), 0);
        let status = "Name:\tx\nRssAnon:\t    1234 kB\nThreads:\t7\n";
        assert_eq!(
            (field(status, "RssAnon:"), field(status, "Threads:"), field(status, "No:")),
            (Some(1234), Some(7), None)
        );
    }
}
