//! CPU usage of a process's threads, from `/proc` (`proc_pid_schedstat`: time run and time waited for a processor, in
//! nanoseconds). A mean over all threads would hide a saturated one, so the busiest one counts.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Processes with more threads are not sampled: it would take too long.
const MOST: usize = 512;

/// Shares of the window, 0 to 1, of the busiest thread of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// It ran.
    pub ran: f64,
    /// It was runnable, but waited for a processor.
    pub waited: f64,
}

impl Share {
    /// The busiest of these; `None` of none.
    pub(crate) fn busiest(shares: impl Iterator<Item = Self>) -> Option<Self> {
        shares.max_by(|a, b| a.wanted().total_cmp(&b.wanted()))
    }

    /// It ran or was runnable.
    #[must_use]
    pub fn wanted(&self) -> f64 {
        self.ran + self.waited
    }
}

/// Time run and waited of each thread.
#[derive(Debug, Default)]
pub(crate) struct Sample(HashMap<String, (u64, u64)>);

/// Samples a process and its children; `None` is this process alone. Empty if unknown.
pub(crate) fn sample(pid: Option<u32>) -> Sample {
    let mut times = HashMap::new();
    if tidegate_os::process::proc_folder(std::process::id()).is_none() {
        return Sample::default();
    }
    let mut processes = vec![pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string())];
    while let Some(process) = processes.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten().take(MOST + 1) {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            if let Some(times_of_it) = ran_and_waited(&read("schedstat")) {
                times.insert(thread.file_name().to_string_lossy().into_owned(), times_of_it);
            }
            if pid.is_some() {
                processes.extend(read("children").split_whitespace().map(ToOwned::to_owned));
            }
        }
        if times.len() > MOST {
            return Sample::default();
        }
    }
    Sample(times)
}

/// The first two numbers of `schedstat`.
fn ran_and_waited(schedstat: &str) -> Option<(u64, u64)> {
    let mut numbers = schedstat.split_whitespace().map_while(|n| n.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// The calling thread, which has lived for `length`; `None` if unknown.
pub(crate) fn this_thread(length: Duration) -> Option<Share> {
    tidegate_os::process::proc_folder(std::process::id())?;
    let (ran, waited) = ran_and_waited(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)?;
    let part = |ns: u64| ns as f64 / length.as_nanos().max(1) as f64;
    Some(Share { ran: part(ran), waited: part(waited) })
}

impl Sample {
    /// The busiest thread between this sample and `end`; `None` if unknown.
    pub(crate) fn until(&self, end: &Self, length: Duration) -> Option<Share> {
        if self.0.is_empty() {
            return None; // it had too many threads to be looked at: what they ran before is not known
        }
        let of = |ns: u64, before: u64| ns.saturating_sub(before) as f64 / length.as_nanos().max(1) as f64;
        let shares = end.0.iter().map(|(thread, &(ran, waited))| {
            let before = self.0.get(thread).copied().unwrap_or_default();
            Share { ran: of(ran, before.0), waited: of(waited, before.1) }
        });
        Share::busiest(shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_process_that_was_not_looked_at_nothing_is_known() {
        let now = Sample(HashMap::from([("1".into(), (5_000_000_000, 0))]));
        let length = Duration::from_secs(1);
        assert_eq!(Sample::default().until(&now, length), None, "not what it ran in all its life");
        assert_eq!(now.until(&Sample::default(), length), None);
        assert_eq!(now.until(&now, length), Some(Share::default()));
    }
}
