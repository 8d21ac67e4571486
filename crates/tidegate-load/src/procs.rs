//! How busy the threads of a process are, from `/proc` (`proc_pid_schedstat`: time run and time waited for a processor,
//! in nanoseconds). A mean over all threads would hide one that is at its end, so the busiest one counts.

use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate::system;

/// More threads than this are not looked at: it would take longer than what is to be seen.
const MOST: usize = 512;

/// Shares of the window, 0 to 1, of the busiest thread of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// It ran.
    pub ran: f64,
    /// It could have run, but other work had its processor.
    pub waited: f64,
}

impl Share {
    /// It ran, or would have.
    #[must_use]
    pub fn wanted(&self) -> f64 {
        self.ran + self.waited
    }
}

/// Time run and waited of each thread.
#[derive(Debug, Default)]
pub(crate) struct Sample(HashMap<String, (u64, u64)>);

/// Looks at a process and those it has started; `None` is this one alone. Empty if the system does not tell.
pub(crate) fn sample(pid: Option<u32>) -> Sample {
    let mut times = HashMap::new();
    if system::proc_folder(std::process::id()).is_none() {
        return Sample::default();
    }
    let mut processes = vec![pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string())];
    while let Some(process) = processes.pop() {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten().take(MOST + 1) {
            let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
            let text = read("schedstat");
            let mut numbers = text.split_whitespace().map_while(|n| n.parse().ok());
            if let (Some(ran), Some(waited)) = (numbers.next(), numbers.next()) {
                times.insert(thread.file_name().to_string_lossy().into_owned(), (ran, waited));
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

impl Sample {
    /// What the busiest thread did from here to `end`; `None` if that is not known.
    pub(crate) fn until(&self, end: &Self, length: Duration) -> Option<Share> {
        let of = |ns: u64, before: u64| ns.saturating_sub(before) as f64 / length.as_nanos().max(1) as f64;
        let shares = end.0.iter().map(|(thread, &(ran, waited))| {
            let before = self.0.get(thread).copied().unwrap_or_default();
            Share { ran: of(ran, before.0), waited: of(waited, before.1) }
        });
        shares.max_by(|a, b| a.wanted().total_cmp(&b.wanted()))
    }
}
