//! The guard of each case: a case that hangs ends the whole run with its name, rather than hanging CI. A long case of
//! many steps tells of each, so that only a step has a limit: the whole may take long on a machine that is busy.
#![allow(dead_code, reason = "tests that have no case of many steps share it")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A time that is long for a machine of its own, times `TIDEGATE_PATIENCE` where the system is not real.
pub fn slow(time: Duration) -> Duration {
    let factor = std::env::var("TIDEGATE_PATIENCE").ok().and_then(|text| text.parse().ok());
    time * factor.unwrap_or(1)
}

/// Generous, because continuous integration is slow and shared.
fn limit() -> Duration {
    slow(Duration::from_secs(60))
}

/// While it lives, the time of a case runs. Past the limit the process is aborted, unless there was progress.
pub struct Deadline {
    _ended: Sender<()>,
    progress: Progress,
}

/// The steps of a case, for any of its threads.
#[derive(Clone, Default)]
pub struct Progress(Arc<AtomicUsize>);

impl Progress {
    /// One more step: the time begins anew.
    pub fn step(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Deadline {
    /// Starts the time of the case with this name.
    pub fn new(case: String) -> Self {
        let (ended, over) = channel();
        let limit = limit();
        let progress = Progress::default();
        let steps = progress.clone();
        let watch = move || {
            let mut before = 0;
            while over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                let now = steps.0.load(Relaxed);
                if now == before {
                    // Not `eprintln!`: the test harness would keep the line to itself.
                    let line = format!("\n{case} has made no progress for {limit:?}: the run is aborted\n");
                    let _ = std::io::stderr().write_all(line.as_bytes());
                    std::process::abort();
                }
                before = now;
            }
        };
        std::thread::Builder::new().name("deadline".into()).spawn(watch).expect("a thread");
        Self { _ended: ended, progress }
    }

    /// To tell of steps.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}
